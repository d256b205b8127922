"""The encoding of protobuf, as far as the controller's messages use it: numbered fields, and messages in messages.

Invariant: fields that are not known are kept apart and read by nobody, as protobuf wants it; a text that is no message
is a `ValueError`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Value: TypeAlias = int | float | bytes

_VARINT: Final = 0
_EIGHT: Final = 1
_BYTES: Final = 2
_FOUR: Final = 5
_WORD: Final = (1 << 64) - 1
_MOST_BYTES: Final = 10
"""Bytes of the longest number."""


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Encode fields: whole numbers, texts, and bytes, which may be a message."""
    parts: list[bytes] = []
    for number, value in fields:
        if isinstance(value, int):
            parts += (_varint(number << 3 | _VARINT), _varint(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            parts += (_varint(number << 3 | _BYTES), _varint(len(data)), data)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a message by their numbers, each as often as it is there. A missing one has protobuf's default."""

    values: dict[int, list[Value]] = field(default_factory=dict)

    def number(self, field: int) -> int:
        """Return a whole number, with its sign."""
        value = self.values.get(field, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {field} is no whole number")
        return value - (1 << 64) if value >> 63 else value

    def fraction(self, field: int) -> float:
        """Return a number of eight bytes."""
        value = self.values.get(field, [0.0])[-1]
        if not isinstance(value, float):
            raise ValueError(f"field {field} is no fraction")
        return value

    def text(self, field: int) -> str:
        """Return a text."""
        return self._bytes(field)[-1].decode() if field in self.values else ""

    def inner(self, field: int) -> Fields:
        """Return the message in a field; an empty one if it is missing."""
        return parsed(self._bytes(field)[-1]) if field in self.values else Fields()

    def all(self, field: int) -> Sequence[Fields]:
        """Return all messages of a repeated field."""
        return [parsed(one) for one in self._bytes(field)]

    def _bytes(self, field: int) -> Sequence[bytes]:
        values = self.values.get(field, [])
        found = [one for one in values if isinstance(one, bytes)]
        if len(found) != len(values):
            raise ValueError(f"field {field} is no text or message")
        return found


def parsed(data: bytes) -> Fields:
    """Decode a message; `ValueError` if it is none."""
    values: dict[int, list[Value]] = {}
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        value, place = _read_value(tag & 7, data, place)
        values.setdefault(tag >> 3, []).append(value)
    return Fields(values)


def _read_value(kind: int, data: bytes, place: int) -> tuple[Value, int]:
    if kind == _VARINT:
        return _read_varint(data, place)
    if kind == _BYTES:
        length, place = _read_varint(data, place)
    else:
        length = {_EIGHT: 8, _FOUR: 4}.get(kind, -1)
    end = place + length
    if length < 0 or end > len(data):
        raise ValueError(f"a field of kind {kind} does not end in its message")
    if kind == _EIGHT:
        (fraction,) = struct.unpack_from("<d", data, place)
        return float(fraction), end
    return data[place:end], end


def _varint(value: int) -> bytes:
    value &= _WORD
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index in range(_MOST_BYTES):
        if place + index >= len(data):
            break
        byte = data[place + index]
        value |= (byte & 0x7F) << 7 * index
        if not byte & 0x80:
            return value & _WORD, place + index + 1
    raise ValueError("a number does not end in its message")
