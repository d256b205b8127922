"""The bytes of a state's values: each codec has a name, a version, and reads what its older versions wrote.

Invariant: `decode(encode(value), version)` gives back an equal value of the same types; a value that `accept`
let through can be encoded; and nothing is pickled unless `Pickled()` is declared.
"""

from __future__ import annotations

import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final, Generic, TypeVar, cast

from statebackend.errors import ProgramError

T = TypeVar("T")
S = TypeVar("S")

LARGEST_VERSION: Final = 255
"""A version takes one byte before each value."""


class NotEncodable(ProgramError, TypeError):
    """A value that a codec does not take; the message says what it expects and what came."""


class Codec(ABC, Generic[T]):
    """Values of one kind as bytes. Subclass it for a codec of your own.

        class Decimals(Codec[Decimal]):
            name = "decimal"
            immutable = True

            def encode(self, value):
                return str(value).encode()

            def decode(self, data):
                return Decimal(data.decode())

    Then `ValueState(Decimals(), default=Decimal(0))` is a state of decimal numbers.

    `name` and `version` stand in the files. Raise `version` when the bytes change their meaning, and read the older
    ones in `migrate`; `oldest` says how far back it can. A codec that migrates the values of codecs with other names
    as well (their versions must be lower than its own) lists them in `replaces`.

    `immutable` promises that a value never changes once it was given: then it is kept as an object, and encoded in the
    background after a cut. Any other value is encoded when it is set, and decoded anew whenever it is read.
    """

    name: str
    version: int = 1
    oldest: int = 1
    immutable: bool = False
    replaces: frozenset[str] = frozenset()
    exact: type | None = None
    """Values of exactly this type need no `accept`."""
    packed: str | None = None
    """The character with which `struct` packs (little-endian) just what `encode` gives, if there is one: many values
    are then packed at once. One that it cannot pack may have other bytes, of another length."""

    @abstractmethod
    def encode(self, value: T, /) -> bytes:
        """Encode a value: to the same bytes on every platform if the values shall be compared or hashed as bytes."""

    @abstractmethod
    def decode(self, data: bytes, /) -> T:
        """Decode what this version's `encode` wrote; raise any `Exception` if the bytes are damaged."""

    def migrate(self, data: bytes, version: int, /) -> T:
        """Decode what `encode` of an earlier version wrote, from `oldest` on."""
        raise NotImplementedError(f"{self.name} does not migrate {len(data)} bytes of version {version}")

    def accept(self, value: object, /) -> T:
        """Return the value to keep for this one, which can be encoded at any later time; else raise `NotEncodable`."""
        try:
            self.encode(cast("T", value))
        except Exception as error:
            raise NotEncodable(f"{self.name} cannot encode a {type(value).__name__}: {error}") from error
        return cast("T", value)


def refusal(expected: str, value: object) -> NotEncodable:
    """Return the error for a value of the wrong type."""
    text = repr(value)
    return NotEncodable(
        f"expected {expected}, got {type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
    )


_INT64: Final = struct.Struct("<q")
_FLOAT64: Final = struct.Struct("<d")


class IntCodec(Codec[int]):
    """Whole numbers of any size, fast up to 64 bits. `True` is none."""

    name = "int"
    immutable = True
    exact: type | None = int
    packed: str | None = "q"

    def encode(self, value: int) -> bytes:
        """Encode in 8 bytes, or as many more as the value needs."""
        try:
            return _INT64.pack(value)
        except struct.error:
            return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)

    def decode(self, data: bytes) -> int:
        """Decode what `encode` wrote."""
        return int(_INT64.unpack(data)[0]) if len(data) == 8 else int.from_bytes(data, "little", signed=True)

    def accept(self, value: object) -> int:
        """Return a plain int for every int but a bool."""
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        raise refusal("int", value)


class FloatCodec(Codec[float]):
    """64-bit floating point numbers, bit by bit. A whole number is none: say `float(n)`."""

    name = "float"
    immutable = True
    exact: type | None = float
    packed: str | None = "d"

    def encode(self, value: float) -> bytes:
        """Encode in 8 bytes."""
        return _FLOAT64.pack(value)

    def decode(self, data: bytes) -> float:
        """Decode what `encode` wrote."""
        return float(_FLOAT64.unpack(data)[0])

    def accept(self, value: object) -> float:
        """Return a plain float, also for a subclass of float."""
        if isinstance(value, float):
            return float(value)
        raise refusal("float", value)


class BoolCodec(Codec[bool]):
    """True and False."""

    name = "bool"
    immutable = True
    exact: type | None = bool
    packed: str | None = "?"

    def encode(self, value: bool) -> bytes:
        """Encode in one byte."""
        return b"\x01" if value else b"\x00"

    def decode(self, data: bytes) -> bool:
        """Decode what `encode` wrote."""
        return {b"\x00": False, b"\x01": True}[data]

    def accept(self, value: object) -> bool:
        """Return a bool; refuse anything else."""
        if isinstance(value, bool):
            return value
        raise refusal("bool", value)


class StrCodec(Codec[str]):
    """Texts, lone surrogates included."""

    name = "str"
    immutable = True
    exact = str

    def encode(self, value: str) -> bytes:
        """Encode as UTF-8."""
        return value.encode("utf-8", "surrogatepass")

    def decode(self, data: bytes) -> str:
        """Decode what `encode` wrote."""
        return data.decode("utf-8", "surrogatepass")

    def accept(self, value: object) -> str:
        """Return a plain str, also for a subclass of str."""
        if isinstance(value, str):
            return str.__str__(value)
        raise refusal("str", value)


