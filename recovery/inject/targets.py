"""A fault as it is asked for: its kind, its target, and how long it lasts.

Invariant: an order that makes no sense cannot be made; the message says which part of it does not fit.
`parse_target` reads what `str` of a target says; a target that is not there now is refused by name, and the message
says what is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from snapshot.ids import Member, Replica
from statebackend.durations import in_words
from statebackend.errors import JobError, OptionError
from statebackend.ids import Partition

Present: TypeAlias = Mapping[str, Member | None]
"""The processes that are there, and the role of each; the others stand by."""

_FORMS: Final = (
    "worker:2, replica:2.1, primary:2, partition:2, standby:0, driver, executor:2, link:0-1, link:2-driver or random"
)


class NotATarget(OptionError, ValueError):
    """The text names nothing that a fault could happen to."""

    def __init__(self, given: str) -> None:
        super().__init__(f"{given!r} is no target; write {_FORMS}")


class NoSuchTarget(JobError):
    """The target is not there now; the message says what is."""


@dataclass(frozen=True, slots=True)
class WorkerOf:
    """The process that has this partition."""

    partition: Partition

    def __str__(self) -> str:
        return f"worker:{self.partition}"


@dataclass(frozen=True, slots=True)
class ReplicaAt:
    """The process that is this member of its partition."""

    member: Member

    def __str__(self) -> str:
        return f"replica:{self.member}"


@dataclass(frozen=True, slots=True)
class PrimaryOf:
    """The process that stands for this partition."""

    partition: Partition

    def __str__(self) -> str:
        return f"primary:{self.partition}"


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every process that has this partition, at once."""

    partition: Partition

    def __str__(self) -> str:
        return f"partition:{self.partition}"


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
    """Any target that is there, at random."""

    def __str__(self) -> str:
        return "random"


Target = WorkerOf | ReplicaAt | PrimaryOf | AllOf | StandbyAt | TheDriver | ExecutorOf | LinkBetween | Anything

_NUMBERED: Final = re.compile(r"(worker|primary|partition|standby|executor):([0-9]{1,6})")
_REPLICA: Final = re.compile(r"replica:([0-9]{1,6})\.([0-9]{1,6})")
_LINK: Final = re.compile(r"(?:link|worker):([0-9]{1,6})-([0-9]{1,6}|driver)")


def parse_target(text: str) -> Target:
    """Parse a target as people write it; raise `NotATarget` for anything else."""
    if text == "driver":
        return TheDriver()
    if text == "random":
        return Anything()
    if found := _NUMBERED.fullmatch(text):
        number = int(found[2])
        match found[1]:
            case "worker":
                return WorkerOf(Partition(number))
            case "primary":
                return PrimaryOf(Partition(number))
            case "partition":
                return AllOf(Partition(number))
            case "standby":
                return StandbyAt(number)
            case _:
                return ExecutorOf(Partition(number))
    if found := _REPLICA.fullmatch(text):
        return ReplicaAt(Member(Partition(int(found[1])), Replica(int(found[2]))))
    if found := _LINK.fullmatch(text):
        one, other = Partition(int(found[1])), None if found[2] == "driver" else Partition(int(found[2]))
        if one != other:
            return LinkBetween(one, other)
    raise NotATarget(text)


def worker_of(partition: Partition, present: Present, parallelism: int) -> str:
    """Return the process that has the partition, of several the first replica's.

    Raise `NoSuchTarget` if none has it, or if there is no such partition.
    """
    having = members_of(partition, present, parallelism)
    return having[min(having)]


def members_of(partition: Partition, present: Present, parallelism: int) -> Mapping[Member, str]:
    """Return the processes that have the partition; raise `NoSuchTarget` if there is none."""
    if partition >= parallelism:
        last = f"partitions 0 to {parallelism - 1}" if parallelism > 1 else "partition 0 only"
        raise NoSuchTarget(f"there is no partition {partition}; the job has {last}")
    having = {has: worker for worker, has in present.items() if has is not None and has.partition == partition}
    if not having:
        raise NoSuchTarget(f"no process has partition {partition} at the moment: the job is starting or recovering")
    return having


