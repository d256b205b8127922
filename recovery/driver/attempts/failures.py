"""What is done about a failure: the attempt is broken and begun anew, or the job given up with the best cause known.

What always holds: whether it is tried again is decided by `recovery.decisions.restarts` alone; every broken attempt
counts, also one that the coordinator broke itself, but not one that was ended to move a partition.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from typing import Final, Protocol

from recovery.decisions.restarts import Cause, Death, Failure, GiveUp, Known, Restart, RestartLimit
from recovery.events import AttemptFailed, Trouble, WorkerDied
from snapshot.host.net.event_loop import EventLoop
from snapshot.host.protocol.messages import Failed, FailureKind
from snapshot.readable import readable
from statebackend.ids import Attempt, Incarnation, Partition

_BETTER_CAUSE: Final = 0.3
"""Seconds for which a failure without a cause of its own waits for one that explains it, before the job is given up."""
_CAUSES_OF_THEIR_OWN: Final = (Cause.PROGRAM, Cause.UNUSABLE, Cause.FORGED)
_SETTLE: Final = 0.01
"""Seconds between a broken channel and the next deployment: mostly a process is dead, whose connection says so soon."""


class JobFailed(Exception):
    """The job is over, and was not meant to be; started again it goes on from its last complete epoch.

    Its text is what Python prints if nobody catches it, so it has no control characters of a record or a server in it.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(readable(f"{reason}\n\n{traceback}".rstrip()))
        self.reason = reason
        self.traceback = traceback


class Consequences(Protocol):
    """What follows from a failure."""

    def note(self, event: AttemptFailed | Trouble | WorkerDied) -> None:
        """Make the event visible from outside."""

    def break_attempt(self, failure: Failure, not_before: float) -> None:
        """End the attempt; the next one may begin at the time `not_before` of the loop."""

    def give_up(self, error: JobFailed) -> None:
        """End the job with this error."""


class Failures:
    """Takes the reports of one generation, in the loop's thread."""

    def __init__(self, limit: RestartLimit, loop: EventLoop, consequences: Consequences) -> None:
        self._limit = limit
        self._loop = loop
        self._consequences = consequences
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

    def lost(self, partition: Partition) -> None:
        """Take note that a partition's process is gone."""
        self._limit.lost(partition)

    def died(self, death: Death) -> None:
        """Report how a lost process died; that may end the job, as the next process would die as well."""
        self._consequences.note(_told(death))
        why = self._limit.died(death) or self._giving_up
        if why:
            self._consequences.give_up(JobFailed(f"{death} ({why})", death.stack))

    def failed(self, failure: Failure) -> None:
        """Decide what follows from a failure that a partition or its process reports."""
        if self.is_planned(failure.incarnation):
            return
        if self._giving_up:
            if failure.cause in _CAUSES_OF_THEIR_OWN:  # it explains what was known before
                self._consequences.give_up(JobFailed(str(failure), failure.traceback))
            return
        verdict = self._count(failure)
        match verdict:
            case Restart(delay):
                pause = max(delay / 1000, _SETTLE if failure.cause in (Cause.CHANNEL, Cause.FORGED) else 0.0)
                self._consequences.break_attempt(failure, self._loop.now() + pause)
            case GiveUp(reason):
                self._give_up(failure, reason)
            case Known():
                pass

    def broken_by_coordinator(self, next_one: Incarnation) -> None:
        """Count the attempt before `next_one` as failed, unless its end was reported: the coordinator broke it."""
        broken = before(next_one)
        if self._over is None or self._over < broken:
            failure = Failure(broken, Cause.EPOCHS, "more epochs in a row failed than are tolerated")
            verdict = self._count(failure)
            if isinstance(verdict, GiveUp):
                self._consequences.give_up(JobFailed(f"{failure} ({verdict.reason})"))

    def _count(self, failure: Failure) -> Restart | GiveUp | Known:
        verdict = self._limit.failed(int(self._loop.now() * 1000), failure, random.random())
        if not isinstance(verdict, Known):
            self._over = failure.incarnation
            self._consequences.note(_event_of(failure, verdict))
        elif failure.cause is Cause.FORGED:  # the other end of the channel was heard first, and knows no cause
            self._consequences.note(Trouble(at=time.time(), what="the network", reason=str(failure)))
        return verdict

    def _give_up(self, failure: Failure, reason: str) -> None:
        error = JobFailed(f"{failure} ({reason})", failure.traceback)
        if failure.cause in _CAUSES_OF_THEIR_OWN:
            self._consequences.give_up(error)
            return
        self._giving_up = reason
        self._loop.call_at(self._loop.now() + _BETTER_CAUSE, lambda: self._consequences.give_up(error))


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


def _told(death: Death) -> WorkerDied:
    at_work = death.at_work
    return WorkerDied(
        at=time.time(),
        worker=death.worker,
        partition=death.partition,
        how=death.how,
        uid=None if at_work is None else at_work.uid,
        at_work="" if at_work is None else at_work.what,
        stack=death.stack,
    )


def _event_of(failure: Failure, verdict: Restart | GiveUp) -> AttemptFailed:
    return AttemptFailed(
        at=time.time(),
        incarnation=failure.incarnation,
        partition=failure.partition,
        uid=failure.uid,
        cause=failure.cause.value,
        reason=failure.reason,
        traceback=failure.traceback,
        then="restart" if isinstance(verdict, Restart) else f"give up: {verdict.reason}",
    )
