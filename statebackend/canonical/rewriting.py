"""State written anew as it is declared now: every value by the present version of its codec, and nothing else left.

Invariant: each entry of a state that goes on is there again under the same key, namespace and expiry; what is
declared no longer is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statebackend.canonical.exporting import StateExport
from statebackend.canonical.importing import StateTable, TableImport
from statebackend.canonical.source import StateSource, source_of
from statebackend.entries import HEAD_SIZE, head, parse_head
from statebackend.ids import KeyGroup
from statebackend.keyed_state import KeyedState
from statebackend.states.schema import StateKind, StateSpec
from statebackend.states.ttl import EXPIRY, expiry_of

_BELOW_FORMS: Final = 0
_ABOVE_FORMS: Final = 255


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The number of a state's rows, and how many of them an earlier version of its codec had written."""

    state: str
    rows: int
    migrated: int


def rewrite(before: KeyedState, after: KeyedState) -> tuple[Rewritten, ...]:
    """Bring all of a state into another one, which was opened without files under the same declaration.

    Neither may be used meanwhile; a snapshot of `after` then has it all. Raises what the codecs' `migrate` leads to:
    `UnreadableValue`, with the state that it is of.
    """
    source = source_of(before)
    return tuple(_rewritten(source, spec, after) for spec in before.schema.states)


def _rewritten(source: StateSource, spec: StateSpec, after: KeyedState) -> Rewritten:
    if spec.kind is StateKind.TABLE:
        export = StateExport(source, spec)
        table = StateTable(spec.name, f"{source.schema.uid} as it was", export.schema, export.batches())
        return Rewritten(spec.name, TableImport(table, after).take().rows, 0)
    rows = migrated = 0
    for group in source.groups:
        changed, taken = _rewrite_group(source, spec, after, group)
        rows, migrated = rows + taken, migrated + changed
    return Rewritten(spec.name, rows, migrated)


def _rewrite_group(source: StateSource, spec: StateSpec, after: KeyedState, group: KeyGroup) -> tuple[int, int]:
    """Rewrite a key group; return how many rows were migrated, and how many there are."""
    to, form, rows = after.schema.state(spec.name).id, source.forms.get(spec.name), after.contents.rows
    behind = 0 if spec.expires is None else EXPIRY.size
    migrated = taken = 0
    for name, payload in source.scans[spec.name](
        head(group, spec.id, _BELOW_FORMS), head(group, spec.id, _ABOVE_FORMS)
    ):
        data = payload
        if form is not None and payload[behind] != form.codec.version:
            data = form.payload(form.value_in(payload), expiry_of(payload) if behind else None)
            migrated += 1
        rows.put(head(group, to, parse_head(name)[2]) + name[HEAD_SIZE:], data)
        taken += 1
    return migrated, taken
