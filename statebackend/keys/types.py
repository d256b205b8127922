"""The types that keys are declared with, and the canonical bytes of a key.

Invariant: two keys of one declared type are the same key exactly if their canonical bytes are equal, or both
are null; a key that the declared type does not hold exactly is refused and never coerced, so `1`, `1.0` and `True` are
never the same key. Canonical bytes and type names are in files: they stay as they are for ever.
"""

from __future__ import annotations

import decimal
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Final, NoReturn

import numpy as np
import pyarrow as pa

from statebackend.errors import ProgramError, StoreError
from statebackend.keys.hashing import hash_bytes, hash_null, hash_word

_ALL: Final = (1 << 64) - 1
_DOUBLE: Final = struct.Struct("<d")
_FLOATS: Final = {16: struct.Struct("<e"), 32: struct.Struct("<f"), 64: _DOUBLE}
_NAN: Final = struct.pack("<Q", 0x7FF8000000000000)


class WrongKeyType(ProgramError, TypeError):
    """A key, or a column of keys, that the declared type does not hold; the message says declared and given."""

    def __init__(self, declared: KeyType, given: str, why: str) -> None:
        super().__init__(f"a key declared as {declared.name} was given as {given}: {why}")
        self.declared = declared
        self.given = given
        self.why = why


class UndeclarableKeyType(ProgramError, ValueError):
    """Something that keys cannot be declared as; the message says what."""


class BrokenKey(StoreError, ValueError):
    """Bytes that are not the canonical bytes of any key of the declared type: damaged, or of another type."""


class KeyType(ABC):
    """A declared type of keys: a value, equal to another exactly if the names are. Made by `of` or `parse`.

    None is a key of every type: the null key.
    """

    __slots__ = ()
    tag: ClassVar[int]
    """The number that keeps the hashes of equal bytes of different kinds of keys apart. Frozen for ever."""

    @staticmethod
    def of(declared: object) -> KeyType:
        """Return the type declared by an Arrow type, a Python type or a tuple of these, or raise `UndeclarableKeyType`.

        Python types: `int` is int64, `float` float64, `str` string, `bytes` binary, `bool` and `datetime.date`
        themselves. A tuple is a struct whose fields have no names. The large and view forms of an Arrow type and its
        dictionary encoding are the same type; so are all zones of a timestamp, which is then an instant.
        """
        from statebackend.keys.names import declared_by  # it knows every kind, and all are built on this module

        return declared_by(declared)

    @staticmethod
    def parse(name: str) -> KeyType:
        """Return the type with this name; raise `UndeclarableKeyType` if there is none."""
        from statebackend.keys.names import named  # as above

        return named(name)

    @property
    def name(self) -> str:
        """Return the text that stands for the type in files; `parse` is the inverse."""
        return self._name()

    @property
    def arrow(self) -> pa.DataType:
        """Return the Arrow type in which columns of these keys are given back."""
        return self._arrow()

    @property
    def width(self) -> int | None:
        """Return how many canonical bytes every key has, None if that varies."""
        return self._width()

    def encode(self, key: object) -> bytes | None:
        """Return the canonical bytes of a key, None for the null key; raise `WrongKeyType` if it is no such key."""
        return None if key is None else self._bytes_of(key)

    def decode(self, canonical: bytes | None) -> object:
        """Return the key with these canonical bytes, in plain Python; raise `BrokenKey` if there is none.

        Structs become tuples. A time that `datetime` cannot hold becomes a `numpy.datetime64`, in UTC if it is zoned.
        """
        if canonical is None:
            return None
        width = self._width()
        if width is not None and len(canonical) != width:
            raise BrokenKey(f"a key of type {self.name} has {width} bytes, not {len(canonical)}")
        return self._key_of(canonical)

    def hash(self, key: object) -> int:
        """Return the stable hash of a key; raise `WrongKeyType` if it is no such key."""
        return hash_null(self.tag) if key is None else hash_bytes(self.tag, self._bytes_of(key))

    def hash_of(self, canonical: bytes | None) -> int:
        """Return the stable hash of the key with these canonical bytes."""
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
        """Hash a key as every type does, without the detour over bytes."""
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
        if self.size is not None and not 1 <= self.size < 2**31:
            raise UndeclarableKeyType(f"keys have 1 to {2**31 - 1} bytes, not {self.size}")

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
class DecimalKey(KeyType):
    """Decimals: the unscaled value at the declared scale, in 16 bytes, or in 32 if the precision needs them."""

    precision: int
    scale: int
    tag: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if not 1 <= self.precision <= 76:
            raise UndeclarableKeyType(f"decimals have 1 to 76 digits, not {self.precision}")
        if not -(2**31) <= self.scale < 2**31:
            raise UndeclarableKeyType(f"decimals have no scale of {self.scale}")

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
