"""A state that is read as a whole, whatever holds it: an open state, or the files of an epoch.

Invariant: reading changes nothing. Entries come group by group, each group as it is when its turn comes, so
an open state must not be used until one has gone through it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from statebackend.backends.row_store import RowStore, merged
from statebackend.canonical.schema import TableForm
from statebackend.ids import KeyGroup
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.states.list_state import ListHandle
from statebackend.states.map_state import MapHandle
from statebackend.states.row_form import RowForm
from statebackend.states.schema import Schema, StateSpec
from statebackend.states.value_state import CachedState
from statebackend.tables.table import Table

Scan = Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]]
"""Names and payloads from a name up to, not including, another, in order."""


@dataclass(frozen=True, slots=True)
class OneKey:
    """A key to look up."""

    canonical: bytes | None
    group: KeyGroup


@dataclass(frozen=True, slots=True)
class StateSource:
    """The states of an operator for some key groups.

    `forms` are how the rows of declared states are read; what is in `tables` is not in the scanned entries.
    """

    schema: Schema
    groups: KeyGroupRange
    scans: Mapping[str, Scan]
    forms: Mapping[str, RowForm[Any]]
    tables: Mapping[str, Table]

    def form(self, spec: StateSpec) -> tuple[TableForm, RowForm[Any] | None]:
        """Return the form of a state's table, and how its values are read; None if only their bytes are known."""
        form, rows = TableForm.of(self.schema, spec), self.forms.get(spec.name)
        if spec.codec is None or form.value is None:
            return form, None
        if rows is None and spec.codec.version == spec.codec.oldest == 1:
            uid, key_type = self.schema.uid, self.schema.key_type
            rows = RowForm(uid, spec.name, spec.id, key_type, form.value.codec)
        if rows is None:
            return form.opaque(), None
        # What is said in Arrow was read, and so brought to the version that is declared now.
        codec = replace(spec.codec, name=rows.codec.name, version=rows.codec.version, oldest=rows.codec.version)
        return TableForm.of(self.schema, replace(spec, codec=codec)), rows


def source_of(state: KeyedState) -> StateSource:
    """Return the state as it is now."""
    states, scan = state.contents.states, state.contents.rows.scan
    tables = {name: opened for name, opened in states.items() if isinstance(opened, Table)}
    scans: dict[str, Scan] = {spec.name: scan for spec in state.schema.states}
    for name, opened in states.items():
        if isinstance(opened, CachedState):
            scans[name] = _above(opened.above_rows(), state.contents.rows)
    forms = {
        name: opened.form for name, opened in states.items() if isinstance(opened, CachedState | ListHandle | MapHandle)
    }
    return StateSource(state.schema, state.groups, scans, forms, tables)


def _above(values: dict[bytes, bytes | None], rows: RowStore) -> Scan:
    order = sorted(values)

    def scan(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        low = bisect_left(order, start)
        return merged(values, order[low : bisect_left(order, end, low)], rows.scan(start, end))

    return scan
