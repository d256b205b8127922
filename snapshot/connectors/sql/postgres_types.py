"""Columns of PostgreSQL tables: which values their types hold, and how rows are given to them, as COPY takes them.

Invariant: a column that is found to take a type holds every value of it without loss. Of texts it holds those
that have the form which it asks for (a length, a uuid, one of an enum's), as it writes them; the server refuses others.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.csv

from snapshot.connectors.sql.postgres_session import Connection, execute
from snapshot.connectors.staging.sql_statements import listed, quoted
from snapshot.connectors.staging.table_fit import FoundTable, TableColumn

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


_COLUMNS: Final = """
SELECT a.attname, format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid),
        CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END), t.typtype = 'e',
    NOT a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated = '' AND a.attidentity <> 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
    AND i.indexprs IS NULL AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
GROUP BY i.indexrelid
"""


def found_table(connection: Connection, table: str) -> FoundTable:
    """Return the table as PostgreSQL describes it; without columns if there is none."""
    described = execute(connection, _COLUMNS, quoted(table)).fetchall()
    columns = tuple(
        TableColumn(str(name), "enum" if is_enum else str(declared), nullable, filled, written)
        for name, declared, is_enum, nullable, filled, written in described
    )
    unique = execute(connection, _UNIQUE, quoted(table)).fetchall()
    return FoundTable(columns, frozenset(frozenset(names) for [names] in unique))


def copy_rows(connection: Connection, table: str, rows: pa.Table) -> None:
    """Add rows to a table; `table` is quoted."""
    statement = f"COPY {table} ({listed(rows.column_names)}) FROM STDIN (FORMAT csv)"
    with connection.cursor().copy(statement.encode()) as copy:
        copy.write(_csv(rows))


def _csv(rows: pa.Table) -> bytes:
    """Return the rows as COPY reads them: a null is empty, and an empty text is quoted."""
    columns = [_as_text(column) for column in rows.columns]
    buffer = pa.BufferOutputStream()
    options = pa.csv.WriteOptions(include_header=False)
    pa.csv.write_csv(pa.table(columns, names=rows.column_names), buffer, options)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column in a type that Arrow writes the way PostgreSQL reads it."""
    if pa.types.is_dictionary(column.type):
        return _as_text(column.cast(column.type.value_type))
    if is_bytes(column.type):
        values = [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()]
        return pa.chunked_array([pa.array(values, pa.string())])
    return column
