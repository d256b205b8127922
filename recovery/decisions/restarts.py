"""Decide whether a job whose attempt broke is tried again: limits on restarts, and failures that no restart can cure.

Invariant: what cannot be cured stops the job at its first failure; every attempt counts once, however many of
its partitions report that it is over; and the reason to stop carries the user's own traceback, if there is one.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum
from math import log

from recovery.restart_strategies import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restarts
from snapshot.host.protocol.messages import AtWork
from statebackend.durations import in_words, milliseconds
from statebackend.ids import Incarnation, Partition, Uid


class Cause(Enum):
    """The cause of a broken attempt, as far as it says whether another one can do better."""

    PROGRAM = "a function of the program raised an exception, or a record is not what the program says it is"
    UNUSABLE = "the same will happen again"
    CHANNEL = "a channel between two partitions broke"
    FORGED = "messages between partitions are changed on the network"
    PROCESS = "a process is lost"
    SILENT = "a process shows no sign of life"
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
class Death:
    """The death of a partition's process, as was found out after it was lost. `how` is a sentence about it."""

    partition: Partition
    worker: str
    how: str
    by_itself: bool
    """It crashed, or ended itself; else it was killed, or that is not known."""
    at_work: AtWork | None = None
    """From which call it has not come back; known only if it was asked to say so (see `RestartLimit.suspects`)."""
    stack: str = ""

    def __str__(self) -> str:
        at_work = "" if self.at_work is None else f"; {self.at_work}"
        return f"partition {self.partition}: {self.how}{at_work}"


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
    for a record that will fail for ever. So are as many in which the process of one partition falls silent, as one does
    whose function keeps the interpreter to itself, and as many in which it crashes or ends itself. A process may be
    killed any number of times: who did it cannot be told from the out-of-memory killer, so that counts only if two in a
    row die in the very same call for the same row, timer or window. Where no row is named, as while a function is
    opened, which may take long, `restarts` alone say when it is enough.
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
        self._silent: Counter[Partition | None] = Counter()
        self._lost: Counter[Partition] = Counter()
        self._crashed: Counter[Partition] = Counter()
        self._died_at: dict[Partition, AtWork] = {}
        self._alone: set[Partition] = set()
        self._in_a_row = 0
        self._last_began = 0
        """The time when the newest attempt was to begin."""
        self.restarts = 0

    def completed(self) -> None:
        """Note that an epoch was completed: whatever failed before was not for ever."""
        self._program_failures = 0
        self._silent.clear()
        self._lost.clear()
        self._crashed.clear()
        self._died_at.clear()
        self._alone.clear()
        if isinstance(self._restarts, ExponentialDelay) and self._restarts.at_once:
            self._in_a_row = 0

    def failed(self, now: int, failure: Failure, chance: float = 0.5) -> Verdict:
        """Take a report that an attempt is over. `chance` is a random number from 0 to 1, for what is left to chance.

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
        if failure.cause is Cause.SILENT:
            self._silent[failure.partition] += 1
            if self._silent[failure.partition] >= self._poisoned_after and not isinstance(self._restarts, NoRestart):
                return GiveUp(self._silenced(failure.partition), failure)
        if not first:
            return Known()
        verdict = self._restart(now, failure, chance)
        if isinstance(verdict, Restart):
            self.restarts += 1
            self._last_began = now + verdict.delay
        return verdict

    def alone(self, now: int, partition: Partition, failure: Failure, chance: float = 0.5) -> bool:
        """Count the restart of a partition alone, while the attempt goes on, as one of an attempt; return False if it
        is not to be: there were as many as there may be, or no epoch was completed since it was restarted so before.

        Then the attempt is over, and `failed` says what follows.
        """
        if partition in self._alone or isinstance(self._restart(now, failure, chance), GiveUp):
            return False
        self._alone.add(partition)
        self._last_began = now
        self.restarts += 1
        if failure.cause is Cause.SILENT:
            self._silent[failure.partition] += 1
        return True

    def lost(self, partition: Partition) -> None:
        """Note that the process of a partition is gone; `died` may say later how it died."""
        self._lost[partition] += 1

    @property
    def suspects(self) -> frozenset[Partition]:
        """Return the partitions whose next process is to say what it calls.

        Enough of their processes have died, and no epoch was completed.
        """
        enough = max(1, self._poisoned_after - 1)
        return frozenset(partition for partition, times in self._lost.items() if times >= enough)

    def died(self, death: Death) -> str:
        """Note how a lost process died; return why the job is given up for that, or an empty text."""
        partition, at_work = death.partition, death.at_work
        self._crashed[partition] += death.by_itself
        before = self._died_at.pop(partition, None)
        if at_work is not None and at_work.nth:
            self._died_at[partition] = at_work
        if isinstance(self._restarts, NoRestart):
            return ""  # that it was lost has ended the job
        if self._crashed[partition] >= self._poisoned_after:
            return (
                f"processes of partition {partition} have ended themselves {self._crashed[partition]} times without an "
                "epoch completed in between, so the next one would too"
            )
        if before is not None and before == self._died_at.get(partition):
            return (
                f"{self._lost[partition]} processes of partition {partition} have died without an epoch completed in "
                "between, the last two of them at the very same call, so the next one would too"
            )
        return ""

    def _poisoned(self) -> str:
        return (
            f"the program failed {self._program_failures} times in a row without an epoch completed in between, so it "
            "would fail again"
        )

    def _silenced(self, partition: Partition | None) -> str:
        return (
            f"the processes of partition {partition} fell silent {self._poisoned_after} times in a row without an "
            "epoch completed in between: perhaps a function keeps the interpreter to itself, as a regular expression "
            "that backtracks or one large json.loads does, for longer than `lost_after`"
        )

    def _restart(self, now: int, failure: Failure, chance: float) -> Restart | GiveUp:
        match self._restarts:
            case NoRestart():
                return GiveUp("the job is not to be restarted", failure)
            case FixedDelay(attempts, delay):
                if self.restarts >= attempts:
                    return GiveUp(f"it was restarted {attempts} times, as often as it may be", failure)
                return Restart(milliseconds(delay))
            case FailureRate(failures, interval, delay):
                within = milliseconds(interval)
                while self._times and self._times[0] <= now - within:
                    self._times.popleft()
                if len(self._times) >= failures:
                    often = f"{failures} times in {in_words(within)}"
                    return GiveUp(f"it was restarted {often}, as often as it may be", failure)
                self._times.append(now)
                return Restart(milliseconds(delay))
            case ExponentialDelay():
                return self._restart_later(now, failure, self._restarts, chance)

    def _restart_later(self, now: int, failure: Failure, restarts: ExponentialDelay, chance: float) -> Restart | GiveUp:
        if self._in_a_row and now - self._last_began >= milliseconds(restarts.reset_after):
            self._in_a_row = 0
        if restarts.attempts is not None and self._in_a_row >= restarts.attempts:
            between = ", and no epoch was completed in between" if restarts.at_once else ""
            return GiveUp(f"it was restarted {self._in_a_row} times in a row{between}", failure)
        self._in_a_row += 1
        grown = self._in_a_row - (2 if restarts.at_once else 1)
        if grown < 0:
            return Restart(0)
        delay, most = float(milliseconds(restarts.initial_backoff)), milliseconds(restarts.max_backoff)
        if restarts.multiplier > 1:
            until_most = log(most / delay) / log(restarts.multiplier)
            delay = most if grown >= until_most else delay * restarts.multiplier**grown
        return Restart(min(most, round(delay * (1 + restarts.jitter * (2 * chance - 1)))))
