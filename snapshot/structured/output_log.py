"""The output of a stream program for queries of Spark's: files of rows, each of one epoch.

Invariant: the name and content of a file follow from its transaction, and neither ever changes. All files up to an
epoch are there when the job's journal says that the epoch is committed, and none is added up to there afterwards. So
the rows between two such epochs are the same whenever they are read.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import getpid
from typing import Final

import pyarrow as pa

from statebackend.errors import JobError, StoreError
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.stores.limited_store import open_limited
from statebackend.stores.store import BlobInfo, BlobNotFound, BlobStore, Creation, exists

_OWNER: Final = "output.json"
_ROWS: Final = "rows"
_DELETED: Final = "deleted"
_SECONDS: Final = 60.0
"""Seconds for which a call of the store may hang: a start examines the log, and commits wait for it."""
_TOGETHER: Final = 100
"""Epochs whose files share a folder, which is what is listed at once."""
_FOLDERS: Final = 20
"""Folders that are listed one by one; for more, all of them are."""


class WrongOutput(JobError):
    """A log of output that is not of this job, or no longer has what a query needs; the message says what to do."""


class DamagedOutput(StoreError):
    """A blob of a log of output that cannot be read; the message names it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The sink that writes to a log, and the columns of its rows."""

    job: str
    uid: str
    schema: pa.Schema


class OutputLog:
    """The log at a place. Threads and processes may share it."""

    def __init__(self, uri: str, store: BlobStore) -> None:
        self._uri = uri
        self._store = store

    def own(self, owner: Owner) -> str:
        """Make the log this sink's; return why it cannot be, empty if it is."""
        data = {"version": 1, "job": owner.job, "uid": owner.uid, "schema": _encoded(owner.schema)}
        created = self._store.create(_OWNER, json.dumps(data).encode()) is Creation.CREATED
        return "" if created else self.fault_for(owner)

    def fault_for(self, owner: Owner) -> str:
        """Return why the log cannot be this sink's, empty if it is or can be. Makes nothing."""
        if not exists(self._store, _OWNER):
            return ""
        found = self.owner()
        if (found.job, found.uid) != (owner.job, owner.uid):
            return (
                f"{self._uri} has the output of sink {found.uid} of job {found.job}, and a query could not tell it "
                f"from that of sink {owner.uid} of job {owner.job}. Give each sink a folder of its own; so also a fork"
            )
        if not found.schema.equals(owner.schema):
            return (
                f"{self._uri} has rows with {_words(found.schema)}, and these have {_words(owner.schema)}: queries "
                "read rows of one schema. Give the sink a new folder"
            )
        return ""

    def owner(self) -> Owner:
        """Return the sink whose log it is; `WrongOutput` if no sink has begun to write."""
        try:
            data = self._store.read(_OWNER)
        except BlobNotFound:
            raise WrongOutput(
                f"there is no output at {self._uri}: start the program with ToSpark({self._uri!r}) first, or correct "
                "the path"
            ) from None
        try:
            match json.loads(data):
                case {"version": 1, "job": str(job), "uid": str(uid), "schema": str(schema)}:
                    return Owner(job, uid, pa.ipc.read_schema(pa.py_buffer(b64decode(schema, validate=True))))
                case _:
                    raise ValueError(f"{data[:100]!r}")
        except (ValueError, RecursionError, pa.ArrowException, OSError) as error:
            raise DamagedOutput(f"{_OWNER} of {self._uri} is damaged: {error}") from error

    def put(self, epoch: Epoch, name: str, data: bytes) -> bool:
        """Add a file to an epoch; return False if it was there. May be called again after any error."""
        path = f"{_folder(epoch)}/{epoch.number:010}-{name}"
        try:
            self._store.stat(path)
        except BlobNotFound:
            self._store.write(path, data)
            return True
        return False

    def files(self, after: Epoch, until: Epoch) -> Sequence[BlobInfo]:
        """Return the files of the epochs after one and up to another, in the order of the epochs.

        `WrongOutput` if some of them were deleted.
        """
        found = [file for folder in _folders(after, until) for file in self._store.list(folder)]
        if (deleted := self.deleted) > after:  # looked at last, as it is noted before the first file goes
            raise WrongOutput(
                f"{self._uri} has the output after epoch {deleted} only: a query with the option delete=true has read "
                f"what came before, and this query is at epoch {after}. Let one query delete, the last of all; a query "
                "that has lost its checkpoint cannot begin again with these rows"
            )
        return [file for file in found if after < _epoch_of(file.path) <= until]

    def newest(self, after: Epoch, until: Epoch) -> Epoch | None:
        """Return the newest epoch with rows after one and up to another, None if none has rows. Raises as `files`."""
        files = self.files(after, until)
        return _epoch_of(files[-1].path) if files else None

    def rows(self, path: str) -> Sequence[pa.RecordBatch]:
        """Read a file; raise `WrongOutput` if it is not there any more."""
        try:
            data = self._store.read(path)
        except BlobNotFound:
            raise WrongOutput(
                f"{path} of {self._uri} was deleted while a query read it; start the query again"
            ) from None
        try:
            with pa.ipc.open_stream(data) as stream:
                return list(stream)
        except (pa.ArrowException, OSError) as error:
            raise DamagedOutput(f"{path} of {self._uri} is damaged: {error}") from error

    @property
    def deleted(self) -> Epoch:
        """Return the epoch up to which files may be deleted."""
        return max((_deleted_of(blob.path) for blob in self._store.list(_DELETED)), default=NO_EPOCH)

    def delete(self, until: Epoch) -> None:
        """Delete all files up to an epoch, which no query needs any more. After a crash the next call goes on."""
        if not self._store.list(_DELETED):
            self._store.create(_note(NO_EPOCH), b"")  # so that after a crash the next call begins with the first file
        former = self._store.list(_DELETED)
        self._store.create(_note(until), b"")
        begun = min((_deleted_of(blob.path) for blob in former), default=NO_EPOCH)
        for folder in _folders(begun, until):
            for file in self._store.list(folder):
                if _epoch_of(file.path) <= until:
                    self._store.delete(file.path)
        for blob in former:
            if _deleted_of(blob.path) < until:
                self._store.delete(blob.path)


