"""Key-group ranges and their partitions: contiguous, disjoint and together all groups, at any parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from statebackend.ids import KeyGroup, Partition

DEFAULT_MAX_PARALLELISM = 128
LARGEST_MAX_PARALLELISM = 32768


@dataclass(frozen=True, slots=True, order=True)
class KeyGroupRange:
    """The key groups from `first` up to, not including, `end`. Never empty."""

    first: KeyGroup
    end: KeyGroup

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= LARGEST_MAX_PARALLELISM:
            raise ValueError(
                f"key groups [{self.first}, {self.end}) are no range: expected 0 <= first < end <= "
                f"{LARGEST_MAX_PARALLELISM}"
            )

    def __contains__(self, group: KeyGroup) -> bool:
        return self.first <= group < self.end

    def __iter__(self) -> Iterator[KeyGroup]:
        return (KeyGroup(group) for group in range(self.first, self.end))

    def __len__(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"[{self.first}, {self.end})"

    @classmethod
    def of_all(cls, max_parallelism: int) -> KeyGroupRange:
        """Return all key groups of a job."""
        return cls(KeyGroup(0), KeyGroup(max_parallelism))

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the groups that both ranges hold, or None."""
        first, end = max(self.first, other.first), min(self.end, other.end)
        return KeyGroupRange(first, end) if first < end else None

    def covers(self, other: KeyGroupRange) -> bool:
        """True if every group of `other` is in this range."""
        return self.first <= other.first and other.end <= self.end

    def divided(self, parts: int) -> tuple[KeyGroupRange, ...]:
        """Divide the range into this many adjacent ranges, about equally long."""
        edges = [self.first + len(self) * part // parts for part in range(parts + 1)]
        return tuple(KeyGroupRange(KeyGroup(first), KeyGroup(end)) for first, end in pairwise(edges))

    def minus(self, other: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        """Return the parts of this range that `other` does not hold: none, one or two."""
        parts = []
        if self.first < other.first:
            parts.append(KeyGroupRange(self.first, min(self.end, other.first)))
        if other.end < self.end:
            parts.append(KeyGroupRange(max(self.first, other.end), self.end))
        return tuple(parts)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Refuse a parallelism that the key groups cannot be divided over; `ValueError` says the limits."""
    if not 1 <= max_parallelism <= LARGEST_MAX_PARALLELISM:
        raise ValueError(f"maximum parallelism {max_parallelism} is out of bounds: 1 to {LARGEST_MAX_PARALLELISM}")
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(
            f"parallelism {parallelism} is out of bounds: 1 to the maximum parallelism "
            f"{max_parallelism}, which was fixed when the job was born"
        )


def key_group_of(key_hash: int, max_parallelism: int) -> KeyGroup:
    """Return the group of a key's stable unsigned 64-bit hash: its high bits, scaled."""
    return KeyGroup((key_hash * max_parallelism) >> 64)


def range_of(partition: Partition, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the groups of one partition; the ranges of all partitions differ in length by one at most."""
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= partition < parallelism:
        raise ValueError(f"there is no partition {partition} at parallelism {parallelism}")
    first = -(-partition * max_parallelism // parallelism)
    end = -(-(partition + 1) * max_parallelism // parallelism)
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


def boundaries(parallelism: int, max_parallelism: int) -> list[int]:
    """Return where each partition's range begins, and last where all end: `range_of` for all partitions at once."""
    check_parallelism(parallelism, max_parallelism)
    return [-(-partition * max_parallelism // parallelism) for partition in range(parallelism + 1)]


def owner_of(group: KeyGroup, parallelism: int, max_parallelism: int) -> Partition:
    """Return the partition whose range holds the group: the inverse of `range_of`."""
    return Partition(group * parallelism // max_parallelism)


def joined(ranges: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """Return the fewest ranges that hold the same groups, ascending; ranges that touch or overlap are joined."""
    result: list[KeyGroupRange] = []
    for item in sorted(ranges):
        if result and item.first <= result[-1].end:
            result[-1] = KeyGroupRange(result[-1].first, max(result[-1].end, item.end))
        else:
            result.append(item)
    return tuple(result)


def without(ranges: tuple[KeyGroupRange, ...], taken: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """Return the parts of `ranges` that lie in none of `taken`."""
    for item in taken:
        ranges = tuple(part for one in ranges for part in one.minus(item))
    return ranges
