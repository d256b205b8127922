"""Compare the rows of a stream with a database's table: column by column, by name.

Invariant: what is said here is said before anything starts, in sentences that name the column and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from snapshot.connectors.staging.sql_statements import column, listed, quoted
from snapshot.program.problems import unknown_column


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column as the database describes it."""

    name: str
    type: str
    nullable: bool
    filled: bool
    """The database has a value for it if the rows have none."""
    written: bool = True
    """Rows may bring a value."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table as it is; `unique` are the sets of columns of which no two rows have the same."""

    columns: tuple[TableColumn, ...]
    unique: frozenset[frozenset[str]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The table as its sink was told to expect it."""

    table: str
    key: tuple[str, ...]
    deleted: str

    def written(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that go to the table."""
        return [field for field in schema if field.name != self.deleted]


def columns_of(option: str, said: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the columns that an option names: a text names one, None and an empty text none."""
    named: object = (said,) if isinstance(said, str) else said
    if named is None or named == ("",):
        return ()
    columns = tuple(named) if isinstance(named, Iterable) else ()
    if not isinstance(named, Iterable) or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"{option}={said!r} names no columns; give the name of one, or several as ('shop', 'user')")
    return columns


def column_of(option: str, said: str | Iterable[str] | None) -> str | None:
    """Return the one column that an option names, None for none; `ValueError` for several."""
    columns = columns_of(option, said)
    if len(columns) > 1:
        raise ValueError(
            f"{option}={said!r} names several columns, and is one: make one of them before, in a map, and name that"
        )
    return columns[0] if columns else None


def key_faults(schema: pa.Schema, wanted: Wanted) -> list[str]:
    """Return the faults of key and columns that no table could mend, in sentences."""
    faults = [f"key: {unknown_column(name, schema)}" for name in wanted.key if name not in schema.names]
    if len(set(schema.names)) < len(schema.names):
        faults.append("the rows have two columns of the same name")
    if wanted.deleted and not wanted.key:
        faults.append("deleted= says which rows delete others, so it needs key=, which says what they delete")
    if wanted.deleted in wanted.key:
        faults.append(f"the column {wanted.deleted!r} cannot say what is deleted and be of the key")
    if wanted.deleted and wanted.deleted not in schema.names:
        faults.append(f"deleted: {unknown_column(wanted.deleted, schema)}")
    elif wanted.deleted and not pa.types.is_boolean(schema.field(wanted.deleted).type):
        faults.append(f"the column {wanted.deleted!r} says which rows delete others, so it has to be of bool")
    if not wanted.written(schema):
        faults.append("the rows have no column that could go to a table")
    return faults


def create_table(wanted: Wanted, schema: pa.Schema, type_of: Callable[[pa.DataType], str]) -> str:
    """Return the statement that makes a table which the rows fit, unless there is one of that name."""
    columns = [
        f"{column(field.name)} {type_of(field.type)}{' NOT NULL' * (field.name in wanted.key)}"
        for field in wanted.written(schema)
    ]
    if wanted.key:
        columns.append(f"PRIMARY KEY ({listed(wanted.key)})")
    return f"CREATE TABLE IF NOT EXISTS {quoted(wanted.table)} ({', '.join(columns)})"


def misfits(
    schema: pa.Schema, wanted: Wanted, found: FoundTable, accepts: Callable[[pa.DataType, str], bool]
) -> Sequence[str]:
    """Return why the rows do not fit the table, in sentences.

    `accepts` says whether a column of the database takes values of a type.
    """
    there = {one.name: one for one in found.columns}
    faults = []
    for field in wanted.written(schema):
        target = there.pop(field.name, None)
        if target is None:
            known = ", ".join(repr(one.name) for one in found.columns)
            faults.append(f"the table {wanted.table} has no column {field.name!r}; it has {known}")
        elif not target.written:
            faults.append(f"the table {wanted.table} makes the column {field.name!r} itself, so rows cannot bring it")
        elif not accepts(field.type, target.type):
            faults.append(
                f"the column {field.name!r} of {wanted.table} is of {target.type}, which does not hold every value of "
                f"{field.type}; cast it in the stream, or alter the table"
            )
    for other in there.values():
        if not other.nullable and not other.filled:
            faults.append(
                f"the table {wanted.table} wants a value for {other.name!r}, which the rows have not; give it a default"
            )
    return [*faults, *_key_misfits(wanted, found)]


def _key_misfits(wanted: Wanted, found: FoundTable) -> list[str]:
    if not wanted.key:
        return []
    names = ", ".join(wanted.key)
    if frozenset(wanted.key) not in found.unique:
        return [
            f"the table {wanted.table} has no primary key or unique index on exactly ({names}), the key of the rows"
        ]
    null = [one.name for one in found.columns if one.name in wanted.key and one.nullable]
    return [f"the column {name!r} of {wanted.table} is of the key, but may be null; make it NOT NULL" for name in null]
