"""The purpose of a connection, as its maker names it after it has proved the run's secret; no I/O.

Invariant: `parse_kind` gives what `kind_bytes` was given, or refuses by name; it has at most
`MAX_KIND` bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from snapshot.ids import ChannelId, Copy, Peering, Replica
from statebackend.errors import JobError
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid

MAX_KIND: Final = 4096
_MAX_NUMBER: Final = 2**32 - 1


class UnusableKind(JobError):
    """The purpose of a connection cannot be said or understood."""


@dataclass(frozen=True, slots=True)
class ControlOf:
    """The messages between the driver and a process that runs partitions."""

    worker: str

    def __str__(self) -> str:
        return f"control of {self.worker}"


@dataclass(frozen=True, slots=True)
class HeartbeatOf:
    """The beats of a process that runs partitions."""

    worker: str

    def __str__(self) -> str:
        return f"heartbeat of {self.worker}"


@dataclass(frozen=True, slots=True)
class LastWordsOf:
    """A connection for the last words of a process that runs partitions."""

    worker: str

    def __str__(self) -> str:
        return f"last words of {self.worker}"


@dataclass(frozen=True, slots=True)
class ChannelOf:
    """The frames of a channel, from a process to another, in one attempt."""

    copy: Copy
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"channel {self.copy} of {self.incarnation}"


@dataclass(frozen=True, slots=True)
class PeerOf:
    """The agreement of two members of a partition, in one attempt; both speak."""

    peering: Peering
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"agreement of {self.peering} of {self.incarnation}"


@dataclass(frozen=True, slots=True)
class CommandOf:
    """A connection for commands of a person, or of a program in a person's place, to the driver of a running job."""

    name: str
    """The name of the caller, for the log."""

    def __str__(self) -> str:
        return f"commands of {self.name}"


ConnectionKind = ControlOf | HeartbeatOf | LastWordsOf | ChannelOf | PeerOf | CommandOf


def kind_bytes(kind: ConnectionKind) -> bytes:
    """Return the kind of a connection as it is sent; raise `UnusableKind` if a name in it is too long."""
    match kind:
        case ControlOf(worker):
            fields: list[object] = ["control", worker]
        case HeartbeatOf(worker):
            fields = ["heartbeat", worker]
        case LastWordsOf(worker):
            fields = ["last words", worker]
        case CommandOf(name):
            fields = ["command", name]
        case ChannelOf(Copy(channel, sent_by, heard_by), Incarnation(generation, attempt)):
            ends = (channel.source, channel.target, channel.sender, channel.receiver, channel.port)
            fields = ["channel", *ends, sent_by, heard_by, generation, attempt]
        case PeerOf(Peering(partition, made_by, taken_by), Incarnation(generation, attempt)):
            fields = ["peer", partition, made_by, taken_by, generation, attempt]
    result = json.dumps(fields).encode()
    if len(result) > MAX_KIND:
        raise UnusableKind(f"{kind}: its {len(result)} bytes are more than {MAX_KIND}; use shorter names")
    return result


def parse_kind(sent: bytes) -> ConnectionKind:
    """Read what `kind_bytes` wrote; raise `UnusableKind` for anything else."""
    try:
        fields: object = json.loads(sent)
    except (ValueError, RecursionError) as error:
        raise UnusableKind(f"the kind of the connection is not JSON: {error}") from error
    match fields:
        case ["control", str(worker)]:
            return ControlOf(worker)
        case ["heartbeat", str(worker)]:
            return HeartbeatOf(worker)
        case ["last words", str(worker)]:
            return LastWordsOf(worker)
        case ["command", str(name)]:
            return CommandOf(name)
        case ["channel", str(source), str(target), *numbers] if len(numbers) == 7:
            sender, receiver, port, sent_by, heard_by, generation, attempt = (_number(number) for number in numbers)
            channel = ChannelId(Uid(source), Uid(target), Partition(sender), Partition(receiver), port)
            copy = Copy(channel, Replica(sent_by), Replica(heard_by))
            return ChannelOf(copy, Incarnation(Generation(generation), Attempt(attempt)))
        case ["peer", *numbers] if len(numbers) == 5:
            partition, made_by, taken_by, generation, attempt = (_number(number) for number in numbers)
            peering = Peering(Partition(partition), Replica(made_by), Replica(taken_by))
            return PeerOf(peering, Incarnation(Generation(generation), Attempt(attempt)))
        case _:
            raise UnusableKind(f"{sent[:100]!r} is no kind of a connection")


def _number(field: object) -> int:
    if type(field) is not int or not 0 <= field <= _MAX_NUMBER:
        raise UnusableKind(f"{str(field)[:100]!r} is no number from 0 to {_MAX_NUMBER}")
    return field
