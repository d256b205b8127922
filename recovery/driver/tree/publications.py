"""What the coordinator has the store told: epochs are published, noted as committed, and removed.

What always holds: all of it goes through one thread, in order; `journal` is what the last answer said. A removal is
planned when the coordinator wants it, and one is under way at a time. After `close` nothing more is heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from recovery.driver.tree.manifests import DriversPart
from recovery.driver.tree.owned import PublicationDone, PublicationFailed, Removal, RemovalDone, Tree
from snapshot.epochs.coordinator_events import Publish
from snapshot.host.net.event_loop import Background
from snapshot.host.protocol.messages import Acknowledgement
from snapshot.journal.state import JournalState
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import Inline, StoredFile
from statebackend.ids import Epoch, Uid


class Publishing(Protocol):
    """Who hears what the store has done, in the loop's thread."""

    def published(self, epoch: Epoch, *, pinned: bool) -> None:
        """Take note that the epoch is complete; `pinned` if it is a savepoint."""

    def not_published(self, epoch: Epoch, reason: str) -> None:
        """Take note that the epoch is not complete, and never will be."""

    def committed(self, epoch: Epoch) -> None:
        """Take note that all that the epoch carries is noted as committed."""

    def removed(self, removal: Removal) -> None:
        """Take note that these epochs are gone, and that the files that were theirs alone may be deleted."""

    def journal_failed(self, error: BaseException) -> None:
        """Take note that the journal takes nothing, or that another generation has it."""


class Publications:
    """Of one generation; `most_inline` bytes of broadcast state may be in a manifest."""

    def __init__(self, tree: Tree, in_order: Background, most_inline: int, hears: Publishing) -> None:
        self._tree = tree
        self._in_order = in_order
        self._most_inline = most_inline
        self._hears = hears
        self._parts: dict[Epoch, DriversPart] = {}
        self._removing = False
        self._closed = False
        self.journal = tree.state

    def triggered(self, epoch: Epoch, part: DriversPart) -> None:
        """Keep what the driver knows at the moment in which the epoch begins; its broadcast state comes later."""
        self._parts[epoch] = part

    def given_up(self, epoch: Epoch) -> None:
        """Forget an epoch that will not be complete."""
        self._parts.pop(epoch, None)

    def publish(self, publish: Publish[Acknowledgement], notes: Json) -> None:
        """Make an epoch complete that all partitions have acknowledged; the notes are for people."""
        epoch, tree, known, most = publish.epoch, self._tree, self._parts.pop(publish.epoch), self._most_inline

        def part(broadcast: Mapping[Uid, StoredFile | Inline]) -> DriversPart:
            return replace(known, broadcast=broadcast, notes=notes)

        def said(outcome: PublicationDone | PublicationFailed | BaseException) -> None:
            if self._closed:
                return
            match outcome:
                case PublicationDone(state=state, pinned=pinned):
                    self.journal = state
                    self._hears.published(epoch, pinned=pinned)
                case PublicationFailed(reason):
                    self._hears.not_published(epoch, reason)
                case BaseException():
                    self._hears.journal_failed(outcome)

        self._in_order.submit(lambda: tree.publish(publish, part, most), said)

    def record_committed(self, epoch: Epoch) -> None:
        """Note that all that the epoch carries is committed."""
        tree = self._tree
        self._in_order.submit(lambda: tree.record_committed(epoch), self._said(lambda: self._hears.committed(epoch)))

    def remove(self, retain: int, oldest_base: Epoch | None) -> None:
        """Plan the removal now, as later an epoch may be in flight of which the coordinator did not know."""
        tree = self._tree
        planned = None if self._removing else tree.plan_removal(self.journal, retain, oldest_base)
        if planned is None:
            return
        self._removing = True

        def said(outcome: RemovalDone | BaseException) -> None:
            self._removing = False
            if self._closed:
                return
            if isinstance(outcome, BaseException):
                self._hears.journal_failed(outcome)
                return
            self.journal = outcome.state
            if outcome.removal is not None:
                tree.forget(outcome.removal.epochs)
                self._hears.removed(outcome.removal)

        self._in_order.submit(lambda: tree.remove(planned), said)

    def compacted(self, up_to: int) -> None:
        """Forget the removals up to this entry: the journal begins after it, and all that it let go is deleted."""
        tree = self._tree
        self._in_order.submit(lambda: tree.forget_removals(up_to), self._said(lambda: None))

    def _said(self, then: Callable[[], object]) -> Callable[[JournalState | BaseException], None]:
        """Return a callback that takes what the journal says now, and calls `then`, unless the generation is over."""

        def said(outcome: JournalState | BaseException) -> None:
            if self._closed:
                return
            if isinstance(outcome, BaseException):
                self._hears.journal_failed(outcome)
            else:
                self.journal = outcome
                then()

        return said

    def close(self) -> None:
        """Report nothing any more: the generation is over."""
        self._closed = True
