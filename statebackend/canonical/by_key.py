"""The entries of a state in one key group, by key, to be compared.

Invariant: two keys have the same here exactly if an export has the same rows of them; only a key group is in
memory, and nothing is decoded but what says to which key it belongs.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from statebackend import entries
from statebackend.canonical.exporting import StateExport
from statebackend.canonical.schema import KEY, KEY_GROUP
from statebackend.canonical.source import StateSource
from statebackend.entries import ROW, TIMER
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import key_column
from statebackend.states.schema import StateKind, StateSpec

Kept = list[tuple[object, ...]]
"""The values of a key, in the order in which they are kept."""


def kept_by_key(source: StateSource, spec: StateSpec, group: KeyGroup) -> dict[bytes | None, Kept]:
    """Return what a state has of each key of the group, by the canonical bytes of the key."""
    if spec.kind is StateKind.TABLE:
        return _of_table(source, spec, group)
    found: dict[bytes | None, Kept] = {}
    form = TIMER if spec.kind is StateKind.TIMERS else ROW
    start = entries.head(group, spec.id, form)
    for name, payload in source.scans[spec.name](start, entries.after(start)):
        if form == TIMER:
            time, key, namespace = entries.parse_timer(name)
            kept: tuple[object, ...] = namespace, time
        else:
            key, namespace, rest = entries.parse_row(name)
            # Which numbers the elements of a list have says nothing but their order.
            kept = (namespace, payload) if spec.kind is StateKind.LIST else (namespace, rest, payload)
        found.setdefault(key, []).append(kept)
    return found


def table_of_group(source: StateSource, spec: StateSpec, group: KeyGroup) -> pa.Table:
    """Return the canonical table of a state for one key group, expired entries included."""
    export = StateExport(replace(source, groups=KeyGroupRange(group, KeyGroup(group + 1))), spec)
    return pa.Table.from_batches(export.batches(), export.schema)


def _of_table(source: StateSource, spec: StateSpec, group: KeyGroup) -> dict[bytes | None, Kept]:
    found: dict[bytes | None, Kept] = {}
    table = table_of_group(source, spec, group)
    if not len(table):
        return found
    keys = key_column(table.column(KEY), source.schema.key_type)
    names = [name for name in table.column_names if name not in (KEY, KEY_GROUP)]
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    for row, columns in enumerate(rows):
        found.setdefault(keys.key(row), []).append(tuple(map(_comparable, columns)))
    for kept in found.values():
        kept.sort(key=repr)
    return found


def _comparable(value: object) -> object:
    """Return a value that is equal to itself and to no other: namespaces and floating numbers as their texts."""
    return repr(value) if isinstance(value, dict | float) else value
