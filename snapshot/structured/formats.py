"""Spark's side of a query's sink: formats by name, and the writer that Spark calls in executors and in the driver.

What always holds: nothing is decided here. A writer holds plain data, as Spark sends it to other processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

import snapshot
from snapshot.program.sink import Sink, SinkError
from snapshot.structured.query import SinkQuery, Written, refuse
from snapshot.structured.sink_options import sink_of
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobStore

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PATIENCE = "60"


@dataclass(slots=True)
class _Message(WriterCommitMessage):  # type: ignore[misc]  # Spark has no types that mypy is told of
    """What Spark carries from the executors to the driver."""

    written: Written


class _StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The sink of a query."""

    def __init__(self, name: str, sink: Sink, staging: str, patience: float, schema: pa.Schema) -> None:
        self._name = name
        self._sink = sink
        self._staging = staging
        self._patience = patience
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Prepare a partition's rows, in an executor."""
        task = TaskContext.get()
        query, run = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("spark.jobGroup.id")
        batch = int(task.getLocalProperty("streaming.sql.batchId"))
        again = task.attemptNumber() > 0
        return _Message(self._query(query).write(batch, task.partitionId(), run, again, iterator))

    def commit(self, messages: Sequence[_Message | None], batch: int) -> None:
        """Commit a batch, in the driver; Spark asks again after a crash."""
        written = [message.written for message in messages if message is not None]
        if written:
            self._query(written[0].query).commit(batch, written)

    def abort(self, messages: Sequence[_Message | None], batch: int) -> None:
        """Leave all as it is: Spark says this also of a batch whose commit was under way, or that was decided by an
        earlier start of the query. What no decision names is dropped when the batch is decided.
        """

    def _query(self, query: str) -> SinkQuery:
        tree = _tree(f"{self._staging}/{query}", os.getpid())
        return SinkQuery(query, self._name, self._sink, tree, self._patience, self._schema)


class _Format(DataSource):  # type: ignore[misc]
    """A sink as a format; a subclass says which. It is made and asked for its writer at every batch."""

    sink: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return f"epochcut.{cls.sink.removeprefix('To').lower()}"

    def streamWriter(self, schema: StructType, overwrite: bool) -> _StreamWriter:  # noqa: N802 (Spark's name)
        """The writer; `SinkError` if the options or the columns cannot be."""
        if overwrite:
            raise SinkError(f"{self.name()} adds rows; outputMode('complete') would replace them all: use 'update'")
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
        return _StreamWriter(
            short, sink, self._staging(), float(self.options.get("commitPatience", _PATIENCE)), columns
        )

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


class Postgres(_Format):
    """`epochcut.postgres`: `ToPostgres`."""

    sink = "ToPostgres"


class SQLite(_Format):
    """`epochcut.sqlite`: `ToSQLite`."""

    sink = "ToSQLite"


class RocksDB(_Format):
    """`epochcut.rocksdb`: `ToRocksDB`."""

    sink = "ToRocksDB"


class Delta(_Format):
    """`epochcut.delta`: `ToDelta`."""

    sink = "ToDelta"


class HTTP(_Format):
    """`epochcut.http`: `ToHTTP`, at least once."""

    sink = "ToHTTP"


FORMATS: tuple[type[_Format], ...] = (Files, Kafka, Postgres, SQLite, RocksDB, Delta, HTTP)
