"""Changed rows of canonical tables into state that has others: put in place of what was there, or taken away.

Invariant: only entries that differ are written, so a cut behind it has these and no others; a row that is
there twice is refused; what a row is about, its key, namespace and part of a map, is said as in an export.

A row is taken away where its column `deleted` is true, or where its value is null and the state's codec has no None; of
a table of aggregates where all accumulators are null. In a map, a row without a map key takes all entries of the key
and namespace away. A list is given as a whole: the rows of its key and namespace are all it has from then on.

Without a column `expires_at`, what takes the place of an entry expires when that did, also if that is over, and an
element beyond the end of a list with the last one; what is new does not expire until the program writes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statebackend import entries
from statebackend.canonical.importing import StateTable, TableImport
from statebackend.canonical.schema import (
    EXPIRES_AT,
    INDEX,
    KEY,
    MAP_KEY,
    VALUE,
    TableForm,
    TableMismatch,
    encoded_column,
    fits,
    is_canonical,
    state_of,
)
from statebackend.canonical.source import source_of
from statebackend.entries import after, sortable
from statebackend.ids import KeyGroup
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import KeyColumn
from statebackend.states.codecs import Codec, NotEncodable
from statebackend.states.row_form import RowForm, WrongValueType
from statebackend.states.schema import StateKind
from statebackend.states.ttl import EXPIRY, NEVER
from statebackend.tables.format.blocks import arrow_keys
from statebackend.tables.table import Accumulated, Table
from statebackend.tables.values.accumulators import Column
from statebackend.tables.values.spec import EXPIRES

DELETED: Final = "deleted"
"""The column that takes rows away."""

_STATE: Final = "state"
_LONG_AGO: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """The numbers of entries that were new, changed, removed, or right already; a list counts as one."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0

    def __add__(self, other: RowsChanged) -> RowsChanged:
        return RowsChanged(
            self.added + other.added,
            self.changed + other.changed,
            self.removed + other.removed,
            self.unchanged + other.unchanged,
        )

    @property
    def written(self) -> int:
        """Return how many entries a cut will have because of these changes."""
        return self.added + self.changed + self.removed


def table_form(state: KeyedState, name: str) -> TableForm:
    """Return the form of the canonical table of a state that was opened by `as_stored`."""
    return source_of(state).form(state.schema.state(name))[0]


def change_rows(state: KeyedState, name: str, rows: pa.Table, place: str) -> RowsChanged:
    """Put these rows into a state that was opened by `as_stored`; `place` names them in errors.

    They have canonical columns; of those that say nothing, all but the key may be missing. If they have no metadata of
    their own, as after a round through other tools, they are taken to be of this state.

    Raise `CanonicalError` for rows that cannot be. After an error the state has a part of them: close it.
    """
    form = table_form(state, name)
    if is_canonical(rows.schema) and (own := state_of(rows.schema, place)) != name:
        raise TableMismatch(f"{place}: it says that it is of state {own!r}, and is given for {name!r}")
    change = _TableChange(
        state, form, completed(rows, form.arrow, place), place, says_expiry=EXPIRES_AT in rows.column_names
    )
    change.take()
    return change.finish()


def completed(rows: pa.Table, wanted: pa.Schema, place: str) -> pa.Table:
    """Return the rows with all columns of a canonical table, then `deleted`; `TableMismatch` for other columns."""
    own = is_canonical(rows.schema)
    known = {*wanted.names, DELETED, _STATE}
    strange = [name for name in rows.column_names if name not in known]
    if (strange and not own) or KEY not in rows.column_names:
        told = f"column {strange[0]!r} is none of its table" if strange else "a table of changes has at least the key"
        raise TableMismatch(f"{place}: {told}; there are {', '.join(wanted.names)}, and {DELETED!r}")
    columns, fields = [], []
    schema = rows.schema if own else wanted
    for field in [field for field in schema if field.name not in (DELETED, _STATE)]:
        at = rows.schema.get_field_index(field.name)
        columns.append(pa.nulls(len(rows), field.type) if at < 0 else _cast(rows.column(at), field, own, place))
        fields.append(field.with_type(columns[-1].type))
    gone = rows.column(DELETED) if DELETED in rows.column_names else pa.nulls(len(rows), pa.bool_())
    if not pa.types.is_boolean(gone.type) and not pa.types.is_null(gone.type):
        raise TableMismatch(f"{place}: column {DELETED!r} is of type {gone.type}; expected booleans")
    columns.append(gone.cast(pa.bool_()))
    fields.append(pa.field(DELETED, pa.bool_()))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=schema.metadata))


