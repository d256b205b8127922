"""What is reported of a run: each event and figure goes to its status, its log, its user's terminal and its followers.

What always holds: all of them hear the same events in the same order, in the driver's thread.
"""

from __future__ import annotations

import time
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
from snapshot.host.protocol.messages import Figures, Followed

_OF_A_ROLLBACK: Final = AbandonReason.ATTEMPT_BROKEN.value


class Reporting:
    """Of one run. `now` is the driver's clock, in seconds; `followers` are called with each event, last of all."""

    def __init__(
        self,
        settings: JobSettings,
        events: EventLog,
        progress: ProgressLine,
        give_up_after: float | None,
        now: Callable[[], float],
    ) -> None:
        self._progress = progress
        self._now = now
        self._logger = JobLogger(settings.job)
        self.events = events
        self.status = StatusBoard(settings.job, settings.parallelism)
        self.overdue = Overdue(
            settings.coordinator.interval / 1000, settings.host.report_stall_after / 1000, give_up_after
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
        self.event(log.Trouble(at=time.time(), what=what, reason=told))

    def figures(self, figures: Figures) -> None:
        """Show a partition's figures in the status, and report rows that it has left out since the last ones."""
        known = self.status.show().figures.get(figures.partition)
        self.status.figures(figures)
        for uid, stage in figures.stages.items():
            before = 0 if known is None or uid not in known.stages else known.stages[uid].bad_rows
            if stage.bad_rows > before:
                self.event(
                    log.BadRows(
                        at=time.time(),
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
            case log.AttemptFailed():
                self.overdue.attempt_over()
            case log.EpochAbandoned(reason=reason, detail=detail) if reason != _OF_A_ROLLBACK:
                self.overdue.abandoned(f"{reason}: {detail}" if detail else reason)
            case _:
                pass
