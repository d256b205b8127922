"""Changes as people type them, or have them in files, made into rows of canonical tables.

Invariant: values are of the types that the state's files declare, or it is said what is wrong with them; what
is to be taken away is looked up first, so nothing is taken away that is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from recovery.json_values import WrongText, heard, parsed, typed_key
from recovery.offline.job_tree import JobTree
from recovery.offline.reading import EpochReading, OperatorStates, read_epoch
from recovery.savepoints.editing import ChangedRows
from statebackend.canonical.changing import DELETED
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
    encoded_column,
    is_canonical,
    state_of,
)
from statebackend.states.schema import StateKind

_STATE: Final = "state"
_WHICH: Final = (KEY, NAMESPACE, MAP_KEY, encoded_column(MAP_KEY), TIME)
"""The columns that say what a row is about."""
_NOT_KEPT: Final = (*_WHICH, KEY_GROUP, EXPIRES_AT)
"""Those that are no accumulators. When a row expires stays as it is if it is not said."""


def set_key(
    tree: JobTree, epoch: str, uid: str, state: str, key: str, value: object, namespace: object = None
) -> ChangedRows:
    """Return the change that gives a key this value, or these elements, entries, accumulators or timers.

    `value` and `namespace` are as JSON has them; a namespace is a window's start and end, or hex digits. `value` has
    all elements of a list, some entries of a map, some accumulators of a table, or some timers.

    The entries of a map are an object, or a list of pairs; null takes an entry away. What takes the place of something
    expires when that did, and what is new does not until the program writes it. Raises `WrongText` and `NoSuchState`.
    """
    with read_epoch(tree, epoch, pin=False) as reading:
        operator = reading.operator(uid)
        kind, found = operator.state(state).kind, _found(operator, state, key)
        key_type = operator.declared().key_type.arrow
    where = _namespace(namespace)
    match kind:
        case StateKind.LIST:
            elements = _list(value, "a list is given as a JSON list")
            rows = [{INDEX: at, VALUE: one} for at, one in enumerate(elements)] or [{DELETED: True}]
        case StateKind.MAP:
            rows = [{MAP_KEY: one, VALUE: other} for one, other in _pairs(value)]
        case StateKind.TIMERS:
            rows = [{TIME: one} for one in _list(value, "timers are given as a JSON list of milliseconds")]
        case StateKind.TABLE:
            rows = [_accumulators(found, where, value)]
        case _:
            rows = [{VALUE: value}]
    fields = {field.name: field.type for field in found.schema}
    table = _typed([{NAMESPACE: where, **row} for row in rows], fields, "--set")
    keys = parsed(key, key_type, "the key").take(pa.array([0] * len(table), pa.int64()))
    return ChangedRows(uid, state, table.append_column(KEY, keys), "--set")


def delete_key(tree: JobTree, epoch: str, uid: str, state: str, key: str) -> ChangedRows:
    """Return the change that deletes all that a state has of a key; it has no rows if there is nothing."""
    with read_epoch(tree, epoch, pin=False) as reading:
        operator = reading.operator(uid)
        kind, found = operator.state(state).kind, _found(operator, state, key)
    if kind is StateKind.LIST:
        found = found.filter(pc.equal(found.column(INDEX), 0))
    names = [name for name in found.column_names if name in _WHICH]
    rows = found.select(names).replace_schema_metadata(None)
    return ChangedRows(uid, state, rows.append_column(DELETED, pa.array([True] * len(rows), pa.bool_())), "--delete")


def changes_in(tree: JobTree, epoch: str, uid: str, file: Path, state: str | None = None) -> tuple[ChangedRows, ...]:
    """Read the rows of a file: .parquet, .arrow, or .jsonl as `recovery export` writes them, with `deleted` if wanted.

    The state that they are of is named here, or by the file itself. `WrongText` if neither does, or if it is no such
    file.
    """
    place = str(file)
    if file.suffix == ".jsonl":
        with read_epoch(tree, epoch, pin=False) as reading:
            return tuple(_from_lines(file, reading, uid, state))
    try:
        if file.suffix == ".parquet":
            rows = parquet.read_table(file)
        elif file.suffix == ".arrow":
            with ipc.open_file(file) as opened:
                rows = opened.read_all()
        else:
            raise WrongText(f"{file} is no table of changes; give a file of .parquet, .arrow or .jsonl")
    except pa.ArrowException as error:
        raise WrongText(f"{file} cannot be read: {error}") from error
    if state is None and not is_canonical(rows.schema):
        raise WrongText(f"{file} does not say which state it is of; give --state")
    return (ChangedRows(uid, state or state_of(rows.schema, place), rows, place),)


def _from_lines(file: Path, reading: EpochReading, uid: str, state: str | None) -> Iterator[ChangedRows]:
    of_state: dict[str, list[dict[str, Any]]] = {}
    with file.open(encoding="utf-8") as lines:  # which end with a line feed, and not where Unicode would end them too
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise WrongText(f"{file}, line {number}: {error}") from error
            name = row.pop(_STATE, state) if isinstance(row, dict) else None
            if name is None:
                raise WrongText(f"{file}, line {number}: it does not say which state it is of; give --state")
            of_state.setdefault(name, []).append(row)
    operator = reading.operator(uid)
    for name, rows in of_state.items():
        fields = {field.name: field.type for field in operator.form(name).arrow}
        yield ChangedRows(uid, name, _typed(rows, fields, f"{file}, state {name!r}"), str(file))


def _typed(rows: Sequence[Mapping[str, object]], fields: Mapping[str, pa.DataType], place: str) -> pa.Table:
    """Build a table from rows of JSON, with the columns that any of them has."""
    types = dict(fields) | {DELETED: pa.bool_()}
    names = [name for name in types if any(name in row for row in rows)]
    strange = sorted({name for row in rows for name in row} - types.keys())
    if strange:
        raise WrongText(f"{place}: there is no column {strange[0]!r}; there are {', '.join(types)}")
    columns = {}
    for name in names:
        values = [heard(row.get(name), types[name], f"{place}: {name}") for row in rows]
        columns[name] = pa.concat_arrays(values) if values else pa.nulls(0, types[name])
    return pa.table(columns)


def _found(operator: OperatorStates, state: str, key: str) -> pa.Table:
    """Return the canonical table of what a state has of a key, expired entries included.

    It has no rows if the state has nothing of the key, as when no file covers the key's group, or only files that were
    written before the state existed.
    """
    form = operator.form(state)
    typed = typed_key(key, operator.declared().key_type)
    files = operator.files_of_group(operator.group_of(typed))
    if files.files:
        with operator.opened(files) as reader:
            if reader.has(state):
                return reader.table(state, key=typed, expired=True)
    return form.arrow.empty_table()


def _accumulators(found: pa.Table, where: Mapping[str, object] | None, value: object) -> dict[str, object]:
    """Return the accumulators to keep for the key: those it had, with the given ones in their place."""
    if not isinstance(value, Mapping):
        raise WrongText("a row of a table is given as a JSON object of its accumulators")
    namespace = heard(where, NAMESPACES, "the namespace")[0].as_py()
    before: dict[str, object] = next((row for row in found.to_pylist() if row[NAMESPACE] == namespace), {})
    return {name: one for name, one in before.items() if name not in _NOT_KEPT} | dict(value)


def _namespace(value: object) -> dict[str, object] | None:
    match value:
        case None:
            return None
        case [int(start), int(end)]:
            return {"start": start, "end": end, "bytes": None}
        case str(text):
            return {"start": None, "end": None, "bytes": text}
        case _:
            raise WrongText(f"{value!r} is no namespace; give a window as [start, end] in milliseconds, or hex digits")


def _list(value: object, expected: str) -> list[object]:
    if not isinstance(value, list):
        raise WrongText(f"{expected}, not as {json.dumps(value)}")
    return value


def _pairs(value: object) -> list[tuple[object, object]]:
    if isinstance(value, Mapping):
        return list(value.items())
    found = []
    for pair in _list(value, "entries of a map are given as a JSON object, or as a list of pairs"):
        if not isinstance(pair, list) or len(pair) != 2:
            raise WrongText(f"an entry of a map is a pair of key and value, not {json.dumps(pair)}")
        found.append((pair[0], pair[1]))
    return found
