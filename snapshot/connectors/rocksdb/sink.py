"""Rows by key in a RocksDB of this machine: written to a file of their own, taken into the database at commit.

Invariant: the file carries the rows and the token of their transaction, and the database takes it as a whole; so
readers see all of a transaction or nothing, and a second commit finds the token. A token has a nonce that is drawn when
its transaction is begun, so that one that is made again under the same id is not taken for the first.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from snapshot.connectors.files.folder import protocol_of
from snapshot.connectors.files.formats import Unsayable, encoded, refuse_unsayable, unsuitable
from snapshot.connectors.files.names import file_name, transaction_of
from snapshot.connectors.files.renaming_folder import make_folder
from snapshot.connectors.rocksdb.folder import FolderError, OpenDatabase, RocksDBFolder
from snapshot.connectors.staging.commit_tokens import TargetError, commit_by_token
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, PLACE, BadPayload, PayloadFields, read_payload
from snapshot.connectors.staging.table_fit import columns_of
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows, keys_in
from snapshot.program.problems import unknown_column
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter, UnwritableRow
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType, UndeclarableKeyType
from statebackend.stores.fsspec_store import without_password

_LONGEST_NAME = 240
"""Bytes that a staged file's name may have, with room for an ending."""


def read_rocksdb(path: str) -> pa.Table:
    """Return the rows of the database that a `ToRocksDB` with this path writes, as of the last commit before the call.

    May be called while a job writes. An empty table without columns if nothing has been committed there yet.
    """
    with RocksDBFolder(_local(path)).reading() as database:
        return pa.table({}) if database is None else database.rows()


