"""Numbers of transactions that a target knows as committed, in the shortest form, for its tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_RANGES: Final = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True)
class Committed:
    """Numbers of transactions that are committed, as ranges without gaps; ascending, none next to another."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Committed:
        """Parse what `str` gave; `ValueError` for anything else."""
        if not _RANGES.fullmatch(text):
            raise ValueError(f"{text!r} is no list of committed transactions")
        committed = cls(tuple(_range(part) for part in text.split(",")))
        if str(committed) != text or any(first > last for first, last in committed.ranges):
            raise ValueError(f"{text!r} is no list of committed transactions in its shortest form")
        return committed

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ranges)

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def with_range(self, first: int, last: int) -> Committed:
        """Return these numbers and all from `first` to `last`."""
        apart = [one for one in self.ranges if one[1] < first - 1 or one[0] > last + 1]
        joined = [one for one in self.ranges if one not in apart]
        lowest = min([first, *(one[0] for one in joined)])
        highest = max([last, *(one[1] for one in joined)])
        return Committed(tuple(sorted([*apart, (lowest, highest)])))


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
