"""The declarations of key types, and their names in files.

Invariant: a type is found again by its name, and two types are equal exactly if their names are.
"""

from __future__ import annotations

import datetime as dt
import re
from json import JSONDecodeError, JSONDecoder
from typing import Final, get_args

import pyarrow as pa

from statebackend.keys.structs import DEEPEST, TOO_DEEP, StructKey
from statebackend.keys.times import DateKey, TimestampKey, TimeUnit, ZonedTimestampKey
from statebackend.keys.types import (
    BinaryKey,
    BooleanKey,
    DecimalKey,
    FloatKey,
    IntegerKey,
    KeyType,
    NullKey,
    StringKey,
    UndeclarableKeyType,
    UnsignedKey,
)

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


def declared_by(declared: object) -> KeyType:
    """Return the key type of a declaration, as `KeyType.of` promises."""
    if isinstance(declared, KeyType):
        return declared
    if isinstance(declared, tuple):
        return StructKey(tuple(map(declared_by, declared)))
    if isinstance(declared, pa.DataType):
        return _by_arrow(declared)
    if isinstance(declared, type) and declared in _PYTHON:
        return _SIMPLE[_PYTHON[declared]]
    raise UndeclarableKeyType(f"keys cannot be declared as {declared!r}: give an Arrow type, such as pyarrow.string()")


def _by_arrow(declared: pa.DataType) -> KeyType:
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
        return _by_arrow(declared.value_type)
    if types.is_struct(declared):
        fields = tuple(declared.field(index) for index in range(declared.num_fields))
        return StructKey(tuple(_by_arrow(field.type) for field in fields), tuple(str(field.name) for field in fields))
    raise UndeclarableKeyType(f"keys cannot be declared as Arrow's {declared}")


_WORD: Final = re.compile(r"[a-z0-9]+(?:\[[^\[\]]*\]|\([^()]*\))?")
_BINARY: Final = re.compile(r"binary\[([1-9][0-9]{0,9})\]")
_DECIMAL: Final = re.compile(r"decimal\(([1-9][0-9]{0,2}), (0|-?[1-9][0-9]{0,9})\)")


def named(name: str) -> KeyType:
    """Return the key type of this name, as `KeyType.parse` promises."""
    found, end = _parsed(name, 0, 0)
    if end != len(name):
        raise UndeclarableKeyType(f"{name!r} is not the name of a key type: {name[end:]!r} is too much")
    return found


def _parsed(name: str, start: int, depth: int) -> tuple[KeyType, int]:
    """Parse the type whose name begins at `start`, inside `depth` structs; return it, and where its name ends."""
    if name.startswith("struct<", start):
        if depth == DEEPEST:
            raise UndeclarableKeyType(f"{name[:80]!r}... is not the name of a key type: {TOO_DEEP}")
        return _parsed_struct(name, start + len("struct<"), depth + 1)
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


def _parsed_struct(name: str, at: int, depth: int) -> tuple[KeyType, int]:
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
        field, at = _parsed(name, at, depth)
        fields.append(field)
        if name.startswith(", ", at):
            at += len(", ")
            continue
        if not name.startswith(">", at) or len(names) not in {0, len(fields)}:
            raise UndeclarableKeyType(f"{name!r} is not the name of a key type: a struct does not end well")
        return StructKey(tuple(fields), tuple(names) if names else None), at + 1
