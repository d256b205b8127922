"""Ordinary tables as canonical ones: which column is the key, which the value, or what a table of aggregates keeps.

Invariant: a column is taken only as what the state declares, never as something near it; what is missing is
named with the columns that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

import pyarrow as pa

from statebackend.canonical.importing import StateTable
from statebackend.canonical.schema import EXPIRES_AT, INDEX, KEY, MAP_KEY, TIME, VALUE, TableForm, TableMismatch, fits
from statebackend.states.schema import StateKind
from statebackend.tables.values.spec import EXPIRES

_SEEN: Final = "seen"
_ONE_VALUE: Final = frozenset({StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING})


@dataclass(frozen=True, slots=True)
class Columns:
    """The meaning of an ordinary table's columns; by default the names that a canonical table has.

    Several `key` columns are the fields of a key, in their order. `value` is the value, or what the only output of a
    table of aggregates has come to. Other outputs are in columns of their names, or of those of their accumulators.
    """

    key: Sequence[str] = field(default=(KEY,))
    value: str | None = None


def as_canonical(
    batches: Iterator[pa.RecordBatch], given: pa.Schema, form: TableForm, columns: Columns, place: str
) -> StateTable:
    """Map the rows of an ordinary table to the canonical table of a state. Raise `TableMismatch` if they do not fit."""
    mapping = _Mapping(given, form, columns, f"{place}, for state {form.spec.name!r} of {form.uid}")
    return StateTable(form.spec.name, place, form.arrow, map(mapping.batch, batches))


class _Mapping:
    def __init__(self, given: pa.Schema, form: TableForm, columns: Columns, place: str) -> None:
        self._given, self._form, self._place = given, form, place
        self._key = [self._column(name, "key") for name in columns.key]
        self._of: dict[str, str] = {}
        """By the names of canonical columns those of the table."""
        kind = form.spec.kind
        if kind is StateKind.TABLE:
            self._find_accumulators(columns.value)
        elif kind in _ONE_VALUE:
            self._of[VALUE] = self._column(columns.value or VALUE, "value")
        else:
            wanted = {StateKind.MAP: (MAP_KEY, VALUE), StateKind.LIST: (INDEX, VALUE)}.get(kind, (TIME,))
            self._of |= {name: self._column(name, name) for name in wanted}
            if columns.value is not None and VALUE in self._of:
                self._of[VALUE] = self._column(columns.value, "value")
        if form.expires and EXPIRES_AT in given.names:
            self._of[EXPIRES_AT] = EXPIRES_AT

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Map the rows of a batch."""
        found = []
        for one in self._form.arrow:
            if one.name == KEY:
                found.append(self._keys(batch, one))
            elif one.name in self._of:
                found.append(self._taken(batch.column(self._of[one.name]), one))
            else:
                found.append(
                    self._seen(batch, one) if one.name.endswith(f".{_SEEN}") else pa.nulls(len(batch), one.type)
                )
        return pa.RecordBatch.from_arrays(found, schema=self._form.arrow)

    def _find_accumulators(self, value: str | None) -> None:
        """Find columns of accumulators, or of outputs that have one accumulator besides `seen`."""
        of_output: dict[str, list[str]] = {}
        for name in self._form.accumulators:
            if name != EXPIRES:
                of_output.setdefault(name.rpartition(".")[0], []).append(name)
        if value is not None and len(of_output) > 1:
            self._refuse(f"it has the outputs {', '.join(of_output)}: name columns like them instead of giving one")
        for output, names in of_output.items():
            telling = [name for name in names if not name.endswith(f".{_SEEN}")]
            if all(name in self._given.names for name in telling):
                self._of |= {name: name for name in names if name in self._given.names}
            elif len(telling) == 1:
                self._of[telling[0]] = self._column(value or output, f"output {output!r}")
            else:
                self._refuse(f"output {output!r} wants the columns {', '.join(telling)}")

    def _seen(self, batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        """Mark the rows in which a value was seen: those that have one."""
        output = wanted.name.rpartition(".")[0]
        (telling,) = (column for name, column in self._of.items() if name.rpartition(".")[0] == output)
        return batch.column(telling).is_valid().cast(wanted.type)

    def _taken(self, column: pa.Array, wanted: pa.Field) -> pa.Array:
        types, name = pa.types, self._of[wanted.name]
        number = types.is_integer(column.type) and (types.is_integer(wanted.type) or types.is_floating(wanted.type))
        number = number or (types.is_floating(column.type) and types.is_floating(wanted.type))
        if not number and not fits(column.type, wanted.type):
            self._refuse(f"column {name!r} is of type {column.type} instead of {wanted.type}")
        try:
            taken = column.cast(wanted.type)
        except pa.ArrowException as error:
            self._refuse(f"column {name!r} does not fit {wanted.type}: {error}")
        kept = self._form.accumulators.get(wanted.name)
        return taken if kept is None else taken.fill_null(kept.initial)

    def _keys(self, batch: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        columns = [batch.column(name) for name in self._key]
        if not pa.types.is_struct(wanted.type):
            if len(columns) > 1:
                self._refuse(f"a key is of type {wanted.type}, in one column")
            return self._cast_key(columns[0], wanted.type)
        if len(columns) == 1 and pa.types.is_struct(columns[0].type):
            columns = columns[0].flatten()
        fields = list(wanted.type)
        if len(columns) != len(fields):
            self._refuse(f"a key has {len(fields)} fields, and {len(columns)} columns are given for it")
        parts = [self._cast_key(column, one.type) for column, one in zip(columns, fields, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields)

    def _cast_key(self, column: pa.Array, wanted: pa.DataType) -> pa.Array:
        if column.type != wanted and not (
            fits(column.type, wanted) or (pa.types.is_integer(column.type) and pa.types.is_integer(wanted))
        ):
            self._refuse(f"a key of type {column.type} is given, and {wanted} is declared")
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            self._refuse(f"a key does not fit {wanted}: {error}")

    def _column(self, name: str, what: str) -> str:
        if name not in self._given.names:
            self._refuse(f"there is no column {name!r} for the {what}; there are {', '.join(self._given.names)}")
        return name

    def _refuse(self, why: str) -> NoReturn:
        raise TableMismatch(f"{self._place}: {why}")
