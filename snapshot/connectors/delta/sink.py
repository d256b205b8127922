"""Rows for a Delta table: data files that no reader knows of until one entry of the table's log names them.

Invariant: the entry that names a transaction's files also names the transaction, as an application's
transaction of Delta's; of any number of committers of one transaction, Delta lets one write its entry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from snapshot.connectors.delta.columns import misfits, unsuitable, written_schema
from snapshot.connectors.delta.table import (
    DataFile,
    DeltaPlace,
    DeltaToken,
    Slots,
    checked_columns,
    files_in,
    found_table,
    schema_json,
    token_of,
)
from snapshot.connectors.files.folder import everywhere, password_faults, protocol_of
from snapshot.connectors.staging.commit_tokens import TargetError, commit_by_token
from snapshot.connectors.staging.payloads import (
    MADE_BY,
    NONCE,
    PLACE,
    BadPayload,
    PayloadFields,
    read_payload,
    whole_number,
)
from snapshot.connectors.staging.pieces import Pieces, SealedPieces
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter, UnwritableRow
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LONGEST_NAME: Final = 255
"""Bytes that a file's name may have on the usual file systems."""
_KNOWN: Final = ("file", "s3")
_DONE: Final = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)


@dataclass(frozen=True, slots=True)
class ToDelta:
    """A sink that adds rows to the Delta table at `uri`, which is not partitioned: an entry in the
    table's log, and a Parquet file or more, for each epoch and partition with rows.

    The table is in a folder of a local (or mounted) file system that all partitions and the driver see, or in a bucket
    (`s3://`) of a server with conditional puts; `storage_options` are those of deltalake, beside what it reads from the
    environment, and are neither printed nor written anywhere. `create` makes the table if there is none. Columns must
    be the table's, with its types; those that the rows lack are null. Rows wait in memory until their epoch's cut, or
    until they take `roll_bytes` there: then they become a file of their own while further rows come. The log has sizes
    and counts of the files, no statistics of columns; compacting the table (OPTIMIZE) makes them.

    Data files of epochs that are not complete stand beside the others; readers do not know of them. Those that came to
    nothing are deleted when the next attempt begins. A VACUUM must not remove files that are younger than an epoch can
    wait for its commit, which would be lost with them; its default, a week, is longer than a job should stand still.
    The log keeps a few application ids for each attempt and partition of the job, for ever.
    """

    uri: str
    create: bool = False
    roll_bytes: int = 64 << 20
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        uri = everywhere(self.uri)
        object.__setattr__(self, "uri", uri.removeprefix("file://") if protocol_of(uri) == "file" else uri)

    @property
    def exactly_once(self) -> bool:
        """Return True: rows appear at commit."""
        return True

    @property
    def abilities(self) -> Abilities:
        """Declare that a data file stays, and that the table's log tells what was committed."""
        return Abilities(keeps_prepared=True, reads_tokens=True)

    @property
    def place(self) -> DeltaPlace:
        """Return where the table is."""
        return DeltaPlace(self.uri, self.storage_options)

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """Report a missing library, a URI that cannot hold a table, and columns that Delta does not have."""
        if faults := password_faults(self.uri):
            return faults
        problems = []
        if find_spec("deltalake") is None:
            problems.append("Delta tables need the package deltalake: pip install 'epochcut[delta]'")
        if (protocol := protocol_of(self.uri)) not in _KNOWN:
            problems.append(
                f"the Delta table {self.uri} would be in {protocol}://, where committing was not tried; use a folder "
                f"of a local or mounted file system, or s3://"
            )
        if self.roll_bytes < 1:
            problems.append(f"roll_bytes is {self.roll_bytes}; it must be at least 1")
        return [*problems, *unsuitable(schema)]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report a table that is missing or unreadable, is partitioned, or has other columns or demands on its writers.

        Makes what `create` asks for.
        """
        place = self.place
        try:
            if not place.is_there():
                if not self.create:
                    return [f"there is no Delta table at {self.uri}; make it, or use create=True"]
                place.make(schema)
            faults = misfits(schema_json(schema), found_table(place.table()))
        except TargetError as error:
            return [str(error)]
        return [f"the Delta table {self.uri}: {fault}" for fault in faults]

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        return _Writer(self, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Delete this sink's leftover data files: those of older attempts that neither an epoch nor the log names.

        What was committed once is left to the table's VACUUM. A crash leaves the others to the next recovery; those at
        a `uri` that the program had before are left to that table's VACUUM, or to `recovery sinks abort` with that
        program.
        """
        place = self.place
        older = [
            (name, token)
            for name, token in ((name, token_of(name)) for name in place.names())
            if token is not None and _is_of(token, job, uid) and may_be_aborted(token.transaction, older_than, named)
        ]
        if not older:
            return
        table = place.table()
        known = files_in(table)
        for name, token in older:
            if name not in known and not _is_committed(place, table, token):
                place.drop(name)


