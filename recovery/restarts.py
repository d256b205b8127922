"""Whether a job whose attempt broke is tried again: limits on restarts, and what no restart can cure.

What always holds: what cannot be cured stops the job at its first failure; every attempt counts once, however many of
its partitions report that it is over; and the reason to stop carries the user's own traceback, if there is one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from statebackend.ids import Incarnation, Partition, Uid


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the job."""


@dataclass(frozen=True, slots=True)
class FixedRestarts:
    """So many restarts in the whole life of the driver, each after `delay` milliseconds."""

    times: int
    delay: int = 0

    def __post_init__(self) -> None:
        _check(self.times, self.delay)


@dataclass(frozen=True, slots=True)
class RestartRate:
    """No more than so many restarts in any `within` milliseconds, each after `delay` milliseconds."""

    times: int = 20
    within: int = 300_000
    delay: int = 0

    def __post_init__(self) -> None:
        _check(self.times, self.delay)
        if self.within < 1:
            raise ValueError(f"a rate of restarts needs a window of time, not {self.within} ms")


Restarts = NoRestart | FixedRestarts | RestartRate


def _check(times: int, delay: int) -> None:
    if times < 1 or delay < 0:
        raise ValueError(f"{times} restarts after {delay} ms each: expected at least one, and no negative delay")


class Cause(Enum):
    """Why an attempt broke, as far as it says whether another one can do better."""

    PROGRAM = "a function of the program raised an exception"
    UNUSABLE = "the same will happen again"
    CHANNEL = "a channel between two partitions broke"
    PROCESS = "a process is lost"
    RESOURCE = "the store, a disk, a source or a sink failed"
    EPOCHS = "epochs fail again and again"


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt is over. `traceback` is the user's own, as Python prints it."""

    incarnation: Incarnation
    cause: Cause
    reason: str
    partition: Partition | None = None
    uid: Uid | None = None
    traceback: str = ""

    def __str__(self) -> str:
        where = "" if self.partition is None else f"partition {self.partition}: "
        return f"{where}{f'{self.uid}: ' if self.uid else ''}{self.reason}"


@dataclass(frozen=True, slots=True)
class Restart:
    """Try again, after so many milliseconds."""

    delay: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop the job; `reason` says why it is not tried again, `failure` what happened."""

    reason: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Known:
    """The attempt was over already, and this report of it changes nothing."""


Verdict = Restart | GiveUp | Known


class RestartLimit:
    """Counts the broken attempts of one driver. Times are in milliseconds and never go back.

    `poisoned_after` attempts in a row in which a function of the program fails, and no epoch is completed, are taken
    for a record that will fail for ever.
    """

    def __init__(self, restarts: Restarts, poisoned_after: int = 3) -> None:
        if poisoned_after < 1:
            raise ValueError(f"poisoned_after is {poisoned_after}; it must be at least 1")
        self._restarts = restarts
        self._poisoned_after = poisoned_after
        self._over: Incarnation | None = None
        self._counted_as_program: Incarnation | None = None
        self._times: deque[int] = deque()
        self._program_failures = 0
        self.restarts = 0

    def completed(self) -> None:
        """An epoch was completed: whatever failed before was not for ever."""
        self._program_failures = 0

    def failed(self, now: int, failure: Failure) -> Verdict:
        """A report that an attempt is over.

        Several come of one attempt, as a partition that fails breaks the channels of the others, and the cause may
        come last: it still counts, but the attempt does not count again.
        """
        if self._over is not None and failure.incarnation < self._over:
            return Known()
        first = failure.incarnation != self._over
        self._over = failure.incarnation
        if failure.cause is Cause.UNUSABLE:
            return GiveUp(failure.cause.value, failure)
        if failure.cause is Cause.PROGRAM and self._counted_as_program != failure.incarnation:
            self._counted_as_program = failure.incarnation
            self._program_failures += 1
            if self._program_failures >= self._poisoned_after and not isinstance(self._restarts, NoRestart):
                return GiveUp(self._poisoned(), failure)
        return self._restart(now, failure) if first else Known()

    def _poisoned(self) -> str:
        return (
            f"the program failed {self._program_failures} times in a row without an epoch completed in between, so it "
            "would fail again"
        )

    def _restart(self, now: int, failure: Failure) -> Verdict:
        match self._restarts:
            case NoRestart():
                return GiveUp("the job is not to be restarted", failure)
            case FixedRestarts(times, delay):
                if self.restarts >= times:
                    return GiveUp(f"it was restarted {times} times, as often as it may be", failure)
            case RestartRate(times, within, delay):
                while self._times and self._times[0] <= now - within:
                    self._times.popleft()
                if len(self._times) >= times:
                    return GiveUp(f"it was restarted {times} times in {within} ms, as often as it may be", failure)
        self._times.append(now)
        self.restarts += 1
        return Restart(delay)
