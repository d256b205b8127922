"""What a fault can happen to, and who that is at the moment.

What always holds: `parse_target` reads what `str` of a target says; a target that is not there now is refused by name,
and the message says what is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from statebackend.ids import Partition

Present: TypeAlias = Mapping[str, Partition | None]
"""The processes that are there, and the partition that each has; the others stand by."""

_FORMS: Final = "worker:2, standby:0, driver, executor:2, link:0-1, link:2-driver or random"


class NotATarget(ValueError):
    """The text names nothing that a fault could happen to."""

    def __init__(self, given: str) -> None:
        super().__init__(f"{given!r} is no target; write {_FORMS}")


class NoSuchTarget(Exception):
    """The target is not there now; the message says what is."""


@dataclass(frozen=True, slots=True)
class WorkerOf:
    """The process that has this partition."""

    partition: Partition

    def __str__(self) -> str:
        return f"worker:{self.partition}"


@dataclass(frozen=True, slots=True)
class StandbyAt:
    """One of the processes that stand by, counted from 0."""

    index: int

    def __str__(self) -> str:
        return f"standby:{self.index}"


@dataclass(frozen=True, slots=True)
class TheDriver:
    """The driver's process."""

    def __str__(self) -> str:
        return "driver"


@dataclass(frozen=True, slots=True)
class ExecutorOf:
    """The Spark executor in which the process with this partition runs, and all that runs in it."""

    partition: Partition

    def __str__(self) -> str:
        return f"executor:{self.partition}"


@dataclass(frozen=True, slots=True)
class LinkBetween:
    """The connections between a partition and another, both ways, or between it and the driver if that is None."""

    one: Partition
    other: Partition | None

    def __str__(self) -> str:
        return f"link:{self.one}-{'driver' if self.other is None else self.other}"


@dataclass(frozen=True, slots=True)
class Anything:
    """Whatever is there, at random."""

    def __str__(self) -> str:
        return "random"


Target = WorkerOf | StandbyAt | TheDriver | ExecutorOf | LinkBetween | Anything

_NUMBERED: Final = re.compile(r"(worker|standby|executor):([0-9]{1,6})")
_LINK: Final = re.compile(r"(?:link|worker):([0-9]{1,6})-([0-9]{1,6}|driver)")


def parse_target(text: str) -> Target:
    """A target as people write it; `NotATarget` for anything else."""
    if text == "driver":
        return TheDriver()
    if text == "random":
        return Anything()
    if found := _NUMBERED.fullmatch(text):
        number = int(found[2])
        match found[1]:
            case "worker":
                return WorkerOf(Partition(number))
            case "standby":
                return StandbyAt(number)
            case _:
                return ExecutorOf(Partition(number))
    if found := _LINK.fullmatch(text):
        one, other = Partition(int(found[1])), None if found[2] == "driver" else Partition(int(found[2]))
        if one != other:
            return LinkBetween(one, other)
    raise NotATarget(text)


def worker_of(partition: Partition, present: Present, parallelism: int) -> str:
    """Who has the partition; `NoSuchTarget` if nobody has, or if there is no such partition."""
    if partition >= parallelism:
        last = f"partitions 0 to {parallelism - 1}" if parallelism > 1 else "partition 0 only"
        raise NoSuchTarget(f"there is no partition {partition}; the job has {last}")
    worker = next((worker for worker, has in present.items() if has == partition), None)
    if worker is None:
        raise NoSuchTarget(f"no process has partition {partition} at the moment: the job is starting or recovering")
    return worker


def standby_at(index: int, present: Present) -> str:
    """Which process that is; `NoSuchTarget` if fewer stand by."""
    standbys = standbys_of(present)
    if index >= len(standbys):
        there = f"{len(standbys)} stand by, counted from 0" if standbys else "none stands by at the moment"
        raise NoSuchTarget(f"there is no standby {index}: {there}")
    return standbys[index]


def standbys_of(present: Present) -> Sequence[str]:
    """The processes that have no partition, in the order in which they came."""
    return [worker for worker, has in present.items() if has is None]


def placed(present: Present) -> Sequence[Partition]:
    """The partitions that a process has."""
    return sorted(has for has in present.values() if has is not None)
