"""Keyed state of one operator in one partition: opened, used, cut, restored. What users of this package work with.

Invariant: what `snapshot` returned, or `poll` reported as durable, can be opened again anywhere that reaches
the store, by any number of partitions, and is then exactly the state as it was when it was cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import TracebackType
from typing import Any, Final, Self, cast

import pyarrow as pa

from statebackend import fail_points, means
from statebackend.backends.backend import Backend, BackendError
from statebackend.backends.heap_backend import HeapBackend
from statebackend.backends.overlay import Overlay
from statebackend.backends.rocksdb_backend import RocksDBBackend
from statebackend.backends.scratch_file import ScratchFile
from statebackend.backends.sst import read_sst
from statebackend.backends.unused_memory import keep_together
from statebackend.entries import BLOCK, META_KEY, parse_head
from statebackend.errors import StoreError
from statebackend.fail_points import reached
from statebackend.files import FileSet, floors
from statebackend.ids import Epoch, Generation
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn, decode_keys, key_column
from statebackend.keys.types import KeyType
from statebackend.local_folder import WORK, lock_folder, remove_remains
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots.catching_up import Add, CatchingUp, Replace, catching_up
from statebackend.snapshots.local_files import LINKS, LocalFiles
from statebackend.snapshots.persister import Persister, PersisterStatistics
from statebackend.snapshots.restore import RestoreReport, fetch
from statebackend.snapshots.snapshot_log import Snapshot
from statebackend.snapshots.state_files import StateFiles
from statebackend.snapshots.uploads import Durable, NotDurable
from statebackend.states.contents import Contents, FrozenContents
from statebackend.states.key_context import KeyContext
from statebackend.states.schema import BrokenSchema, Schema, StateMismatch
from statebackend.states.schema_fit import fitted
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobStore

Where = str | Path | BlobStore
"""A folder of snapshots: a path, a URI such as `s3://bucket/visits`, or a store that is open."""

_ATTEMPT_BITS: Final = 62

_FOR_BACKEND: Final = 4
_FOR_OVERLAY: Final = 32
_FOR_UNUSED: Final = 16
"""Parts of the memory: for what is read of the backend, and of the rows that memory had no room for, and for what
is not used any more and not given back yet."""


class ForkedState(BackendError):
    """The state was opened by the process that this one was forked from; the folder and the threads are that one's."""


