"""What a connection is for, as whoever connects says it, once it has proved the run's secret; no I/O.

What always holds: `parse_purpose` gives what `purpose_bytes` was given, or refuses by name; a purpose has at most
`MAX_PURPOSE` bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from snapshot.ids import ChannelId
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid

MAX_PURPOSE: Final = 4096
_MAX_NUMBER: Final = 2**32 - 1


class UnusablePurpose(Exception):
    """What a connection is for cannot be said or understood."""


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
    """What a process that runs partitions was at when it died."""

    worker: str

    def __str__(self) -> str:
        return f"last words of {self.worker}"


@dataclass(frozen=True, slots=True)
class ChannelOf:
    """The frames of a channel, from its sender to its receiver, in one attempt."""

    channel: ChannelId
    incarnation: Incarnation

    def __str__(self) -> str:
        return f"channel {self.channel} of {self.incarnation}"


@dataclass(frozen=True, slots=True)
class CommandOf:
    """What a person, or a program in a person's place, asks the driver of a running job."""

    name: str
    """Who asks, for the log."""

    def __str__(self) -> str:
        return f"commands of {self.name}"


Purpose = ControlOf | HeartbeatOf | LastWordsOf | ChannelOf | CommandOf


def purpose_bytes(purpose: Purpose) -> bytes:
    """Return the purpose as it is sent; raise `UnusablePurpose` if a name in it is too long."""
    match purpose:
        case ControlOf(worker):
            fields: list[object] = ["control", worker]
        case HeartbeatOf(worker):
            fields = ["heartbeat", worker]
        case LastWordsOf(worker):
            fields = ["last words", worker]
        case CommandOf(name):
            fields = ["command", name]
        case ChannelOf(ChannelId(source, target, sender, receiver, port), Incarnation(generation, attempt)):
            fields = ["channel", source, target, sender, receiver, port, generation, attempt]
    result = json.dumps(fields).encode()
    if len(result) > MAX_PURPOSE:
        raise UnusablePurpose(f"{purpose}: its {len(result)} bytes are more than {MAX_PURPOSE}; use shorter names")
    return result


def parse_purpose(sent: bytes) -> Purpose:
    """Read what `purpose_bytes` wrote; raise `UnusablePurpose` for anything else."""
    try:
        fields: object = json.loads(sent)
    except (ValueError, RecursionError) as error:
        raise UnusablePurpose(f"the purpose is not JSON: {error}") from error
    match fields:
        case ["control", str(worker)]:
            return ControlOf(worker)
        case ["heartbeat", str(worker)]:
            return HeartbeatOf(worker)
        case ["last words", str(worker)]:
            return LastWordsOf(worker)
        case ["command", str(name)]:
            return CommandOf(name)
        case ["channel", str(source), str(target), *numbers] if len(numbers) == 5:
            sender, receiver, port, generation, attempt = (_number(number) for number in numbers)
            channel = ChannelId(Uid(source), Uid(target), Partition(sender), Partition(receiver), port)
            return ChannelOf(channel, Incarnation(Generation(generation), Attempt(attempt)))
        case _:
            raise UnusablePurpose(f"{sent[:100]!r} is no purpose of a connection")


def _number(field: object) -> int:
    if type(field) is not int or not 0 <= field <= _MAX_NUMBER:
        raise UnusablePurpose(f"{str(field)[:100]!r} is no number from 0 to {_MAX_NUMBER}")
    return field