def _cast(column: pa.ChunkedArray, field: pa.Field, own: bool, place: str) -> pa.ChunkedArray:
    """Cast a column to the type of its field; keys stay as they are, as `key_column` is strict."""
    if own or field.name == KEY or column.type == field.type:
        return column
    try:
        if fits(column.type, field.type) or _is_number(column.type, field.type):
            return column.cast(field.type)
    except pa.ArrowException as error:
        raise TableMismatch(f"{place}: column {field.name!r} does not fit type {field.type}: {error}") from error
    raise TableMismatch(f"{place}: column {field.name!r} is of type {column.type} instead of {field.type}")


def _is_number(given: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(given) and (types.is_integer(wanted) or types.is_floating(wanted))) or bool(
        types.is_floating(given) and types.is_floating(wanted)
    )


class _TableChange(TableImport):
    """The changed rows of one state on their way into it."""

    def __init__(self, state: KeyedState, form: TableForm, rows: pa.Table, place: str, *, says_expiry: bool) -> None:
        super().__init__(StateTable(form.spec.name, place, rows.schema, iter(rows.to_batches())), state)
        self._says_expiry = says_expiry
        self._none_is_a_value = self._rows_form is not None and _accepts_none(self._rows_form)
        self._seen: set[bytes] = set()
        self._lists: dict[bytes, list[tuple[int, bytes]]] = {}
        self._total = RowsChanged()

    def _take(self, batch: pa.RecordBatch) -> int:
        batch.validate(full=True)
        gone = self._gone(batch)
        for mask, removes in ((~gone, False), (gone, True)):
            part, self._rows = batch.filter(pa.array(mask)), np.flatnonzero(mask)
            if len(part):
                keys = self._keys(part)
                self._check_groups(part, keys)
                groups = self._own_groups(keys)
                if isinstance(self._opened, Table):
                    self._change_table(self._opened, part, keys, removes)
                elif self._spec.kind is StateKind.LIST:
                    self._note_lists(part, keys, groups, removes)
                elif removes:
                    self._remove_rows(part, keys, groups)
                else:
                    self._change_rows(part, keys, groups)
        return len(batch)

    def finish(self) -> RowsChanged:
        """Put the lists, which are all there now, and return what has become of all rows."""
        rows = self._state.contents.rows
        for owner, parts in self._lists.items():
            before = list(rows.scan(owner, after(owner)))
            kept = [payload for _, payload in before]
            wanted = [
                self._expiring(payload, kept[min(at, len(kept) - 1)] if kept else None)
                for at, (_, payload) in enumerate(sorted(parts))
            ]
            if kept == wanted:
                self._total += RowsChanged(unchanged=1)
                continue
            for name, _ in before:
                rows.delete(name)
            for place, payload in enumerate(wanted):
                rows.put(owner + sortable(place), payload)
            self._total += RowsChanged(added=not before, changed=bool(before and wanted), removed=not wanted)
        return self._total

    # --- which rows are taken away ------------------------------------------------------------------------------------

    def _gone(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        said = batch.column(DELETED).fill_null(False)
        if self._spec.kind is StateKind.TABLE:
            empty = _all_null(batch, [name for name in self._form.accumulators if name != EXPIRES])
        elif self._spec.codec is not None and not self._none_is_a_value:
            names = [VALUE, encoded_column(VALUE)]
            empty = _all_null(batch, [name for name in names if name in batch.schema.names])
        else:
            return _mask(said)
        return _mask(said) | empty

    def _own_groups(self, keys: KeyColumn) -> NDArray[np.uint16]:
        groups = keys.groups(self._state.schema.max_parallelism)
        owned = self._state.groups
        foreign = np.flatnonzero((groups < owned.first) | (groups >= owned.end))
        if len(foreign):
            self._refuse(int(foreign[0]), KEY, f"its key group is not of {owned}")
        return groups

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _change_rows(self, batch: pa.RecordBatch, keys: KeyColumn, groups: NDArray[np.uint16]) -> None:
        names, payloads = self._names(batch, keys, groups), self._all_payloads(batch)
        rows, added, changed = self._state.contents.rows, 0, 0
        for row, (name, before) in enumerate(zip(names, rows.get_many(names), strict=True)):
            self._note(row, name)
            payload = self._expiring(payloads[row], before)
            if before == payload:
                continue
            rows.put(name, payload)
            added, changed = added + (before is None), changed + (before is not None)
        self._total += RowsChanged(added, changed, 0, len(names) - added - changed)

    def _expiring(self, payload: bytes, before: bytes | None) -> bytes:
        """Give a payload the expiry of the entry that it replaces, unless the rows say theirs."""
        if self._says_expiry or self._spec.expires is None or before is None:
            return payload
        return before[: EXPIRY.size] + payload[EXPIRY.size :]

    def _remove_rows(self, batch: pa.RecordBatch, keys: KeyColumn, groups: NDArray[np.uint16]) -> None:
        if self._spec.kind is StateKind.MAP:
            whole, namespaces = self._without_map_key(batch), self._namespaces(batch)
            for row in np.flatnonzero(whole).tolist():
                owner = self._owner(keys.key(row), groups[row], namespaces[row])
                self._note(row, owner)
                self._remove([name for name, _ in self._state.contents.rows.scan(owner, after(owner))])
            batch, self._rows = batch.filter(pa.array(~whole)), self._rows[~whole]
            keys, groups = self._keys(batch), groups[~whole]
        for row, name in enumerate(names := self._names(batch, keys, groups)):
            self._note(row, name)
        self._remove(names)

    def _without_map_key(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        natural = self._form.map_key
        if natural is not None and _accepts_none(natural.codec):
            return np.zeros(len(batch), dtype=np.bool_)
        return _all_null(batch, [name for name in (MAP_KEY, encoded_column(MAP_KEY)) if name in batch.schema.names])

    def _remove(self, names: list[bytes]) -> None:
        rows, removed = self._state.contents.rows, 0
        for name, before in zip(names, rows.get_many(names), strict=True):
            if before is not None:
                rows.delete(name)
                removed += 1
        self._total += RowsChanged(removed=removed, unchanged=len(names) - removed)

    def _note(self, row: int, name: bytes) -> None:
        if name in self._seen:
            self._refuse(row, KEY, "the same entry was there before; each is changed once")
        self._seen.add(name)

    # --- lists --------------------------------------------------------------------------------------------------------

    def _note_lists(self, batch: pa.RecordBatch, keys: KeyColumn, groups: NDArray[np.uint16], removes: bool) -> None:
        namespaces = self._namespaces(batch)
        owners = [self._owner(keys.key(row), groups[row], namespaces[row]) for row in range(len(keys))]
        if removes:
            for row, owner in enumerate(owners):
                self._note(row, owner)
                if self._lists.setdefault(owner, []):
                    self._refuse(row, KEY, "the list is taken away, and has elements as well")
            return
        places = self._numbers(batch, INDEX)
        for row, (owner, place, payload) in enumerate(zip(owners, places, self._all_payloads(batch), strict=True)):
            if owner in self._seen:
                self._refuse(row, KEY, "the list is taken away, and has elements as well")
            parts = self._lists.setdefault(owner, [])
            self._note(row, owner + sortable(place))
            parts.append((place, payload))

    def _owner(self, key: bytes | None, group: Any, namespace: bytes) -> bytes:
        return entries.row(KeyGroup(int(group)), self._spec.id, key, namespace)

    # --- tables of aggregates -----------------------------------------------------------------------------------------

    def _change_table(self, table: Table, batch: pa.RecordBatch, keys: KeyColumn, removes: bool) -> None:
        rows_of: dict[bytes, list[int]] = {}
        for row, namespace in enumerate(self._namespaces(batch)):
            self._note(row, entries.delimited(keys.key(row)) + namespace)
            rows_of.setdefault(namespace, []).append(row)
        of_part = self._rows
        for namespace, rows in rows_of.items():
            some, self._rows = batch.take(pa.array(rows)), of_part[rows]
            of_these = self._keys(some)
            present = _mask(table.read(of_these, namespace, now=_LONG_AGO).column(0).is_valid())
            if removes:
                table.remove(of_these, namespace)
                count = int(present.sum())
                self._total += RowsChanged(removed=count, unchanged=len(rows) - count)
            else:
                self._put(table, some, namespace, present)

    def _put(self, table: Table, batch: pa.RecordBatch, namespace: bytes, present: NDArray[np.bool_]) -> None:
        columns = {
            name: self._accumulators(batch, name, accumulator)
            for name, accumulator in self._form.accumulators.items()
            if name != EXPIRES
        }
        same = present & self._same(table, batch, namespace, columns)
        if EXPIRES in self._form.accumulators:
            known = _expiries_in(table, self._keys(batch), namespace)
            columns[EXPIRES] = np.array(self._expiries(batch), dtype=np.int64) if self._says_expiry else known
            same &= columns[EXPIRES] == known
        keys = self._keys(batch.filter(pa.array(~same)))
        if len(keys):
            table.put(Accumulated(keys, {name: column[~same] for name, column in columns.items()}), namespace)
        unchanged, changed = int(same.sum()), int((present & ~same).sum())
        self._total += RowsChanged(len(batch) - unchanged - changed, changed, 0, unchanged)

    def _same(
        self, table: Table, batch: pa.RecordBatch, namespace: bytes, columns: dict[str, Column]
    ) -> NDArray[np.bool_]:
        found = table.read(self._keys(batch), namespace, now=_LONG_AGO)
        same = np.ones(len(batch), dtype=np.bool_)
        for name, column in columns.items():
            output, _, accumulator = name.rpartition(".")
            before = pc.struct_field(found.column(output), accumulator)
            same &= _mask(
                pc.fill_null(
                    pc.equal(_in_bits(before), _in_bits(pa.array(column, self._form.accumulators[name].arrow))), False
                )
            )
        return same


def _expiries_in(table: Table, keys: KeyColumn, namespace: bytes) -> NDArray[np.int64]:
    """Return when these keys of a table with a time to live expire; `NEVER` for keys that it does not have."""
    kept = table.accumulators(namespace)
    wanted, known = (arrow_keys(some).cast(pa.large_binary()) for some in (keys, kept.keys))
    expiries = pa.array(kept.columns[EXPIRES].view(np.int64)).take(pc.index_in(wanted, value_set=known))
    found: NDArray[np.int64] = expiries.fill_null(NEVER).to_numpy(zero_copy_only=False)
    return found


def _in_bits(column: pa.Array) -> pa.Array:
    """Return numbers that are equal exactly if they are stored the same: NaN equals NaN, and 0.0 is not -0.0."""
    if not pa.types.is_floating(column.type):
        return column
    return column.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width])


def _accepts_none(form: RowForm[Any] | Codec[Any]) -> bool:
    with suppress(WrongValueType, NotEncodable):
        form.accept(None)
        return True
    return False


def _all_null(batch: pa.RecordBatch, names: Iterable[str]) -> NDArray[np.bool_]:
    found = np.ones(len(batch), dtype=np.bool_)
    for name in names:
        found &= _mask(batch.column(name).is_null())
    return found


def _mask(column: pa.Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return found.astype(np.bool_)