def open_output(uri: str) -> OutputLog:
    """Open the log at a place; its folder is made if it is absent."""
    return OutputLog(uri, _store(uri, getpid()))


@lru_cache(maxsize=64)
def _store(uri: str, process: int) -> BlobStore:  # noqa: ARG001 (a store is not for processes that are forked later)
    return open_limited(uri, _SECONDS)


def _folder(epoch: Epoch) -> str:
    return f"{_ROWS}/{epoch.generation:010}/{epoch.number // _TOGETHER:010}"


def _folders(after: Epoch, until: Epoch) -> Sequence[str]:
    """Return the folders that have all files between; where the driver was started anew meanwhile, that of all."""
    numbers = range(after.number // _TOGETHER, until.number // _TOGETHER + 1)
    if after.generation != until.generation or len(numbers) > _FOLDERS:
        return [_ROWS]
    return [_folder(Epoch(until.generation, number * _TOGETHER)) for number in numbers]


def _epoch_of(path: str) -> Epoch:
    match path.split("/"):
        case [_, generation, _, name] if generation.isdecimal() and name[:10].isdecimal():
            return Epoch(Generation(int(generation)), int(name[:10]))
        case _:
            raise DamagedOutput(
                f"{path} is no file of output: the folder was changed from outside; remove what is foreign"
            )


def _note(deleted: Epoch) -> str:
    return f"{_DELETED}/{deleted.generation:010}-{deleted.number:010}"


def _deleted_of(path: str) -> Epoch:
    generation, _, number = path.removeprefix(f"{_DELETED}/").partition("-")
    if not (generation.isdecimal() and number.isdecimal()):
        raise DamagedOutput(f"{path} is no note of deleted output; remove what is foreign")
    return Epoch(Generation(int(generation)), int(number))


def _encoded(schema: pa.Schema) -> str:
    return b64encode(schema.serialize().to_pybytes()).decode()


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"
