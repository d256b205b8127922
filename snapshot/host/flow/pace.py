"""The number of rows to work on at once, in about a given time and with room for the output, by earlier rows."""

from __future__ import annotations

from math import exp
from typing import Final

FIRST: Final = 64
"""So many rows are worked on at once while nothing is known of how long they take."""
_FASTER: Final = 4
"""So many times as many rows are tried at most as were last: those that come next may not be as quick."""

_PIECES: Final = 2
"""The pieces of the last time, as long as so many may take, are those of late."""

_LEAST: Final = 1e-6


class Cost:
    """Seconds per row, by the rows of late: what is further back counts less, about `horizon` seconds are in sight.

    Something that took longer than that counts as if it had been that long, at the same cost per row.
    """

    def __init__(self, horizon: float) -> None:
        self._horizon = horizon
        self._rows = self._seconds = 0.0

    def took(self, rows: int, seconds: float) -> None:
        """Learn that so many rows have taken so long."""
        part = min(1.0, self._horizon / seconds) if seconds else 1.0
        kept = exp(-seconds / self._horizon)
        self._rows = self._rows * kept + rows * part
        self._seconds = self._seconds * kept + seconds * part

    @property
    def per_row(self) -> float:
        """Return the seconds per row; 0 while nothing is known."""
        return self._seconds / self._rows if self._rows else 0.0


class Pace:
    """Say how many rows to work on at once, for a piece of work to take `seconds` and have `most` rows at the most.

    A piece that was slower than others of late, but within its time, counts as one of them: a few rows that come alone
    cost what any piece costs, and say little about many. One that was quicker, or took too long, counts alone.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._of_late = Cost(_PIECES * seconds)
        self.rows = min(FIRST, most)
        """So many at once: one at least."""

    def took(self, rows: int, seconds: float) -> None:
        """Learn that a piece of so many rows has taken so long."""
        self._of_late.took(rows, seconds)
        per_row = seconds / rows
        if seconds <= self._seconds:
            per_row = min(per_row, self._of_late.per_row)
        most = min(_FASTER * self.rows, self._most)
        self.rows = max(1, int(self._seconds / per_row)) if self._seconds < most * per_row else most


class Yield:
    """The number of rows that come out for each that goes in, about."""

    def __init__(self) -> None:
        self._ratio = 1.0

    def gave(self, rows: int, out: int) -> None:
        """Learn that `rows` rows in gave `out` rows out."""
        self._ratio = (self._ratio + out / rows) / 2

    def rows_for(self, room: int) -> int:
        """Return how many rows may go in so that their output fits into `room`: at least one."""
        return max(1, int(room / max(self._ratio, _LEAST)))
