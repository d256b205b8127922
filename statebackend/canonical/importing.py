"""Canonical tables into open, empty state: on any backend, at any maximum parallelism, for any range of key groups.

Invariant: nothing of the old key groups counts, every key is hashed anew; and a table is taken only by a state
that is declared as the one it was written from, or as one that reads that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend import entries
from statebackend.canonical.arrow_values import Natural
from statebackend.canonical.schema import (
    EXPIRES_AT,
    INDEX,
    KEY,
    KEY_GROUP,
    MAP_KEY,
    NAMESPACE,
    NAMESPACES,
    TIME,
    VALUE,
    CanonicalError,
    DamagedTable,
    ForeignTable,
    TableMismatch,
    encoded_column,
    form_of,
)
from statebackend.canonical.source import source_of
from statebackend.entries import sortable, unsortable
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import KeyColumn, key_column
from statebackend.keys.types import WrongKeyType
from statebackend.states.codecs import NotEncodable
from statebackend.states.map_keys import map_keys_of
from statebackend.states.namespaces import NO_NAMESPACE, Window
from statebackend.states.row_form import RowForm, UnreadableValue, WrongValueType
from statebackend.states.schema import CodecSpec, Schema, StateKind, StateMismatch, StateSpec
from statebackend.states.schema_fit import fitted
from statebackend.states.ttl import EXPIRY, NEVER
from statebackend.tables.table import Accumulated, Table
from statebackend.tables.values.accumulators import Accumulator, Column
from statebackend.tables.values.spec import EXPIRES

_PLACES: Final = 1 << 32
"""Places in a list are below this: what is added after the import comes behind them."""


class StateNotEmpty(CanonicalError):
    """Tables are taken by state that has nothing yet: else it would not be known what they replace."""


class KeysOutside(CanonicalError):
    """Keys of key groups that another partition owns."""


class Outside(Enum):
    """The treatment of keys whose key groups the state does not own."""

    REFUSE = "refuse"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class StateTable:
    """The canonical table of one state; `place` is what errors call it. Its batches can be gone through once."""

    name: str
    place: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Imported:
    """The numbers of rows that were taken, and left to other partitions."""

    rows: int = 0
    skipped: int = 0


def import_tables(tables: Iterable[StateTable], state: KeyedState, *, outside: Outside = Outside.REFUSE) -> Imported:
    """Take canonical tables into state that was opened and not used since; an ordinary snapshot then persists it.

    Several tables of one state are taken together, such as those of all partitions. With `Outside.SKIP` every
    partition can be given all tables. What is taken is in memory until the next cut is complete: cut between tables if
    they are larger than that.

    Raises `StateNotEmpty`, and for tables that are damaged, newer, foreign or of another declaration `CanonicalError`.
    After an error the state has a part of the tables: close it.
    """
    _check_empty(state)
    total = Imported()
    for table in tables:
        taken = TableImport(table, state, outside).take()
        total = Imported(total.rows + taken.rows, total.skipped + taken.skipped)
    return total


def _check_empty(state: KeyedState) -> None:
    source = source_of(state)
    start, end = entries.bounds(state.groups)
    for spec in state.schema.states:
        table = source.tables.get(spec.name)
        if next(source.scans[spec.name](start, end), None) is not None or (table is not None and len(table)):
            raise StateNotEmpty(f"{state.schema.uid} has state already; open it without files, and import first of all")


class TableImport:
    """One table on its way into one state. A subclass says what becomes of rows."""

    def __init__(self, table: StateTable, state: KeyedState, outside: Outside = Outside.REFUSE) -> None:
        self._table, self._state, self._outside = table, state, outside
        self._form = form_of(table.schema, table.place)
        self._place = f"{table.place}, state {self._form.spec.name!r} of {self._form.uid}"
        self._spec, self._opened = self._declared()
        self._rows_form: RowForm[Any] | None = None if self._spec.codec is None else self._opened.form
        self._check_fit()
        self._before = 0
        self._rows = np.arange(0)
        """The rows of the batch that are being worked on."""

    def take(self) -> Imported:
        """Take all of it."""
        taken = skipped = 0
        try:
            for batch in self._table.batches:
                rows = self._take(batch)
                taken, skipped = taken + rows, skipped + len(batch) - rows
                self._before += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise DamagedTable(f"{self._place}, behind row {self._before}: {error}; export it anew") from error
        return Imported(taken, skipped)

    # --- whether it is the right one ----------------------------------------------------------------------------------

    def _declared(self) -> tuple[StateSpec, Any]:
        form, schema = self._form, self._state.schema
        if form.uid != schema.uid:
            raise ForeignTable(f"{self._place}: the state to take it is that of {schema.uid}")
        for spec in schema.states:
            if spec.name == form.spec.name:
                return spec, self._state.contents.states.get(spec.name)
        names = ", ".join(repr(spec.name) for spec in schema.states)
        raise TableMismatch(f"{self._place}: no such state is declared, only {names}")

    def _check_fit(self) -> None:
        schema, now = self._state.schema, self._spec
        if self._rows_form is not None:
            now = replace(now, codec=CodecSpec.of(self._rows_form.codec))
        declared = Schema(schema.uid, schema.key_type, schema.max_parallelism, (now,))
        try:
            fitted(replace(self._form.schema, max_parallelism=schema.max_parallelism), declared)
        except StateMismatch as error:
            raise TableMismatch(f"{self._table.place}: {error}") from error

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _take(self, batch: pa.RecordBatch) -> int:
        """Take our rows of a batch, and return how many those were."""
        batch.validate(full=True)
        self._rows = np.arange(len(batch))
        keys = self._keys(batch)
        self._check_groups(batch, keys)
        groups = keys.groups(self._state.schema.max_parallelism)
        ours = (groups >= self._state.groups.first) & (groups < self._state.groups.end)
        if not ours.all():
            if self._outside is Outside.REFUSE:
                raise KeysOutside(
                    f"{self._place}: {np.count_nonzero(~ours)} of {len(keys)} keys behind row {self._before} are not "
                    f"of key groups {self._state.groups}; skip them, if another partition takes them"
                )
            batch, groups, self._rows = batch.filter(pa.array(ours)), groups[ours], np.flatnonzero(ours)
            keys = self._keys(batch)
        if len(keys):
            if isinstance(self._opened, Table):
                self._put_into_table(self._opened, batch, keys)
            else:
                self._put_rows(batch, keys, groups)
        return len(keys)

    def _keys(self, batch: pa.RecordBatch) -> KeyColumn:
        try:
            return key_column(batch.column(KEY), self._state.schema.key_type)
        except WrongKeyType as error:
            raise DamagedTable(f"{self._place}, column {KEY!r}: {error}") from error

    def _check_groups(self, batch: pa.RecordBatch, keys: KeyColumn) -> None:
        """Refuse groups that are not those of the keys; a row without one was added by hand."""
        column = self._column(batch, KEY_GROUP, pa.uint16())
        given = column.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        differing = np.flatnonzero(known & (given != keys.groups(self._form.schema.max_parallelism)))
        if len(differing):
            self._refuse(int(differing[0]), KEY_GROUP, "the key is of another group; if it was edited, leave it null")

    def _put_rows(self, batch: pa.RecordBatch, keys: KeyColumn, groups: NDArray[np.uint16]) -> None:
        names, payloads = self._names(batch, keys, groups), self._all_payloads(batch)
        rows, seen = self._state.contents.rows, set[bytes]()
        for row, present in enumerate(rows.get_many(names)):
            if present is not None or names[row] in seen:
                self._refuse(row, KEY, "the same entry was there before; each is to be in the tables once")
            seen.add(names[row])
        for name, payload in zip(names, payloads, strict=True):
            rows.put(name, payload)

    def _names(self, batch: pa.RecordBatch, keys: KeyColumn, groups: NDArray[np.uint16]) -> list[bytes]:
        """Return the names under which the entries of the rows lie."""
        namespaces, names = self._namespaces(batch), []
        rests, state = self._rests(batch), self._spec.id
        for row, group in enumerate(groups.tolist()):
            key, namespace = keys.key(row), namespaces[row]
            if self._spec.kind is StateKind.TIMERS:
                names.append(entries.timer(group, state, unsortable(rests[row]), key, namespace))
            else:
                names.append(entries.row(group, state, key, namespace, rests[row]))
        return names

    def _all_payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the payloads that lie under these names."""
        return [b""] * len(batch) if self._rows_form is None else self._payloads(batch, self._rows_form)

    def _rests(self, batch: pa.RecordBatch) -> Sequence[bytes]:
        """Return the parts of the names that tell entries of one key and namespace apart."""
        match self._spec.kind:
            case StateKind.MAP:
                return self._map_keys(batch)
            case StateKind.LIST:
                places = self._numbers(batch, INDEX)
                for row, place in enumerate(places):
                    if not 0 <= place < _PLACES:
                        self._refuse(row, INDEX, f"{place} is no place in a list: expected 0 to {_PLACES - 1}")
                return list(map(sortable, places))
            case StateKind.TIMERS:
                return list(map(sortable, self._numbers(batch, TIME)))
            case _:
                return [b""] * len(batch)

    def _map_keys(self, batch: pa.RecordBatch) -> Sequence[bytes]:
        natural = self._form.map_key
        if natural is None:
            return self._encoded(batch, MAP_KEY)
        encode, found = map_keys_of(natural.codec).encode, []
        for row, (value, data) in enumerate(self._said(batch, MAP_KEY, natural)):
            try:
                found.append(encode(value) if data is None else data)
            except NotEncodable as error:
                self._refuse(row, MAP_KEY, str(error))
        return found

    def _payloads(self, batch: pa.RecordBatch, form: RowForm[Any]) -> list[bytes]:
        natural = self._form.value
        if natural is None:
            said: Iterator[tuple[object, bytes | None]] = ((None, data) for data in self._encoded(batch, VALUE))
        else:
            said = self._said(batch, VALUE, natural)
        expiries, found = self._expiries(batch), []
        for row, (value, data) in enumerate(said):
            try:
                payload = form.data(form.accept(self._value(form, natural, value, data)))
            except (WrongValueType, UnreadableValue, NotEncodable) as error:
                self._refuse(row, VALUE, str(error))
            found.append(payload if form.ttl is None else EXPIRY.pack(expiries[row]) + payload)
        return found

    def _value(self, form: RowForm[Any], natural: Natural | None, value: object, data: bytes | None) -> object:
        """Return a value as the declared codec has it, whatever codec it was written by."""
        if data is not None:
            return form.value(data)
        written = self._form.spec.codec
        if (
            natural is None
            or written is None
            or (written.name, written.version) == (form.codec.name, form.codec.version)
        ):
            return value
        return form.value(bytes((written.version,)) + natural.codec.encode(natural.codec.accept(value)))

    # --- tables of aggregates -----------------------------------------------------------------------------------------

    def _put_into_table(self, table: Table, batch: pa.RecordBatch, keys: KeyColumn) -> None:
        columns = {
            name: self._accumulators(batch, name, accumulator)
            for name, accumulator in self._form.accumulators.items()
            if name != EXPIRES
        }
        if EXPIRES in self._form.accumulators:
            columns[EXPIRES] = np.array(self._expiries(batch), dtype=np.int64)
        rows_of: dict[bytes, list[int]] = {}
        for row, namespace in enumerate(self._namespaces(batch)):
            rows_of.setdefault(namespace, []).append(row)
        for namespace, rows in rows_of.items():
            some = keys if len(rows) == len(keys) else self._keys(batch.take(pa.array(rows)))
            table.put(Accumulated(some, {name: column[rows] for name, column in columns.items()}), namespace)

    def _accumulators(self, batch: pa.RecordBatch, name: str, accumulator: Accumulator) -> Column:
        column = batch.column(name)
        if column.null_count:
            self._refuse(_first_null(column), name, "it is null")
        found: Column = column.to_numpy(zero_copy_only=False).astype(accumulator.dtype)
        return found

    # --- columns ------------------------------------------------------------------------------------------------------

    def _namespaces(self, batch: pa.RecordBatch) -> list[bytes]:
        column = self._column(batch, NAMESPACE, NAMESPACES)
        starts, ends, others = (part.to_pylist() for part in column.flatten())
        found, known = [], dict[tuple[int | None, int | None, bytes | None], bytes]()
        for row, said in enumerate(zip(starts, ends, others, strict=True)):
            if said not in known:
                known[said] = self._namespace(row, *said)
            found.append(known[said])
        return found

    def _namespace(self, row: int, start: int | None, end: int | None, other: bytes | None) -> bytes:
        if start is None and end is None:
            return NO_NAMESPACE if other is None else other
        if start is None or end is None or other is not None:
            self._refuse(row, NAMESPACE, "it has to be null, or to have a start and an end, or bytes alone")
        try:
            return Window(start, end).namespace
        except ValueError as error:
            self._refuse(row, NAMESPACE, str(error))

    def _said(self, batch: pa.RecordBatch, column: str, natural: Natural) -> Iterator[tuple[object, bytes | None]]:
        """Return values, or else the bytes of those that Arrow does not have."""
        values = natural.heard(self._column(batch, column, natural.arrow))
        if natural.total:
            return zip(values, [None] * len(values), strict=True)
        encoded = self._column(batch, encoded_column(column), pa.binary())
        return zip(values, encoded.to_pylist(), strict=True)

    def _encoded(self, batch: pa.RecordBatch, column: str) -> list[bytes]:
        found = self._column(batch, column, pa.binary())
        if found.null_count:
            self._refuse(_first_null(found), column, "it is null")
        listed: list[bytes] = found.to_pylist()
        return listed

    def _numbers(self, batch: pa.RecordBatch, column: str) -> list[int]:
        found = self._column(batch, column, pa.int64())
        if found.null_count:
            self._refuse(_first_null(found), column, "it is null")
        listed: list[int] = found.to_pylist()
        return listed

    def _expiries(self, batch: pa.RecordBatch) -> list[int]:
        column = self._column(batch, EXPIRES_AT, pa.int64())
        if not self._form.expires and column.null_count < len(column):
            self._refuse(_first(column.is_valid()), EXPIRES_AT, "the state has no time to live")
        listed: list[int] = column.fill_null(NEVER).to_pylist()
        return listed

    def _column(self, batch: pa.RecordBatch, name: str, wanted: pa.DataType) -> pa.Array:
        """Return a column in the type that it was written in; other tools may have changed its width or unit."""
        column = batch.column(name)
        try:
            return column if column.type == wanted else column.cast(wanted)
        except pa.ArrowException as error:
            raise DamagedTable(f"{self._place}, column {name!r}, behind row {self._before}: {error}") from error

    def _refuse(self, row: int, column: str, why: str) -> NoReturn:
        """Raise `DamagedTable` for one of the rows that are being worked on, named by its place in the table."""
        raise DamagedTable(f"{self._place}, row {self._before + int(self._rows[row])}, column {column!r}: {why}")


def _first_null(column: pa.Array) -> int:
    return _first(column.is_null())


def _first(mask: pa.Array) -> int:
    return int(np.flatnonzero(mask.to_numpy(zero_copy_only=False))[0])
