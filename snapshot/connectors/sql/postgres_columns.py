"""Columns of PostgreSQL tables, and rows for them in the form that COPY takes.

This side needs the client `psycopg`; `postgres_types`, which a program needs, does without it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.csv

from snapshot.connectors.sql.postgres_session import Connection, execute
from snapshot.connectors.sql.postgres_types import is_bytes
from snapshot.connectors.staging.sql_statements import listed, quoted
from snapshot.connectors.staging.table_fit import FoundTable, TableColumn

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