@dataclass(frozen=True, slots=True)
class ToRocksDB:
    """A sink that keeps the newest row of each key in a RocksDB database at `path`, a folder of this machine.

    `key` names the column that tells rows apart, or several; no key may be null. A row replaces the one with its key.
    Where the boolean column `deleted` is true, the row with its key is removed; that column is not stored. Rows of one
    key must come from one partition, as they do after `key_by` that key; of several in an epoch the last one counts.

    Rows are stored as JSON, so columns have types that JSON lines can hold, and NaN and infinities are refused. The
    rows of an epoch wait in memory until its cut. Every partition must see the folder, on this machine: they open the
    database one after the other, for a few milliseconds at each commit. Read it with `read_rocksdb`, also while a job
    runs; other programs open it read-only (`folder` says what is in it). A token of some bytes stays there
    for each transaction.
    """

    path: str
    key: str | tuple[str, ...]
    deleted: str = ""

    def __post_init__(self) -> None:
        if protocol_of(self.path) == "file":
            object.__setattr__(self, "path", str(_local(self.path)))
        object.__setattr__(self, "key", columns_of("key", self.key))

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that make up the key."""
        return columns_of("key", self.key)

    @property
    def exactly_once(self) -> bool:
        """Return True: rows appear at commit."""
        return True

    @property
    def abilities(self) -> Abilities:
        """Declare that a staged file stays, and that its token can be read once the database has taken it."""
        return Abilities(keeps_prepared=True, reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report missing columns and wrong types, and folders of other machines."""
        problems = []
        if protocol_of(self.path) != "file":
            problems.append(f"{without_password(self.path)}: RocksDB needs a folder of this machine")
        if not self.keys:
            problems.append("ToRocksDB needs a key: name at least one column that tells rows apart")
        for option, columns in (("key", self.keys), ("deleted", columns_of("deleted", self.deleted))):
            problems += [f"{option}: {unknown_column(name, schema)}" for name in columns if name not in schema.names]
        if problems:
            return problems
        for name in self.keys:
            try:
                KeyType.of(schema.field(name).type)
            except UndeclarableKeyType as error:
                problems.append(f"the column {name!r} cannot be a key: {error}")
        if self.deleted and not pa.types.is_boolean(schema.field(self.deleted).type):
            problems.append(f"the column {self.deleted!r} says which rows are deleted, so it must be boolean")
        return [*problems, *unsuitable("jsonl", self.stored(schema))]

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that the database has."""
        return pa.schema([field.remove_metadata() for field in schema if field.name != self.deleted])

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report a folder that cannot be used, or whose database has rows with other columns; makes the folder."""
        try:
            make_folder(Path(self.path))
            with RocksDBFolder(Path(self.path)).reading() as database:
                found = None if database is None else database.schema()
        except (OSError, FolderError) as error:
            return [f"the database in {self.path} cannot be used: {error}"]
        return [] if found is None else _differing(self.path, found, self.stored(schema))

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        return _Writer(self, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Delete the staged files of this sink that are leftovers.

        A crash leaves the others to the next recovery; those at a `path` that the program had before are left to
        `recovery sinks abort` with that program.
        """
        folder = RocksDBFolder(Path(self.path))
        for file in folder.staged():
            transaction = transaction_of(file.removesuffix(".unfinished"))
            if transaction is None:
                continue
            made = parse_transaction_id(transaction)
            if (made.job, made.sink) == (job, uid) and may_be_aborted(transaction, older_than, named):
                folder.drop(file)


class _Writer:
    """The sink in a partition."""

    def __init__(self, sink: ToRocksDB, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._uid = context.uid
        self._schema = sink.stored(context.schema)
        self._transaction: TransactionId | None = None
        self._nonce = ""
        self._batches: list[pa.RecordBatch] = []

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no rows, under a nonce of its own."""
        self._nonce = token_hex(8)
        if len(file_name(transaction, 0, "sst", self._nonce)) > _LONGEST_NAME:
            raise SinkError(
                f"sink {self._uid}: no file can be named after transaction {transaction}: its name would have more "
                f"than {_LONGEST_NAME} characters. Give the job and the sink shorter names"
            )
        self._transaction, self._batches = transaction, []

    def write(self, rows: Rows) -> None:
        """Keep the rows; `UnwritableRow` for a null key, and for a number that JSON does not have."""
        if not len(rows):
            return
        try:
            refuse_unsayable("jsonl", _stored_rows(rows.batch, self._sink.deleted))
        except Unsayable as error:
            raise UnwritableRow(f"sink {self._uid}: {error}") from None
        for name in self._sink.keys:
            if rows.batch.column(name).null_count:
                raise UnwritableRow(
                    f"sink {self._uid}: a row has no {name!r}, which is its key; drop null keys before key_by, or, "
                    "where state has one already, by a filter right before the sink"
                )
        self._batches.append(rows.batch)

    def seal(self) -> Sealed:
        """Hand over the rows."""
        assert self._transaction is not None, "a transaction was begun"
        batches, self._batches = self._batches, []
        return _SealedRows(self._transaction, self._nonce, tuple(batches), self._sink, self._schema)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Let the database take the file."""
        staged = read_payload(
            ToRocksDB.__name__, self._context, transaction, payload, partial(_staged_in, transaction, self._sink.path)
        )
        if isinstance(staged, CommitAnswer):
            return staged
        with ExitStack() as open_until_done:
            return commit_by_token(_Committable(staged, open_until_done))

    def close(self) -> None:
        """Forget what is not prepared."""
        self._batches = []


@dataclass(frozen=True, slots=True, eq=False)
class _SealedRows:
    """The rows of a sealed transaction."""

    transaction: TransactionId
    nonce: str
    batches: Sequence[pa.RecordBatch]
    sink: ToRocksDB
    schema: pa.Schema

    def prepare(self) -> CommitPayload | None:
        """Write the file that the database will take."""
        if not self.batches:
            return None
        name, token = file_name(self.transaction, 0, "sst", self.nonce), _token(self.transaction, self.nonce)
        RocksDBFolder(Path(self.sink.path)).stage(name, token, self.schema, self._newest())
        schema = b64encode(self.schema.serialize().to_pybytes()).decode()
        about = {PLACE: self.sink.path, "file": name, "nonce": self.nonce, "schema": schema}
        return CommitPayload(Json.of({MADE_BY: ToRocksDB.__name__, **about}))

    def _newest(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the last row of each key, in the order of the keys; None for a row that deletes."""
        rows = pa.concat_batches(self.batches)
        keys = keys_in(rows, self.sink.keys)
        names = key_column(keys, KeyType.of(keys.type))
        last = {names.key(place): place for place in range(len(names))}
        order = sorted((key, place) for key, place in last.items() if key is not None)
        chosen = rows.take(pa.array([place for _, place in order], pa.int64()))
        kept = _stored_rows(chosen, self.sink.deleted)
        lines = iter(bytes(encoded("jsonl", pa.Table.from_batches([kept]).select(self.schema.names))).split(b"\n"))
        gone = pc.fill_null(chosen.column(self.sink.deleted), False).to_pylist() if self.sink.deleted else repeat(False)
        for (key, _), is_gone in zip(order, gone, strict=False):
            yield key, None if is_gone else next(lines)


def _stored_rows(batch: pa.RecordBatch, deleted: str) -> pa.RecordBatch:
    """Return the rows that are stored; all of them if no column marks deleted ones."""
    return batch.filter(pc.invert(pc.fill_null(batch.column(deleted), False))) if deleted else batch


@dataclass(frozen=True, slots=True)
class _Staged:
    """The content of a payload: which file to take, and into which database."""

    transaction: TransactionId
    path: str
    file: str
    token: str
    schema: pa.Schema


def _staged_in(transaction: TransactionId, path: str, fields: PayloadFields) -> _Staged:
    """Read a payload; its file and token are those of the transaction."""
    place, nonce = fields.own_place(path), fields.text("nonce", NONCE)
    file = fields.same("file", file_name(transaction, 0, "sst", nonce))
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(fields.text("schema"), validate=True)))
    except OSError as error:
        raise BadPayload(f"schema is none: {error}") from error
    return _Staged(transaction, place, file, _token(transaction, nonce), schema)


