"""Types of PostgreSQL columns: which values they hold.

Invariant: a column that is found to take a type holds every value of it without loss. It holds the texts that have the
form which it asks for (a length, a uuid, one of an enum's), as it writes them; the server refuses others.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_DECLARED: Final = re.compile(r"([^(]*?)(?: ?\((\d+)(?:,(\d+))?\))?( with(?:out)? time zone)?")
_TEXTS: Final = frozenset({"text", "character varying", "character", "json", "jsonb", "uuid", "xml", "citext"})
"""`name` is none: it cuts what is too long, without a word."""
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_WHOLE: Final = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}
_WIDTHS: Final = {"smallint": 16, "integer": 32, "bigint": 64}


def declared_for(type: pa.DataType) -> str:
    """Return the PostgreSQL type that holds an Arrow type best; empty if there is none."""
    if pa.types.is_dictionary(type):
        return declared_for(type.value_type)
    if pa.types.is_boolean(type):
        return "boolean"
    if pa.types.is_integer(type):
        bits = type.bit_width * 2 if pa.types.is_unsigned_integer(type) else type.bit_width
        return _WHOLE.get(bits, "numeric")
    if pa.types.is_float32(type):
        return "real"
    if pa.types.is_float64(type):
        return "double precision"
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return "text"
    if pa.types.is_date32(type):
        return "date"
    if pa.types.is_timestamp(type) and type.unit != "ns":
        return "timestamp with time zone" if type.tz else "timestamp without time zone"
    if pa.types.is_time(type) and type.unit != "ns":
        return "time without time zone"
    if pa.types.is_decimal(type):
        return f"numeric({type.precision - min(type.scale, 0)},{max(type.scale, 0)})"
    return "bytea" if is_bytes(type) else ""


def unwritable(batch: pa.RecordBatch) -> str:
    """Return which texts PostgreSQL has no way to hold, in a sentence; empty if there are none."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        texts = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        if declared_for(texts.type) == "text" and pc.any(pc.match_substring(texts, "\0")).as_py():
            return f"a text in {name!r} has a NUL, which PostgreSQL cannot hold; replace it before"
    return ""


def takes(type: pa.DataType, declared: str) -> bool:
    """True if a column declared like this holds every value of the type; a text column takes texts of its own form."""
    if pa.types.is_dictionary(type):
        return takes(type.value_type, declared)
    best = declared_for(type)
    match = _DECLARED.fullmatch(declared)
    if not best or match is None:
        return False
    name, first, second = f"{match[1]}{match[4] or ''}", match[2], match[3]
    if best == "text":
        return name in _TEXTS or name == "enum"
    if name == "numeric" and (pa.types.is_integer(type) or pa.types.is_decimal(type)):
        before, behind = _digits(type)
        scale = int(second or 0)
        return first is None or (scale >= behind and int(first) - scale >= before)
    if best in _WIDTHS:
        return _WIDTHS.get(name, 0) >= _WIDTHS[best]
    if best == "real":
        return name in ("real", "double precision")
    if pa.types.is_timestamp(type) or pa.types.is_time(type):
        return name == best and (first is None or int(first) >= _DIGITS[type.unit])
    return name == best


def _digits(type: pa.DataType) -> tuple[int, int]:
    """Return how many digits a number of this type may have before and after the decimal point."""
    if pa.types.is_decimal(type):
        return type.precision - type.scale, max(type.scale, 0)
    largest = 2**type.bit_width if pa.types.is_unsigned_integer(type) else 2 ** (type.bit_width - 1)
    return len(str(largest)), 0


def is_bytes(type: pa.DataType) -> bool:
    """True if values of the type are bytes."""
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type))
