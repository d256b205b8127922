"""Map keys as bytes that sort as the keys do: numbers, texts, bytes, days, moments, and tuples of these.

Invariant: two map keys are the same exactly if their bytes are. -0.0 is 0.0, and all NaNs are one map key.
Tuples do not sort as tuples do, only their equality counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Final, Generic, TypeVar, cast

from statebackend.entries import BrokenEntry, delimited, sortable, undelimited, unsortable
from statebackend.errors import ProgramError
from statebackend.states.codec_choice import BoundedIntCodec, Declared, codec_of
from statebackend.states.codec_shapes import TupleCodec
from statebackend.states.codecs import (
    BoolCodec,
    BytesCodec,
    Codec,
    DateCodec,
    DatetimeCodec,
    FloatCodec,
    IntCodec,
    StrCodec,
    refusal,
)

K = TypeVar("K")

_WORD: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")
_DAY: Final = struct.Struct(">I")
_DAY_ZERO: Final = 1 << 31
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_NAN: Final = 0x7FF8000000000000


class NoMapKey(ProgramError, TypeError):
    """A declared type whose values cannot be map keys."""


@dataclass(frozen=True, slots=True)
class MapKeys(Generic[K]):
    """Map keys of one type; `codec` says which values are accepted."""

    codec: Codec[K]
    _encode: Callable[[K], bytes]
    _decode: Callable[[bytes], K]

    @property
    def name(self) -> str:
        """Return the name of the type in files."""
        return self.codec.name

    def encode(self, key: object) -> bytes:
        """Return the bytes of a map key; raise `NotEncodable` if it cannot be one."""
        accepted = key if type(key) is self.codec.exact else self.codec.accept(key)
        return self._encode(cast("K", accepted))

    def decode(self, data: bytes) -> K:
        """Return the map key with these bytes; raise `BrokenEntry` if there is none."""
        try:
            return self._decode(data)
        except Exception as error:
            raise BrokenEntry(
                f"{len(data)} bytes are no map key of {self.name} ({error}): the file is damaged"
            ) from error


def map_keys_of(declared: Declared[K]) -> MapKeys[K]:
    """Return the map keys of a declared type; raise `NoMapKey` if its values cannot be map keys."""
    codec = codec_of(declared)
    try:
        return cast("MapKeys[K]", _keys(codec))
    except NoMapKey as error:
        raise NoMapKey(f"{codec.name} cannot be a map key: {error}") from None


def _keys(codec: object) -> MapKeys[object]:
    found: object
    match codec:
        case BoundedIntCodec(signed=False):
            found = MapKeys(codec, _WORD.pack, lambda data: _WORD.unpack(data)[0])
        case IntCodec():
            found = MapKeys(codec, _int_bytes, unsortable)
        case FloatCodec():
            found = MapKeys(codec, _float_bytes, _float)
        case StrCodec():
            found = MapKeys(codec, codec.encode, codec.decode)
        case BytesCodec():
            found = MapKeys(codec, codec.encode, codec.decode)
        case BoolCodec():
            found = MapKeys(codec, codec.encode, codec.decode)
        case DateCodec():
            found = _days(codec)
        case DatetimeCodec():
            found = MapKeys(codec, codec.encode, codec.decode)
        case TupleCodec():
            found = _tuples(codec)
        case _:
            raise NoMapKey("map keys are int, str, bytes, float, bool, date, datetime or tuples of these")
    return cast("MapKeys[object]", found)


def _int_bytes(key: int) -> bytes:
    if not -_SIGN <= key < _SIGN:
        raise refusal("a map key of 64 bits", key)
    return sortable(key)


def _float_bytes(key: float) -> bytes:
    """Set the sign bit of a positive number, and invert all bits of a negative one: so the bytes sort as numbers do."""
    bits = int(_WORD.unpack(_DOUBLE.pack(key + 0.0))[0]) if key == key else _NAN
    return _WORD.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _float(data: bytes) -> float:
    bits = int(_WORD.unpack(data)[0])
    return float(_DOUBLE.unpack(_WORD.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL))[0])


def _days(codec: DateCodec) -> MapKeys[date]:
    """Return map keys encoded as the codec does, but the highest byte first, and days before 1970 before the others."""

    def encode(day: date) -> bytes:
        return _DAY.pack(int.from_bytes(codec.encode(day), "little", signed=True) + _DAY_ZERO)

    def decode(data: bytes) -> date:
        return codec.decode((int(_DAY.unpack(data)[0]) - _DAY_ZERO).to_bytes(4, "little", signed=True))

    return MapKeys(codec, encode, decode)


def _tuples(codec: TupleCodec) -> MapKeys[tuple[object, ...]]:
    parts = [_keys(part) for part in codec.parts]

    def encode(key: tuple[object, ...]) -> bytes:
        return b"".join([delimited(part.encode(value)) for part, value in zip(parts, key, strict=True)])

    def decode(data: bytes) -> tuple[object, ...]:
        values, at = [], 0
        for part in parts:
            piece, at = undelimited(data, at)
            values.append(part.decode(piece or b""))
        return tuple(values)

    return MapKeys(cast("Codec[tuple[object, ...]]", codec), encode, decode)
