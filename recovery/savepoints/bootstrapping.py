"""A savepoint made of tables alone, for the operators that a program declares: a job then starts from it and goes on.

Invariant: the new tree is there as a whole or not at all; what the program declares decides how values are
kept, so it reads them as if it had written them. Sources begin where they would without a past.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

from recovery.decisions.notes import Notes, Origin, to_json
from recovery.driver.tree.identity import new_birth
from recovery.offline import fail_points
from recovery.offline.fail_points import reached
from recovery.offline.new_tree import KeptEpoch, begin, check_free
from recovery.offline.reading import NoSuchState
from recovery.scratch import scratch_folder
from snapshot.ids import JobId
from snapshot.program.program import Program
from snapshot.tree.manifest import Manifest, ManifestKind, OperatorSnapshot, SubtaskSnapshot
from statebackend.canonical.importing import Outside, StateTable, import_tables
from statebackend.canonical.mapping import Columns, as_canonical
from statebackend.canonical.schema import CanonicalError, TableForm, TableMismatch, is_canonical, state_of
from statebackend.canonical.source import source_of
from statebackend.ids import Attempt, Epoch, Generation, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, check_parallelism, range_of
from statebackend.keys.types import KeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.consolidation import Policy
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobStore

HOW: Final = "bootstrap"

_FIRST: Final = Epoch(Generation(1), 1)
_PATIENT: Final = Options(policy=Policy(rewrites=False))


@dataclass(frozen=True, slots=True, eq=False)
class StateFrom:
    """The first content of a state: an Arrow table, a Parquet or Arrow file, or a Spark DataFrame, which is collected.

    Its rows are those of the state's canonical table, or of an ordinary one with these columns. `place` is what errors
    and the epoch's origin call a table that is no file.
    """

    uid: str
    state: str
    rows: Any
    columns: Columns = field(default_factory=Columns)
    place: str = ""


@dataclass(frozen=True, slots=True)
class StateFilled:
    """The number of rows that a state was given, in all partitions together."""

    uid: Uid
    state: str
    rows: int


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """The made savepoint: `made` is None for a dry run."""

    uri: str
    job: JobId
    parallelism: int
    max_parallelism: int
    made: Epoch | None
    states: tuple[StateFilled, ...]
    files: int
    bytes: int


def bootstrap(
    program: Program,
    into: str,
    states: Sequence[StateFrom],
    *,
    name: str = "job",
    parallelism: int = 2,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    dry_run: bool = False,
) -> Bootstrapped:
    """Make a job with one epoch, in which these states of the program's operators are what the tables say.

    Raises `TargetExists`, `InvalidProgram`, `NoSuchState` for what the program does not declare, `CanonicalError` for
    tables that cannot be, and what the store and the local disk raise. Then, and after a crash, there is no job at the
    place, and it can be done again. A partition's rows are in memory, or on the local disk, until they are written.
    """
    check_parallelism(parallelism, max_parallelism)
    declared = declared_in(program, max_parallelism)
    of_uid: dict[str, list[_Source]] = {}
    for one in states:
        _check_declared(one, declared)
        of_uid.setdefault(one.uid, []).append(_Source.open(one))
    birth = new_birth(name, max_parallelism)
    with scratch_folder("bootstrap") as scratch:
        making = _Making(parallelism, scratch)
        if dry_run:
            check_free(into)
            store = MemoryStore(birth.job)
            nowhere = {Partition(index): _no_name for index in range(parallelism)}
            for uid, some in sorted(of_uid.items()):
                making.operator(declared[uid], some, store, nowhere)
            return making.done(into, birth.job, max_parallelism, None)
        tree = begin(into, birth, _FIRST.generation, HOW)
        names = {Partition(index): tree.names(Partition(index)) for index in range(parallelism)}
        operators = [making.operator(declared[uid], some, tree.store, names) for uid, some in sorted(of_uid.items())]
        now = int(time.time() * 1000)
        origin = Origin(HOW, ", ".join(sorted({one.place for some in of_uid.values() for one in some})), now)
        manifest = Manifest(
            job=birth.job,
            epoch=_FIRST,
            attempt=Attempt(0),
            kind=ManifestKind.SAVEPOINT,
            max_parallelism=max_parallelism,
            created_at=now,
            operators=tuple(operators),
            notes=to_json(Notes(origin=origin)),
        )
        tree.finish(KeptEpoch(manifest))
        return making.done(into, birth.job, max_parallelism, _FIRST)


def declared_in(program: Program, max_parallelism: int = DEFAULT_MAX_PARALLELISM) -> dict[str, Operator]:
    """Return the keyed state that a program declares, by uid."""
    return {
        str(uid): Operator(uid, operator.inputs[0].key_type, operator.states, max_parallelism)
        for uid, operator in program.plan(max_parallelism).keyed.items()
    }


class _Making:
    """The parts of a savepoint that were made so far."""

    def __init__(self, parallelism: int, scratch: Path) -> None:
        self._parallelism, self._scratch = parallelism, scratch
        self._rows: dict[tuple[Uid, str], int] = {}
        self._files = self._bytes = 0

    def operator(
        self,
        declared: Operator,
        states: Sequence[_Source],
        store: BlobStore,
        names: Mapping[Partition, Callable[[], str]],
    ) -> OperatorSnapshot:
        """Write all partitions of an operator to the store, and return their snapshot."""
        uid = Uid(declared.uid)
        parts = [self._partition(declared, states, store, Partition(at), names) for at in range(self._parallelism)]
        key_type = KeyType.of(declared.key).name
        return OperatorSnapshot(uid, self._parallelism, tuple(parts), key_type=key_type)

    def done(self, uri: str, job: JobId, max_parallelism: int, made: Epoch | None) -> Bootstrapped:
        """Return the result, with the rows, files and bytes counted so far."""
        states = tuple(StateFilled(uid, state, rows) for (uid, state), rows in self._rows.items())
        return Bootstrapped(uri, job, self._parallelism, max_parallelism, made, states, self._files, self._bytes)

    def _partition(
        self,
        declared: Operator,
        states: Sequence[_Source],
        store: BlobStore,
        partition: Partition,
        names: Mapping[Partition, Callable[[], str]],
    ) -> SubtaskSnapshot:
        groups = range_of(partition, self._parallelism, declared.max_parallelism)
        folder = self._scratch / f"{declared.uid}-{partition}"
        with KeyedState(declared, folder, store, names[partition], groups=groups, options=_PATIENT) as state:
            forms = {spec.name: source_of(state).form(spec)[0] for spec in state.schema.states}
            import_tables([self._table(one, forms, partition) for one in states], state, outside=Outside.SKIP)
            files = state.snapshot(_FIRST)
        self._files += len(files.files)
        self._bytes += sum(file.size for file in files.files)
        reached(fail_points.CHANGES_STORED)
        return SubtaskSnapshot(partition, files)

    def _table(self, one: _Source, forms: Mapping[str, TableForm], partition: Partition) -> StateTable:
        """Return the canonical table of a state; its rows are counted once, though each partition reads all of them."""
        batches = one.batches()
        if partition == 0:
            batches = self._counted(batches, (Uid(one.of.uid), one.of.state))
        if not is_canonical(one.schema):
            return as_canonical(batches, one.schema, forms[one.of.state], one.of.columns, one.place)
        said = state_of(one.schema, one.place)
        if said != one.of.state:
            raise TableMismatch(f"{one.place}: it says that it is of state {said!r}, and is given for {one.of.state!r}")
        return StateTable(one.of.state, one.place, one.schema, batches)

    def _counted(self, batches: Iterator[pa.RecordBatch], key: tuple[Uid, str]) -> Iterator[pa.RecordBatch]:
        self._rows.setdefault(key, 0)
        for batch in batches:
            self._rows[key] += len(batch)
            yield batch


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A table that can be gone through as often as there are partitions."""

    of: StateFrom
    place: str
    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def open(cls, one: StateFrom) -> _Source:
        """Open a table; `CanonicalError` if it cannot be read."""
        rows = one.rows
        if isinstance(rows, str | Path):
            return cls._of_file(one, Path(rows))
        table = rows if isinstance(rows, pa.Table) else rows.toArrow()
        return cls(
            one, one.place or f"the table for {one.uid}/{one.state}", table.schema, lambda: iter(table.to_batches())
        )

    @classmethod
    def _of_file(cls, one: StateFrom, file: Path) -> _Source:
        try:
            if file.suffix == ".arrow":
                with ipc.open_file(file) as opened:
                    schema = opened.schema
                return cls(one, str(file), schema, partial(_of_arrow, file))
            return cls(one, str(file), parquet.read_schema(file), partial(_of_parquet, file))
        except pa.ArrowException as error:
            raise CanonicalError(f"{file} is no whole Parquet or Arrow file: {error}") from error


def _of_parquet(file: Path) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(file) as opened:
        yield from opened.iter_batches()


def _of_arrow(file: Path) -> Iterator[pa.RecordBatch]:
    with ipc.open_file(file) as opened:
        for index in range(opened.num_record_batches):
            yield opened.get_batch(index)


def _check_declared(one: StateFrom, declared: Mapping[str, Operator]) -> None:
    operator = declared.get(one.uid)
    if operator is None:
        known = ", ".join(map(repr, sorted(declared))) or "none"
        raise NoSuchState(f"the program has no operator {one.uid!r} with keyed state; it has {known}")
    if one.state not in operator.states:
        known = ", ".join(map(repr, operator.states))
        raise NoSuchState(f"{one.uid} declares no state {one.state!r}; it declares {known}")


def _no_name() -> str:
    return f"shared/{token_hex(16)}.sst"
