"""Faults at random, one after another: which comes next, and when.

Invariant: the same draws, the same times and the same processes give the same faults; every fault is of a kind and for
a group that was asked for, for a process that is there, and there are never more than were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from recovery.inject.targets import (
    ExecutorOf,
    Kind,
    LinkBetween,
    Order,
    Present,
    StandbyAt,
    Target,
    TheDriver,
    WorkerOf,
    placed,
    standbys_of,
)

Draw = Callable[[], float]
"""A number from 0 up to 1, 1 excluded."""


class Group(Enum):
    """The processes or links that faults happen to."""

    WORKERS = "workers"
    STANDBYS = "standbys"
    DRIVER = "driver"
    EXECUTORS = "executors"
    LINKS = "links"


_OF_KIND = {
    Kind.KILL: (Group.WORKERS, Group.STANDBYS, Group.DRIVER, Group.EXECUTORS),
    Kind.STOP: (Group.WORKERS, Group.STANDBYS, Group.DRIVER, Group.EXECUTORS),
    Kind.CUT: (Group.WORKERS, Group.STANDBYS, Group.LINKS),
    Kind.BREAK: (Group.WORKERS, Group.STANDBYS, Group.LINKS),
    Kind.DELAY: (Group.WORKERS, Group.STANDBYS, Group.LINKS),
}


@dataclass(frozen=True, slots=True)
class Span:
    """From so many milliseconds to so many, both included."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"a span from {self.least} to {self.most} ms is none")

    def at(self, draw: float) -> int:
        """Return the milliseconds that this draw gives."""
        return self.least + int(draw * (self.most - self.least + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFaults:
    """The faults to draw: `count` of them, one `every` so often, each `lasting` so long, delays `by` so much."""

    kinds: Sequence[Kind]
    groups: Sequence[Group]
    count: int
    every: Span
    lasting: Span
    by: Span

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.count} faults are none")
        if self.lasting.least < 1 or self.by.least < 1:
            raise ValueError("a fault lasts a millisecond at least, and delays by one at least")
        for kind in self.kinds:
            if not set(_OF_KIND[kind]) & set(self.groups):
                wanted = ", ".join(group.value for group in _OF_KIND[kind])
                raise ValueError(f"{kind.value} happens to none of these groups; it can happen to {wanted}")


class Schedule:
    """Draws the faults. Ask for the next when it is due; times are in seconds of any one clock."""

    def __init__(self, wanted: RandomFaults, draw: Draw, now: float) -> None:
        self._wanted = wanted
        self._draw = draw
        self._left = wanted.count
        self._drawn = self._draws()
        self.due = now + self._drawn[0] / 1000
        """The earliest time to ask for the next one."""

    @property
    def over(self) -> bool:
        """True if the last fault was taken."""
        return not self._left

    def take(self, now: float, present: Present) -> Order | None:
        """Take the fault that is due; None if none is, or if it has no target now: ask again when it has."""
        _, kind, who, lasting, by = self._drawn
        candidates = _candidates(kind, self._wanted.groups, present)
        if not candidates or self.over or now < self.due:
            return None
        order = Order(
            kind,
            candidates[int(who * len(candidates))],
            lasting if kind in (Kind.STOP, Kind.CUT, Kind.DELAY) else None,
            by if kind is Kind.DELAY else None,
        )
        self._left -= 1
        self._drawn = self._draws()
        self.due = now + self._drawn[0] / 1000
        return order

    def _draws(self) -> tuple[int, Kind, float, int, int]:
        """Draw all that one fault needs, whether it uses it or not: no fault changes what the others are drawn from."""
        wanted, draw = self._wanted, self._draw
        gap, kind = wanted.every.at(draw()), wanted.kinds[int(draw() * len(wanted.kinds))]
        return gap, kind, draw(), wanted.lasting.at(draw()), wanted.by.at(draw())


def choose(kind: Kind, groups: Sequence[Group], present: Present, draw: Draw) -> Target | None:
    """Choose a target of these groups to which this can happen now; None if there is none."""
    candidates = _candidates(kind, groups, present)
    return candidates[int(draw() * len(candidates))] if candidates else None


def _candidates(kind: Kind, groups: Sequence[Group], present: Present) -> list[Target]:
    found: list[Target] = []
    partitions = placed(present)
    for group in (group for group in _OF_KIND[kind] if group in groups):
        match group:
            case Group.WORKERS:
                found += [WorkerOf(partition) for partition in partitions]
            case Group.STANDBYS:
                found += [StandbyAt(index) for index in range(len(standbys_of(present)))]
            case Group.DRIVER:
                found.append(TheDriver())
            case Group.EXECUTORS:
                found += [ExecutorOf(partition) for partition in partitions]
            case Group.LINKS:
                found += [LinkBetween(one, other) for one in partitions for other in partitions if one < other]
                found += [LinkBetween(one, None) for one in partitions]
    return found
