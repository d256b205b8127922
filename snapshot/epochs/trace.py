"""A recorded trace of a coordinator: what it was told and what it said, and a replay that compares.

Invariant: a trace holds all that the coordinator's answers depend on, so the same code gives the same answers,
on any machine. What participants acknowledge with is passed on unread, so the trace has only whose it is.

    {"trace":"epochcut.coordinator","version":1,"options":{...},"generation":2,"now":0,"complete":null,...}
    {"event":{"is":"Ticked","now":1000},"instructions":[{"is":"Trigger",...}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import NoneType, UnionType
from typing import TypeVar, Union, cast, get_args, get_origin, get_type_hints

from snapshot.cut.frames import Marker
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator
from snapshot.epochs.coordinator_options import CoordinatorOptions
from statebackend.errors import JobError
from statebackend.ids import Attempt, Epoch, Generation, Incarnation

FORMAT = "epochcut.coordinator"
VERSION = 1

_STORED_NAMES: Mapping[type, str] = {events.RemoveOlder: "Subsume"}
"""The names that differ in a trace, so that traces of earlier releases still replay."""

_Made = TypeVar("_Made")
_KINDS: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(get_origin(kind) or kind for kind in get_args(events.CoordinatorEvent)),
        *(get_origin(kind) or kind for kind in get_args(events.CoordinatorInstruction)),
        Marker,
        CoordinatorOptions,
    )
}


class NoTrace(JobError, ValueError):
    """Lines that are no trace of a coordinator, or one of a version that this program does not know."""


class TraceDiffers(AssertionError):
    """A replay gave other instructions than were recorded; the message has the line, the event and both."""


class TraceWriter:
    """Writes a trace line by line. `write` is given each line as it happens."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def begin(
        self,
        options: CoordinatorOptions,
        generation: Generation,
        now: int,
        complete: Epoch | None,
        last_number: int,
        uncommitted: Collection[Epoch],
    ) -> None:
        """Write what the coordinator is made with; this comes first."""
        self._line(
            {
                "trace": FORMAT,
                "version": VERSION,
                "options": _plain(options),
                "generation": generation,
                "now": now,
                "complete": _plain(complete),
                "last_number": last_number,
                "uncommitted": _plain(tuple(uncommitted)),
            }
        )

    def add(
        self,
        event: events.CoordinatorEvent[events.Content],
        instructions: Sequence[events.CoordinatorInstruction[events.Content]],
    ) -> None:
        """Write an event that the coordinator was told, and the instructions that it gave."""
        self._line({"event": _anonymous(event), "instructions": [_anonymous(one) for one in instructions]})

    def _line(self, value: Mapping[str, object]) -> None:
        self._write(json.dumps(value, separators=(",", ":")) + "\n")


def replay(lines: Iterable[str]) -> int:
    """Tell a fresh coordinator the same; return how many events that were. `TraceDiffers` if it says something else.

    A last line that was cut short by a crash is left out.
    """
    coordinator: Coordinator[str] | None = None
    told = 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break
        try:
            entry = _parsed(line)
            if coordinator is None or "trace" in entry:
                coordinator = _coordinator(entry)
            else:
                _compare(coordinator, _event(entry["event"]), entry["instructions"])
                told += 1
        except (NoTrace, TraceDiffers) as error:
            raise type(error)(f"line {number}: {error}") from error.__cause__
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise NoTrace(f"line {number} is none of a trace: {type(error).__name__}: {error}") from error
    if coordinator is None:
        raise NoTrace("there is nothing in the trace")
    return told


def _compare(coordinator: Coordinator[str], event: events.CoordinatorEvent[str], recorded: object) -> None:
    try:
        said = [_anonymous(one) for one in coordinator.handle(event)]
    except Exception as error:  # one that raises at an event is not recorded with it
        raise TraceDiffers(f"at {event} it was recorded {recorded}, and is {type(error).__name__}: {error}") from error
    if said != recorded:
        raise TraceDiffers(f"at {event} it was recorded {recorded}, and is {said}")


def _coordinator(header: Mapping[str, object]) -> Coordinator[str]:
    if header.get("trace") != FORMAT or header.get("version") != VERSION:
        raise NoTrace(f"expected a trace of {FORMAT} in version {VERSION}, found {str(header)[:100]}")
    return Coordinator(
        _made(CoordinatorOptions, header["options"]),
        _made(Generation, header["generation"]),
        now=_made(int, header["now"]),
        complete=cast("Epoch | None", _value(Epoch | None, header["complete"])),
        last_number=_made(int, header["last_number"]),
        uncommitted=cast("tuple[Epoch, ...]", _value(tuple[Epoch, ...], header["uncommitted"])),
    )


def _event(value: object) -> events.CoordinatorEvent[str]:
    kind = _KINDS.get(str(value.get("is"))) if isinstance(value, dict) else None
    if kind is None:
        raise NoTrace(f"{str(value)[:100]} is no event of a coordinator")
    return cast("events.CoordinatorEvent[str]", _value(kind, value))


def _parsed(line: str) -> Mapping[str, object]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise NoTrace(f"it is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise NoTrace("it is no object")
    return entry


# --- values to JSON --------------------------------------------------------------------------------------------------


def _anonymous(value: object) -> object:
    """Return an event or instruction as plain values, with its epoch and partition in place of each content."""
    match value:
        case events.Acknowledged(epoch, _, partition):
            return _plain(replace(value, content=f"{epoch}/{partition}"))
        case events.Publish(epoch, contents=contents):
            return _plain(replace(value, contents={partition: f"{epoch}/{partition}" for partition in contents}))
        case _:
            return _plain(value)


def _plain(value: object) -> object:
    match value:
        case Epoch() | Incarnation():
            return str(value)
        case Enum():
            return value.value
        case frozenset():
            return sorted(value)
        case tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {str(key): _plain(value[key]) for key in sorted(value)}
        case _ if is_dataclass(value):
            plain: dict[str, object] = {"is": _STORED_NAMES.get(type(value), type(value).__name__)}
            plain.update((field.name, _plain(getattr(value, field.name))) for field in fields(value))
            return plain
        case _:
            return value


# --- and back --------------------------------------------------------------------------------------------------------


def _made(kind: type[_Made] | Callable[[int], _Made], value: object) -> _Made:
    return cast("_Made", _value(kind, value))


def _value(kind: object, value: object) -> object:  # the kinds are those of the events: what is made is of its kind
    if kind is Epoch:
        return Epoch.parse(_text(value))
    if kind is Incarnation:
        generation, _, attempt = _text(value).partition(".")
        return Incarnation(Generation(int(generation)), Attempt(int(attempt)))
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else _value(next(one for one in inner if one is not NoneType), value)
    if origin in (frozenset, tuple) and isinstance(value, list):
        return (frozenset if origin is frozenset else tuple)(_value(inner[0], item) for item in value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{name: _value(hints[name], item) for name, item in value.items() if name != "is"})
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise NoTrace(f"expected a text, found {str(value)[:100]}")
    return value
