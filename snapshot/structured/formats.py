"""Spark's side of a query's sink: formats by name, and the writers that Spark calls in executors and in the driver.

Invariant: nothing is decided here. A writer holds plain data, as Spark sends it to other processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from secrets import token_hex
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

import snapshot
from snapshot.program.sink import Sink, SinkError
from snapshot.structured.batch_log import identity_of, target_of
from snapshot.structured.query import SinkQuery, Written, refuse
from snapshot.structured.sink_options import BATCH, sink_of
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobStore

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PATIENCE = "60"


@dataclass(slots=True)
class _Message(WriterCommitMessage):  # type: ignore[misc]  # Spark has no types that mypy is told of
    """The message that Spark carries from the executors to the driver."""

    written: Written


@dataclass(frozen=True, slots=True)
class _Target:
    """A sink, with what a query says of it; `name` is short, as `sqlite`."""

    name: str
    sink: Sink
    staging: str
    patience: float
    schema: pa.Schema

    def tree(self, query: str) -> BlobStore:
        """Return the store with the decisions and the staged rows of the query."""
        return _tree(f"{self.staging}/{query}", os.getpid())

    def writes(self, query: str, identity: str) -> SinkQuery:
        """Return the query, which the sink knows by this identity."""
        return SinkQuery(identity, self.name, self.sink, self.tree(query), self.patience, self.schema)


class _StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The sink of a query."""

    def __init__(self, target: _Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Prepare a partition's rows, in an executor."""
        task = TaskContext.get()
        query, run = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("spark.jobGroup.id")
        batch = int(task.getLocalProperty("streaming.sql.batchId"))
        again = task.attemptNumber() > 0
        return _Message(self._target.writes(query, query).write(batch, task.partitionId(), run, again, iterator))

    def commit(self, messages: Sequence[_Message | None], batch: int) -> None:
        """Commit a batch, in the driver; Spark asks again after a crash."""
        written = [message.written for message in messages if message is not None]
        if written:
            query = written[0].query
            self._target.writes(query, query).commit(batch, written)

    def abort(self, messages: Sequence[_Message | None], batch: int) -> None:
        """Leave all as it is; the rows that no decision names are dropped when the batch is decided.

        Spark calls this also for a batch whose commit was under way, or that was decided by an earlier start of the
        query.
        """


@dataclass(slots=True)
class _BatchMessage(WriterCommitMessage):  # type: ignore[misc]
    """The same of a batch write, with the query in whose function it is written."""

    query: str
    written: Written


class _BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """The sink of one batch, as a function of `foreachBatch` writes it."""

    def __init__(self, target: _Target, batch: int) -> None:
        self._target = target
        self._batch = batch
        self._run = token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _BatchMessage:
        """Prepare a partition's rows, in an executor."""
        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId") or "batches"
        run, again = task.getLocalProperty("spark.jobGroup.id") or self._run, task.attemptNumber() > 0
        return _BatchMessage(query, self._writes(query).write(self._batch, task.partitionId(), run, again, iterator))

    def commit(self, messages: Sequence[_BatchMessage | None]) -> None:
        """Commit the batch, in the driver. A crash before it is done leaves it to the batch's next run."""
        there = [message for message in messages if message is not None]
        if there:
            self._writes(there[0].query).commit(self._batch, [message.written for message in there])

    def abort(self, messages: Sequence[_BatchMessage | None]) -> None:
        """Leave all as it is, as a query does."""

    def _writes(self, query: str) -> SinkQuery:
        target = self._target
        return target.writes(query, identity_of(target.tree(query), target_of(target.name, target.sink)))


class _Format(DataSource):  # type: ignore[misc]
    """A sink as a format; a subclass says which. It is made and asked for its writer at every batch."""

    sink: ClassVar[str]
    upserts: ClassVar[bool] = False
    """With a `key`, a row replaces the one with its key."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format(...)` takes."""
        return f"epochcut.{cls.sink.removeprefix('To').lower()}"

    def streamWriter(self, schema: StructType, overwrite: bool) -> _StreamWriter:  # noqa: N802 (Spark's name)
        """Return the writer of a stream; raise `SinkError` if its options or columns cannot be.

        `overwrite` is output mode "complete".
        """
        target = self._target(schema)
        if overwrite and not (self.upserts and getattr(target.sink, "key", None)):
            raise SinkError(
                f"{self.name()}: outputMode('complete') gives the whole result anew with every batch; {self._advice()}"
            )
        return _StreamWriter(target)

    def writer(self, schema: StructType, overwrite: bool) -> _BatchWriter:
        """Return the writer of one batch; raise `SinkError` as for a stream, or for a missing batch id.

        `overwrite` is refused: the target keeps the rows that it has.
        """
        if overwrite:
            raise SinkError(f"{self.name()} keeps what is there: write with mode('append')")
        batch = self.options.get(BATCH, "")
        if not batch.isdecimal():
            given = f"it is {batch!r}" if batch else "it is missing"
            raise SinkError(
                f"{self.name()} writes each batch once, known by its id, so it needs the option {BATCH!r}, a number "
                f"that grows ({given}). In foreachBatch(lambda df, id: ...) write with .option({BATCH!r}, id)"
            )
        return _BatchWriter(self._target(schema), int(batch))

    def _advice(self) -> str:
        if self.upserts:
            return (
                "say with the option 'key' which columns tell its rows apart, so that each row replaces the former one"
            )
        keyed = ", ".join(format.name() for format in FORMATS if format.upserts)
        return f"this sink can only add rows: use outputMode('append'), or one that takes a key ({keyed})"

    def _target(self, schema: StructType) -> _Target:
        sink = sink_of(self.name(), getattr(snapshot, self.sink), self.options)
        columns = to_arrow_schema(schema, timezone="UTC")
        short = self.name().rpartition(".")[2]
        refuse(short, sink.check(columns))
        if sink.exactly_once and not (sink.abilities.keeps_prepared or sink.abilities.reads_tokens):
            refuse(
                short,
                [
                    "the target can neither keep what is prepared nor say what was committed, so rows may come twice; "
                    "accept that with the option exactlyOnce=false"
                ],
            )
        if getattr(sink, "roll_every", 0):
            refuse(
                short,
                ["each batch is committed on its own, so rows cannot wait (rollEvery): let it be triggered less often"],
            )
        patience = float(self.options.get("commitPatience", _PATIENCE))
        return _Target(short, sink, self._staging(), patience, columns)

    def _staging(self) -> str:
        if staging := self.options.get("staging"):
            return str(staging)
        if checkpoint := self.options.get("checkpointLocation"):
            return f"{checkpoint}/epochcut"
        raise SinkError(
            f"{self.name()} needs the option 'checkpointLocation', or 'staging': a folder or s3:// address that the "
            f"driver and the executors see"
        )


@lru_cache(maxsize=64)
def _tree(uri: str, process: int) -> BlobStore:  # noqa: ARG001 (a store is not for processes that are forked later)
    return open_store(uri)


class Files(_Format):
    """`epochcut.files`: `ToFiles`."""

    sink = "ToFiles"


class Kafka(_Format):
    """`epochcut.kafka`: `ToKafka`."""

    sink = "ToKafka"
    upserts = True


class Pravega(_Format):
    """`epochcut.pravega`: `ToPravega`."""

    sink = "ToPravega"


class Postgres(_Format):
    """`epochcut.postgres`: `ToPostgres`."""

    sink = "ToPostgres"
    upserts = True


class SQLite(_Format):
    """`epochcut.sqlite`: `ToSQLite`."""

    sink = "ToSQLite"
    upserts = True


class RocksDB(_Format):
    """`epochcut.rocksdb`: `ToRocksDB`."""

    sink = "ToRocksDB"
    upserts = True


class Delta(_Format):
    """`epochcut.delta`: `ToDelta`."""

    sink = "ToDelta"


class HTTP(_Format):
    """`epochcut.http`: `ToHTTP`, at least once."""

    sink = "ToHTTP"


FORMATS: tuple[type[_Format], ...] = (Files, Kafka, Pravega, Postgres, SQLite, RocksDB, Delta, HTTP)
