"""Choose the codec for a declared type: Python types, Arrow types and their names, and codecs themselves.

Invariant: a declared type that has no codec is refused when it is declared; nothing is pickled instead.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Final, Protocol, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import pyarrow as pa

from statebackend.errors import ProgramError
from statebackend.states.codec_shapes import OptionalCodec, StructCodec, TupleCodec
from statebackend.states.codecs import (
    UTC_ZERO,
    ZERO,
    BoolCodec,
    BytesCodec,
    Codec,
    DateCodec,
    DatetimeCodec,
    FloatCodec,
    IntCodec,
    NoneCodec,
    NotEncodable,
    StrCodec,
    refusal,
)

T = TypeVar("T")


class ArrowType(Protocol):
    """The protocol of a `pyarrow.DataType`, stated here because pyarrow has no types."""

    @property
    def bit_width(self) -> int:
        """Return how many bits a value has."""


Declared: TypeAlias = type[T] | Codec[T] | types.UnionType | str | ArrowType | None
"""The declaration of a type: `int`, `tuple[int, str]`, `int | None`, `"int64"`, `pa.struct(...)`, or a codec. A type
checker learns the type of the values from a Python type or a codec; else declare it: `ValueState[int]("int64")`."""

_PLAIN: Final[dict[object, Callable[[], Codec[object]]]] = cast(
    "dict[object, Callable[[], Codec[object]]]",
    {
        int: IntCodec, float: FloatCodec, bool: BoolCodec, str: StrCodec, bytes: BytesCodec, None: NoneCodec,
        type(None): NoneCodec, date: DateCodec, datetime: DatetimeCodec,
    },
)  # fmt: skip


class NoCodec(ProgramError, TypeError):
    """A declared type whose values cannot be encoded; the message says what to declare instead."""


def codec_of(declared: Declared[T]) -> Codec[T]:
    """Return the codec for a declared type; raise `NoCodec` if there is none."""
    return cast("Codec[T]", _codec(declared))


def _codec(declared: object) -> Codec[object]:
    if isinstance(declared, Codec):
        return declared
    if isinstance(declared, pa.DataType):
        return _arrow(declared)
    if isinstance(declared, str):
        try:
            return _arrow(pa.type_for_alias(declared))
        except ValueError as error:
            raise NoCodec(f"{declared!r} is not the name of an Arrow type") from error
    if isinstance(declared, tuple):
        return cast("Codec[object]", TupleCodec([_codec(part) for part in declared]))
    return _python(declared)


def _python(declared: object) -> Codec[object]:
    made = _PLAIN.get(declared)
    if made is not None:
        return made()
    origin, parts = get_origin(declared), get_args(declared)
    if origin is tuple and Ellipsis not in parts:
        return cast("Codec[object]", TupleCodec([_codec(part) for part in parts]))
    if origin in (types.UnionType, Union) and len(parts) == 2 and type(None) in parts:
        return OptionalCodec(_codec(next(part for part in parts if part is not type(None))))
    name = getattr(declared, "__qualname__", repr(declared))
    raise NoCodec(
        f"there is no codec for {name}; types that have one are int, float, bool, str, bytes, date, datetime, None, "
        "tuple[...] of these, T | None, and Arrow's, such as pa.struct(...) or 'int64'; else declare Pickled() or a "
        "Codec of your own, both from statebackend"
    )


_INTEGERS: Final = {
    pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q",
    pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q",
}  # fmt: skip


def _arrow(declared: pa.DataType) -> Codec[object]:
    found: object
    if declared in _INTEGERS:
        found = BoundedIntCodec(str(declared), _INTEGERS[declared], declared.bit_width)
    elif declared in (pa.float32(), pa.float64()):
        found = ArrowFloatCodec(f"float{declared.bit_width}", "f" if declared == pa.float32() else "d")
    elif declared == pa.bool_():
        found = BoolCodec()
    elif pa.types.is_timestamp(declared):
        found = TimestampCodec(declared.unit, declared.tz)
    elif pa.types.is_struct(declared):
        found = StructCodec([(field.name, _arrow(field.type)) for field in declared])
    elif pa.types.is_date32(declared):
        found = DateCodec()
    elif pa.types.is_string(declared) or pa.types.is_large_string(declared):
        found = StrCodec()
    elif pa.types.is_binary(declared) or pa.types.is_large_binary(declared):
        found = BytesCodec()
    else:
        raise NoCodec(
            f"there is no codec for Arrow's {declared}; declare Pickled() or a Codec of your own, from statebackend"
        )
    return cast("Codec[object]", found)


class BoundedIntCodec(IntCodec):
    """Whole numbers of one of Arrow's widths; others are refused."""

    exact = None

    def __init__(self, name: str, character: str, bits: int) -> None:
        self.name, self.packed = name, character
        self._struct, self._bits = struct.Struct("<" + character), bits
        self.signed = character.islower()
        self._low, self._high = (-(1 << bits - 1), (1 << bits - 1) - 1) if self.signed else (0, (1 << bits) - 1)

    def __reduce__(self) -> tuple[type[BoundedIntCodec], tuple[str, str, int]]:
        return BoundedIntCodec, (self.name, cast("str", self.packed), self._bits)

    def encode(self, value: int) -> bytes:
        """Encode in as many bytes as the type has."""
        return self._struct.pack(value)

    def decode(self, data: bytes) -> int:
        """Decode what `encode` wrote."""
        return int(self._struct.unpack(data)[0])

    def accept(self, value: object) -> int:
        """Return a plain int; refuse one that is out of bounds."""
        number = value if type(value) is int else super().accept(value)
        if self._low <= number <= self._high:
            return number
        raise refusal(f"{self.name}, from {self._low} to {self._high}", value)


