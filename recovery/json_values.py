"""Arrow values as JSON says them, both ways: for rows that people read, and for keys and values that they type.

Invariant: a value that was said comes back equal. Bytes are hex digits, times and decimals text, structs
without names of their own lists, numbers that JSON does not have `"NaN"`, `"Infinity"` and `"-Infinity"`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from statebackend.errors import SavepointError
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType, WrongKeyType

_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class WrongText(SavepointError, ValueError):
    """Text that is no value of the type that is asked for; the message says which type, and how it is written."""


def said(column: pa.Array) -> list[Any]:
    """Return the values of a column as JSON values."""
    arrow, types = column.type, pa.types
    if types.is_dictionary(arrow):
        return said(column.dictionary_decode())
    if types.is_struct(arrow):
        return _structs(column)
    if _is_list(arrow):
        return [None if one is None else said(one.values) if one.is_valid else None for one in column]
    if _is_bytes(arrow):
        return [None if one is None else one.hex() for one in column.to_pylist()]
    if types.is_floating(arrow):
        return [_finite(one) for one in column.to_pylist()]
    if types.is_temporal(arrow) or types.is_decimal(arrow):
        return list(pc.cast(column, pa.string()).to_pylist())
    return list(column.to_pylist())


def heard(value: object, arrow: pa.DataType, what: str = "it") -> pa.Array:
    """Return a column with this one value, which came from JSON; `WrongText` if it is not of the type."""
    types = pa.types
    if value is None:
        return pa.nulls(1, arrow)
    if types.is_struct(arrow):
        return _struct(value, arrow, what)
    try:
        return (
            pa.array([_plain(value, arrow)], type=pa.string()).cast(arrow)
            if _as_text(arrow)
            else pa.array([_plain(value, arrow)], type=arrow)
        )
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise WrongText(
            f"{what} is of type {arrow}, and {json.dumps(value)} is none: {error}; {_how(arrow)}"
        ) from error


def parsed(text: str, arrow: pa.DataType, what: str) -> pa.Array:
    """Return a column with one value that a user typed: JSON, but text, bytes and times need no quotes."""
    types = pa.types
    if (types.is_string(arrow) or types.is_large_string(arrow) or _is_bytes(arrow) or _as_text(arrow)) and (
        not text.startswith('"')
    ):
        return heard(text, arrow, what)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongText(f"{what} is of type {arrow}, and {text[:300]!r} is no JSON: {error}; {_how(arrow)}") from error
    return heard(value, arrow, what)


def _structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    rows = list(zip(*(said(part) for part in column.flatten()), strict=True))
    valid = column.is_valid().to_pylist()
    if _is_tuple(names):
        return [list(row) if there else None for row, there in zip(rows, valid, strict=True)]
    return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]


def _struct(value: object, arrow: pa.DataType, what: str) -> pa.Array:
    names = [field.name for field in arrow]
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise WrongText(f"{what} has the fields {', '.join(names)}, not {', '.join(map(str, value))}")
        parts: Sequence[object] = [value[name] for name in names]
    elif isinstance(value, list) and len(value) == len(names):
        parts = value
    else:
        raise WrongText(f"{what} is of type {arrow}, and {json.dumps(value)} is none; {_how(arrow)}")
    fields = [heard(part, field.type, f"{what}, field {field.name}") for part, field in zip(parts, arrow, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=list(arrow))


def _plain(value: object, arrow: pa.DataType) -> object:
    types = pa.types
    if _is_bytes(arrow):
        return bytes.fromhex(_text(value))
    if types.is_string(arrow) or types.is_large_string(arrow) or _as_text(arrow):
        return _text(value)
    if types.is_floating(arrow):
        if isinstance(value, str) and value in _NUMBERS:
            return _NUMBERS[value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError("it is no number")
        return float(value)
    if types.is_integer(arrow) and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError("it is no whole number")
    if types.is_boolean(arrow) and not isinstance(value, bool):
        raise TypeError("it is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return value


def _finite(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _how(arrow: pa.DataType) -> str:
    types = pa.types
    if types.is_struct(arrow):
        fields = [field.name for field in arrow]
        return f"give a JSON list of {len(fields)}" if _is_tuple(fields) else f"give a JSON object of {fields}"
    if _is_bytes(arrow):
        return "give hex digits"
    if _as_text(arrow):
        return "give it as 2026-01-31 12:00:00, as far as the type goes, or a decimal number"
    return "give it in JSON"


def _as_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(arrow) or pa.types.is_decimal(arrow))


def _is_tuple(names: Sequence[str]) -> bool:
    return list(names) == [f"f{index}" for index in range(len(names))]


def _is_list(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow))


def _is_bytes(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow))


def typed_key(text: str, key_type: KeyType) -> object:
    """Return the key that a user typed, converted to the state's key type; `WrongText` if it is not of that type."""
    try:
        column = parsed(text, key_type.arrow, "the key")
        return key_type.decode(key_column(column, key_type).key(0))
    except WrongKeyType as error:
        raise WrongText(str(error)) from error
