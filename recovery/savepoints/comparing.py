"""Compare the keyed state of two epochs, of one tree or of two: keys added, removed and changed.

Invariant: key groups whose files are the same in both are not read; of the others one group of one state is in
memory at a time. A key is changed if any of its entries is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from recovery.offline.job_tree import NEWEST, JobTree
from recovery.offline.reading import BytesRead, EpochReading, NoSuchState, OperatorStates, read_epoch
from recovery.savepoints.inspecting import StateRows
from statebackend.canonical.by_key import kept_by_key, table_of_group
from statebackend.canonical.schema import KEY
from statebackend.errors import SavepointError
from statebackend.files import FileSet
from statebackend.ids import Epoch, KeyGroup, Uid
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import key_column
from statebackend.state_reader import StateReader
from statebackend.states.schema import StateSpec


class CannotCompare(SavepointError, ValueError):
    """Two epochs whose keys cannot be told to be the same: of other key types, or another maximum parallelism."""


@dataclass(frozen=True, slots=True)
class StateDiff:
    """The numbers of a state's keys that are only in the newer epoch, only in the older, and in both but changed."""

    uid: Uid
    state: str
    added: int = 0
    removed: int = 0
    changed: int = 0


@dataclass(frozen=True, slots=True)
class KeyDiff:
    """A key that differs, and its rows of before and after as JSON has them."""

    uid: Uid
    state: str
    before: tuple[dict[str, Any], ...]
    after: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """All states in which something differs; the number of key groups, and of those that had the same files."""

    before: Epoch
    after: Epoch
    states: tuple[StateDiff, ...]
    groups: int
    same_files: int
    read: BytesRead


_Rows = Callable[[KeyDiff], object]


def diff(
    tree: JobTree,
    epoch: str,
    other_epoch: str = NEWEST,
    uid: str | None = None,
    state: str | None = None,
    on_key: _Rows | None = None,
    *,
    other: JobTree | None = None,
) -> Compared:
    """Compare an epoch with another one of the same tree, or of the `other` tree. The rest is as for `compare`."""
    with read_epoch(tree, epoch, pin=True) as before, read_epoch(other or tree, other_epoch, pin=True) as after:
        return compare(before, after, uid, state, on_key)


def compare(
    before: EpochReading,
    after: EpochReading,
    uid: str | None = None,
    state: str | None = None,
    on_key: _Rows | None = None,
) -> Compared:
    """Compare all operators, or one, and all their states, or one; `on_key` is given each key that differs.

    Raises `NoSuchState` for what neither epoch has, `CannotCompare`, and what reading raises.
    """
    most = before.found.manifest.max_parallelism
    if after.found.manifest.max_parallelism != most:
        raise CannotCompare(
            f"epoch {before.epoch} has {most} key groups, and {after.epoch} has "
            f"{after.found.manifest.max_parallelism}: they cannot be compared group by group; export both instead"
        )
    of_before, of_after = _operators(before), _operators(after)
    uids = sorted({*of_before, *of_after}) if uid is None else [Uid(uid)]
    if uid is not None and uid not in of_before and uid not in of_after:
        before.operator(uid)  # raises
    counted: list[StateDiff] = []
    groups = same = 0
    for one in uids:
        comparison = _Comparison(one, of_before.get(one), of_after.get(one), most, state, on_key)
        counted += comparison.all()
        groups, same = groups + most, same + comparison.same_files
    if state is not None and uid is not None and not _has(of_before.get(Uid(uid)), of_after.get(Uid(uid)), state):
        raise NoSuchState(f"{uid} has no state {state!r} in epoch {before.epoch} or {after.epoch}")
    read = BytesRead(before.read.files + after.read.files, before.read.bytes + after.read.bytes)
    return Compared(before.epoch, after.epoch, tuple(counted), groups, same, read)


