"""A Delta table as the sink reaches it: read anew each time, data files and their tokens written to its folder and log.

Invariant: an error of the library is told as what it means for a commit, never taken for success; when a method
returns, what it did survives a crash of the machine.

A token is an application id and a version in the log. The id is used by one writer (a partition, in one attempt) for
one transaction after the other, and by the next only when the one before is known to be committed or had no rows. So a
version in the log that is not lower than a transaction's number says that it is committed, and nothing else does. A
name of a file says which transaction it is of, and under which id to look for it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from snapshot.connectors.delta.columns import FoundDelta, written_schema
from snapshot.connectors.files.names import file_name, transaction_of
from snapshot.connectors.staging.commit_tokens import TargetError
from snapshot.connectors.staging.payloads import BadPayload
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import TransactionId

if TYPE_CHECKING:
    from deltalake import DeltaTable

_NAME: Final = re.compile(r"(?P<writer>[0-9a-f]{16})-(?P<slot>0|[1-9][0-9]*)-(?P<rest>part-[A-Za-z0-9._-]*\.parquet)")
_SLASH: Final = ".2f"
"""The text for a slash, in place of the `~` of other names: deltalake cannot compact files with that in their names."""


@dataclass(frozen=True, slots=True)
class DeltaToken:
    """A transaction under the application id that was given to it.

    `writer` was drawn when its writer was opened: a job whose tree was put back from an older copy makes transactions
    of the same names again.
    """

    transaction: TransactionId
    writer: str
    slot: int

    @property
    def app(self) -> str:
        """Return Delta's application id; a writer has as many as it had uncommitted transactions at a time."""
        return f"epochcut/{self.transaction.rpartition('-')[0]}/{self.writer}-{self.slot}"

    @property
    def version(self) -> int:
        """Return Delta's version for the transaction, which is its number."""
        return parse_transaction_id(self.transaction).n

    def file(self, number: int) -> str:
        """Return the name of the transaction's data file with this number."""
        name = file_name(self.transaction, number, "parquet")
        return f"{self.writer}-{self.slot}-{name.replace('~', _SLASH)}"


def token_of(name: str) -> DeltaToken | None:
    """Return the token of the data file with this name; None if it is not ours to touch."""
    match = _NAME.fullmatch(name)
    transaction = None if match is None else transaction_of(match["rest"].replace(_SLASH, "~"))
    if match is None or transaction is None:
        return None
    return DeltaToken(transaction, match["writer"], int(match["slot"]))


class Slots:
    """The application ids of one writer. The event loop and other threads may share it."""

    def __init__(self) -> None:
        self._writer = token_hex(8)
        self._lock = Lock()
        self._taken: dict[TransactionId, int] = {}

    def take(self, transaction: TransactionId) -> DeltaToken:
        """Take a free application id for a transaction that begins."""
        with self._lock:
            taken = set(self._taken.values())
            slot = next(number for number in range(len(taken) + 1) if number not in taken)
            self._taken[transaction] = slot
        return DeltaToken(transaction, self._writer, slot)

    def free(self, transaction: TransactionId) -> None:
        """Free the id of a transaction that is committed or has no rows; does nothing for another writer's."""
        with self._lock:
            self._taken.pop(transaction, None)


