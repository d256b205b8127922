"""The types that keys are declared with, and the canonical bytes of a key.

What always holds: two keys of one declared type are the same key exactly if their canonical bytes are equal, or both
are null; a key that the declared type does not hold exactly is refused and never coerced, so `1`, `1.0` and `True` are
never the same key. Canonical bytes and type names are in files: they stay as they are for ever.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder, dumps
from typing import ClassVar, Final, Literal, NoReturn, get_args

import numpy as np
import pyarrow as pa

from statebackend.entries import delimited, undelimited
from statebackend.key_hash import hash_bytes, hash_null, hash_word

TimeUnit = Literal["s", "ms", "us", "ns"]
"""In what timestamps count."""

_ALL: Final = (1 << 64) - 1
_DOUBLE: Final = struct.Struct("<d")
_FLOATS: Final = {16: struct.Struct("<e"), 32: struct.Struct("<f"), 64: _DOUBLE}
_NAN: Final = struct.pack("<Q", 0x7FF8000000000000)
_DAY: Final = dt.date(1970, 1, 1)
_NAIVE: Final = dt.datetime(1970, 1, 1)
_ZONED: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ATTOSECONDS: Final = {
    "as": 1, "fs": 10**3, "ps": 10**6, "ns": 10**9, "us": 10**12, "ms": 10**15, "s": 10**18,
    "m": 60 * 10**18, "h": 3600 * 10**18, "D": 86400 * 10**18, "W": 7 * 86400 * 10**18,
}  # fmt: skip
"""How long the units of numpy's times are, those of constant length."""


class WrongKeyType(TypeError):
    """A key, or a column of keys, that the declared type does not hold; the message says declared and given."""

    def __init__(self, declared: KeyType, given: str, why: str) -> None:
        super().__init__(f"a key declared as {declared.name} was given as {given}: {why}")
        self.declared = declared
        self.given = given
        self.why = why


class UndeclarableKeyType(ValueError):
    """Something that keys cannot be declared as; the message says what."""


class BrokenKey(ValueError):
    """Bytes that are not the canonical bytes of any key of the declared type: damaged, or of another type."""


class KeyType(ABC):
    """A declared type of keys: a value, equal to another exactly if the names are. Made by `of` or `parse`.

    None is a key of every type: the null key.
    """

    __slots__ = ()
    tag: ClassVar[int]
    """What keeps the hashes of equal bytes of different kinds of keys apart. Frozen for ever."""

    @staticmethod
    def of(declared: object) -> KeyType:
        """The type declared by an Arrow type, a Python type or a tuple of these, or `UndeclarableKeyType`.

        Python types: `int` is int64, `float` float64, `str` string, `bytes` binary, `bool` and `datetime.date`
        themselves. A tuple is a struct whose fields have no names. The large and view forms of an Arrow type and its
        dictionary encoding are the same type; so are all zones of a timestamp, which is then an instant.
        """
        return _declared(declared)

    @staticmethod
    def parse(name: str) -> KeyType:
        """The type with this name; `UndeclarableKeyType` if it is none."""
        found, end = _parsed(name, 0)
        if end != len(name):
            raise UndeclarableKeyType(f"{name!r} is not the name of a key type: {name[end:]!r} is too much")
        return found

    @property
    def name(self) -> str:
        """The text that stands for it in files; `parse` is the inverse."""
        return self._name()

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type in which columns of these keys are given back."""
        return self._arrow()

    @property
    def width(self) -> int | None:
        """How many canonical bytes every key has, None if that varies."""
        return self._width()

    def encode(self, key: object) -> bytes | None:
        """The canonical bytes of a key, None for the null key; `WrongKeyType` if it is no such key."""
        return None if key is None else self._bytes_of(key)

    def decode(self, canonical: bytes | None) -> object:
        """The key with these canonical bytes, in plain Python; `BrokenKey` if there is none.

        Structs become tuples. A time that `datetime` cannot hold becomes a `numpy.datetime64`, in UTC if it is zoned.
        """
        if canonical is None:
            return None
        if self.width is not None and len(canonical) != self.width:
            raise BrokenKey(f"a key of type {self.name} has {self.width} bytes, not {len(canonical)}")
        return self._key_of(canonical)

    def hash(self, key: object) -> int:
        """The stable hash of a key; `WrongKeyType` if it is no such key."""
        return hash_null(self.tag) if key is None else hash_bytes(self.tag, self._bytes_of(key))

    def hash_of(self, canonical: bytes | None) -> int:
        """The stable hash of the key with these canonical bytes."""
        return hash_null(self.tag) if canonical is None else hash_bytes(self.tag, canonical)

    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    def _arrow(self) -> pa.DataType: ...

    def _width(self) -> int | None:
        return None

    @abstractmethod
    def _bytes_of(self, key: object) -> bytes: ...

    @abstractmethod
    def _key_of(self, canonical: bytes) -> object: ...

    def _refuse(self, key: object, why: str) -> NoReturn:
        given = f"{type(key).__module__}.{type(key).__qualname__}".removeprefix("builtins.")
        try:
            shown = repr(key)
        except ValueError:
            shown = "of too many digits"
        raise WrongKeyType(self, f"{given} {shown if len(shown) <= 80 else shown[:77] + '...'}", why)


@dataclass(frozen=True, slots=True)
class IntegerKey(KeyType):
    """Integers: 8 bytes, two's complement, unsigned for uint64."""

    bits: int
    signed: bool
    tag: ClassVar[int] = 1
    _least: int = field(init=False, repr=False, compare=False)
    _most: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_least", -1 << self.bits - 1 if self.signed else 0)
        object.__setattr__(self, "_most", (1 << self.bits - self.signed) - 1)

    def _name(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bits}"

    def _arrow(self) -> pa.DataType:
        return getattr(pa, self.name)()

    def _width(self) -> int:
        return 8

    def hash(self, key: object) -> int:
        """As for every type, without the detour over bytes."""
        if type(key) is int and self._least <= key <= self._most:
            return hash_word(self.tag, key & _ALL)
        return hash_null(self.tag) if key is None else hash_word(self.tag, self._checked(key) & _ALL)

    def _checked(self, key: object) -> int:
        if not isinstance(key, (int, np.integer)) or isinstance(key, (bool, np.timedelta64)):
            self._refuse(key, "it is no integer")
        number = int(key)
        if not self._least <= number <= self._most:
            self._refuse(key, "it is out of range")
        return number

    def _bytes_of(self, key: object) -> bytes:
        if type(key) is int and self._least <= key <= self._most:
            return (key & _ALL).to_bytes(8, "little")
        return (self._checked(key) & _ALL).to_bytes(8, "little")

    def _key_of(self, canonical: bytes) -> int:
        return int.from_bytes(canonical, "little", signed=self.signed)


