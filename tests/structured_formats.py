"""Formats whose queries stop for ever within the commit of the second batch: files when it is decided what counts,
SQLite and the log when it is committed and Spark has not noted it. A first attempt at the third batch fails when it has
prepared.

Invariant: they stop only if the environment names the pipe that says so.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
from pyspark import TaskContext

from snapshot.structured import formats, stream_format
from snapshot.structured.batch_log import BatchLog, Decision

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PIPE = "STRUCTURED_JOB_STOPS"
STOPPED_BATCH, FAILING_BATCH = 1, 2


def stop() -> NoReturn:
    pipe = os.open(os.environ[PIPE], os.O_WRONLY)
    os.write(pipe, b"stopped\n")
    while True:
        signal.pause()


def fail_once() -> None:
    task = TaskContext.get()
    failing = int(task.getLocalProperty("streaming.sql.batchId")) == FAILING_BATCH
    if failing and task.attemptNumber() == 0 and task.partitionId() == 0:
        raise RuntimeError("the first attempt fails when it has prepared")


class _StreamWriter(formats._StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> formats._Message:
        message = super().write(iterator)
        fail_once()
        return message

    def commit(self, messages: Sequence[formats._Message | None], batch: int) -> None:
        stops = batch == STOPPED_BATCH and PIPE in os.environ
        if stops and self._target.name == "files":
            decide = BatchLog.decide

            def decide_and_stop(log: BatchLog, number: int, proposed: Decision) -> NoReturn:
                decide(log, number, proposed)
                stop()

            BatchLog.decide = decide_and_stop  # type: ignore[method-assign, assignment]
        super().commit(messages, batch)
        if stops:
            stop()


class _Stopping(formats._Format):
    def streamWriter(self, schema: StructType, overwrite: bool) -> formats._StreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = _StreamWriter
        return writer


class Files(_Stopping):
    sink = "ToFiles"


class SQLite(_Stopping):
    sink = "ToSQLite"


class _LogWriter(stream_format._StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> stream_format._Message:
        message = super().write(iterator)
        fail_once()
        return message

    def commit(self, messages: Sequence[stream_format._Message | None], batch: int) -> None:
        super().commit(messages, batch)
        if batch == STOPPED_BATCH and PIPE in os.environ:
            stop()


class Stream(stream_format.Stream):
    def streamWriter(self, schema: StructType, overwrite: bool) -> stream_format._StreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = _LogWriter
        return writer


FORMATS = (Files, SQLite, Stream)
