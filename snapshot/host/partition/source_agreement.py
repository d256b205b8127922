"""A member's part in what its partition's sources hand out: the agreement with its peers, and whom it concerns here.

Invariant: no rule is decided here. Sources and triggers propose, the agreement decides, and what was decided goes to
the source that it concerns, in order; a marker goes to all of them, and to the stages without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from snapshot.cut.frames import Marker
from snapshot.cut.pauses import Then
from snapshot.ids import Replica
from snapshot.replication.agreement import Agreement, AskToReadmit, Decided, Instruction, Message, Tell, View
from snapshot.replication.decisions import Decision, MarkerBehind, SourceEnd, SourceRound
from statebackend.ids import NO_EPOCH, Epoch, Uid


class AgreeingSource(Protocol):
    """The source of a stage, as far as its partition's members agree on it."""

    def decided(self, decision: Decision) -> None:
        """Hand out what was decided when it is here; decisions come in order."""

    def lead(self, waiting: Sequence[Decision]) -> None:
        """Propose rounds from now on, behind these, which were proposed and not decided yet."""

    @property
    def has_what_was_proposed(self) -> bool:
        """True if all rows of the rounds that were proposed have been read here."""

    def close_for(self, epoch: Epoch, then: Then) -> SourceRound | None:
        """Return the round that has all that was read, and note that the epoch is cut behind it; None at the end."""

    def drain(self) -> None:
        """End where the rows that were read end, as soon as this member leads."""


class SourceAgreement:
    """The sources of one member of a partition, in one attempt.

    `connect` comes before anything else. `send` brings a message to another replica, `cut` is told of each marker that
    was decided, and `wake` called when there is something to do for a source; `in_sync` is told of a member that has
    everything, in the view of a number. One that joins later begins at the place `first`.
    """

    def __init__(self, own: Replica, view: View, first: int = 0) -> None:
        self._agreement: Agreement[Decision] = Agreement(own, view, first)
        self._view = view
        self._sources: dict[Uid, AgreeingSource] = {}
        self._send: Callable[[Replica, Message[Decision]], object] = lambda _to, _message: None
        self._cut: Callable[[Marker], object] = lambda _: None
        self._wake: Callable[[], object] = lambda: None
        self._triggers: dict[Epoch, MarkerBehind] = {}  # of the driver, and not decided yet
        self._newest = NO_EPOCH  # of those that were proposed or decided
        self._in_sync: Callable[[Replica, int], object] = lambda _replica, _view: None
        self._admitting = 0

    def add(self, uid: Uid, source: AgreeingSource) -> None:
        """Take in a source of the partition."""
        self._sources[uid] = source

    def connect(
        self,
        send: Callable[[Replica, Message[Decision]], object],
        cut: Callable[[Marker], object],
        wake: Callable[[], object],
        in_sync: Callable[[Replica, int], object] = lambda _replica, _view: None,
    ) -> None:
        """Begin."""
        self._send, self._cut, self._wake, self._in_sync = send, cut, wake, in_sync

    @property
    def place(self) -> int:
        """Return the place behind the newest marker that admits others: where a process that joins there begins."""
        return self._admitting

    @property
    def leads(self) -> bool:
        """True if this member decides what a round has."""
        return self._agreement.is_primary

    @property
    def undecided(self) -> int:
        """Return how many decisions were proposed and not taken yet."""
        return len(self._agreement.undecided)

    @property
    def view(self) -> View:
        """Return the newest view that the driver has given."""
        return self._view

    def propose(self, decision: Decision) -> None:
        """Propose, as the member that leads."""
        self._carry_out(self._agreement.propose(decision))

    def triggered(self, marker: Marker, then: Then = Then.READ_ON) -> None:
        """Take the driver's word that an epoch begins: all members hear it, so that it is not lost with one of them."""
        if marker.epoch > self._newest:
            self._triggers[marker.epoch] = MarkerBehind(marker, then)
            self.propose_markers()

    def propose_markers(self) -> None:
        """Propose the markers that the driver wants, behind all that was read; later, if that is too early."""
        if not (self._triggers and self.leads):
            return
        if not all(source.has_what_was_proposed for source in self._sources.values()):
            return
        for epoch in sorted(self._triggers):
            trigger = self._triggers.pop(epoch)
            self._newest = epoch
            for source in self._sources.values():
                closing = source.close_for(epoch, trigger.then)
                if closing is not None:
                    self.propose(closing)
            self.propose(trigger)

    def viewed(self, view: View) -> None:
        """Take the driver's word on the members."""
        if view.number <= self._view.number:
            return
        led, self._view = self.leads, view
        self._carry_out(self._agreement.viewed(view))
        if self.leads and not led:
            self._lead()
        self.propose_markers()

    def heard(self, sender: Replica, message: Message[Decision]) -> None:
        """Take a message of another replica."""
        self._carry_out(self._agreement.heard(sender, message))

    def drain(self) -> None:
        """Let all sources end where they are."""
        for source in self._sources.values():
            source.drain()

    def _lead(self) -> None:
        waiting = self._agreement.undecided
        for decision in waiting:
            if isinstance(decision, MarkerBehind):
                self._passed(decision.marker.epoch)
        for uid, source in self._sources.items():
            source.lead([one for one in waiting if not isinstance(one, MarkerBehind) and one.uid == uid])

    def _passed(self, epoch: Epoch) -> None:
        self._newest = max(self._newest, epoch)
        self._triggers = {other: trigger for other, trigger in self._triggers.items() if other > epoch}

    def _carry_out(self, instructions: Sequence[Instruction[Decision]]) -> None:
        for instruction in instructions:
            match instruction:
                case Tell(to, message):
                    self._send(to, message)
                case Decided(place, decision):
                    self._decided(place, decision)
                case AskToReadmit(replica, view):
                    self._in_sync(replica, view)
        if instructions:
            self._wake()

    def _decided(self, place: int, decision: Decision) -> None:
        match decision:
            case SourceRound(uid) | SourceEnd(uid):
                self._sources[uid].decided(decision)
            case MarkerBehind(marker):
                self._passed(marker.epoch)
                if marker.admits:
                    self._admitting = place + 1
                for source in self._sources.values():
                    source.decided(decision)
                self._cut(marker)