class _Writer:
    """The sink in a partition: a thread writes the files that are full before their epoch is over."""

    def __init__(self, sink: ToDelta, context: SinkContext) -> None:
        self._sink = sink
        self._place = sink.place
        self._context = context
        self._uid = context.uid
        self._columns = written_schema(context.schema)
        self._slots = Slots()
        self._token: DeltaToken | None = None
        self._files: Pieces[DataFile] = Pieces(context.uid, sink.roll_bytes)

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no file."""
        place, token = self._place, self._slots.take(transaction)
        if len(token.file(10**6)) > _LONGEST_NAME:
            raise SinkError(
                f"sink {self._uid}: files cannot be named after transaction {transaction}: their names would have more "
                f"than {_LONGEST_NAME} characters. Give the job and the sink shorter names"
            )

        def store(number: int, batches: Sequence[pa.RecordBatch]) -> DataFile:
            return place.write(token.file(number), pa.Table.from_batches(batches))

        self._token = token
        self._files.begin(store)

    def write(self, rows: Rows) -> None:
        """Keep the rows, in the types that Delta has for them; begin to write a file if there are enough.

        Waits if files are written more slowly than they fill.
        """
        try:
            self._files.write(Rows(rows.batch.cast(self._columns)))
        except pa.ArrowInvalid as error:
            raise UnwritableRow(f"sink {self._uid}: a value does not fit Delta's type: {error}") from error

    def seal(self) -> Sealed:
        """Hand over the files, written or not."""
        token, self._token = self._token, None
        assert token is not None, "a transaction was begun"
        return _SealedFiles(token, self._files.seal(), self._columns, self._place, self._slots)

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write the log's entry, unless it is there."""
        staged = read_payload(
            ToDelta.__name__, self._context, transaction, payload, partial(_staged_in, transaction, self._place.uri)
        )
        if isinstance(staged, CommitAnswer):
            return staged
        answer = commit_by_token(_Committable(staged, self._sink.storage_options))
        if answer.outcome in _DONE:
            self._slots.free(transaction)
        return answer

    def close(self) -> None:
        """Start no more files; those that are written are left to `recover`."""
        self._files.close()


@dataclass(frozen=True, slots=True, eq=False)
class _SealedFiles:
    """The files of a sealed transaction."""

    token: DeltaToken
    files: SealedPieces[DataFile]
    columns: pa.Schema
    place: DeltaPlace
    slots: Slots

    def prepare(self) -> CommitPayload | None:
        """Write the remaining files into the table's folder; a file that is written again keeps its name."""
        files = self.files.stored()
        if not files:
            self.slots.free(self.token.transaction)
            return None
        about: dict[str, JsonLike] = {
            MADE_BY: ToDelta.__name__,
            PLACE: self.place.uri,
            "columns": schema_json(self.columns),
            "writer": self.token.writer,
            "slot": self.token.slot,
            "files": [[file.name, file.size, file.rows] for file in files],
        }
        return CommitPayload(Json.of(about))


@dataclass(frozen=True, slots=True)
class _Staged:
    """The content of a payload: which files to add to which table."""

    uri: str
    token: DeltaToken
    columns: str
    files: tuple[DataFile, ...]


def _staged_in(transaction: TransactionId, uri: str, fields: PayloadFields) -> _Staged:
    """Read a payload; its files have names that the transaction gave them."""
    token = DeltaToken(transaction, fields.text("writer", NONCE), fields.number("slot"))
    files = []
    for stored in fields.items("files"):
        match stored:
            case [str(name), size, rows] if token_of(name) == token:
                files.append(DataFile(name, whole_number(size, "size"), whole_number(rows, "rows")))
            case other:
                raise BadPayload(f"{str(other)[:300]!r} is no file of the transaction")
    if not files or len({file.name for file in files}) < len(files):
        raise BadPayload("it has no files, or one twice")
    return _Staged(fields.own_place(uri), token, checked_columns(fields.text("columns")), tuple(files))


class _Committable:
    """Data files at their table, as the commit by token asks for them."""

    def __init__(self, staged: _Staged, storage: Mapping[str, str]) -> None:
        self._place = DeltaPlace(staged.uri, storage)
        self._token, self._columns, self._files = staged.token, staged.columns, staged.files
        self._table: DeltaTable | None = None

    def fence(self) -> None:
        """Read the table as it is now.

        A process that writes an entry for the transaction after that is in conflict with this one, and this one with
        it.
        """
        self._table = self._place.table()

    def has_token(self) -> bool:
        """True if the log says that the transaction is committed; that entry then survives a crash of the machine."""
        assert self._table is not None, "it was read"
        found = _is_committed(self._place, self._table, self._token)
        if found:
            self._place.sync_log(self._files)
        return found

    def write(self) -> None:
        """Write the log's entry that adds the files.

        Raises `TargetError` if the table no longer takes the rows, or a file is missing or changed.
        """
        assert self._table is not None, "it was read"
        if faults := misfits(self._columns, found_table(self._table)):
            raise TargetError(TargetAnswer.REFUSED, f"the Delta table {self._place.uri}: {faults[0]}")
        if missing := self._place.missing(self._files):
            raise TargetError(
                TargetAnswer.REFUSED,
                f"{', '.join(missing)} of transaction {self._token.transaction} is gone from {self._place.uri}, or is "
                f"not as it was written; a VACUUM that keeps files for too short a time does that",
            )
        self._place.add(self._table, self._token, self._files)


def _is_of(token: DeltaToken, job: JobId, uid: Uid) -> bool:
    made = parse_transaction_id(token.transaction)
    return (made.job, made.sink) == (job, uid)


def _is_committed(place: DeltaPlace, table: DeltaTable, token: DeltaToken) -> bool:
    version = place.version_of(table, token.app)
    return version is not None and version >= token.version