class SnapshotFailed(StoreError):
    """A cut could not be brought into the store. Nothing is lost: it goes with the next snapshot."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """The space that the state occupies, and the work that its background has done."""

    memory_bytes: int
    disk_bytes: int
    pending_bytes: int
    restored: RestoreReport
    background: PersisterStatistics


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """The arguments with which a state was opened, kept until it is closed."""

    operator: Operator
    files: FileSet
    store: BlobStore
    local: LocalFiles
    backend: Backend
    wake: Callable[[], None] | None


class KeyedState:
    """The states of an operator for some key groups, in one process. One thread opens it and calls all methods.

        visits = Operator("visits", key=str, states={"count": ValueState(int, default=0)})

        with KeyedState.open(visits, "snapshots") as state:
            state.set_key("ann")
            state["count"].set(state["count"].get() + 1)
            state.save()

    `open` is for one process that has all of the state, `open_part` for the tasks of a job that share it; the
    constructor is for a host that brings files, names and epochs itself.

    Everything written since the last snapshot is lost in a crash; what is in the local `folder` is only there to make
    the next opening quick.
    """

    _run: tuple[SnapshotFolder, Generation] | None = None
    """The run that `open` has begun."""
    _note = ""
    _scratch: Path | None = None
    """The local folder, if it is not to outlive the state."""

    @classmethod
    def open(
        cls, operator: Operator, where: Where, *, folder: Path | None = None, options: Options | None = None
    ) -> Self:
        """Open all state of an operator, as it was saved last; `save` completes the next snapshot.

        `where` holds the snapshots of this operator and of no other. With a local `folder` the next opening on this
        machine downloads only what is new there; else a temporary one is used.

        From then on every state that was opened there before is fenced, also if this opening is refused: its `save`
        raises `FencedRun`. Raises `ForeignSnapshot` if something else is in `where`, and what the constructor and
        `open_store` raise.
        """
        store = _store(where)
        snapshots = SnapshotFolder(store, operator.uid)
        generation, before = snapshots.begin(), snapshots.latest()
        state = cls._of_snapshot(operator, store, before, generation, folder, options)
        state._run = snapshots, generation
        return state

    @classmethod
    def open_part(
        cls,
        operator: Operator,
        where: Where,
        epoch: Epoch,
        before: Snapshot | None,
        partition: int,
        parallelism: int,
        *,
        folder: Path | None = None,
        options: Options | None = None,
    ) -> Self:
        """Open one partition's state, out of so many, in a task of a job, as it was in the snapshot `before`.

        The driver begins a run, and completes the epoch with what `snapshot(epoch)` returns in each task:

            snapshots = SnapshotFolder(open_store(url), "visits")
            before, epoch = snapshots.latest(), snapshots.next_epoch(snapshots.begin())
            ...                                                     # tasks: {partition: state.snapshot(epoch)}
            snapshots.complete(epoch, parts)

        The parallelism may be another one than that of the snapshot. A task may be tried again, or twice at a time.
        """
        groups = operator.groups_of(partition, parallelism)
        return cls._of_snapshot(operator, _store(where), before, epoch.generation, folder, options, partition, groups)

    @classmethod
    def _of_snapshot(
        cls,
        operator: Operator,
        store: BlobStore,
        before: Snapshot | None,
        generation: Generation,
        folder: Path | None,
        options: Options | None,
        partition: int = 0,
        groups: KeyGroupRange | None = None,
    ) -> Self:
        groups = groups or operator.all_groups
        files = FileSet(groups) if before is None else before.file_set(groups)
        attempt = means.randbits(_ATTEMPT_BITS)  # no other task of this run and partition has it
        names = SnapshotFolder.names(generation, partition, attempt)
        local = folder or Path(mkdtemp(prefix="epochcut-state-"))
        try:
            state = cls(operator, local, store, names, files, options)
        except BaseException:
            if folder is None:
                rmtree(local, ignore_errors=True)
            raise
        state._scratch = None if folder else local
        state._note = before.note if before is not None else ""
        return state

    def __init__(
        self,
        operator: Operator,
        folder: Path,
        store: BlobStore,
        names: Callable[[], str],
        files: FileSet | None = None,
        options: Options | None = None,
        *,
        groups: KeyGroupRange | None = None,
        wake: Callable[[], None] | None = None,
        on_progress: Callable[[RestoreReport], None] | None = None,
        beside: Path | None = None,
    ) -> None:
        """Open the state that the files are, or empty state for `groups` (all, unless said) where there are none.

        `folder` is local, survives the process if the next one is to be quick, and belongs to this partition alone:
        raises `FolderInUse` if another process or state works in it. `names` gives paths in the store that no other
        file has had or will have. `wake` is called in background threads when `poll` has something to say. Files that
        lie in the folder of another state `beside` this one, which is a folder of such folders, are linked and not
        downloaded.

        Raises `StateMismatch` for state that was declared otherwise, `DamagedFile`, `MissingFile` and what the store
        and the local disk raise; then nothing has changed but the local folder.
        """
        options = options or Options()
        files = files if files is not None else FileSet(groups or operator.all_groups)
        if groups is not None and groups != files.range:
            raise ValueError(f"the files are of key groups {files.range}, not {groups}; project or unite them first")
        self._options = options
        self._process = means.getpid()
        self._news: list[Durable | NotDurable] = []
        self._untouched = True
        self._lock = lock_folder(folder)
        self._work = folder / f"{WORK}{means.token_hex(8)}"
        self._backend: Backend | None = None
        self._persister: Persister | None = None
        try:
            remove_remains(folder)
            self._open(operator, folder, store, names, files, wake, on_progress, beside)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        operator: Operator,
        folder: Path,
        store: BlobStore,
        names: Callable[[], str],
        files: FileSet,
        wake: Callable[[], None] | None,
        on_progress: Callable[[RestoreReport], None] | None,
        beside: Path | None,
    ) -> None:
        options = self._options
        local = LocalFiles(folder / LINKS)
        if beside is not None:
            local.adopt(files.files, beside)
        fetched = fetch(files, store, local, self._work / "fetched", on_progress)
        reached(fail_points.RESTORE_FETCHED)
        backend = self._backend = self._new_backend(files)
        backend.ingest(fetched.paths)
        self._schema = _schema(operator.schema(), files, backend, options)
        reached(fail_points.RESTORE_OPENED)
        self._restored = fetched.report
        for scratch in ("cold", "made"):
            (self._work / scratch).mkdir()
        self._overlay = Overlay(self._work / "spilled", options.held // _FOR_OVERLAY)
        self._begin(_Opened(operator, files, store, local, backend, wake), names)

    def _begin(self, opened: _Opened, names: Callable[[], str]) -> None:
        """Go on from these files, which the backend has."""
        self._opened, options, schema = opened, self._options, self._schema
        newest = max((file.epoch.number for file in opened.files.files), default=0)
        self._context = KeyContext(schema.uid, schema.key_type, schema.max_parallelism, opened.files.range, newest)
        memory = options.held
        self._contents = Contents(
            opened.operator.states,
            schema,
            self._context,
            opened.backend,
            self._overlay,
            memory - memory // _FOR_BACKEND - memory // _FOR_OVERLAY,
            options.in_tables,
            partial(ScratchFile, self._work / "cold"),
            options.policy.most_values,
        )
        self._persister = Persister(
            self._contents,
            opened.backend,
            opened.files,
            StateFiles(self._work / "made", opened.local, names, schema.to_meta()),
            store=opened.store,
            local=opened.local,
            policy=options.policy,
            wake=opened.wake,
            unused=options.memory // _FOR_UNUSED,
        )

    def _new_backend(self, files: FileSet) -> Backend:
        folder, backend, memory = self._work / "backend", self._options.backend, self._options.held // _FOR_BACKEND
        if backend == "heap":
            return HeapBackend(folder, floors(files))
        keep_together()
        if backend == "rocksdb":
            return RocksDBBackend(folder, floors(files), memory=memory)
        return backend(folder, floors(files), memory)

    # --- following what others write to it ----------------------------------------------------------------------------

    def load(self, go_on: Callable[[], bool] = lambda: True) -> None:
        """Bring into memory what the first use of it would, as far as there is room; it may be called again.

        It stops early once `go_on`, which is asked now and then, returns False; the rest is loaded when it is used.
        """
        self._running()
        self._contents.load(go_on)

    def read_ahead(self) -> None:
        """Read from the files what the first use would, as far as there is room: about half the work of loading.

        Keys are found in it at once. The rest of the work is done by and by: with what is asked for, and by `load_more`
        as often as there is nothing better to do.
        """
        self._running()
        self._contents.read_ahead()

    def load_more(self) -> bool:
        """Bring some of what was read ahead into memory, which takes some milliseconds; whether there is more."""
        self._running()
        return self._contents.load_more()

    @property
    def restored(self) -> RestoreReport:
        """Return what getting the files has cost when the state was opened, last caught up or last rewound."""
        return self._restored

    @property
    def is_untouched(self) -> bool:
        """True if no state has been accessed since opening: it may catch up."""
        return self._untouched

    def catch_up(self, files: FileSet, names: Callable[[], str], *, beside: Path | None = None) -> bool:
        """Become the state of a newer epoch's file set, written elsewhere; `names` gives new files their names.

        The caller owes that `files` goes back to the same history as what it was opened with. What it needs is
        fetched as for an opening; loaded tables are brought up to date. If that raises, or returns False because it
        cannot be done exactly, as when the state has been used, then only `close` may be called; but `MissingFile`
        leaves all as it was.
        """
        persister, opened, before = self._running(), self._opened, self._contents
        if not self._untouched:
            return False
        report = RestoreReport()
        if files != opened.files:
            plan = catching_up(opened.files, files)
            if plan is None:
                return False
            if beside is not None:
                opened.local.adopt(plan.files.files, beside)
            folder = self._work / "fetched"
            fetched = fetch(plan.files, opened.store, opened.local, folder)
            report = fetched.report
            paths = {file.path: path for file, path in zip(plan.files.files, fetched.paths, strict=True)}
            for step in plan.steps:
                self._take(step, plan, paths)
            opened.local.keep(files.files)
        persister.close()
        self._restored = report
        self._begin(replace(opened, files=files), names)
        self._contents.take_over(before)
        return True

    def _take(self, step: Replace | Add, plan: CatchingUp, paths: Mapping[str, Path]) -> None:
        contents, backend = self._contents, self._opened.backend
        match step:
            case Replace(groups, base):
                backend.rebase(groups, None if base is None else paths[base.path])
                if base is None or plan.is_news(base) or contents.expires:
                    contents.unload(groups)
            case Add(file) if contents.has_tables and plan.is_news(file):
                with read_sst(paths[file.path], self._work / "made") as content:
                    contents.bring_up_to_date(_blocks(content.entries, file.ranges))
                backend.ingest([paths[file.path]])
            case Add(file):
                backend.ingest([paths[file.path]])

    # --- using it -----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """Return the state with this name, ready to be used; its declaration decides its type."""
        self._untouched = False
        return self._contents.states[name]

    @property
    def set_key(self) -> Callable[[object], None]:
        """Return the method that makes row-wise states be about a key from now on.

        It raises `WrongKeyType` if the declared type does not hold the key. It is the context's own method, as it is
        called so often.
        """
        return self._context.set_key

    def set_namespace(self, namespace: bytes) -> None:
        """Make row-wise states be about this namespace from now on, such as `Window(start, end).namespace`."""
        self._context.set_namespace(namespace)

    def advance(self, *, watermark: int | None = None, processing_time: int | None = None) -> None:
        """Say what time it is, in milliseconds: for times to live and timers. Time does not go back."""
        context = self._context
        if watermark is not None:
            context.watermark = max(context.watermark, watermark)
        if processing_time is not None:
            context.processing_time = max(context.processing_time, processing_time)

    def keys(self, column: pa.Array | pa.ChunkedArray) -> KeyColumn:
        """Return a column of keys as tables take it; raise `WrongKeyType` if the declared type does not hold it."""
        return key_column(column, self._context.key_type)

    def key_array(self, keys: KeyColumn) -> pa.Array:
        """Return keys, such as a table gives them, as a column of Arrow."""
        return decode_keys(keys, self._context.key_type)

    @property
    def key_type(self) -> KeyType:
        """Return the type of the keys."""
        return self._context.key_type

    @property
    def schema(self) -> Schema:
        """Return how the states are declared, as it stands in the files."""
        return self._schema

    @property
    def contents(self) -> Contents:
        """Return what the states are made of, for callers that bring state out and in as a whole."""
        self._untouched = False
        # Rows may be put under the states.
        self._contents.forget()
        return self._contents

    @property
    def groups(self) -> KeyGroupRange:
        """Return the key groups whose keys may be used."""
        return self._context.groups

    # --- cutting it ---------------------------------------------------------------------------------------------------

    def cut(self, epoch: Epoch) -> None:
        """Make the state as it is now the epoch's, in milliseconds; `poll` tells what became of it.

        Epochs rise, and so do their numbers: raises `EpochOrder` for one that does not follow on the last, declined or
        not. Any number may be on their way at once. Raises `ForkedState` in a process that was forked since.
        """
        persister = self._running()
        self._untouched = False
        persister.cut(epoch)
        self._relieve(persister)

    def poll(self, timeout: float = 0) -> list[Durable | NotDurable]:
        """Return what became of epochs since the last call.

        It waits up to `timeout` seconds for the first news of any kind.
        """
        persister = self._running()
        news = self._news + persister.poll(0 if self._news else timeout)
        self._news = []
        self._relieve(persister)
        return news

    def completed(self, epoch: Epoch, files: FileSet | None = None) -> None:
        """Note that the epoch is complete in all partitions: no rollback goes back beyond it.

        The caller owes this call, or memory fills with what might still have to be taken back.

        `files` is what the epoch says of these key groups, and has to be given if that may be another state's, which
        has done the same: see `become_shadow`. It may come before the epoch was cut here, and waits for that.
        """
        self._running().completed(epoch, files)

    def become_shadow(self) -> None:
        """Upload nothing from now on: another state, the primary, has the same content at each cut, and does that.

        Cuts are written to the local disk alone, and `poll` says nothing of them. An epoch is complete with the
        primary's files: `completed(epoch, files)` makes them this state's own file set, from which it can be rewound,
        and from which it goes on as a primary.

        The caller owes that this state is the same as the primary's at each epoch that one of them has cut and
        completed, whichever way it has come there; and that an epoch is complete with the files of the state that was
        the primary when it was cut.
        """
        self._running().become_shadow()

    def become_primary(self) -> None:
        """Upload from the next cut on; that has all that was cut since the newest complete epoch, too.

        What was cut before is not reported any more: those epochs are to be abandoned, but for complete ones.
        """
        self._running().become_primary()

    def snapshot(self, epoch: Epoch) -> FileSet:
        """Cut, and wait until the cut is in the store. `SnapshotFailed` says why it is not; work can go on then.

        What became of other epochs meanwhile is for the next `poll`.
        The caller owes `completed` once all partitions have theirs.
        """
        self.cut(epoch)
        others: list[Durable | NotDurable] = []
        answer: Durable | NotDurable | None = None
        while answer is None:
            for news in self.poll(timeout=1.0):
                if news.epoch == epoch:
                    answer = news
                else:
                    others.append(news)
        self._news = others
        if isinstance(answer, NotDurable):
            raise SnapshotFailed(f"{self._context.uid}: epoch {epoch} is not in the store: {answer.reason}")
        return answer.files

    def save(self, note: str = "", *, keep: int = 2) -> Epoch:
        """Cut, and complete the cut as the newest snapshot in the place where `open` found the state; return its epoch.

        Returns when it is in the store: the next `open` begins with it, and gets the `note`. The `keep` newest of all
        snapshots stay. After a crash inside, the next `open` begins with this snapshot or with the one before.

        Raises `FencedRun` if the state was opened there again since, and `SnapshotFailed`; then nothing is complete,
        and what was written goes with the next `save`.
        """
        if self._run is None:
            raise ValueError(
                f"{self._context.uid}: this state was not opened with KeyedState.open; call snapshot(epoch), and let "
                f"the driver complete the epoch"
            )
        snapshots, generation = self._run
        epoch = snapshots.next_epoch(generation)
        snapshots.complete(epoch, {0: self.snapshot(epoch)}, note=note)
        self._note = note
        self.completed(epoch)
        snapshots.clean(keep)
        return epoch

    @property
    def note(self) -> str:
        """Return the note of the snapshot that was opened, or saved last; "" if there is none.

        In `foreachBatch` it is the place for the number of the batch: Spark gives a batch again after a crash.
        """
        return self._note

    def rewind(self, epoch: Epoch, files: FileSet, names: Callable[[], str]) -> bool:
        """Go back in place to exactly what was cut at `epoch`; what was written and cut since is gone.

        `epoch` was cut by this object, or is what it was opened with or last rewound to; it counts as completed from
        then on. `files` is what was acknowledged for it: what this object reported as durable, or was opened with; or,
        for a shadow, the primary's.
        From then on new files get their names from `names`, and the file set goes on from `files`. Cuts that are on
        their way are abandoned: their uploads are not waited for and not reported, and what they still write is not
        referred to. Later cuts have higher numbers than anything that was cut before.

        The time, the key and the namespace are as after opening: the operator is opened anew.

        Returns False if that cannot be done exactly, as when keys of a table went to the local disk since, or the
        epoch is not known any more. Then only `close` may be called.
        """
        persister = self._running()
        since = persister.cut_since(epoch, files)
        if since is None:
            return False
        given_up = self._contents.rewind(epoch.number, cast("list[FrozenContents]", since))
        if given_up is None:
            return False
        persister.rewind(epoch, files, names, given_up)
        self._news = []
        self._restored = RestoreReport()
        return True

    def _relieve(self, persister: Persister) -> None:
        if self._contents.pending_bytes() > self._options.held // 4:
            persister.take_early()

    def _running(self) -> Persister:
        if self._persister is None:
            raise ValueError("the state was closed")
        if means.getpid() != self._process:
            raise ForkedState(
                f"{self._context.uid}: the state was opened by process {self._process} and is cut by that one alone; "
                f"after a fork, open state in a folder of its own"
            )
        return self._persister

    # --- looking at it, and the end -----------------------------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return what the state occupies and what its background has done."""
        backend = self._backend
        assert backend is not None
        return Statistics(
            self._contents.memory_bytes() + self._overlay.memory_bytes() + backend.memory_bytes(),
            backend.disk_bytes(),
            self._contents.pending_bytes(),
            self._restored,
            self._running().statistics(),
        )

    def close(self, *, leave_uploads: bool = False) -> None:
        """Give up memory, threads and scratch; what is in the store stays, and so do the local links to it.

        Waits for uploads that are under way, unless `leave_uploads` is set: then a store that does not answer cannot
        delay the caller, and what these uploads still write is not referred to.
        In a forked process it only ends that process's use of the folder.
        """
        if means.getpid() == self._process:
            self._close_parts(leave_uploads)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _close_parts(self, leave_uploads: bool) -> None:
        if self._persister is not None:
            self._persister.close(leave_uploads=leave_uploads)
            self._persister = None
            self._overlay.close()
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        rmtree(self._work, ignore_errors=True)
        if self._scratch is not None:
            rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _store(where: Where) -> BlobStore:
    return open_store(str(where)) if isinstance(where, str | Path) else where


def _blocks(
    entries: Iterable[tuple[bytes, bytes | None]], ranges: tuple[KeyGroupRange, ...]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the blocks of tables among a file's entries, in the groups for which the file is valid."""
    for name, payload in entries:
        group, _, form = parse_head(name)
        if form == BLOCK and payload is not None and any(group in part for part in ranges):
            yield name, payload


def _schema(declared: Schema, files: FileSet, backend: Backend, options: Options) -> Schema:
    """Return the schema for reading the restored state and for writing from then on."""
    meta = backend.get_many([META_KEY])[0]
    if meta is None:
        return declared.begun()
    newest = files.files[-1].path
    try:
        restored = Schema.from_meta(meta)
    except BrokenSchema as error:
        raise StateMismatch(declared.uid, None, f"{newest} does not say what it holds: {error}") from error
    return fitted(restored, declared, allow_dropped=options.allow_dropped, renamed=options.renamed)