class ArrowFloatCodec(FloatCodec):
    """Floating point numbers; what `float32` cannot say is rounded when it is set, and so reads the same ever after."""

    def __init__(self, name: str, character: str) -> None:
        self.name, self.packed = name, character
        self.exact = float if character == "d" else None
        self._struct = struct.Struct("<" + character)

    def __reduce__(self) -> tuple[type[ArrowFloatCodec], tuple[str, str]]:
        return ArrowFloatCodec, (self.name, cast("str", self.packed))

    def encode(self, value: float) -> bytes:
        """Encode in as many bytes as the type has."""
        return self._struct.pack(value)

    def decode(self, data: bytes) -> float:
        """Decode what `encode` wrote."""
        return float(self._struct.unpack(data)[0])

    def accept(self, value: object) -> float:
        """Return the nearest float of the type."""
        number = super().accept(value)
        try:
            return float(self._struct.unpack(self._struct.pack(number))[0])
        except OverflowError as error:
            raise NotEncodable(f"{number!r} is too large for {self.name}") from error


_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_TICKS: Final = struct.Struct("<q")


class TimestampCodec(Codec[datetime]):
    """Arrow's timestamps: with a zone, instants that come back in UTC; without one, local times."""

    immutable = True

    def __init__(self, unit: str, zone: str | None) -> None:
        self._per_second = _UNITS[unit]
        self._zoned = zone is not None
        self.name = f"timestamp[{unit}, instant]" if self._zoned else f"timestamp[{unit}]"

    def encode(self, value: datetime) -> bytes:
        """Encode as 8 bytes: units since 1970."""
        return _TICKS.pack(self._ticks(value))

    def decode(self, data: bytes) -> datetime:
        """Decode what `encode` wrote."""
        microseconds = _TICKS.unpack(data)[0] * 1_000_000 // self._per_second
        return (UTC_ZERO if self._zoned else ZERO) + timedelta(microseconds=microseconds)

    def accept(self, value: object) -> datetime:
        """Return a datetime; refuse one that has a zone where the type has none, or the reverse, or is too fine."""
        if not isinstance(value, datetime) or (value.utcoffset() is not None) != self._zoned:
            raise refusal(f"{self.name}, a datetime {'with' if self._zoned else 'without'} a zone", value)
        try:
            kept = self.decode(self.encode(value))
        except struct.error as error:
            raise refusal(f"{self.name}, which ends earlier", value) from error
        if kept != (value if self._zoned else value.replace(tzinfo=None)):
            raise refusal(f"{self.name}, which has no such fractions of a second", value)
        return kept

    def _ticks(self, value: datetime) -> int:
        since = value - UTC_ZERO if self._zoned else value.replace(tzinfo=None) - ZERO
        whole = (since.days * 86_400 + since.seconds) * self._per_second
        return whole + since.microseconds * self._per_second // 1_000_000