class _Committable:
    """A staged file at its database, as the commit by token asks for it."""

    def __init__(self, staged: _Staged, open_until_done: ExitStack) -> None:
        self._transaction, self._path, self._file = staged.transaction, staged.path, staged.file
        self._token, self._schema = staged.token, staged.schema
        self._folder = RocksDBFolder(Path(self._path))
        self._open_until_done = open_until_done
        self._database: OpenDatabase | None = None

    def fence(self) -> None:
        """Open the database, which no other process has open for writing then."""
        try:
            self._database = self._open_until_done.enter_context(self._folder.writing())
        except (OSError, FolderError) as error:
            raise TargetError(TargetAnswer.UNKNOWN, str(error)) from error

    def has_token(self) -> bool:
        """True if the database has taken the file; a link to the file that a crash has left is then removed."""
        assert self._database is not None, "it was opened"
        try:
            if not self._database.has_token(self._token):
                return False
            self._folder.drop(self._file)
        except (OSError, FolderError) as error:
            raise TargetError(TargetAnswer.UNKNOWN, str(error)) from error
        return True

    def write(self) -> None:
        """Have the database take the file, if its rows have the columns of the database."""
        assert self._database is not None, "it was opened"
        if not self._folder.is_staged(self._file):
            raise TargetError(
                TargetAnswer.REFUSED,
                f"transaction {self._transaction} is not in the database in {self._path}, and its file is gone from "
                f"{self._path}/.staged; if the folder was replaced, put the former one back and start again",
            )
        try:
            found = self._database.schema()
            if found is not None and (problems := _differing(self._path, found, self._schema)):
                raise TargetError(TargetAnswer.REFUSED, problems[0])
            self._database.take(self._file)
        except (OSError, FolderError) as error:
            raise TargetError(TargetAnswer.UNKNOWN, str(error)) from error


def _token(transaction: TransactionId, nonce: str) -> str:
    """Return the token that the database keeps of a transaction."""
    return f"{transaction}/{nonce}"


def _differing(path: str, found: pa.Schema, ours: pa.Schema) -> Sequence[str]:
    if found.equals(ours):
        return []
    theirs, mine = (", ".join(f"{field.name} {field.type}" for field in schema) for schema in (found, ours))
    return [
        f"the database in {path} has rows of ({theirs}), and these are of ({mine}); write them to another folder, or "
        f"give them those columns"
    ]


def _local(path: str) -> Path:
    return Path(LocalFileSystem._strip_protocol(path))
