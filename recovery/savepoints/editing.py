"""A new savepoint from an old one with changed rows: in the job's tree as its next epoch, or as a job of its own.

Invariant: no epoch and no file is changed; of the state only the rows that differ are written, a delta file for
each partition that has some. What is made is there as a whole, behind everything that it refers to, or never was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recovery.decisions.notes import from_json, to_json
from recovery.offline import fail_points
from recovery.offline.epoch_choice import Chosen, choose, go_back
from recovery.offline.fail_points import reached
from recovery.offline.job_tree import JobTree
from recovery.offline.new_tree import NewTree, check_free
from recovery.offline.reading import EpochReading
from recovery.offline.stopped_job import refuse_if_it_runs, take_over
from recovery.savepoints.copying import fork
from recovery.scratch import scratch_folder
from snapshot.journal.state import NO_OUTPUT, OutputMade
from snapshot.tree.manifest import Manifest, OperatorSnapshot
from statebackend.canonical.changing import RowsChanged, change_rows
from statebackend.canonical.schema import KEY, DamagedTable, TableMismatch
from statebackend.canonical.stored_states import as_stored
from statebackend.files import FileSet, union
from statebackend.ids import Epoch, KeyGroup, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import key_column
from statebackend.keys.types import WrongKeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.consolidation import Policy
from statebackend.state_reader import read_schema
from statebackend.states.schema import Schema
from statebackend.stores.store import BlobStore

HOW: Final = "edit"

_ONLY_WHAT_CHANGES: Final = Options(policy=Policy(rewrites=False))


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """Rows of the canonical table of a state, as `statebackend.canonical.changing` takes them. `place` names them."""

    uid: str
    state: str
    rows: pa.Table
    place: str = "the changed rows"


@dataclass(frozen=True, slots=True, eq=False)
class ChangedBy:
    """A function that changes the open state of each partition, of an operator declared as in its program.

    It is called once for each partition, and uses only keys of the state's own key groups.
    """

    operator: Operator
    change: Callable[[KeyedState], object]

    @property
    def uid(self) -> str:
        """Return the uid of the operator."""
        return self.operator.uid


Change = ChangedRows | ChangedBy


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The changes of one state's entries."""

    uid: Uid
    state: str
    rows: RowsChanged


@dataclass(frozen=True, slots=True)
class Edited:
    """The edited savepoint. `made` is None for a dry run, and where nothing differs.

    `files` are those that were written, of so many `bytes`. For changes by functions, only the files are known.
    `passed_over` are newer epochs that cannot be used, with the reasons; `gives_up` are complete ones that the job will
    not come back to, and `repeats` is output that it will make once more.
    """

    epoch: Epoch
    made: Epoch | None
    states: tuple[StateChanged, ...]
    files: int = 0
    bytes: int = 0
    passed_over: tuple[str, ...] = ()
    gives_up: tuple[Epoch, ...] = ()
    repeats: OutputMade = NO_OUTPUT


def edit(
    tree: JobTree,
    epoch: str,
    changes: Sequence[Change],
    *,
    into: str | None = None,
    accept_duplicates: bool = False,
    dry_run: bool = False,
    job_folder: Path | None = None,
) -> Edited:
    """Make a savepoint that differs from an epoch by these changes: the job's newest one, or a fork of it elsewhere.

    In the tree the job must not run (`JobRuns`); a fork may be made of a job that runs. Raises `NoSuchState`,
    `CanonicalError` for rows that cannot be, `StateMismatch` for an operator that is declared otherwise, what
    `epoch_choice.choose` and `fork` raise, `FencedOff` if the job was started meanwhile, and what reading and writing
    state raises. Then, and after a crash, there is no new epoch, and it can be done again.
    """
    if into is None:
        refuse_if_it_runs(tree, job_folder)
    elif dry_run:
        check_free(into, tree.birth.job)
    chosen = choose(tree, epoch, accept_duplicates=accept_duplicates)
    with scratch_folder("editing") as scratch:
        work = _Work(tree, chosen, changes, scratch)
        work.check()
        if dry_run:
            work.try_out()
            return work.done(None)
        if into is not None:
            epoch = str(chosen.epoch)
            copied = fork(tree, epoch, into, accept_duplicates=accept_duplicates, change=work.in_new_tree)
            return work.done(copied.made)
        job = take_over(tree, HOW, job_folder=job_folder)
        work = _Work(tree, go_back(job, epoch, accept_duplicates=accept_duplicates), changes, scratch)
        manifest = work.made(job.remade(work.chosen.manifest, HOW), tree.store, job.names)
        if work.files:
            return work.done(job.publish(manifest))
        found = work.chosen.found
        origin = from_json(found.manifest.notes).origin
        if origin is not None and origin.how == HOW and found.record.epoch not in job.tree.savepoints:
            job.pin(found.record.epoch)  # whoever made it did not get as far as that
        return work.done(None)


