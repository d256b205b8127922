"""Small batches that wait one behind the other become larger ones, as an operator's work is mostly per batch.

What always holds: of each input rows are handed on in the order in which they were added, and `flush` keeps none back.
A source that is on time makes a batch each millisecond: what has waited for a second, for a state that was being opened
or in an outage, would else be a thousand batches of a few rows each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from snapshot.program.rows import Rows, joined

Input = TypeVar("Input")

_ENOUGH: Final = 4096
"""So many rows are not worth a copy to have more of them together."""


class Gathering(Generic[Input]):
    """Rows of several inputs on their way to `take`, which gets no more than `most` at once unless a batch has more.

    The caller owes `flush` before anything that has its place behind the rows.
    """

    def __init__(self, take: Callable[[Input, Rows], None], most: int) -> None:
        self._take = take
        self._most = min(most, _ENOUGH)
        self._pieces: dict[Input, list[Rows]] = {}
        self._counts: dict[Input, int] = {}

    def add(self, input: Input, rows: Rows) -> None:
        """Take a batch of an input."""
        count = self._counts.get(input, 0)
        if count and count + len(rows) > self._most:
            self._hand_on(input)
            count = 0
        self._pieces.setdefault(input, []).append(rows)
        self._counts[input] = count + len(rows)
        if self._counts[input] >= self._most:
            self._hand_on(input)

    def flush(self) -> None:
        """Hand on what is here."""
        for input in list(self._pieces):
            self._hand_on(input)

    def _hand_on(self, input: Input) -> None:
        del self._counts[input]
        self._take(input, joined(self._pieces.pop(input)))
