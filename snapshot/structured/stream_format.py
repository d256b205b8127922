"""The format `epochcut.stream`: a query's micro-batches into the log that a stream program reads.

Invariant: a batch is added to the log before Spark notes that it is committed; so Spark runs it again after a crash,
and the log knows it by its number.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import fsspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from snapshot.connectors.files.folder import everywhere, password_faults
from snapshot.program.sink import SinkError
from snapshot.structured.sink_options import options_of
from snapshot.structured.stream_log import LoggedBatch, Part, StreamLog, open_log, plain
from statebackend.durations import Duration, milliseconds

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME: Final = "epochcut.stream"
_FORGET_EVERY: Final = 60_000
"""Milliseconds of the clock between two looks for old batches."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The options of the format."""

    path: str
    keep: Duration = "7d"
    unchecked: bool = False


@dataclass(slots=True)
class _Message(WriterCommitMessage):  # type: ignore[misc]  # Spark has no types that mypy is told of
    """The parts that one attempt at a task has written."""

    query: str
    parts: tuple[Part, ...]


class _StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The sink of a query, as Spark sends it to other processes."""

    def __init__(self, target: _Target, checkpoint: str, schema: pa.Schema) -> None:
        self._target = target
        self._checkpoint = checkpoint
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        """Write a partition's rows to the log, in an executor."""
        task = TaskContext.get()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        if self._log().batch(int(batch)) is not None:
            deque(iterator, maxlen=0)  # all of them, as what makes them may have state of its own to write
            return _Message(query, ())
        return _Message(query, self._log().write(int(batch), task.partitionId(), self._schema, iterator))

    def commit(self, messages: Sequence[_Message | None], batch: int) -> None:
        """Add a batch to the log, in the driver; Spark asks again after a crash."""
        written = [message for message in messages if message is not None]
        if len(written) < len(messages):
            raise SinkError(f"{NAME}: Spark commits batch {batch} without {len(messages) - len(written)} of its tasks")
        query = written[0].query if written else ""
        parts = tuple(part for message in written for part in message.parts)
        now, log = int(time.time() * 1000), self._log()
        covers = "" if self._target.unchecked else _covered(self._checkpoint, batch)
        log.add(batch, LoggedBatch(query, covers, now, parts), self._schema)
        before = log.batch(batch - 1) if batch else None
        if before is not None and before.at // _FORGET_EVERY != now // _FORGET_EVERY:
            log.forget_before(now - milliseconds(self._target.keep), batch)

    def abort(self, messages: Sequence[_Message | None], batch: int) -> None:
        """Leave all as it is: parts that no batch names are never read, and go with the batches of their time."""

    def _log(self) -> StreamLog:
        return open_log(self._target.path)


class Stream(DataSource):  # type: ignore[misc]
    """The format; Spark makes it and asks for its writer at every batch."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format(...)` takes."""
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> _StreamWriter:  # noqa: N802 (Spark's name)
        """Return the writer; raise `SinkError` for options or a mode that cannot be, `WrongLog` for other columns.

        `overwrite` is output mode "complete".
        """
        if overwrite:
            raise SinkError(
                f"{NAME}: outputMode('complete') gives the whole result anew with every batch, and a stream program "
                "takes each row once; use outputMode('append'), and aggregate in the program"
            )
        given = options_of(NAME, _Target, self.options)
        target = _Target(everywhere(given.path), given.keep, given.unchecked)
        if faults := password_faults(target.path):
            raise SinkError(f"{NAME}: {'; '.join(faults)}")
        milliseconds(target.keep, "keep")
        checkpoint = str(self.options.get("checkpointLocation", ""))
        if not (checkpoint or target.unchecked):
            raise SinkError(
                f"{NAME} needs the option 'checkpointLocation', also where Spark's settings name one for all queries: "
                f"it reads there what each batch covers, and notices a checkpoint that was wound back. {_ACCEPT}"
            )
        columns = plain(to_arrow_schema(schema, timezone="UTC"))
        open_log(target.path).check_schema(columns)
        return _StreamWriter(target, checkpoint, columns)


_ACCEPT: Final = "With the option unchecked=true that is not noticed, and rows may come twice or never"


def _covered(checkpoint: str, batch: int) -> str:
    """Return a digest of Spark's note of the input that the batch covers; raise `SinkError` if it cannot be read."""
    place = f"{checkpoint}/offsets/{batch}"
    try:
        with fsspec.open(place, "rb") as note:
            return sha256(note.read()).hexdigest()
    except (OSError, ValueError, ImportError) as error:
        raise SinkError(
            f"{NAME}: Python cannot read in the driver what batch {batch} covers, {place}: {error}. Give "
            f"checkpointLocation as an address with its scheme, and install what fsspec needs for it. {_ACCEPT}"
        ) from error