class _Work:
    """The changes on their way into an epoch."""

    def __init__(self, tree: JobTree, chosen: Chosen, changes: Sequence[Change], scratch: Path) -> None:
        self.chosen = chosen
        self._reading = EpochReading(tree, chosen.found, scratch)
        self._changes: dict[Uid, list[Change]] = {}
        for change in changes:
            self._changes.setdefault(Uid(change.uid), []).append(change)
        self._rows: dict[tuple[Uid, str], RowsChanged] = {}
        self._numbers = count()
        self._bytes = 0
        self.files = 0
        """The number of files that were written."""

    def check(self) -> None:
        """Check what needs no state to be opened: `NoSuchState`, and `CanonicalError` for keys that are none."""
        for uid, changes in self._changes.items():
            operator = self._reading.operator(uid)
            for change in changes:
                if isinstance(change, ChangedRows):
                    operator.state(change.state)
                    _groups(change, operator.declared())

    def try_out(self) -> None:
        """Make the changes, and keep nothing of them."""
        for operator in self.chosen.manifest.operators:
            for part in self._parts(operator):
                with self._opened(part, self._reading.tree.store, _no_name) as state:
                    self._apply(part, state)

    def made(self, manifest: Manifest, store: BlobStore, names: Callable[[Partition], Callable[[], str]]) -> Manifest:
        """Write the files of the changes to the store, and return the epoch with them."""
        known: dict[Partition, Callable[[], str]] = {}

        def name(partition: Partition) -> str:
            if partition not in known:
                known[partition] = names(partition)
            return known[partition]()

        operators = tuple(self._operator(one, manifest.epoch, store, name) for one in manifest.operators)
        return replace(manifest, operators=operators)

    def in_new_tree(self, new: NewTree, manifest: Manifest) -> Manifest:
        """Return a fork's epoch with the changes; all files that it refers to are in the new tree."""
        notes = from_json(manifest.notes)
        if notes.origin is not None:
            notes = replace(notes, origin=replace(notes.origin, how=HOW))
        return replace(self.made(manifest, new.store, new.names), notes=to_json(notes))

    def done(self, made: Epoch | None) -> Edited:
        """Return the result, with the changes, files and bytes counted so far."""
        states = tuple(StateChanged(uid, state, rows) for (uid, state), rows in self._rows.items())
        chosen = self.chosen
        passed_over = tuple(map(str, chosen.found.passed_over))
        return Edited(chosen.epoch, made, states, self.files, self._bytes, passed_over, chosen.gives_up, chosen.repeats)

    def _operator(
        self, operator: OperatorSnapshot, epoch: Epoch, store: BlobStore, name: Callable[[Partition], str]
    ) -> OperatorSnapshot:
        if operator.uid not in self._changes:
            return operator
        subtasks = list(operator.subtasks)
        for part in self._parts(operator):
            with self._opened(part, store, partial(name, part.partition)) as state:
                self._apply(part, state)
                after = state.snapshot(epoch)
            paths = {file.path for file in part.whole.files}
            new = [file for file in after.files if file.path not in paths]
            self.files += len(new)
            self._bytes += sum(file.size for file in new)
            subtasks[part.partition] = replace(subtasks[part.partition], state=_with(part.whole, after))
            reached(fail_points.CHANGES_STORED)
        return replace(operator, subtasks=tuple(subtasks))

    def _parts(self, operator: OperatorSnapshot) -> Iterator[_Part]:
        """Yield the partitions to change, each once: all of them for a function, else those that have changed rows."""
        changes = self._changes.get(operator.uid, [])
        functions = [change for change in changes if isinstance(change, ChangedBy)]
        tables = [change for change in changes if isinstance(change, ChangedRows)]
        if functions and (tables or len(functions) > 1):
            raise TableMismatch(f"{operator.uid}: give one function, or changed rows, but not both")
        schema = self._reading.operator(operator.uid).declared() if tables else None
        groups = [_groups(change, schema) for change in tables] if schema is not None else []
        for subtask in operator.subtasks:
            if subtask.state is None:
                continue
            for function in functions:
                yield _Part(subtask.partition, subtask.state, subtask.state, function.operator, function)
            own = [_within(some, subtask.state.range) for some in groups]
            if any(mask.any() for mask in own):
                rows = tuple(
                    replace(change, rows=change.rows.filter(pa.array(mask)))
                    for change, mask in zip(tables, own, strict=True)
                    if mask.any()
                )
                touched = np.concatenate([some[mask] for some, mask in zip(groups, own, strict=True)])
                yield self._narrowed(subtask.partition, subtask.state, touched, rows)

    def _narrowed(
        self, partition: Partition, whole: FileSet, touched: NDArray[np.uint16], rows: tuple[ChangedRows, ...]
    ) -> _Part:
        """Select as few key groups as possible: those touched, and one of the newest file, which declares all."""
        first, end = int(touched.min()), int(touched.max()) + 1
        schema = self._reading.operator(rows[0].uid).declared()
        if whole.files:
            newest = whole.files[-1]
            with self._reading.named_if_gone():
                own = read_schema(newest, self._reading.tree.store, self._reading.scratch)
            known = {spec.name for spec in own.states}
            # What only files of other partitions know of begins here with these rows.
            begun = (spec for spec in schema.states if spec.name not in known)
            schema = replace(own, states=(*own.states, *begun))
            if not any(part.first < end and first < part.end for part in newest.ranges):
                nearest = min(newest.ranges, key=lambda part: max(part.first - end, first - part.end))
                first, end = min(first, nearest.end - 1), max(end, nearest.first + 1)
        files = whole.projected(KeyGroupRange(KeyGroup(first), KeyGroup(end)))
        return _Part(partition, whole, files, as_stored(schema), rows)

    @contextmanager
    def _opened(self, part: _Part, store: BlobStore, name: Callable[[], str]) -> Iterator[KeyedState]:
        folder = self._reading.scratch / f"state-{next(self._numbers)}"
        with (
            self._reading.named_if_gone(),
            KeyedState(part.operator, folder, store, name, part.files, _ONLY_WHAT_CHANGES) as state,
        ):
            yield state

    def _apply(self, part: _Part, state: KeyedState) -> None:
        if isinstance(part.change, ChangedBy):
            part.change.change(state)
            return
        for change in part.change:
            key = Uid(change.uid), change.state
            done = change_rows(state, change.state, change.rows, change.place)
            self._rows[key] = self._rows.get(key, RowsChanged()) + done


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A partition that is changed: all of its files, those that are opened, and by what."""

    partition: Partition
    whole: FileSet
    files: FileSet
    operator: Operator
    change: ChangedBy | tuple[ChangedRows, ...]


def _groups(change: ChangedRows, schema: Schema) -> NDArray[np.uint16]:
    """Return the key group of each row."""
    if KEY not in change.rows.column_names:
        raise TableMismatch(f"{change.place}: a table of changes has at least the column {KEY!r}")
    try:
        column = change.rows.column(KEY)
        return key_column(column, schema.key_type).groups(schema.max_parallelism)
    except WrongKeyType as error:
        raise DamagedTable(
            f"{change.place}, state {change.state!r} of {change.uid}, column {KEY!r}: {error}"
        ) from error


def _within(groups: NDArray[np.uint16], part: KeyGroupRange) -> NDArray[np.bool_]:
    return (groups >= part.first) & (groups < part.end)


def _with(whole: FileSet, part: FileSet) -> FileSet:
    """Return the whole file set with the files of some key groups replaced."""
    return union([part, *(whole.projected(rest) for rest in whole.range.minus(part.range))])


def _no_name() -> str:
    raise AssertionError("nothing is written in a dry run")
