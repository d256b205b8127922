"""Files and Delta tables as a program without epochs would write them: what comes is written, and may come again.

Invariant: a partition, in one attempt, writes one file, whose rows readers see once it is closed; or to the
table whenever an epoch is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, SinkContext
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid


class _Plain:
    """What sinks have in common that promise nothing."""

    @property
    def exactly_once(self) -> bool:
        return False

    @property
    def abilities(self) -> Abilities:
        return Abilities()

    def check(self, schema: pa.Schema) -> Sequence[str]:
        return []

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        return []

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None: ...


@dataclass(frozen=True)
class PlainFiles(_Plain):
    """Parquet files of a folder, at any URI of fsspec."""

    folder: str

    def open(self, context: SinkContext) -> _FileWriter:
        return _FileWriter(f"{self.folder}/plain-{token_hex(4)}.parquet", context.schema)


@dataclass(frozen=True)
class PlainDelta(_Plain):
    """A Delta table."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        from deltalake import DeltaTable

        DeltaTable.create(self.uri, schema, mode="ignore", storage_options=dict(self.options))
        return []

    def open(self, context: SinkContext) -> _DeltaWriter:
        return _DeltaWriter(self.uri, dict(self.options), context.schema)


class _FileWriter:
    def __init__(self, uri: str, schema: pa.Schema) -> None:
        self._opened = fsspec.open(uri, "wb", auto_mkdir=True) if "://" not in uri else fsspec.open(uri, "wb")
        self._file = pq.ParquetWriter(self._opened.open(), schema)

    def begin(self, transaction: TransactionId) -> None: ...

    def write(self, rows: Rows) -> None:
        self._file.write_batch(rows.batch)

    def seal(self) -> _Nothing:
        return _Nothing()

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        self._file.close()
        self._opened.close()


class _DeltaWriter:
    def __init__(self, uri: str, options: dict[str, str], schema: pa.Schema) -> None:
        self._uri, self._options, self._schema = uri, options, schema
        self._batches: list[pa.RecordBatch] = []

    def begin(self, transaction: TransactionId) -> None: ...

    def write(self, rows: Rows) -> None:
        self._batches.append(rows.batch)

    def seal(self) -> _Append:
        batches, self._batches = self._batches, []
        return _Append(self._uri, self._options, pa.Table.from_batches(batches, self._schema))

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Append:
    uri: str
    options: dict[str, str]
    rows: pa.Table

    def prepare(self) -> CommitPayload | None:
        from deltalake import write_deltalake

        if len(self.rows):
            write_deltalake(self.uri, self.rows, mode="append", storage_options=self.options)
        return None


class _Nothing:
    def prepare(self) -> CommitPayload | None:
        return None
