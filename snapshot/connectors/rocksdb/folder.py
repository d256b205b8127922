"""A folder with a RocksDB database of rows by key, what is staged for it, and a lock for its writer.

Invariant: rows come into the database by files that carry their token, taken as a whole or not at all; one
process at a time has it open for writing, and only while it commits; readers see what was committed when they opened.

In the database, names begin with a letter: `m` is what it is (`mschema`: its columns, as Arrow's IPC writes a schema),
`r` a row (the canonical bytes of its key follow, its value is a JSON object), `t` a token (a transaction's id and its
nonce follow).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from rocksdict import AccessType, DBCompressionType, Options, Rdict, SstFileWriter

from snapshot.connectors.files.line_formats import LineParser
from snapshot.connectors.files.renaming_folder import make_folder
from statebackend.backends.rocksdb_tables import by_moving, iterate, quiet, table_options
from statebackend.errors import JobError

STAGED: Final = ".staged"
_LOCK: Final = ".committer"
_SCHEMA: Final = b"mschema"
_ROW, _TOKEN, _END_OF_ROWS = b"r", b"t", b"s"
_PATIENCE: Final = 10.0
"""Seconds that a committer waits for the one before it."""
_PAUSE: Final = 0.002
_MANY_FILES: Final = 8
"""Files that readers have to merge, above which a committer waits until the database has made fewer of them."""
_READ_AT_ONCE: Final = 50_000


class FolderError(JobError):
    """The database could not be opened or changed; the message says why, and nothing is known of what was done."""


class Busy(FolderError):
    """Another process holds the database."""


class RocksDBFolder:
    """The folder at a path of this machine; it is made when something is staged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._staged = path / STAGED

    def stage(self, name: str, token: str, schema: pa.Schema, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write a file of rows, with the token and the schema; rows are sorted by key, each once, None to delete it.

        When this returns, the file survives a crash of the machine. It replaces one of the same name.
        """
        make_folder(self._staged)
        unfinished = self._staged / f"{name}.unfinished"
        writer = SstFileWriter(table_options(DBCompressionType.zstd()))
        with _named(f"write {unfinished}"):
            writer.open(str(unfinished))
            writer[_SCHEMA] = schema.serialize().to_pybytes()
            for key, value in rows:
                if value is None:
                    del writer[_ROW + key]
                else:
                    writer[_ROW + key] = value
            writer[_TOKEN + token.encode()] = b""
            writer.finish()
        _sync(unfinished)
        unfinished.rename(self._staged / name)
        _sync(self._staged)

    def staged(self) -> Sequence[str]:
        """Return the names of all staged files, of any sink, and of those that a crash has left unfinished."""
        try:
            return sorted(path.name for path in self._staged.iterdir())
        except FileNotFoundError:
            return []

    def drop(self, name: str) -> None:
        """Delete a staged file, unless it is gone."""
        (self._staged / name).unlink(missing_ok=True)

    def is_staged(self, name: str) -> bool:
        """True if there is a staged file of this name."""
        return (self._staged / name).exists()

    @contextmanager
    def writing(self) -> Iterator[OpenDatabase]:
        """Open the database for writing, with no other process in it; `Busy` if another does not give it up soon.

        Raises `FolderError` if it cannot be reached or opened.
        """
        with self._locked(fcntl.LOCK_EX), _opened(self._path, AccessType.read_write()) as database:
            yield OpenDatabase(database, self._staged)

    @contextmanager
    def reading(self) -> Iterator[OpenDatabase | None]:
        """Open the database as it is now, whatever is committed meanwhile; None if nothing was ever committed.

        Commits wait only while it is being opened.
        """
        if not (self._path / "CURRENT").exists():
            yield None
            return
        with self._locked(fcntl.LOCK_SH):
            opened = _opened(self._path, AccessType.read_only(False))
            database = opened.__enter__()
        try:
            yield OpenDatabase(database, self._staged)
        finally:
            opened.__exit__(None, None, None)

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        try:
            handle = os.open(self._path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise FolderError(f"the database in {self._path} cannot be reached: {error}") from error
        try:
            give_up = time.monotonic() + _PATIENCE
            while True:
                try:
                    fcntl.flock(handle, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise Busy(f"another process holds the database in {self._path}") from None
                    time.sleep(_PAUSE)
            try:
                yield
            finally:
                # Not left to the closing: a process that was forked meanwhile has the same lock.
                fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)


class OpenDatabase:
    """The database while it is open."""

    def __init__(self, database: Rdict, staged: Path) -> None:
        self._database = database
        self._staged = staged

    def has_token(self, token: str) -> bool:
        """True if the database has taken the rows that were staged with this token."""
        with _named("read a token"):
            return self._database.get(_TOKEN + token.encode()) is not None

    def schema(self) -> pa.Schema | None:
        """Return the columns of the rows; None if the database never had any."""
        with _named("read the schema"):
            stored = self._database.get(_SCHEMA)
        return None if stored is None else pa.ipc.read_schema(pa.py_buffer(stored))

    def take(self, name: str) -> None:
        """Move a staged file into the database; a crash meanwhile leaves all of its rows there, or none."""
        with _named(f"take {name} into the database"):
            self._database.ingest_external_file([str(self._staged / name)], by_moving())
            # The database is open too shortly to tidy up by itself.
            while int(self._database.property_value("rocksdb.num-files-at-level0") or 0) > _MANY_FILES:
                if not any(
                    int(self._database.property_value(f"rocksdb.{kind}") or 0)
                    for kind in ("compaction-pending", "num-running-compactions")
                ):
                    break
                time.sleep(_PAUSE)

    def rows(self) -> pa.Table:
        """Return all rows, ordered by the bytes of their keys.

        A float may be null, as JSON stores one that is not a number as null.
        """
        stored = self.schema()
        if stored is None:
            return pa.table({})
        schema = pa.schema([one.with_nullable(one.nullable or pa.types.is_floating(one.type)) for one in stored])
        parse = LineParser("jsonl", schema, ()).parse
        batches: list[pa.RecordBatch] = []
        lines: list[bytes] = []
        for _, value in iterate(self._database, _ROW, _END_OF_ROWS, "read rows"):
            lines.append(value)
            if len(lines) == _READ_AT_ONCE:
                batches.append(parse(b"\n".join(lines)))
                lines = []
        batches.append(parse(b"\n".join(lines)))
        return pa.Table.from_batches(batches, schema)


@contextmanager
def _opened(path: Path, access: AccessType) -> Iterator[Rdict]:
    with _named(f"open the database in {path}"):
        database = Rdict(str(path), _options(), access_type=access)
    try:
        yield database
    finally:
        database.close()


def _options() -> Options:
    return quiet(table_options(DBCompressionType.zstd()))


@contextmanager
def _named(action: str) -> Iterator[None]:
    """Turn errors of rocksdict, which raises plain `Exception`, into `FolderError`; others pass through."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise FolderError(f"could not {action}: {error}") from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
