"""Codecs of values that are made of values: optional ones, tuples, and structs with the types of Arrow.

Invariant: they are immutable exactly if all their parts are, and their names say their parts' names, so that
another shape is another codec.
"""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from statebackend.entries import delimited, undelimited
from statebackend.states.codecs import Codec, NotEncodable, refusal

_PACKED, _DELIMITED = b"\x01", b"\x00"


class OptionalCodec(Codec[object]):
    """None, or a value of another codec."""

    def __init__(self, inner: Codec[object]) -> None:
        self._inner = _unversioned(inner)
        self.name = f"optional<{inner.name}>"
        self.immutable = inner.immutable

    def encode(self, value: object) -> bytes:
        """Encode as one byte, and the value after it if there is one."""
        return b"\x00" if value is None else b"\x01" + self._inner.encode(value)

    def decode(self, data: bytes) -> object:
        """Decode what `encode` wrote."""
        if data == b"\x00":
            return None
        if data[:1] != b"\x01":
            raise ValueError("expected 0 or 1 before an optional value")
        return self._inner.decode(data[1:])

    def accept(self, value: object) -> object:
        """Return None, or what the inner codec accepts."""
        return None if value is None else self._inner.accept(value)


class TupleCodec(Codec[tuple[object, ...]]):
    """Tuples of a fixed shape, nested as deeply as one likes."""

    def __init__(self, parts: Sequence[Codec[object]]) -> None:
        self.parts = tuple(_unversioned(part) for part in parts)
        self._exact = tuple(part.exact for part in parts)
        packed = [part.packed for part in parts if part.packed is not None]
        self._struct = struct.Struct("<" + "".join(packed)) if len(packed) == len(parts) > 0 else None
        self.name = f"tuple<{', '.join(part.name for part in parts)}>"
        self.immutable = all(part.immutable for part in parts)

    def __reduce__(self) -> tuple[type[TupleCodec], tuple[tuple[Codec[object], ...]]]:
        return TupleCodec, (self.parts,)

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Pack the parts if `struct` can pack all of them, else write each with its length."""
        if self._struct is not None:
            try:
                return _PACKED + self._struct.pack(*value)
            except struct.error:
                pass
        parts = zip(self.parts, value, strict=True)
        return _DELIMITED + b"".join([delimited(codec.encode(part)) for codec, part in parts])

    def decode(self, data: bytes) -> tuple[object, ...]:
        """Decode what `encode` wrote."""
        if data[:1] == _PACKED and self._struct is not None:
            return self._struct.unpack(data[1:])
        if data[:1] != _DELIMITED:
            raise ValueError("expected 0 or 1 before a tuple")
        values, at = [], 1
        for codec in self.parts:
            part, at = undelimited(data, at)
            values.append(codec.decode(part or b""))
        if at != len(data):
            raise ValueError("there are bytes behind the last part of a tuple")
        return tuple(values)

    def accept(self, value: object) -> tuple[object, ...]:
        """Return a plain tuple of what the parts' codecs accept."""
        if type(value) is tuple and tuple(map(type, value)) == self._exact:
            return value
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            raise refusal(self.name, value)
        return tuple([codec.accept(part) for codec, part in zip(self.parts, value, strict=True)])


class StructCodec(Codec[tuple[object, ...]]):
    """Structs of named, nullable fields: a dict or a tuple in, a named tuple out.

    A field that a dict leaves out is null; one that the struct does not have is refused.
    """

    def __init__(self, fields: Sequence[tuple[str, Codec[object]]]) -> None:
        self._names = tuple(name for name, _ in fields)
        self._codecs = tuple(_unversioned(codec) for _, codec in fields)
        self._fixed = tuple(at for at, codec in enumerate(self._codecs) if codec.packed is not None)
        self._varying = tuple(at for at, codec in enumerate(self._codecs) if codec.packed is None)
        self._no_nulls = bytes((len(fields) + 7) // 8)
        self._struct = struct.Struct(
            f"<{len(self._no_nulls)}s" + "".join([codec.packed or "" for codec in self._codecs])
        )
        self._row = _row_type(self._names)
        self.name = f"struct<{', '.join(f'{name}: {codec.name}' for name, codec in fields)}>"
        self.immutable = all(codec.immutable for codec in self._codecs)

    def __reduce__(self) -> tuple[type[StructCodec], tuple[list[tuple[str, Codec[object]]]]]:
        return StructCodec, (list(zip(self._names, self._codecs, strict=True)),)

    def encode(self, value: tuple[object, ...]) -> bytes:
        """Encode as a bit per field that is null, the numbers packed, then all other fields with their lengths."""
        nulls, packed = self._no_nulls, [value[at] for at in self._fixed]
        if None in value:
            bits = sum(1 << at for at, part in enumerate(value) if part is None)
            nulls = bits.to_bytes(len(self._no_nulls), "little")
            packed = [0 if part is None else part for part in packed]
        head = self._struct.pack(nulls, *packed)
        if not self._varying:
            return head
        parts = [(self._codecs[at], value[at]) for at in self._varying]
        return head + b"".join([delimited(None if part is None else codec.encode(part)) for codec, part in parts])

    def decode(self, data: bytes) -> tuple[object, ...]:
        """Decode what `encode` wrote."""
        nulls, *packed = self._struct.unpack_from(data)
        values: list[object] = [None] * len(self._names)
        for at, part in zip(self._fixed, packed, strict=True):
            values[at] = part
        end = self._struct.size
        for at in self._varying:
            part, end = undelimited(data, end)
            values[at] = None if part is None else self._codecs[at].decode(part)
        if end != len(data):
            raise ValueError("there are bytes behind the last field of a struct")
        if nulls != self._no_nulls:
            bits = int.from_bytes(nulls, "little")
            values = [None if bits >> at & 1 else part for at, part in enumerate(values)]
        return self._row(values)

    def accept(self, value: object) -> tuple[object, ...]:
        """Return a named tuple of what the fields' codecs accept."""
        if isinstance(value, Mapping):
            if not value.keys() <= set(self._names):
                unknown = sorted(str(name) for name in value.keys() - set(self._names))
                raise NotEncodable(f"expected {self.name}, which has no field {', '.join(unknown)}")
            value = tuple([value.get(name) for name in self._names])
        if not isinstance(value, tuple) or len(value) != len(self._codecs):
            raise refusal(self.name, value)
        fields = zip(self._names, self._codecs, value, strict=True)
        return self._row([None if part is None else _field(name, codec, part) for name, codec, part in fields])


def _row_type(names: Sequence[str]) -> Callable[[Iterable[object]], tuple[object, ...]]:
    made: type[tuple[object, ...]] = collections.namedtuple("Struct", names, rename=True)  # type: ignore[misc]
    make: Callable[[Iterable[object]], tuple[object, ...]] = vars(made)["_make"].__get__(None, made)
    return make


def _field(name: str, codec: Codec[object], value: object) -> object:
    try:
        return codec.accept(value)
    except NotEncodable as error:
        raise NotEncodable(f"field {name}: {error}") from error


def _unversioned(codec: Codec[object]) -> Codec[object]:
    if codec.version != 1 or codec.oldest != 1:
        raise ValueError(f"{codec.name} has versions; inside another value nothing says which one wrote it")
    return codec
