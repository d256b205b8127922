"""The policy of failures: the attempt is broken and begun anew, or the job given up with the best cause known.

Invariant: a report goes in, and its consequences come out, for the driver to carry out. Whether it is tried
again is decided by `recovery.decisions.restarts` alone; every broken attempt counts, also one that the coordinator
broke itself, but not one that was ended to move a partition.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from recovery.decisions.restarts import Cause, Death, Failure, GiveUp, Known, Restart, RestartLimit
from recovery.events import AttemptFailed, Trouble, WorkerDied
from snapshot.host.protocol.messages import Failed, FailureKind
from statebackend.errors import JobError
from statebackend.ids import Attempt, Incarnation, Partition

_BETTER_CAUSE: Final = 0.3
"""Seconds for which a failure without a cause of its own waits for one that explains it, before the job is given up."""
_CAUSES_OF_THEIR_OWN: Final = (Cause.PROGRAM, Cause.UNUSABLE, Cause.FORGED)
_SETTLE: Final = 0.01
"""Seconds between a broken channel and the next deployment: mostly a process is dead, whose connection says so soon."""


class JobFailed(JobError):
    """The job ended with an error; started again, it goes on from its last complete epoch."""

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(f"{reason}\n\n{traceback}".rstrip())
        self.reason = reason
        self.traceback = traceback


@dataclass(frozen=True, slots=True)
class BreakAttempt:
    """End the attempt; the next one may begin after so many seconds."""

    failure: Failure
    pause: float


@dataclass(frozen=True, slots=True)
class GiveUpJob:
    """End the job with this error, after so many seconds: a failure that explains it may be reported meanwhile."""

    error: JobFailed
    after: float = 0.0


Consequence = AttemptFailed | Trouble | BreakAttempt | GiveUpJob
"""An event to be noted, or what is to be done."""


class Failures:
    """Takes the reports of one driver. `now` is the time of its loop, `at` that of the day, both in seconds.

    `chance` is a random number from 0 to 1.
    """

    def __init__(self, limit: RestartLimit) -> None:
        self._limit = limit
        self._over: Incarnation | None = None
        self._planned: Incarnation | None = None
        self._giving_up = ""

    @property
    def suspects(self) -> Collection[Partition]:
        """Return the partitions whose processes have died again and again (see `RestartLimit.suspects`)."""
        return self._limit.suspects

    def completed(self) -> None:
        """Take note that an epoch was completed."""
        self._limit.completed()

    def planned(self, incarnation: Incarnation) -> None:
        """Take note that this attempt is about to be ended without a failure: its partitions' reports do not count."""
        self._over = self._planned = incarnation

    def is_planned(self, incarnation: Incarnation) -> bool:
        """True if this attempt was ended without a failure."""
        return incarnation == self._planned

    def restarts_alone(self, partition: Partition, failure: Failure, now: float, chance: float) -> bool:
        """Count the restart of a partition alone; return False if the attempt is to end (see `RestartLimit.alone`)."""
        return self._limit.alone(int(now * 1000), partition, failure, chance)

    def lost(self, partition: Partition) -> None:
        """Take note that a partition's process is gone."""
        self._limit.lost(partition)

    def died(self, death: Death, at: float) -> list[WorkerDied | GiveUpJob]:
        """Report how a lost process died; that may end the job, as the next process would die as well."""
        why = self._limit.died(death) or self._giving_up
        told = _told(death, at)
        return [told, GiveUpJob(JobFailed(f"{death} ({why})", death.stack))] if why else [told]

    def failed(self, failure: Failure, now: float, at: float, chance: float) -> list[Consequence]:
        """Decide what follows from a failure that a partition or its process reports."""
        if self.is_planned(failure.incarnation):
            return []
        if self._giving_up:
            explains = failure.cause in _CAUSES_OF_THEIR_OWN
            return [GiveUpJob(JobFailed(str(failure), failure.traceback))] if explains else []
        verdict, told = self._count(failure, now, at, chance)
        match verdict:
            case Restart(delay):
                settle = _SETTLE if failure.cause in (Cause.CHANNEL, Cause.FORGED) else 0.0
                return [*told, BreakAttempt(failure, max(delay / 1000, settle))]
            case GiveUp(reason):
                error = JobFailed(f"{failure} ({reason})", failure.traceback)
                if failure.cause in _CAUSES_OF_THEIR_OWN:
                    return [*told, GiveUpJob(error)]
                self._giving_up = reason
                return [*told, GiveUpJob(error, _BETTER_CAUSE)]
            case Known():
                return told

    def broken_by_coordinator(self, next_one: Incarnation, now: float, at: float, chance: float) -> list[Consequence]:
        """Count the attempt before `next_one` as failed, unless its end was reported: the coordinator broke it."""
        broken = before(next_one)
        if self._over is not None and self._over >= broken:
            return []
        failure = Failure(broken, Cause.EPOCHS, "more epochs in a row failed than are tolerated")
        verdict, told = self._count(failure, now, at, chance)
        if isinstance(verdict, GiveUp):
            return [*told, GiveUpJob(JobFailed(f"{failure} ({verdict.reason})"))]
        return told

    def _count(
        self, failure: Failure, now: float, at: float, chance: float
    ) -> tuple[Restart | GiveUp | Known, list[Consequence]]:
        verdict = self._limit.failed(int(now * 1000), failure, chance)
        if not isinstance(verdict, Known):
            self._over = failure.incarnation
            return verdict, [_event_of(failure, verdict, at)]
        if failure.cause is Cause.FORGED:  # the other end of the channel was heard first, and knows no cause
            return verdict, [Trouble(at=at, what="the network", reason=str(failure))]
        return verdict, []


def before(incarnation: Incarnation) -> Incarnation:
    """Return the attempt before this one."""
    return Incarnation(incarnation.generation, Attempt(incarnation.attempt - 1))


def failure_of(message: Failed) -> Failure:
    """Return a partition's message as a failure that can be counted."""
    match message.kind:
        case FailureKind.PROGRAM:
            cause = Cause.PROGRAM
        case FailureKind.UNUSABLE:
            cause = Cause.UNUSABLE
        case FailureKind.CHANNEL:
            cause = Cause.CHANNEL
        case FailureKind.FORGED:
            cause = Cause.FORGED
        case FailureKind.RESOURCE:
            cause = Cause.RESOURCE
    return Failure(message.incarnation, cause, message.reason, message.partition, message.uid, message.traceback)


def _told(death: Death, at: float) -> WorkerDied:
    at_work = death.at_work
    return WorkerDied(
        at=at,
        worker=death.worker,
        partition=death.partition,
        how=death.how,
        uid=None if at_work is None else at_work.uid,
        at_work="" if at_work is None else at_work.what,
        stack=death.stack,
    )


def _event_of(failure: Failure, verdict: Restart | GiveUp, at: float) -> AttemptFailed:
    return AttemptFailed(
        at=at,
        incarnation=failure.incarnation,
        partition=failure.partition,
        uid=failure.uid,
        cause=failure.cause.value,
        reason=failure.reason,
        traceback=failure.traceback,
        then="restart" if isinstance(verdict, Restart) else f"give up: {verdict.reason}",
    )