@dataclass(frozen=True, slots=True)
class UnsignedKey(IntegerKey):
    """uint64, whose upper half no other integer type has: a kind of its own."""

    tag: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class FloatKey(KeyType):
    """Floats: the 8 bytes of a double. -0.0 is 0.0, and all NaNs are one key."""

    bits: int
    tag: ClassVar[int] = 3

    def _name(self) -> str:
        return f"float{self.bits}"

    def _arrow(self) -> pa.DataType:
        return getattr(pa, self.name)()

    def _width(self) -> int:
        return 8

    def _bytes_of(self, key: object) -> bytes:
        if not isinstance(key, (float, np.float16, np.float32)):
            self._refuse(key, "it is no float")
        value = float(key) + 0.0
        if value != value:
            return _NAN
        if self.bits < 64 and not self._holds(value):
            self._refuse(key, "it is not exact in this width")
        return _DOUBLE.pack(value)

    def _holds(self, value: float) -> bool:
        form = _FLOATS[self.bits]
        try:
            return bool(form.unpack(form.pack(value))[0] == value)
        except OverflowError:
            return False

    def _key_of(self, canonical: bytes) -> float:
        return float(_DOUBLE.unpack(canonical)[0])


@dataclass(frozen=True, slots=True)
class BooleanKey(KeyType):
    """False and True: one byte."""

    tag: ClassVar[int] = 4

    def _name(self) -> str:
        return "bool"

    def _arrow(self) -> pa.DataType:
        return pa.bool_()

    def _width(self) -> int:
        return 1

    def _bytes_of(self, key: object) -> bytes:
        if not isinstance(key, (bool, np.bool_)):
            self._refuse(key, "it is neither True nor False")
        return b"\x01" if key else b"\x00"

    def _key_of(self, canonical: bytes) -> bool:
        return canonical != b"\x00"


@dataclass(frozen=True, slots=True)
class StringKey(KeyType):
    """Text: UTF-8."""

    tag: ClassVar[int] = 5

    def _name(self) -> str:
        return "string"

    def _arrow(self) -> pa.DataType:
        return pa.string()

    def _bytes_of(self, key: object) -> bytes:
        if not isinstance(key, str):
            self._refuse(key, "it is no str")
        try:
            return key.encode()
        except UnicodeEncodeError:
            self._refuse(key, "it has a lone surrogate, which UTF-8 does not have")

    def _key_of(self, canonical: bytes) -> str:
        try:
            return canonical.decode()
        except UnicodeDecodeError as error:
            raise BrokenKey(f"the bytes of a key of type string are no UTF-8: {canonical[:40].hex()}") from error


