"""The Arrow type for the values of a codec, found by the codec's name alone, and the way there and back.

Invariant: a value that is put into a column comes back equal and of the same types; one that Arrow cannot say
(an int of more than 64 bits, a text with a lone surrogate, the second of two local times) is left out, and the caller
is told which. A codec whose name is not one of this package's has nothing in Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from statebackend.states.codec_choice import codec_of
from statebackend.states.codec_shapes import OptionalCodec, StructCodec, TupleCodec
from statebackend.states.codecs import (
    BoolCodec,
    BytesCodec,
    Codec,
    DateCodec,
    DatetimeCodec,
    FloatCodec,
    IntCodec,
    NoneCodec,
    StrCodec,
)

_REFUSALS: Final = (pa.ArrowException, OverflowError, ValueError, TypeError)


class _NotSaid(ValueError):
    """A value, or a type, that Arrow does not have."""


@dataclass(frozen=True, slots=True)
class Natural:
    """The Arrow type for the values of a codec. `total` says that it has all of them."""

    codec: Codec[object]
    arrow: pa.DataType
    total: bool
    _say: Callable[[object], object] | None
    _hear: Callable[[pa.Array], list[object]]

    def said(self, values: Sequence[object]) -> tuple[pa.Array, list[int]]:
        """Return a column of these values, and the places of those that Arrow cannot say, which are null."""
        try:
            return self._array(values), []
        except _REFUSALS:
            if self.total:
                raise
        left_out = [at for at, value in enumerate(values) if not self._can_say(value)]
        gaps = set(left_out)
        return self._array([None if at in gaps else value for at, value in enumerate(values)]), left_out

    def heard(self, column: pa.Array) -> list[object]:
        """Return the values in a column of this type, None for nulls; the codec has yet to accept them."""
        return self._hear(column)

    def say(self, value: object) -> object:
        """Return a value in the form that `pyarrow.array` takes."""
        return value if value is None or self._say is None else self._say(value)

    def _array(self, values: Sequence[object]) -> pa.Array:
        said = values if self._say is None else [self.say(value) for value in values]
        return pa.array(said, type=self.arrow)

    def _can_say(self, value: object) -> bool:
        try:
            self._array([value])
        except _REFUSALS:
            return False
        return True


def natural_of(name: str) -> Natural | None:
    """Return what Arrow has for the codec of this name at version 1; None if there is nothing or no such codec."""
    try:
        found, end = _parsed(name, 0)
    except _NotSaid:
        return None
    return found if end == len(name) and found.codec.name == name else None


def _plain(column: pa.Array) -> list[object]:
    listed: list[object] = column.to_pylist()
    return listed


def _moments(column: pa.Array) -> list[object]:
    return _plain(pc.cast(column, pa.timestamp("us", column.type.tz)))


def _leaf(codec: object, arrow: pa.DataType, *, total: bool = True) -> Natural:
    assert isinstance(codec, Codec)
    return Natural(codec, arrow, total, None, _moments if pa.types.is_timestamp(arrow) else _plain)


_MOMENT: Final = pa.struct([("instant", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])


def _say_moment(value: object) -> object:
    if not isinstance(value, datetime) or value.fold:
        raise _NotSaid(value)
    return (value, None) if value.tzinfo is not None else (None, value)


def _hear_moment(column: pa.Array) -> list[object]:
    instants, locals_ = (_plain(part) for part in column.flatten())
    return [local if instant is None else instant for instant, local in zip(instants, locals_, strict=True)]


def _leaves() -> dict[str, Natural]:
    found = [
        _leaf(IntCodec(), pa.int64(), total=False),
        _leaf(FloatCodec(), pa.float64()),
        _leaf(BoolCodec(), pa.bool_()),
        _leaf(StrCodec(), pa.string(), total=False),
        _leaf(BytesCodec(), pa.binary()),
        _leaf(NoneCodec(), pa.null()),
        _leaf(DateCodec(), pa.date32()),
        Natural(_as_objects(DatetimeCodec()), _MOMENT, False, _say_moment, _hear_moment),
    ]
    arrow = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    arrow += [pa.float32(), pa.float64()]
    arrow += [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
    found += [_leaf(codec_of(one), one) for one in arrow]
    return {natural.codec.name: natural for natural in found}


def _as_objects(codec: object) -> Codec[object]:
    assert isinstance(codec, Codec)
    return codec


_LEAVES: Final = _leaves()
_WORD: Final = re.compile(r"[a-z0-9]+(?:\[[a-z, ]+\])?")


def _parsed(name: str, at: int) -> tuple[Natural, int]:
    """Parse the name of a codec that begins at `at`; return what Arrow has for it, and where the name ends."""
    if name.startswith("optional<", at):
        inner, at = _parsed(name, at + len("optional<"))
        optional = OptionalCodec(inner.codec)
        return Natural(optional, inner.arrow, inner.total, inner._say, inner._hear), _expected(">", name, at)
    if name.startswith("tuple<", at):
        parts, at = _parts(name, at + len("tuple<"), named=False)
        naturals = [part for _, part in parts]
        return _row(_as_objects(TupleCodec([part.codec for part in naturals])), parts), at
    if name.startswith("struct<", at):
        parts, at = _parts(name, at + len("struct<"), named=True)
        return _row(_struct(parts), parts), at
    word = _WORD.match(name, at)
    if word is None or word.group() not in _LEAVES:
        raise _NotSaid(name)
    return _LEAVES[word.group()], word.end()


def _struct(parts: Sequence[tuple[str, Natural]]) -> Codec[object]:
    return _as_objects(StructCodec([(field, part.codec) for field, part in parts]))


def _parts(name: str, at: int, *, named: bool) -> tuple[list[tuple[str, Natural]], int]:
    parts: list[tuple[str, Natural]] = []
    while True:
        field = f"f{len(parts)}"
        if named:
            colon = name.find(": ", at)
            if colon < 0:
                raise _NotSaid(name)
            field, at = name[at:colon], colon + 2
        part, at = _parsed(name, at)
        parts.append((field, part))
        if not name.startswith(", ", at):
            break
        at += 2
    if len({field for field, _ in parts}) < len(parts):
        raise _NotSaid(name)
    return parts, _expected(">", name, at)


def _expected(text: str, name: str, at: int) -> int:
    if not name.startswith(text, at):
        raise _NotSaid(name)
    return at + len(text)


def _row(codec: Codec[object], parts: Sequence[tuple[str, Natural]]) -> Natural:
    naturals = [part for _, part in parts]

    def say(value: object) -> object:
        assert isinstance(value, tuple)
        return tuple([part.say(field) for part, field in zip(naturals, value, strict=True)])

    def hear(column: pa.Array) -> list[object]:
        fields = [part.heard(child) for part, child in zip(naturals, column.flatten(), strict=True)]
        rows: list[object] = list(zip(*fields, strict=True))
        if column.null_count:
            rows = [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
        return rows

    says = say if any(part._say is not None for part in naturals) else None
    arrow = pa.struct([(field, part.arrow) for field, part in parts])
    return Natural(codec, arrow, all(part.total for part in naturals), says, hear)
