"""The stream of the simulated job: split records, summed up by key in tumbling windows of event time.

Invariant: the output is the same for every interleaving, at any parallelism: one row for each key and window,
with the ids of all its records. So a row that is missing, twice or incomplete is an error of the protocol.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from statebackend.ids import KeyGroup
from statebackend.keygroups import key_group_of

MAX_PARALLELISM = 8
KEYS = 4
END_OF_TIME = 10**9

RecordId = tuple[int, int]
"""A record's split and its place in it."""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """The row that the job emits when a window closes; `records` are the ids of all that fell into it."""

    key: int
    window_end: int
    records: tuple[RecordId, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One record of a split."""

    id: RecordId
    key: int
    timestamp: int

    def __str__(self) -> str:
        return f"{self.id[0]}.{self.id[1]}"


@dataclass(frozen=True, slots=True)
class Stream:
    """`splits` splits of `length` records each; a later split has later timestamps, as a growing log has."""

    splits: int
    length: int
    window: int

    def item(self, split: int, index: int) -> Item:
        """Return a record of a split, computed from its place alone, so that it can be read again after a rewind."""
        return Item((split, index), (split + index * 3) % KEYS, (split * self.length + index) * 10 + split % 3)

    def ids(self, positions: Mapping[int, int]) -> Iterator[RecordId]:
        """Yield the ids of all records before these positions."""
        for split, position in positions.items():
            yield from ((split, index) for index in range(position))

    def window_end(self, timestamp: int) -> int:
        """Return the end of the window that a timestamp falls into."""
        return (timestamp // self.window + 1) * self.window

    def expected(self) -> list[Row]:
        """Return what a sequential run of the job emits."""
        windows: dict[tuple[int, int], list[RecordId]] = defaultdict(list)
        for split in range(self.splits):
            for index in range(self.length):
                item = self.item(split, index)
                windows[item.key, self.window_end(item.timestamp)].append(item.id)
        return sorted(Row(key, end, tuple(sorted(ids))) for (key, end), ids in windows.items())


def group_of(key: int) -> KeyGroup:
    """Return the key group of a key; neighbours lie far apart, as under a hash."""
    return key_group_of((key * 0x9E3779B97F4A7C15) % 2**64, MAX_PARALLELISM)