class BytesCodec(Codec[bytes]):
    """Bytes as they are."""

    name = "bytes"
    immutable = True
    exact = bytes

    def encode(self, value: bytes) -> bytes:
        """Return the bytes."""
        return value

    def decode(self, data: bytes) -> bytes:
        """Return the bytes."""
        return data

    def accept(self, value: object) -> bytes:
        """Return plain bytes for everything that holds bytes, copied if it could change."""
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise refusal("bytes", value)


class NoneCodec(Codec[None]):
    """None alone, for an entry of which only its presence counts."""

    name = "none"
    immutable = True
    exact = type(None)

    def encode(self, value: None) -> bytes:
        """Return no bytes."""
        del value
        return b""

    def decode(self, data: bytes) -> None:
        """Return None; refuse any bytes."""
        if data:
            raise ValueError("expected no bytes")

    def accept(self, value: object) -> None:
        """Return None; refuse anything else."""
        if value is not None:
            raise refusal("None", value)


_DAY_ZERO: Final = date(1970, 1, 1).toordinal()
_DAYS: Final = struct.Struct("<i")


class DateCodec(Codec[date]):
    """Days. A datetime is none."""

    name = "date"
    immutable = True
    exact = date

    def encode(self, value: date) -> bytes:
        """Encode as days since 1970, 4 bytes."""
        return _DAYS.pack(value.toordinal() - _DAY_ZERO)

    def decode(self, data: bytes) -> date:
        """Decode what `encode` wrote."""
        return date.fromordinal(_DAYS.unpack(data)[0] + _DAY_ZERO)

    def accept(self, value: object) -> date:
        """Return a plain date, also for a subclass of date; refuse a datetime."""
        if isinstance(value, date) and not isinstance(value, datetime):
            return date(value.year, value.month, value.day)
        raise refusal("date", value)


UTC_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)
ZERO: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_LOCAL, _LOCAL_AGAIN, _INSTANT = 0, 1, 2
_MOMENT: Final = struct.Struct("<Bq")


class DatetimeCodec(Codec[datetime]):
    """Instants, which come back in UTC whatever zone they were given in, and local times without a zone."""

    name = "datetime"
    immutable = True

    def encode(self, value: datetime) -> bytes:
        """Encode as microseconds since 1970, after one byte that says of which kind."""
        if value.tzinfo is not None:
            return _MOMENT.pack(_INSTANT, (value - UTC_ZERO) // _MICROSECOND)
        return _MOMENT.pack(_LOCAL_AGAIN if value.fold else _LOCAL, (value.replace(fold=0) - ZERO) // _MICROSECOND)

    def decode(self, data: bytes) -> datetime:
        """Decode what `encode` wrote."""
        kind, microseconds = _MOMENT.unpack(data)
        if kind == _INSTANT:
            return UTC_ZERO + timedelta(microseconds=microseconds)
        return (ZERO + timedelta(microseconds=microseconds)).replace(fold={_LOCAL: 0, _LOCAL_AGAIN: 1}[kind])

    def accept(self, value: object) -> datetime:
        """Return the same instant in UTC, or the same local time."""
        if not isinstance(value, datetime):
            raise refusal("datetime", value)
        if value.utcoffset() is not None:
            value = value.astimezone(UTC)
        return self.decode(self.encode(value.replace(tzinfo=None) if value.utcoffset() is None else value))


class Pickled(Codec[T]):
    """A codec for any object that pickle takes. The bytes last as long as its classes; the store must be trusted."""

    name = "pickle"

    def encode(self, value: T) -> bytes:
        """Pickle the value, by protocol 5."""
        return pickle.dumps(value, protocol=5)

    def decode(self, data: bytes) -> T:
        """Unpickle the value, which runs what the pickle says."""
        return cast("T", pickle.loads(data))


class Migrated(Codec[T], Generic[T, S]):
    """Values of one codec, and those that an earlier declaration wrote, converted when they are read.

    It counts as the version after `previous`, so it has to stay declared for as long as the state lives.
    """

    def __init__(self, current: Codec[T], previous: Codec[S], convert: Callable[[S], T]) -> None:
        if current.version != 1:
            raise ValueError(f"{current.name} has versions of its own (it is at {current.version}): let it decode them")
        self._current, self._previous, self._convert = current, previous, convert
        self.name = current.name
        self.version = previous.version + 1
        self.oldest = previous.oldest
        self.immutable = current.immutable
        self.exact = current.exact
        self.replaces = previous.replaces | {previous.name}

    def encode(self, value: T) -> bytes:
        """Encode as the current codec does."""
        return self._current.encode(value)

    def decode(self, data: bytes) -> T:
        """Decode as the current codec does."""
        return self._current.decode(data)

    def migrate(self, data: bytes, version: int) -> T:
        """Decode as the previous codec does, and convert the value."""
        previous = self._previous
        old = previous.decode(data) if version == previous.version else previous.migrate(data, version)
        return self.accept(self._convert(old))

    def accept(self, value: object) -> T:
        """Accept what the current codec does."""
        return self._current.accept(value)