_LOG: Final = "_delta_log"
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
_FRAME: Final = re.compile(r" *\d+: ")
_IMPATIENT: Final = {"max_retries": "2", "retry_timeout": "10s", "timeout": "10s", "connect_timeout": "3s"}
"""Options of an object store, unless others are given: a commit is tried again by its caller."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that is written."""

    name: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class DeltaPlace:
    """The place of a table: a folder, or the address of a bucket. `storage` is what the library needs to get in."""

    uri: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_folder(self) -> bool:
        """True if the table is in this machine's file systems."""
        return "://" not in self.uri

    @property
    def _options(self) -> dict[str, str]:
        return dict(self.storage) if self.is_folder else {**_IMPATIENT, **self.storage}

    def table(self) -> DeltaTable:
        """Return the table as it is now; `TargetError` if there is none, or it cannot be read."""
        from deltalake import DeltaTable

        try:
            return DeltaTable(self.uri, storage_options=self._options)
        except Exception as error:
            raise self._unknown(error) from error

    def is_there(self) -> bool:
        """True if there is a table; `TargetError` if that cannot be told."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            DeltaTable(self.uri, storage_options=self._options)
        except TableNotFoundError:
            return False
        except Exception as error:
            raise self._unknown(error) from error
        return True

    def make(self, schema: pa.Schema) -> None:
        """Make a table that takes these rows, all columns nullable, unless there is one."""
        from deltalake import DeltaTable

        columns = pa.schema([field.with_nullable(True) for field in written_schema(schema)])
        try:
            DeltaTable.create(self.uri, columns, mode="ignore", storage_options=self._options)
        except Exception as error:
            if not self.is_there():  # another may have been faster
                raise self._unknown(error) from error

    def write(self, name: str, rows: pa.Table) -> DataFile:
        """Write a data file, in place of one of this name that a failure has left.

        An error means that the file is not there as a whole.
        """
        if self.is_folder and not (Path(self.uri) / _LOG).is_dir():
            # A folder of that name may be where a file system is to be mounted again.
            raise TargetError(TargetAnswer.UNKNOWN, f"there is no Delta table at {self.uri} now")
        with self._files().open_output_stream(name) as out:
            pq.write_table(rows, out)
            size = out.tell()
        if self.is_folder:
            _sync(Path(self.uri) / name)
            _sync(Path(self.uri))
        return DataFile(name, size, rows.num_rows)

    def missing(self, files: Sequence[DataFile]) -> list[str]:
        """Return the names of the data files that are not there as they were written."""
        try:
            found = self._files().get_file_info([file.name for file in files])
        except Exception as error:
            raise self._unknown(error) from error
        return [file.name for file, info in zip(files, found, strict=True) if info.size != file.size]

    def names(self) -> list[str]:
        """Return the names of all files beside the log, whatever writer they are of."""
        found = self._files().get_file_info(pafs.FileSelector("", allow_not_found=True))
        return [info.base_name for info in found if info.type is pafs.FileType.File]

    def drop(self, name: str) -> None:
        """Delete a data file."""
        self._files().delete_file(name)

    def version_of(self, table: DeltaTable, app: str) -> int | None:
        """Return the version that the log has of an application id; `TargetError` if that cannot be told."""
        try:
            return table.transaction_version(app)
        except Exception as error:
            raise self._unknown(error) from error

    def add(self, table: DeltaTable, token: DeltaToken, files: Sequence[DataFile]) -> None:
        """Write the log's entry that adds the files and says that the transaction is committed.

        The entry follows the table as it was read. Delta refuses it if another process has written the same application
        id since, or changed the columns.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaProtocolError, SchemaMismatchError
        from deltalake.transaction import AddAction, RemoveAction

        now = int(time.time() * 1000)
        added: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, {}, now, True, json.dumps({"numRecords": file.rows})) for file in files
        ]
        # Without a time of its own the id never expires, whatever the table's delta.setTransactionRetentionDuration is.
        said = [Transaction(token.app, token.version, None)]
        try:
            table.create_write_transaction(
                added, "append", table.schema(), commit_properties=CommitProperties(app_transactions=said)
            )
        except (DeltaProtocolError, SchemaMismatchError) as error:
            raise TargetError(TargetAnswer.REFUSED, f"the Delta table {self.uri}: {_said(error)}") from error
        except Exception as error:
            raise self._unknown(error) from error
        self.sync_log(files)

    def sync_log(self, files: Sequence[DataFile]) -> None:
        """Sync the log's entries since the files were written, so that they survive a crash of the machine."""
        if not self.is_folder:
            return
        log = Path(self.uri) / _LOG
        try:
            since = min((Path(self.uri) / file.name).stat().st_mtime_ns for file in files)
        except FileNotFoundError:
            since = 0  # others have rewritten the table's files meanwhile
        try:
            newer = [one for one in log.iterdir() if one.suffix == ".json" and one.stat().st_mtime_ns >= since]
            for path in (*newer, log):
                _sync(path)
        except OSError as error:
            raise self._unknown(error) from error

    def _files(self) -> pafs.FileSystem:
        """Return a file system of the table's folder, reached as the library reaches it."""
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.uri, self._options))

    def _unknown(self, error: Exception) -> TargetError:
        return TargetError(TargetAnswer.UNKNOWN, f"the Delta table {self.uri}: {_said(error)}")


def found_table(table: DeltaTable) -> FoundDelta:
    """Return the schema and the settings of the table that rows have to fit."""
    about, protocol = table.metadata(), table.protocol()
    return FoundDelta(
        table.schema().to_json(), about.partition_columns, about.configuration, protocol.writer_features or ()
    )


def schema_json(schema: pa.Schema) -> str:
    """Return the columns as Delta's log has them."""
    from deltalake import Schema

    return Schema.from_arrow(written_schema(schema)).to_json()


def checked_columns(text: str) -> str:
    """Return columns as `schema_json` wrote them; `BadPayload` for any other text."""
    from deltalake import Schema

    try:
        Schema.from_json(text)
    except Exception as error:
        raise BadPayload(f"{text[:80]!r} are no columns: {error}") from error
    return text


def files_in(table: DeltaTable) -> Collection[str]:
    """Return the names of the data files that readers of the table read."""
    return {unquote(uri.rpartition("/")[2]) for uri in table.file_uris()}


def _said(error: Exception) -> str:
    """Return the library's message in one line, without colours and without the frames of its own stack."""
    lines = _COLOUR.sub("", str(error)).splitlines()
    told = takewhile(lambda line: not _FRAME.match(line), lines)
    return ": ".join(line.lstrip(" \u21b3") for line in told)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
