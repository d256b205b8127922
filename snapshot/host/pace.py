"""How many rows are worked on at once, so that it takes about so long and what comes out has room: by earlier ones."""

from __future__ import annotations

from typing import Final

_FIRST: Final = 64
_FASTER: Final = 4
"""So many times as many rows are tried at most as were last: those that come next may not be as quick."""

_LEAST: Final = 1e-6


class Pace:
    """`seconds` is how long a piece of work should take, and `most` how many rows it may have at the most."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self.rows = min(_FIRST, most)
        """So many at once: one at least."""

    def took(self, rows: int, seconds: float) -> None:
        """A piece of so many rows has taken so long."""
        if seconds * _FASTER * self.rows <= self._seconds * rows:
            self.rows = min(_FASTER * self.rows, self._most)
        else:
            self.rows = max(1, min(int(rows * self._seconds / seconds), self._most))


class Yield:
    """How many rows come out for each that goes in, about."""

    def __init__(self) -> None:
        self._ratio = 1.0

    def gave(self, rows: int, out: int) -> None:
        """So many rows have become so many."""
        self._ratio = (self._ratio + out / rows) / 2

    def rows_for(self, room: int) -> int:
        """How many rows may go in for what comes out to fit in there: one at least."""
        return max(1, int(room / max(self._ratio, _LEAST)))