def member_at(member: Member | None, partition: Partition, present: Present, parallelism: int) -> str:
    """Return the process that is this member of the partition, None for a primary that is not known.

    Raise `NoSuchTarget` if none is.
    """
    having = members_of(partition, present, parallelism)
    if member is None or member not in having:
        there = ", ".join(f"replica:{each}" for each in sorted(having))
        wanted = f"no primary of partition {partition}" if member is None else f"no member {member}"
        raise NoSuchTarget(f"there is {wanted} at the moment; there is {there}")
    return having[member]


def standby_at(index: int, present: Present) -> str:
    """Return the standby process with this index; raise `NoSuchTarget` if fewer stand by."""
    standbys = standbys_of(present)
    if index >= len(standbys):
        there = f"{len(standbys)} stand by, counted from 0" if standbys else "none stands by at the moment"
        raise NoSuchTarget(f"there is no standby {index}: {there}")
    return standbys[index]


def standbys_of(present: Present) -> Sequence[str]:
    """Return the processes that have no partition, in the order in which they came."""
    return [worker for worker, has in present.items() if has is None]


def placed(present: Present) -> Sequence[Partition]:
    """Return the partitions that have a process, in rising order."""
    return sorted({has.partition for has in present.values() if has is not None})


class ContradictingOrder(OptionError, ValueError):
    """The parts of an order do not go together; the message says which."""


class Kind(Enum):
    """The kind of a fault."""

    KILL = "kill"
    """A process dies at once, by SIGKILL."""
    STOP = "stop"
    """A process hangs for a time, by SIGSTOP."""
    CUT = "cut"
    """Connections carry nothing for a time, and are not closed; nor do new ones between the same two."""
    BREAK = "break"
    """Connections are closed in the middle of a frame."""
    DELAY = "delay"
    """The bytes on connections come later for a time, in order."""


_MEMBERS: Final = (WorkerOf, ReplicaAt, PrimaryOf, AllOf)
_OF_PROCESSES: Final = (*_MEMBERS, StandbyAt, TheDriver, ExecutorOf, Anything)
_OF_CONNECTIONS: Final = (*_MEMBERS, StandbyAt, LinkBetween, Anything)
_LASTING: Final = (Kind.STOP, Kind.CUT, Kind.DELAY)


@dataclass(frozen=True, slots=True)
class Order:
    """A fault that was asked for, and its target. `lasting` is for what lasts, `by` for a delay; both in milliseconds.

    To cut, break or delay a process is to do so with all its connections, those with the driver included. Signs of life
    and the handshakes of new connections are not delayed.
    """

    kind: Kind
    target: Target
    lasting: int | None = None
    by: int | None = None

    def __post_init__(self) -> None:
        name, target = self.kind.value, self.target
        if self.kind in (Kind.KILL, Kind.STOP):
            if not isinstance(target, _OF_PROCESSES):
                raise ContradictingOrder(f"{target} is a connection, which cannot be told to {name}; cut it")
        elif not isinstance(target, _OF_CONNECTIONS):
            raise ContradictingOrder(f"{name} is for a worker, a standby or a link, not for {target}")
        if (self.kind in _LASTING) != (self.lasting is not None):
            how = "needs a time to last" if self.kind in _LASTING else "is over at once, and has no time to last"
            raise ContradictingOrder(f"{name} {how} (--for)")
        if (self.kind is Kind.DELAY) != (self.by is not None):
            how = "needs the delay" if self.kind is Kind.DELAY else "delays nothing"
            raise ContradictingOrder(f"{name} {how} (--delay)")
        if self.lasting == 0 or self.by == 0:
            raise ContradictingOrder(f"{name} for no time at all is nothing")

    def __str__(self) -> str:
        lasting = "" if self.lasting is None else f" for {in_words(self.lasting)}"
        by = "" if self.by is None else f" by {in_words(self.by)}"
        return f"{self.kind.value} {self.target}{by}{lasting}"
