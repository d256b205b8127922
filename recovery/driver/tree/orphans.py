"""Deleting what attempts that are over have left in the tree: files of processes that were killed, or rolled back.

What always holds: what may go is decided by `recovery.decisions.cleanup` from the journal as it was before the listing,
and an orphan stays one; so nothing that somebody needs is deleted, however late that is, or by a driver that is fenced
meanwhile. When to look is decided by `recovery.decisions.cleanup`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from recovery import events as log
from recovery.decisions.cleanup import Sweeps
from recovery.driver.tree.owned import Swept, Tree
from snapshot.host.net.event_loop import Background, EventLoop, Timer
from snapshot.journal.state import JournalState
from statebackend.ids import Attempt, Incarnation


class Orphans:
    """Of one generation. All calls come in the loop's thread; `journal` says what the coordinator knows."""

    def __init__(
        self,
        loop: EventLoop,
        deleting: Background,
        tree: Tree,
        journal: Callable[[], JournalState],
        note: Callable[[log.AnyEvent], object],
    ) -> None:
        self._loop = loop
        self._deleting = deleting
        self._tree = tree
        self._journal = journal
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
        observed = self._tree.observed(self._journal(), self._attempt)
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
                log.OrphansDeleted(at=time.time(), files=swept.files, bytes=swept.bytes, unfinished=swept.unfinished)
            )
        if outcome.unexplained > self._unexplained:
            self._trouble(
                f"{outcome.unexplained} files of attempts that are over stay: they may belong to a complete epoch "
                "whose manifest cannot be read (`recovery verify` says which)"
            )
        self._unexplained = outcome.unexplained

    def _trouble(self, reason: str) -> None:
        self._note(log.Trouble(at=time.time(), what="deleting what attempts that are over have left", reason=reason))
