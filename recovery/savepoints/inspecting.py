"""The keyed state of an epoch: its states, and rows of them, of all keys or of some.

Invariant: for a key, or a key group, only the files that speak of that group are opened. Rows come in the
canonical form, expired ones included, a batch at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recovery.json_values import WrongText, parsed, said, typed_key
from recovery.offline.job_tree import NEWEST, JobTree
from recovery.offline.reading import EpochReading, OperatorStates, read_epoch
from statebackend.canonical.schema import KEY, encoded_column
from statebackend.ids import Epoch, KeyGroup, Uid
from statebackend.state_reader import ALL_KEYS
from statebackend.states.schema import StateKind, StateSpec


@dataclass(frozen=True, slots=True)
class StateSummary:
    """A state that is declared. `holds` says what: the codec of its values, with that of its map keys, or outputs."""

    name: str
    kind: StateKind
    holds: str
    expires: str | None


@dataclass(frozen=True, slots=True)
class OperatorSummary:
    """The keyed state of an operator. `bytes` are those of all its files, each counted once."""

    uid: Uid
    key_type: str | None
    partitions: int
    files: int
    bytes: int
    states: tuple[StateSummary, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """All keyed state of an epoch, and the operators that keep broadcast state besides."""

    epoch: Epoch
    max_parallelism: int
    operators: tuple[OperatorSummary, ...]
    broadcast: tuple[Uid, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted rows: those of a key, of a key group, of keys that begin so, or all. At most one of them is given.

    `key` and `prefix` are as a person types them: text, whole numbers, hex digits for bytes, a JSON list for a tuple,
    of which a prefix gives the first ones.
    """

    key: str | None = None
    group: int | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.key, self.group, self.prefix)) > 1:
            raise WrongText("give a key, or a key group, or a prefix of keys: one of them")


@dataclass(frozen=True, slots=True)
class StateRows:
    """Some rows of one state, as its canonical table has them."""

    state: str
    rows: pa.RecordBatch

    def in_json(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as JSON has them, with the state's name; columns of encoded values are left out where null."""
        names = self.rows.schema.names
        columns = [said(column) for column in self.rows.columns]
        spare = {encoded_column(name) for name in names}
        for row in zip(*columns, strict=True):
            yield {"state": self.state} | {
                name: value for name, value in zip(names, row, strict=True) if value is not None or name not in spare
            }


def inspect(tree: JobTree, epoch: str = NEWEST) -> Summary:
    """List the states of all operators in an epoch."""
    with read_epoch(tree, epoch, pin=True) as reading:
        return summarise(reading)


def read_rows(
    tree: JobTree, epoch: str, uid: str, state: str | None = None, wanted: Wanted | None = None
) -> Iterator[StateRows]:
    """Yield rows of a state of an epoch, as `rows_of` does; the epoch stays for as long as they are read."""
    with read_epoch(tree, epoch, pin=True) as reading:
        yield from rows_of(reading, uid, state, wanted)


def summarise(reading: EpochReading) -> Summary:
    """List the states of all operators, reading one small file of each operator."""
    manifest = reading.found.manifest
    broadcast = tuple(one.uid for one in manifest.operators if one.broadcast is not None)
    operators = tuple(_summary(operator) for operator in reading.operators)
    return Summary(reading.epoch, manifest.max_parallelism, operators, broadcast)


def rows_of(
    reading: EpochReading, uid: str, state: str | None = None, wanted: Wanted | None = None
) -> Iterator[StateRows]:
    """Yield rows of a state, or of all states of the operator, partition by partition.

    Raises `NoSuchState`, `WrongText` for a key or prefix that is not of the declared type, and what reading raises.
    """
    wanted = wanted or Wanted()
    operator = reading.operator(uid)
    key, parts = _places(operator, wanted)
    parts = [files for files in parts if files.files]
    if not parts or wanted.key is None:
        operator.check(state)
    for files in parts:
        with operator.opened(files) as reader:
            names = [spec.name for spec in reader.states() if state in (None, spec.name)]
            if not names:
                operator.check(state)  # a file of other groups may know it
            for name in names:
                for batch in reader.batches(name, key=key, expired=True):
                    found = batch if wanted.prefix is None else _beginning(batch, wanted.prefix)
                    if len(found):
                        yield StateRows(name, found)


def _places(operator: OperatorStates, wanted: Wanted) -> tuple[object, list[Any]]:
    """Return the key to look up, and the file sets to look in."""
    if wanted.key is not None:
        key = typed_key(wanted.key, operator.key_type)
        return key, [operator.files_of_group(operator.group_of(key))]
    schema = operator.declared()
    if wanted.group is not None:
        if not 0 <= wanted.group < schema.max_parallelism:
            raise WrongText(f"there is no key group {wanted.group}; they go from 0 to {schema.max_parallelism - 1}")
        return ALL_KEYS, [operator.files_of_group(KeyGroup(wanted.group))]
    if wanted.prefix is not None:
        _matches(pa.nulls(0, schema.key_type.arrow), wanted.prefix)
    return ALL_KEYS, list(operator.parts)


def _beginning(batch: pa.RecordBatch, prefix: str) -> pa.RecordBatch:
    return batch.filter(pc.fill_null(_matches(batch.column(KEY), prefix), False))


def _matches(keys: pa.Array, prefix: str) -> pa.Array:
    """Return a mask of the keys that begin with the prefix; `WrongText` for keys that have no beginning."""
    types, arrow = pa.types, keys.type
    if types.is_string(arrow):
        return pc.starts_with(keys, pattern=parsed(prefix, arrow, "the prefix")[0].as_py())
    if types.is_binary(arrow) or types.is_fixed_size_binary(arrow):
        return pc.starts_with(keys.cast(pa.binary()), pattern=parsed(prefix, pa.binary(), "the prefix")[0].as_py())
    if types.is_struct(arrow):
        return _matching_fields(keys, prefix)
    raise WrongText(f"keys of type {arrow} have no beginning; give a key, or a key group")


def _matching_fields(keys: pa.StructArray, prefix: str) -> pa.Array:
    fields = keys.flatten()
    first = pa.struct(list(keys.type)[: max(1, _fields_in(prefix))])
    wanted = parsed(prefix, first, "the prefix")
    found = keys.is_valid()
    for column, value in zip(fields, wanted.flatten(), strict=False):
        same = pc.is_null(column) if value.null_count else pc.fill_null(pc.equal(column, value[0]), False)
        found = pc.and_(found, same)
    return found


def _fields_in(prefix: str) -> int:
    """Return the number of fields in a typed prefix of a tuple, 1 if it is no list."""
    try:
        value = json.loads(prefix)
    except (ValueError, RecursionError):
        return 1
    return len(value) if isinstance(value, list) else 1


def _summary(operator: OperatorStates) -> OperatorSummary:
    schema, files = operator.schema, operator.files
    return OperatorSummary(
        operator.uid,
        None if schema is None else schema.key_type.name,
        len(operator.parts),
        len(files),
        sum(file.size for file in files),
        () if schema is None else tuple(map(_state, schema.states)),
    )


def _state(spec: StateSpec) -> StateSummary:
    if spec.kind is StateKind.TABLE:
        holds = ", ".join(_outputs(spec))
    else:
        codec = "" if spec.codec is None else spec.codec.name
        holds = f"{spec.map_keys} -> {codec}" if spec.map_keys is not None else codec
    return StateSummary(spec.name, spec.kind, holds, spec.expires)


def _outputs(spec: StateSpec) -> Iterator[str]:
    for output, text in json.loads(spec.detail).items():
        yield f"{output}: {text.partition(' version ')[0]}"
