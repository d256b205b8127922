"""The reports of a run: each event and figure goes to its status, its log, its user's terminal and its followers.

Invariant: all of them hear the same events in the same order, in the driver's thread. A short failure of the
store is not reported, a long one now and then, and its end once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from recovery import events as log
from recovery.driver.report.event_log import EventLog
from recovery.driver.report.logs import JobLogger
from recovery.driver.report.overdue import Overdue
from recovery.driver.report.progress import ProgressLine
from recovery.driver.report.status import StatusBoard
from recovery.driver.settings.job import JobSettings
from snapshot.epochs.coordinator_events import AbandonReason
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.messages import Figures, Followed
from statebackend import means
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobStoreError

_OF_A_ROLLBACK: Final = AbandonReason.ATTEMPT_BROKEN.value
_SHORT: Final = 1.0
"""Seconds of a store's failure of which nothing is said."""
_NOW_AND_THEN: Final = 10.0
"""Seconds until it is said again that a store fails."""


class Reporting:
    """The reports of one run. `now` is the driver's clock, in seconds; `followers` are called last, with each event."""

    def __init__(
        self,
        settings: JobSettings,
        events: EventLog,
        progress: ProgressLine,
        now: Callable[[], float],
    ) -> None:
        self._progress = progress
        self._now = now
        self._logger = JobLogger(settings.job)
        self.events = events
        self.status = StatusBoard(settings.job, settings.parallelism, type(settings.scheme).__name__)
        options = settings.options
        give_up_after = None if options.give_up_after is None else options.give_up_after / 1000
        self.overdue = Overdue(
            options.coordinator.interval / 1000, options.host.report_stall_after / 1000, give_up_after
        )
        self.followers: list[Callable[[log.AnyEvent], object]] = []

    def event(self, event: log.AnyEvent) -> None:
        """Bring status, log, progress line and followers up to date with an event."""
        self.status.event(event)
        self.events.add(event)
        if self._logger.is_loud(event):
            self._progress.make_room()
        self._logger.say(event)
        self._watch(event)
        for follower in self.followers:
            follower(event)

    def trouble(self, what: str, reason: str | BaseException) -> None:
        """Report what does not work, or has failed and does not matter now."""
        told = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        self.event(log.Trouble(at=means.wall(), what=what, reason=told))

    def figures(self, figures: Figures) -> None:
        """Show a partition's figures in the status, and report rows that it has left out since the last ones."""
        known = self.status.show().figures.get(figures.partition)
        self.status.figures(figures)
        for uid, stage in figures.stages.items():
            before = 0 if known is None or uid not in known.stages else known.stages[uid].bad_rows
            if stage.bad_rows > before:
                self.event(
                    log.BadRows(
                        at=means.wall(),
                        partition=figures.partition,
                        uid=uid,
                        rows=stage.bad_rows - before,
                        in_attempt=stage.bad_rows,
                        last=stage.bad_row,
                    )
                )

    def followed(self, worker: str, followed: Followed) -> None:
        """Show in the status what a standby has answered."""
        self.status.followed(worker, followed)

    def _watch(self, event: log.AnyEvent) -> None:
        match event:
            case log.EpochTriggered():
                self.overdue.triggered(self._now())
            case log.EpochCompleted():
                self.overdue.completed(self._now())
            case log.AttemptFailed() | log.PartitionLost():  # no epoch is begun until it is back
                self.overdue.attempt_over()
            case log.EpochAbandoned(reason=reason, detail=detail) if reason != _OF_A_ROLLBACK:
                self.overdue.abandoned(f"{reason}: {detail}" if detail else reason)
            case _:
                pass


def watched_patience(seconds: float, loop: EventLoop, note: Callable[[log.Trouble], object]) -> Patience:
    """Return a patience that reports, in the loop's thread, on a store that fails, while the patience lasts."""
    watch = _StoreWatch(loop, note, seconds)
    return Patience(seconds, waiting=watch.waiting, answered=watch.answered)


class _StoreWatch:
    """Any thread may tell it something."""

    def __init__(self, loop: EventLoop, note: Callable[[log.Trouble], object], patience: float) -> None:
        self._loop = loop
        self._note = note
        self._patience = patience
        self._said_at: float | None = None

    def waiting(self, seconds: float, error: BlobStoreError) -> None:
        """Take note that the store has been failing for `seconds`."""
        self._loop.wake(lambda: self._fails(seconds, error))

    def answered(self, seconds: float) -> None:
        """Take note that the store answers again, after failing for `seconds`."""
        self._loop.wake(lambda: self._answers(seconds))

    def _fails(self, seconds: float, error: BlobStoreError) -> None:
        now = self._loop.now()
        if seconds >= _SHORT and (self._said_at is None or now - self._said_at >= _NOW_AND_THEN):
            self._said_at = now
            left = self._patience - seconds
            self._say(f"it has failed for {seconds:.1f} s, and is asked again for {left:.0f} s more: {error}")

    def _answers(self, seconds: float) -> None:
        if self._said_at is not None:
            self._said_at = None
            self._say(f"it does what it is asked again, after {seconds:.1f} s")

    def _say(self, text: str) -> None:
        self._note(log.Trouble(at=means.wall(), what="the store", reason=text))
