"""The rounds of a source: their numbers, by the driver's clock, and when each is closed.

Invariant: numbers rise from round to round, and the processing time that a number stands for never goes back; so two
sources of one job, wherever they run, close the rounds of one tick with the same number.

A round is closed when its tick is over, and before that when it has enough rows, for a marker, or at the end. A tick
has room for many numbers; its last one is that of the round which ends with it. So a stage that hears several sources
takes the early rounds of one of them first, and none of them runs ahead of its clock.
"""

from __future__ import annotations

from typing import Final

PER_TICK: Final = 256
"""The numbers of one tick."""
_DRIFT: Final = 1e-4
"""By this part of the time that passes, at most, a clock of one machine goes faster than that of another one."""


class DriverClock:
    """The driver's clock, in milliseconds since 1970, as a process knows it that hears it now and then.

    A word is late by as long as it was under way, never early; so the word that says the latest time counts, for as
    long as the process's own clock can be trusted. `at` is the process's own time in seconds, which never goes back.
    """

    def __init__(self, word: int, at: float) -> None:
        self._ahead = word / 1000 - at
        self._heard_at = at
        self._last = word

    def heard(self, word: int, at: float) -> None:
        """Take a word of the driver that was heard at this time."""
        trusted = self._ahead - _DRIFT * (at - self._heard_at)
        self._ahead, self._heard_at = max(trusted, word / 1000 - at), at

    def now(self, at: float) -> int:
        """Return the driver's time; it never goes back."""
        self._last = max(self._last, int((self._ahead + at) * 1000))
        return self._last


def clock_of(number: int, tick: int) -> int:
    """Return the processing time of a round, in milliseconds, where ticks take `tick` milliseconds."""
    return (number + 1) // PER_TICK * tick


class Pacing:
    """The rounds of one source in one partition and attempt, which begins at `now`; all times are in milliseconds."""

    def __init__(self, tick: int, now: int) -> None:
        self._tick = tick
        self._last = self._before(now)

    @property
    def next_at(self) -> int:
        """Return when the tick of the open round is over."""
        return ((self._last + 1) // PER_TICK + 1) * self._tick

    def close(self, now: int) -> int:
        """Return the number with which the open round is closed now."""
        self._last = max(self._last + 1, self._before(now))
        return self._last

    def passed(self, number: int) -> None:
        """Take note of a round that another member has closed: the next one has a larger number."""
        self._last = max(self._last, number)

    def _before(self, now: int) -> int:
        """Return the last number of the tick before the one that `now` is in."""
        return now // self._tick * PER_TICK - 1