@dataclass(frozen=True, slots=True)
class BinaryKey(KeyType):
    """Bytes as they are; of one size if that is declared."""

    size: int | None = None
    tag: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise UndeclarableKeyType(f"keys of {self.size} bytes cannot be told apart")

    def _name(self) -> str:
        return "binary" if self.size is None else f"binary[{self.size}]"

    def _arrow(self) -> pa.DataType:
        return pa.binary() if self.size is None else pa.binary(self.size)

    def _width(self) -> int | None:
        return self.size

    def _bytes_of(self, key: object) -> bytes:
        if not isinstance(key, bytes):
            self._refuse(key, "it is no bytes")
        if self.size is not None and len(key) != self.size:
            self._refuse(key, f"it has {len(key)} bytes")
        return bytes(key)

    def _key_of(self, canonical: bytes) -> bytes:
        return canonical


@dataclass(frozen=True, slots=True)
class DateKey(KeyType):
    """Days since 1970-01-01: 8 bytes."""

    tag: ClassVar[int] = 7

    def _name(self) -> str:
        return "date"

    def _arrow(self) -> pa.DataType:
        return pa.date32()

    def _width(self) -> int:
        return 8

    def _bytes_of(self, key: object) -> bytes:
        if isinstance(key, np.datetime64):
            days, rest = divmod(_attoseconds(self, key), _ATTOSECONDS["D"])
            if rest or not -1 << 31 <= days < 1 << 31:
                self._refuse(key, "it is no whole day in 32 bits")
        elif isinstance(key, dt.date) and not isinstance(key, dt.datetime):
            days = (key - _DAY).days
        else:
            self._refuse(key, "it is no date")
        return days.to_bytes(8, "little", signed=True)

    def _key_of(self, canonical: bytes) -> dt.date | np.datetime64:
        days = int.from_bytes(canonical, "little", signed=True)
        try:
            return _DAY + dt.timedelta(days=days)
        except OverflowError:
            return np.datetime64(days, "D")


@dataclass(frozen=True, slots=True)
class TimestampKey(KeyType):
    """Times in a unit since 1970-01-01T00:00: 8 bytes. If zoned, since that moment in UTC."""

    unit: TimeUnit
    tag: ClassVar[int] = 8
    zoned: ClassVar[bool] = False

    def _name(self) -> str:
        return f"timestamp[{self.unit}{', UTC' if self.zoned else ''}]"

    def _arrow(self) -> pa.DataType:
        return pa.timestamp(self.unit, "UTC" if self.zoned else None)

    def _width(self) -> int:
        return 8

    def _bytes_of(self, key: object) -> bytes:
        if isinstance(key, np.datetime64):
            since = _attoseconds(self, key)
        elif isinstance(key, dt.datetime):
            if (key.utcoffset() is not None) != self.zoned:
                self._refuse(key, "it has no zone" if self.zoned else "it has a zone")
            passed = key - _ZONED if self.zoned else key - _NAIVE
            since = passed // dt.timedelta(microseconds=1) * _ATTOSECONDS["us"]
            # pandas has times that claim to be datetimes and are finer.
            since += getattr(key, "nanosecond", 0) * _ATTOSECONDS["ns"]
        else:
            self._refuse(key, "it is no datetime")
        value, rest = divmod(since, _ATTOSECONDS[self.unit])
        if rest or not -1 << 63 <= value < 1 << 63:
            self._refuse(key, "it is not exact in this unit, in 64 bits")
        return value.to_bytes(8, "little", signed=True)

    def _key_of(self, canonical: bytes) -> dt.datetime | np.datetime64:
        value = int.from_bytes(canonical, "little", signed=True)
        micros, finer = divmod(value * _ATTOSECONDS[self.unit], _ATTOSECONDS["us"])
        try:
            if not finer:
                return (_ZONED if self.zoned else _NAIVE) + dt.timedelta(microseconds=micros)
        except OverflowError:
            pass
        return np.datetime64(value, self.unit)


