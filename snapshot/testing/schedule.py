"""A schedule is a byte string: every choice of an adversarial scheduler is read from it, and from nothing else.

Invariant: the same bytes give the same history; a byte of 0 is the most benign choice there is; and
bytes that have run out mean "no more adversity". So a shorter schedule, or one with more zeros in it, is a
simpler one, and a failure is reproduced from a line of hexadecimal digits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snapshot.testing.history import History

_FINE = 128  # with more weight than this one byte is too coarse to reach every option


class Schedule:
    """Reads choices from `data`, each from one byte, or two when the options are many.

    A schedule is used for one run; `history` is what the latest simulation under it has recorded.
    """

    __slots__ = ("_position", "data", "history")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.history: History | None = None
        self._position = 0

    def __repr__(self) -> str:
        return f"Schedule(bytes.fromhex({self.data.hex()!r}))"

    @property
    def exhausted(self) -> bool:
        """True if no choice is left; what follows is fair and free of faults."""
        return self._position >= len(self.data)

    def choose(self, weights: Sequence[int], rare: int = 0) -> int | None:
        """Pick an index of `weights`, each as likely as its weight; None when the bytes are used up.

        A byte of 0 picks the first index that has a weight. `rare`, in 256ths, is the chance that the answer is
        `len(weights)` instead: the option that is asked for so seldom that it is not listed.
        """
        data, at = self.data, self._position
        if at >= len(data):
            return None
        byte = data[at]
        self._position = at + 1
        common = 256 - rare
        if byte >= common:
            return len(weights)
        bounds = list(accumulate(weights))
        total = bounds[-1] if bounds else 0
        if total <= 0:
            raise ValueError("a choice needs at least one option with a weight above 0")
        if total <= _FINE:
            return bisect_right(bounds, byte * total // common)
        second = data[at + 1] if at + 1 < len(data) else 0
        self._position = at + 2
        return bisect_right(bounds, (byte * 256 + second) * total // (common * 256))

    def number(self, below: int) -> int:
        """Choose a number from 0 up to `below` (at most 256), all equally likely; 0 when the bytes are used up.

        For what a run wants to vary besides its scheduling: the shape of a graph, the size of a budget.
        """
        if below <= 1 or self._position >= len(self.data):
            return 0
        self._position += 1
        return self.data[self._position - 1] * below // 256

    def flag(self) -> bool:
        """Choose yes or no; no when the bytes are used up."""
        return self.number(2) == 1
