"""The age of output when it is committed, epoch by epoch, and around each recovery.

Invariant: it follows from events alone. An epoch's rows came between the trigger of the complete epoch before it and
its own trigger, so that at its commit the oldest has at most the one age and the newest at least the other; rows that a
failure took back count from when they came first. Sinks that write rows before that are younger.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from recovery import events as log
from statebackend.ids import Epoch

_KEPT: Final = 20_000
_BEFORE: Final = 10.0
"""Seconds before a failure of which the ages are shown."""
_AFTER: Final = 10.0
"""Seconds after a recovery, or after the first commit that follows it."""
_POINTS: Final = 120
"""Points that are shown around one recovery."""


@dataclass(frozen=True, slots=True)
class Age:
    """The ages, in milliseconds, that the rows of an epoch had when they were committed, at this time of day."""

    at: float
    epoch: Epoch
    oldest_ms: float
    newest_ms: float


class Ages:
    """The ages of all epochs that were told, of very many the newest."""

    def __init__(self) -> None:
        self._found: deque[Age] = deque(maxlen=_KEPT)
        self._waiting: deque[tuple[Epoch, float, float]] = deque(maxlen=_KEPT)
        """Complete epochs with output that is not committed: the time of their triggers, and of those before them."""
        self._last: float | None = None
        """The time of the trigger of the last complete epoch."""

    def heard(self, event: log.AnyEvent) -> None:
        """Take an event."""
        match event:
            case log.EpochCompleted(epoch=epoch, at=at, since_trigger_ms=took, output=output):
                triggered = at - took / 1000
                if output:  # of others no commit is told
                    self._waiting.append((epoch, triggered, triggered if self._last is None else self._last))
                self._last = triggered
            case log.EpochCommitted(epoch=epoch, at=at):
                while self._waiting and self._waiting[0][0] <= epoch:
                    one, triggered, before = self._waiting.popleft()
                    self._found.append(Age(at, one, 1000 * (at - before), 1000 * (at - triggered)))
            case log.Claimed():
                self._waiting.clear()  # what its driver still commits of them is committed at once, and not told
            case _:
                pass

    @property
    def found(self) -> Sequence[Age]:
        """Return all that are known, oldest first."""
        return tuple(self._found)


def around(failed_at: float, recovered_at: float, ages: Sequence[Age]) -> Sequence[Age]:
    """Return the ages from a while before a failure until a while after its recovery; of very many, the worst."""
    until, first = recovered_at + _AFTER, True
    found: list[Age] = []
    begin = bisect_left(ages, failed_at - _BEFORE, key=lambda age: age.at)
    for age in islice(ages, begin, None):
        if first and age.at > recovered_at:
            until, first = max(until, age.at + _AFTER), False
        if age.at > until:
            break
        found.append(age)
    return thinned(found, _POINTS)


def thinned(ages: Sequence[Age], most: int) -> Sequence[Age]:
    """Return at most so many, of neighbours the one with the oldest row."""
    if len(ages) <= most:
        return ages
    size = -(-len(ages) // most)
    return [max(ages[at : at + size], key=lambda age: age.oldest_ms) for at in range(0, len(ages), size)]
