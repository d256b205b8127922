"""Deleting beside the job: what a removal allows, and what attempts and epochs that are over left; a short journal.

Invariant: nothing is deleted that no won removal names, and that is no orphan. The journal forgets a removal
only when all that it names is gone. What cannot be deleted is tried again; what a crash leaves undone, the next start
takes up. However much there is to delete, nothing else waits for it. Which files are orphans, of processes that were
killed or rolled back or of epochs that were given up, is decided by `recovery.decisions.cleanup` from the journal as it
was before the listing, and an orphan stays one; so nothing is deleted that the job needs, however late that is, or by a
driver that is fenced meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from recovery import events as log
from recovery.decisions.cleanup import ObservedTree, Sweeps
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.owned import Removal, Swept, Tree
from snapshot.host.net.event_loop import Background, EventLoop, Timer
from snapshot.journal.state import JournalState
from statebackend import means
from statebackend.ids import Attempt, Incarnation

_PAUSES: Final = (1.0, 5.0, 30.0, 60.0)
"""Seconds before what could not be deleted is tried again."""


class Housekeeping:
    """The background work of one generation. All calls come in the loop's thread.

    `deleting` are threads for this alone. `on_compacted` is told behind which entry the journal begins now.
    """

    def __init__(
        self,
        settings: JobSettings,
        loop: EventLoop,
        deleting: Background,
        tree: Tree,
        note: Callable[[log.AnyEvent], object],
        on_compacted: Callable[[int], object],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._deleting = deleting
        self._tree = tree
        self._note = note
        self._on_compacted = on_compacted
        self._outstanding: set[int] = set()
        self._again: dict[int, Timer] = {}
        self._closed = False
        self._compacted_at = tree.state.number
        self._compacting = False

    def take_up(self, state: JournalState) -> None:
        """Go on with what the generations before have allowed and perhaps not done."""
        for removal in state.removals:
            self.delete(Removal(removal.number, removal.epochs, (*removal.files, *removal.manifests)), state)

    def close(self) -> None:
        """Begin nothing any more: the generation is over."""
        self._closed = True
        for timer in self._again.values():
            timer.cancel()

    def delete(self, removal: Removal, state: JournalState, tried: int = 0) -> None:
        """Delete what a won removal names; `state` is what the journal says now, `tried` how often this has failed."""
        self._outstanding.add(removal.number)

        def deleted(outcome: object) -> None:
            if self._closed:
                return
            if isinstance(outcome, BaseException):
                self._trouble("deleting files that are not needed", outcome)
                pause = _PAUSES[min(tried, len(_PAUSES) - 1)]
                self._again[removal.number] = self._loop.call_at(
                    self._loop.now() + pause, lambda: self.delete(removal, state, tried + 1)
                )
                return
            self._again.pop(removal.number, None)
            self._outstanding.discard(removal.number)
            self._note(log.EpochsRemoved(at=means.wall(), epochs=removal.epochs, files=len(removal.paths)))
            self._compact_if_due(state)

        self._deleting.submit(partial(self._tree.delete, removal.paths), deleted)

    def _compact_if_due(self, state: JournalState) -> None:
        """Compact the journal, if due, up to `state`: what it said when the removal just carried out was won.

        A summary could not forget earlier removals that are not carried out; of later ones there may always be some.
        """
        outstanding = any(number <= state.number for number in self._outstanding)
        if outstanding or self._compacting or state.number - self._compacted_at < self._settings.options.compact_after:
            return
        self._compacting = True

        def compacted(outcome: object) -> None:
            self._compacting = False
            if isinstance(outcome, BaseException):
                self._trouble("compacting the journal", outcome)
            else:
                self._compacted_at = state.number
                self._on_compacted(state.number)

        self._deleting.submit(lambda: self._tree.compact(state, state.number), compacted)

    def _trouble(self, what: str, error: BaseException) -> None:
        self._note(log.Trouble(at=means.wall(), what=what, reason=f"{type(error).__name__}: {error}"))


class Orphans:
    """The orphans of one generation. All calls come in the loop's thread; `observed` is what the driver knows."""

    def __init__(
        self,
        loop: EventLoop,
        deleting: Background,
        tree: Tree,
        observed: Callable[[Incarnation], ObservedTree],
        note: Callable[[log.AnyEvent], object],
    ) -> None:
        self._loop = loop
        self._deleting = deleting
        self._tree = tree
        self._observed = observed
        self._note = note
        self._sweeps = Sweeps()
        self._attempt = Incarnation(tree.generation, Attempt(0))
        self._timer: Timer | None = None
        self._unexplained = 0
        self._closed = False

    def attempt_runs(self, attempt: Incarnation) -> None:
        """Plan the next sweep, as all partitions of this attempt are restored."""
        self._attempt = attempt
        self._sweeps.attempt_runs(self._loop.now())
        self._wait()

    def attempt_over(self) -> None:
        """Begin no sweep until the next attempt runs, as this one is over."""
        self._sweeps.attempt_over()
        self._wait()

    def close(self) -> None:
        """Delete nothing more, but for a file whose deletion has begun: the generation is over."""
        self._closed = True
        self._wait()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = None if self._closed else self._sweeps.due
        self._timer = None if due is None else self._loop.call_at(due, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._sweeps.began(self._loop.now())
        observed = self._observed(self._attempt)
        self._deleting.submit(lambda: self._tree.sweep(observed, lambda: not self._closed), self._ended)

    def _ended(self, outcome: Swept | BaseException) -> None:
        if self._closed:
            return
        self._sweeps.ended(self._loop.now())
        self._wait()
        if isinstance(outcome, BaseException):
            self._trouble(f"{type(outcome).__name__}: {outcome}")
            return
        if outcome.files or outcome.unfinished:
            swept = outcome
            self._note(
                log.OrphansDeleted(at=means.wall(), files=swept.files, bytes=swept.bytes, unfinished=swept.unfinished)
            )
        if outcome.unexplained > self._unexplained:
            self._trouble(
                f"{outcome.unexplained} files of attempts that are over stay: they may belong to a complete epoch "
                "whose manifest cannot be read (`recovery verify` says which)"
            )
        self._unexplained = outcome.unexplained

    def _trouble(self, reason: str) -> None:
        self._note(log.Trouble(at=means.wall(), what="deleting what attempts have left in vain", reason=reason))
