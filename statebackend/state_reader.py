"""An epoch's state, read from outside while the job runs on: whole states as Arrow tables, single keys, any range.

Invariant: of the store only the files of the epoch are read, and nothing is written or held there; what is read
is the epoch's, whatever the job does meanwhile. What the files say of themselves needs no declaration.

    snapshot = SnapshotFolder(store, "counts").latest()
    with StateReader.of(snapshot, store, scratch) as reader:
        reader.table("users")                           # of all keys
        reader.table("users", key="user-7")             # of one

A job may remove an epoch while it is read: then opening it raises `MissingFile`, and a newer one is there. What has
been opened stays readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from statebackend import means
from statebackend.backends.rocksdb_backend import RocksDBBackend
from statebackend.backends.row_store import RowStore
from statebackend.backends.sst import read_sst
from statebackend.canonical.exporting import StateExport
from statebackend.canonical.source import OneKey, StateSource
from statebackend.entries import META_KEY, ROW, after, delimited, head
from statebackend.errors import SavepointError
from statebackend.files import FileRef, FileSet, floors
from statebackend.keygroups import KeyGroupRange, key_group_of
from statebackend.operator import Operator
from statebackend.snapshots.restore import fetch
from statebackend.snapshots.snapshot_log import Snapshot
from statebackend.states.declarations import Place
from statebackend.states.key_context import ForeignKey, KeyContext
from statebackend.states.list_state import ListHandle
from statebackend.states.map_state import MapHandle
from statebackend.states.row_form import RowEntry
from statebackend.states.schema import BrokenSchema, Schema, StateKind, StateSpec
from statebackend.states.schema_fit import fitted
from statebackend.states.ttl import expiry_of
from statebackend.states.value_state import CachedState
from statebackend.stores.store import BlobStore

_MEMORY: Final = 64 << 20


class UnreadableState(SavepointError, ValueError):
    """Files that do not say what they hold, or a state that cannot be read as it was asked for."""


class _AllKeys:
    def __repr__(self) -> str:
        return "all keys"


ALL_KEYS: Final = _AllKeys()
"""Instead of a key, as None is the null key."""

_ByRow = CachedState[Any, Any] | ListHandle[Any] | MapHandle[Any, Any]


class StateReader:
    """The states of an operator at an epoch, for the key groups of a file set. For one thread.

    What is declared is read as the program reads it: with its own codecs, and older values migrated.
    """

    def __init__(self, files: FileSet, store: BlobStore, folder: Path, declared: Operator | None = None) -> None:
        """Fetch and open these files; project them first where a part of the key groups is enough.

        A folder of its own is made in `folder`, which is local, and removed by `close`; a crash leaves it there.

        Raises `MissingFile`, `DamagedFile`, what the store and the local disk raise, `UnreadableState`, and
        `StateMismatch` for states that are declared otherwise. States need not be declared.
        """
        self._scratch = folder / f"reading-{means.token_hex(8)}"
        self._backend: RocksDBBackend | None = None
        try:
            fetched = fetch(files, store, None, self._scratch / "fetched")
            self._backend = RocksDBBackend(self._scratch / "backend", floors(files), memory=_MEMORY)
            self._backend.ingest(fetched.paths)
            self._source, self._states = self._opened(files, self._backend, declared)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        store: BlobStore,
        folder: Path,
        declared: Operator | None = None,
        *,
        groups: KeyGroupRange | None = None,
    ) -> StateReader:
        """Open a snapshot, whatever parallelism it was made with: all of it, or some key groups."""
        files = snapshot.file_set(groups or KeyGroupRange.of_all(snapshot.max_parallelism))
        return cls(files, store, folder, declared)

    def _opened(
        self, files: FileSet, backend: RocksDBBackend, declared: Operator | None
    ) -> tuple[StateSource, dict[str, _ByRow]]:
        schema = _schema(files, backend, declared)
        context = KeyContext(schema.uid, schema.key_type, schema.max_parallelism, files.range)
        rows, opened = RowStore(backend), dict[str, _ByRow]()
        for name, declaration in ({} if declared is None else declared.states).items():
            spec = next((spec for spec in schema.states if spec.name == name), None)
            if spec is None:
                continue
            now = replace(declared.schema(), states=(declaration.spec(name),)) if declared else schema
            spec = fitted(replace(schema, states=(spec,), dropped=()), now).states[0]
            schema = replace(schema, states=tuple(spec if one.name == name else one for one in schema.states))
            if spec.kind not in (StateKind.TABLE, StateKind.TIMERS):
                opened[name] = declaration.open(Place(spec, context, rows))
        forms = {name: state.form for name, state in opened.items()}
        scans = {spec.name: backend.scan for spec in schema.states}
        return StateSource(schema, files.range, scans, forms, {}), opened

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def source(self) -> StateSource:
        """Return all that was opened, for `canonical.export`."""
        if self._backend is None:
            raise UnreadableState("the reader was closed; open the epoch again")
        return self._source

    @property
    def schema(self) -> Schema:
        """Return how the states were declared, also where nothing is declared now."""
        return self.source.schema

    def states(self) -> tuple[StateSpec, ...]:
        """Return the specs of the states in these files."""
        return self.schema.states

    def has(self, name: str) -> bool:
        """True if these files know of the state; files that were written before it was declared do not."""
        return any(spec.name == name for spec in self.states())

    # --- as Arrow -----------------------------------------------------------------------------------------------------

    def batches(
        self, name: str, *, key: object = ALL_KEYS, now: int | None = None, expired: bool = False
    ) -> pa.RecordBatchReader:
        """Return the rows of a state in canonical form (see `canonical_schema`), in bounded memory.

        Expired entries are shown if `expired` is set; else those that have not expired at `now`, in milliseconds of the
        time that the state counts in. For processing time, `now` is the clock's unless it is given.

        Raises `StateMismatch` if there is no such state, `WrongKeyType` or `ForeignKey` for a key that is none of it,
        and `UnreadableState` for a state that counts in another time, if `now` is not given.
        """
        spec = self.schema.state(name)
        chosen = None if key is ALL_KEYS else self._one(key)
        export = StateExport(self.source, spec, chosen, None if expired else self._time(spec, now))
        return pa.RecordBatchReader.from_batches(export.schema, export.batches())

    def table(self, name: str, *, key: object = ALL_KEYS, now: int | None = None, expired: bool = False) -> pa.Table:
        """Return what `batches` gives as one table in memory; with a `key`, only what there is of that key."""
        return self.batches(name, key=key, now=now, expired=expired).read_all()

    # --- as Python objects --------------------------------------------------------------------------------------------

    def entries(
        self, name: str, *, key: object = ALL_KEYS, now: int | None = None, expired: bool = False
    ) -> Iterator[RowEntry]:
        """Return the entries of a declared state, read by its own codec, pickled ones included; else as `batches`."""
        spec = self.schema.state(name)
        state = self._states.get(name)
        if state is None:
            raise UnreadableState(
                f"{self.schema.uid}: state {name!r} has no codec here that gives Python objects: declare the state, or "
                f"read it as Arrow"
            )
        chosen = None if key is ALL_KEYS else self._one(key)
        return self._decoded(spec, state, chosen, None if expired else self._time(spec, now))

    def _decoded(self, spec: StateSpec, state: _ByRow, key: OneKey | None, now: int | None) -> Iterator[RowEntry]:
        scan = self.source.scans[spec.name]
        for group in self._source.groups if key is None else (key.group,):
            start = head(group, spec.id, ROW) + (b"" if key is None else delimited(key.canonical))
            for name, payload in scan(start, after(start)):
                if now is None or spec.expires is None or expiry_of(payload) > now:
                    yield state.decode_entry(name, payload)

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Remove the local scratch. Tables and batches that were read stay; what was not read yet is gone."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what the others are made of ----------------------------------------------------------------------------------

    def _one(self, key: object) -> OneKey:
        schema = self.schema
        canonical = schema.key_type.encode(key)
        group = key_group_of(schema.key_type.hash_of(canonical), schema.max_parallelism)
        if group not in self._source.groups:
            raise ForeignKey(
                f"{schema.uid}: the key {key!r} is of key group {group}, and only {self._source.groups} were opened"
            )
        return OneKey(canonical, group)

    def _time(self, spec: StateSpec, now: int | None) -> int | None:
        """Return `now`, or what time it is for entries that expire; None if they do not."""
        if now is not None or not self._source.form(spec)[0].expires:
            return now
        if spec.expires == "processing":
            return means.wall_ns() // 1_000_000
        raise UnreadableState(
            f"{self.schema.uid}: state {spec.name!r} expires in a time that its files do not say: give `now`, in its "
            f"milliseconds, or ask for expired entries, too"
        )


def read_schema(file: FileRef, store: BlobStore, folder: Path) -> Schema:
    """Return how the states of an operator are declared as of the epoch of one of its files.

    A folder of its own is made in `folder`, and removed. Raises `UnreadableState` if the file does not say it, and
    what fetching raises.
    """
    scratch = folder / f"reading-{means.token_hex(8)}"
    try:
        (path,) = fetch(FileSet(_around(file), (file,)), store, None, scratch / "fetched").paths
        with read_sst(path, scratch) as content:
            return Schema.from_meta(content.meta)
    except BrokenSchema as error:
        raise UnreadableState(f"{file.path} does not say what it holds: {error}") from error
    finally:
        rmtree(scratch, ignore_errors=True)


def _around(file: FileRef) -> KeyGroupRange:
    return KeyGroupRange(file.ranges[0].first, file.ranges[-1].end)


def _schema(files: FileSet, backend: RocksDBBackend, declared: Operator | None) -> Schema:
    meta = backend.get_many([META_KEY])[0]
    if meta is not None:
        try:
            return Schema.from_meta(meta)
        except BrokenSchema as error:
            raise UnreadableState(f"{files.files[-1].path} does not say what it holds: {error}") from error
    if declared is None:
        raise UnreadableState(f"there is no file for key groups {files.range} yet; declare the states to read nothing")
    return declared.schema().begun()
