"""Events as they are read back from the lines of their file.

Invariant: a line that `line_of` wrote comes back as the same event, its time cut off after the milliseconds. A line
that is damaged, cut short, or of an event that this version does not know is left out, and counted.
"""

from __future__ import annotations

import json
import os
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from time import strptime
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from recovery import events as log
from snapshot.ids import Member, Replica
from statebackend.errors import JobError
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

MOST: Final = 24 << 20
"""Bytes of the newest lines that are read of a job's past; older ones are passed over."""
_KINDS: Final = {kind.__name__: kind for kind in get_args(log.AnyEvent)}

_ENDLESS: Final = 2**64
"""No time, size or count is so large: a sum of greater ones might be no number, which JSON does not have."""

Read = Callable[[Any], Any]


class Unreadable(JobError, ValueError):
    """A line that is no event that this version knows."""


def event_of(line: str | bytes) -> log.AnyEvent:
    """Return the event of a line; `Unreadable` if it has none."""
    try:
        content = json.loads(line)
        kind = _KINDS[content.pop("event")]
        event: log.AnyEvent = _reader(kind)({**content, "at": _time(content.pop("time"))})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return event


class PastEvents:
    """The events in a file, and in the one that was put aside before it."""

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        self.unreadable = 0
        """Lines that were left out so far."""
        self.passed_over = 0
        """Bytes of older lines that were not read."""
        self._inode: int | None = None
        self._offset = 0
        self._rest = b""
        self._cut = False
        """True if what is read next begins amid a line."""

    def more(self) -> Iterator[log.AnyEvent]:
        """Give the events that were written since the last call, oldest first; none while there is no file."""
        with suppress(FileNotFoundError):
            here = self.file.stat()
            if self._inode is None:
                yield from self._begin(here)
            elif here.st_ino != self._inode or here.st_size < self._offset:
                yield from self._of_one_put_aside()
            self._inode = here.st_ino  # also if it is put aside before it is read: then the next call finds it there
            yield from self._events(self._read(self.file, here.st_ino))

    def _begin(self, here: os.stat_result) -> Iterator[log.AnyEvent]:
        """Give what is to be read of the file that was put aside, and pass over what is too old."""
        aside = _aside(self.file)
        with suppress(FileNotFoundError):
            before = aside.stat()
            if before.st_ino != here.st_ino:  # else the file itself is put aside just now
                self._pass_over(before.st_size - max(0, MOST - here.st_size))
                yield from self._events(self._read(aside, before.st_ino))
        self._pass_over(here.st_size - MOST)

    def _pass_over(self, size: int) -> None:
        """Begin a file behind so many bytes, if any."""
        self._offset, self._rest = max(0, size), b""
        self._cut = self._offset > 0
        self.passed_over += self._offset

    def _of_one_put_aside(self) -> Iterator[log.AnyEvent]:
        """Give the rest of the file that was read until now, if it was put aside, and begin the new one."""
        aside = _aside(self.file)
        with suppress(FileNotFoundError):
            if self._inode is not None and aside.stat().st_ino == self._inode:
                yield from self._events(self._read(aside, self._inode))
        self._pass_over(0)

    def _read(self, path: Path, inode: int) -> bytes:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_ino != inode:
                return b""  # it is put aside just now; the next call finds it
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        return data

    def _events(self, data: bytes) -> Iterator[log.AnyEvent]:
        """Give the events of whole lines."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._cut and lines:
            self._cut = False
            del lines[0]
        for line in lines:
            try:
                yield event_of(line)
            except Unreadable:
                self.unreadable += 1


def _aside(file: Path) -> Path:
    return file.with_name(file.name + ".1")


def _time(stamp: str) -> float:
    whole, _, rest = stamp.removesuffix("Z").partition(".")
    return _number(timegm(strptime(whole, "%Y-%m-%dT%H:%M:%S")) + int(rest or 0) / 1000)


# --- values, each by its type ----------------------------------------------------------------------------------------


@cache
def _reader(kind: Any) -> Read:
    """Return the function that makes a value of this type of what JSON has for it."""
    plain = getattr(kind, "__supertype__", kind)
    if plain is not kind:
        return _reader(plain)
    if kind in _TEXTS:
        return _TEXTS[kind]
    if kind in (str, bool, object):
        return _exactly(kind)
    if kind is int:
        return _whole
    if kind is float:
        return _number
    if is_dataclass(kind):
        return _of_dataclass(kind)
    return _of_generic(kind)


def _of_generic(kind: Any) -> Read:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = (_reader(one) for one in arguments if one is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[1:] == (...,):
        item = _reader(arguments[0])
        return lambda value: tuple(item(one) for one in _list(value))
    if origin is tuple:
        items = [_reader(one) for one in arguments]
        return lambda value: tuple(read(one) for read, one in zip(items, _list(value), strict=True))
    if origin is not None and issubclass(origin, Mapping):
        key, item = (_reader_of_keys(arguments[0]), _reader(arguments[1]))
        return lambda value: {key(name): item(one) for name, one in value.items()}
    raise TypeError(f"events have no values of {kind}")


def _reader_of_keys(kind: Any) -> Read:
    """Return the same for a key of an object, which is a text always."""
    return int if getattr(kind, "__supertype__", kind) is int else _reader(kind)


def _of_dataclass(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in fields(kind)}
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}

    def read(value: Mapping[str, Any]) -> Any:
        known = {name: readers[name](one) for name, one in value.items() if name in readers}
        if not needed <= known.keys():
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(needed - known.keys()))}")
        return kind(**known)

    return read


def _exactly(kind: type) -> Read:
    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return value

    return read


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not abs(value) < _ENDLESS:  # NaN is neither less nor greater
        raise ValueError(f"{value!r} is too large, or not a number")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    _number(value)
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _incarnation(text: str) -> Incarnation:
    generation, attempt = text.split(".")
    return Incarnation(Generation(int(generation)), Attempt(int(attempt)))


def _member(text: str) -> Member:
    partition, replica = text.split(".")
    return Member(Partition(int(partition)), Replica(int(replica)))


_TEXTS: Final[Mapping[Any, Read]] = {Epoch: Epoch.parse, Incarnation: _incarnation, Member: _member}
"""Types whose values are told as texts."""