class _Comparison:
    """The comparison of one operator."""

    def __init__(
        self,
        uid: Uid,
        before: OperatorStates | None,
        after: OperatorStates | None,
        max_parallelism: int,
        state: str | None,
        on_key: _Rows | None,
    ) -> None:
        self._uid, self._before, self._after, self._most = uid, before, after, max_parallelism
        self._state, self._on_key = state, on_key
        self._found: dict[str, StateDiff] = {}
        self.same_files = 0

    def all(self) -> list[StateDiff]:
        differing = list(self._differing())
        self.same_files = self._most - sum(map(len, differing))
        for groups in differing:
            with ExitStack() as stack:
                before, after = (self._opened(one, groups, stack) for one in (self._before, self._after))
                self._compare(before, after, groups)
        return [self._found[name] for name in sorted(self._found)]

    def _differing(self) -> Iterator[KeyGroupRange]:
        """Yield ranges of key groups whose files are not the same, each inside one partition of both."""
        sides = [one.parts for one in (self._before, self._after) if one is not None]
        edges = {0, self._most}
        for part in (part for parts in sides for part in parts):
            edges |= {part.range.first, part.range.end}
        for first, end in pairwise(sorted(edges)):
            groups = KeyGroupRange(KeyGroup(first), KeyGroup(end))
            before, after = (_files(one, groups) for one in (self._before, self._after))
            inner = {first, end}
            for file in (*before.files, *after.files):
                inner |= {edge for part in file.ranges for edge in (part.first, part.end)}
            run: list[int] = []
            for start, stop in pairwise(sorted(inner)):
                if _content(before, start) == _content(after, start):
                    continue
                if run and run[1] == start:
                    run[1] = stop
                    continue
                if run:
                    yield KeyGroupRange(KeyGroup(run[0]), KeyGroup(run[1]))
                run = [start, stop]
            if run:
                yield KeyGroupRange(KeyGroup(run[0]), KeyGroup(run[1]))

    def _opened(self, one: OperatorStates | None, groups: KeyGroupRange, stack: ExitStack) -> StateReader | None:
        files = _files(one, groups)
        return None if one is None or not files.files else stack.enter_context(one.opened(files))

    def _compare(self, before: StateReader | None, after: StateReader | None, groups: KeyGroupRange) -> None:
        if before is not None and after is not None and before.schema.key_type != after.schema.key_type:
            raise CannotCompare(
                f"{self._uid} has keys of type {before.schema.key_type.name} in one epoch and of type "
                f"{after.schema.key_type.name} in the other"
            )
        specs = [{spec.name: spec for spec in one.states()} if one is not None else {} for one in (before, after)]
        names = sorted({*specs[0], *specs[1]})
        for group in groups:
            for name in names if self._state is None else [name for name in names if name == self._state]:
                self._compare_group(_Side(before, specs[0].get(name)), _Side(after, specs[1].get(name)), name, group)

    def _compare_group(self, before: _Side, after: _Side, name: str, group: KeyGroup) -> None:
        was, now = before.kept(group), after.kept(group)
        if was == now:
            return
        added, removed = now.keys() - was.keys(), was.keys() - now.keys()
        changed = {key for key in was.keys() & now.keys() if was[key] != now[key]}
        known = self._found.get(name, StateDiff(self._uid, name))
        self._found[name] = StateDiff(
            self._uid, name, known.added + len(added), known.removed + len(removed), known.changed + len(changed)
        )
        if self._on_key is not None:
            keys = {*added, *removed, *changed}
            rows_before, rows_after = before.rows(group, keys), after.rows(group, keys)
            for key in sorted(keys, key=lambda key: key or b""):
                self._on_key(KeyDiff(self._uid, name, tuple(rows_before.get(key, ())), tuple(rows_after.get(key, ()))))


@dataclass(frozen=True, slots=True)
class _Side:
    """A state in one of the epochs, if it is there."""

    reader: StateReader | None
    spec: StateSpec | None

    def kept(self, group: KeyGroup) -> dict[bytes | None, list[tuple[object, ...]]]:
        if self.reader is None or self.spec is None:
            return {}
        return kept_by_key(self.reader.source, self.spec, group)

    def rows(self, group: KeyGroup, keys: set[bytes | None]) -> dict[bytes | None, list[dict[str, Any]]]:
        found: dict[bytes | None, list[dict[str, Any]]] = {}
        if self.reader is None or self.spec is None:
            return found
        table = table_of_group(self.reader.source, self.spec, group)
        if len(table):
            of_row = key_column(table.column(KEY), self.reader.schema.key_type)
            chosen = [row for row in range(len(table)) if of_row.key(row) in keys]
            some = table.take(pa.array(chosen, pa.int64()))
            shown = (row for batch in some.to_batches() for row in StateRows(self.spec.name, batch).in_json())
            for row, content in zip(chosen, shown, strict=True):
                found.setdefault(of_row.key(row), []).append(content)
        return found


def _operators(reading: EpochReading) -> dict[Uid, OperatorStates]:
    return {operator.uid: operator for operator in reading.operators}


def _has(before: OperatorStates | None, after: OperatorStates | None, state: str) -> bool:
    schemas = [one.schema for one in (before, after) if one is not None]
    return any(spec.name == state for schema in schemas if schema is not None for spec in schema.states)


def _files(one: OperatorStates | None, groups: KeyGroupRange) -> FileSet:
    return FileSet(groups) if one is None else one.files_of(groups)


def _content(files: FileSet, group: int) -> Sequence[object]:
    """Return what identifies a group's state, regardless of the names of its files."""
    return [
        (file.checksum, file.size, file.kind, file.epoch.number)
        for file in files.files
        if any(KeyGroup(group) in part for part in file.ranges)
    ]