@dataclass(frozen=True, slots=True)
class ZonedTimestampKey(TimestampKey):
    """Instants: the zone in which one is given does not matter."""

    tag: ClassVar[int] = 9
    zoned: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DecimalKey(KeyType):
    """Decimals: the unscaled value at the declared scale, in 16 bytes, or in 32 if the precision needs them."""

    precision: int
    scale: int
    tag: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= 76:
            raise UndeclarableKeyType(f"decimals have 1 to 76 digits, not {self.precision}")

    def _name(self) -> str:
        return f"decimal({self.precision}, {self.scale})"

    def _arrow(self) -> pa.DataType:
        return (pa.decimal128 if self.width == 16 else pa.decimal256)(self.precision, self.scale)

    def _width(self) -> int:
        return 16 if self.precision <= 38 else 32

    def _bytes_of(self, key: object) -> bytes:
        if not isinstance(key, decimal.Decimal):
            self._refuse(key, "it is no Decimal")
        sign, digits, exponent = key.as_tuple()
        if not isinstance(exponent, int):
            self._refuse(key, "it is no number")
        unscaled = 0
        if key:
            shift = exponent + self.scale
            if key.adjusted() + self.scale >= self.precision:
                self._refuse(key, "it is out of range")
            written = "".join(map(str, digits))
            if shift < 0 and written[shift:].strip("0"):
                self._refuse(key, "it has more decimals than the scale")
            unscaled = int(written[:shift] if shift < 0 else written + "0" * shift)
        return (-unscaled if sign else unscaled).to_bytes(self._width(), "little", signed=True)

    def _key_of(self, canonical: bytes) -> decimal.Decimal:
        unscaled = int.from_bytes(canonical, "little", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return decimal.Decimal((int(unscaled < 0), digits, -self.scale))


@dataclass(frozen=True, slots=True)
class NullKey(KeyType):
    """The type whose only key is the null key."""

    tag: ClassVar[int] = 11

    def _name(self) -> str:
        return "null"

    def _arrow(self) -> pa.DataType:
        return pa.null()

    def _bytes_of(self, key: object) -> bytes:
        self._refuse(key, "it is not None")

    def _key_of(self, canonical: bytes) -> object:
        raise BrokenKey(f"a key of type null has no bytes, not {len(canonical)}")


@dataclass(frozen=True, slots=True)
class StructKey(KeyType):
    """Several fields, each `delimited`. With names, keys may also be given as mappings, and columns must have them."""

    fields: tuple[KeyType, ...]
    names: tuple[str, ...] | None = None
    tag: ClassVar[int] = 12

    def __post_init__(self) -> None:
        if not self.fields:
            raise UndeclarableKeyType("a struct without fields is no key")
        if self.names is not None and len(set(self.names)) < len(self.names):
            raise UndeclarableKeyType(f"fields of a key share a name: {', '.join(self.names)}")

    def _name(self) -> str:
        if self.names is None:
            parts = [field.name for field in self.fields]
        else:
            parts = [f"{dumps(name)}: {field.name}" for name, field in zip(self.names, self.fields, strict=True)]
        return f"struct<{', '.join(parts)}>"

    def _arrow(self) -> pa.DataType:
        names = self.names or [f"f{index}" for index in range(len(self.fields))]
        return pa.struct([(name, field.arrow) for name, field in zip(names, self.fields, strict=True)])

    def _bytes_of(self, key: object) -> bytes:
        if isinstance(key, tuple):
            parts = key
        elif isinstance(key, Mapping) and self.names is not None:
            if set(key) != set(self.names):
                self._refuse(key, "its names are others")
            parts = tuple(key[name] for name in self.names)
        else:
            self._refuse(key, "it is no tuple")
        if len(parts) != len(self.fields):
            self._refuse(key, f"it has {len(parts)} fields")
        try:
            return b"".join(delimited(field.encode(part)) for field, part in zip(self.fields, parts, strict=True))
        except WrongKeyType as error:
            self._refuse(key, str(error))

    def _key_of(self, canonical: bytes) -> tuple[object, ...]:
        parts, at = [], 0
        for declared in self.fields:
            try:
                part, at = undelimited(canonical, at)
                parts.append(declared.decode(part))
            except ValueError as error:
                raise BrokenKey(f"the bytes of a key of type {self.name} are broken: {error}") from error
        if at != len(canonical):
            raise BrokenKey(f"the bytes of a key of type {self.name} go on behind its last field")
        return tuple(parts)


def _attoseconds(declared: KeyType, key: np.datetime64) -> int:
    """Since 1970-01-01T00:00."""
    if np.isnat(key):
        declared._refuse(key, "it is not a time")
    unit, step = np.datetime_data(key.dtype)
    if unit in {"Y", "M"}:
        key, unit, step = key.astype("datetime64[D]"), "D", 1
    return int(key.astype(np.int64)) * step * _ATTOSECONDS[unit]


_INTEGERS: Final = tuple(
    IntegerKey(bits, signed)
    for bits, signed in ((8, True), (16, True), (32, True), (64, True), (8, False), (16, False), (32, False))
)
_SIMPLE: Final[dict[str, KeyType]] = {
    found.name: found
    for found in (
        *_INTEGERS, UnsignedKey(64, False), FloatKey(16), FloatKey(32), FloatKey(64), BooleanKey(), StringKey(),
        BinaryKey(), DateKey(), NullKey(),
        *(form(unit) for form in (TimestampKey, ZonedTimestampKey) for unit in get_args(TimeUnit)),
    )
}  # fmt: skip
_PYTHON: Final[dict[object, str]] = {
    int: "int64", float: "float64", str: "string", bytes: "binary", bool: "bool", dt.date: "date", type(None): "null",
}  # fmt: skip
_ARROW: Final[dict[object, str]] = {
    **{found.arrow: name for name, found in _SIMPLE.items()},
    pa.large_string(): "string", pa.string_view(): "string", pa.large_binary(): "binary", pa.binary_view(): "binary",
    pa.date64(): "date",
}  # fmt: skip


def _declared(declared: object) -> KeyType:
    if isinstance(declared, KeyType):
        return declared
    if isinstance(declared, tuple):
        return StructKey(tuple(map(_declared, declared)))
    if isinstance(declared, pa.DataType):
        return _declared_by_arrow(declared)
    if isinstance(declared, type) and declared in _PYTHON:
        return _SIMPLE[_PYTHON[declared]]
    raise UndeclarableKeyType(f"keys cannot be declared as {declared!r}: give an Arrow type, such as pyarrow.string()")


def _declared_by_arrow(declared: pa.DataType) -> KeyType:
    types = pa.types
    if declared in _ARROW:
        return _SIMPLE[_ARROW[declared]]
    if types.is_timestamp(declared):
        return ZonedTimestampKey(declared.unit)
    if types.is_decimal(declared):
        return DecimalKey(declared.precision, declared.scale)
    if types.is_fixed_size_binary(declared):
        return BinaryKey(declared.byte_width)
    if types.is_dictionary(declared):
        return _declared_by_arrow(declared.value_type)
    if types.is_struct(declared):
        fields = tuple(declared.field(index) for index in range(declared.num_fields))
        return StructKey(
            tuple(_declared_by_arrow(field.type) for field in fields), tuple(str(field.name) for field in fields)
        )
    raise UndeclarableKeyType(f"keys cannot be declared as Arrow's {declared}")


_WORD: Final = re.compile(r"[a-z0-9]+(?:\[[^\[\]]*\]|\([^()]*\))?")
_BINARY: Final = re.compile(r"binary\[([1-9][0-9]*)\]")
_DECIMAL: Final = re.compile(r"decimal\(([1-9][0-9]*), (0|-?[1-9][0-9]*)\)")


def _parsed(name: str, start: int) -> tuple[KeyType, int]:
    """The type whose name begins at `start`, and where that name ends."""
    if name.startswith("struct<", start):
        return _parsed_struct(name, start + len("struct<"))
    word = _WORD.match(name, start)
    text = word.group() if word else ""
    if text in _SIMPLE:
        found = _SIMPLE[text]
    elif size := _BINARY.fullmatch(text):
        found = BinaryKey(int(size.group(1)))
    elif digits := _DECIMAL.fullmatch(text):
        found = DecimalKey(int(digits.group(1)), int(digits.group(2)))
    else:
        raise UndeclarableKeyType(f"{name!r} is not the name of a key type: at {name[start:]!r} none begins")
    return found, start + len(text)


def _parsed_struct(name: str, at: int) -> tuple[KeyType, int]:
    fields: list[KeyType] = []
    names: list[str] = []
    while True:
        if name.startswith('"', at):
            try:
                field_name, at = JSONDecoder().raw_decode(name, at)
            except JSONDecodeError as error:
                raise UndeclarableKeyType(
                    f"{name!r} is not the name of a key type: a field's name is broken"
                ) from error
            if not name.startswith(": ", at):
                raise UndeclarableKeyType(f"{name!r} is not the name of a key type: a field's name stands alone")
            names.append(str(field_name))
            at += len(": ")
        field, at = _parsed(name, at)
        fields.append(field)
        if name.startswith(", ", at):
            at += len(", ")
            continue
        if not name.startswith(">", at) or len(names) not in {0, len(fields)}:
            raise UndeclarableKeyType(f"{name!r} is not the name of a key type: a struct does not end well")
        return StructKey(tuple(fields), tuple(names) if names else None), at + 1
