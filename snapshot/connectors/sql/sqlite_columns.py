"""Columns of SQLite tables: what they are, which values they keep as they come, and how values are given to them.

What always holds: a column is only written with what it gives back unchanged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from snapshot.connectors.staging.sql_statements import column, quoted
from snapshot.connectors.staging.table_fit import FoundTable, TableColumn

_PARTS: Final = (("INT", "INTEGER"), ("CHAR", "TEXT"), ("CLOB", "TEXT"), ("TEXT", "TEXT"), ("BLOB", "BLOB"))
_REALS: Final = ("REAL", "FLOA", "DOUB")


def affinity(declared: str) -> str:
    """Return the affinity that SQLite derives from a declared type."""
    name = declared.upper()
    for part, kind in _PARTS:
        if part in name:
            return kind
    if any(part in name for part in _REALS):
        return "REAL"
    return "NUMERIC" if name else "BLOB"


def affinities(type: pa.DataType) -> tuple[str, ...]:
    """Return the column affinities that keep values of a type, the best first; none if SQLite cannot hold them."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_uint64(type):
        return ()
    if pa.types.is_boolean(type) or pa.types.is_integer(type):
        return ("INTEGER", "NUMERIC", "BLOB")
    if pa.types.is_floating(type):
        return ("REAL", "NUMERIC", "BLOB")
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_decimal(type):
        return ("TEXT", "BLOB")
    if pa.types.is_timestamp(type) or pa.types.is_date(type) or pa.types.is_time(type):
        return ("TEXT", "NUMERIC", "BLOB")
    if pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        return ("BLOB",)
    return ()


def takes(type: pa.DataType, declared: str) -> bool:
    """True if a column declared like this returns values of the type unchanged."""
    return affinity(declared) in affinities(type)


def values_of(rows: pa.Table) -> Iterator[tuple[object, ...]]:
    """Return the rows' values as SQLite takes them; those that it has no type for as text, times in ISO 8601."""
    return zip(*(_values(column) for column in rows.columns), strict=True)


def _values(column: pa.ChunkedArray) -> list[object]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    values: list[object] = column.to_pylist()
    return values


def found_table(connection: sqlite3.Connection, table: str) -> FoundTable:
    """Return the table as SQLite describes it; without columns if there is none."""
    described = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    key = [str(row[1]) for row in described if row[5]]
    unique = {frozenset(key)} if key else set()
    for _, index, is_unique, _, partial in connection.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        if is_unique and not partial:
            names = [row[2] for row in connection.execute(f"PRAGMA index_info({column(index)})")]
            unique.add(frozenset(map(str, names)))
    columns = tuple(_described(*row[1:7], only=len(key) == 1) for row in described)
    return FoundTable(columns, frozenset(unique))


def _described(
    name: str, declared: str, not_null: int, default: str | None, place: int, hidden: int, *, only: bool
) -> TableColumn:
    """Return a column of the table; `only` is true if the key has a single column.

    If that is an integer, SQLite numbers the rows with it.
    """
    numbers = only and place > 0 and declared.upper() == "INTEGER"
    return TableColumn(name, declared, not (not_null or numbers), numbers or default is not None, hidden == 0)
