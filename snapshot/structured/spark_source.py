"""A streaming DataFrame as a source: the micro-batches that its query has committed to a log.

Invariant: a position is a place in the log, which never changes; so a roll-back, a rewind or a fork reads the same rows
again without the query, which runs on meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from snapshot.connectors.files.folder import everywhere, password_faults
from snapshot.program.plan import EventTime
from snapshot.program.source import (
    Available,
    Batch,
    Exhausted,
    Later,
    Reading,
    SplitContext,
    WrongPosition,
)
from snapshot.structured.stream_log import Part, StreamLog, open_log, plain
from snapshot.tree.frozen_json import JsonLike
from statebackend import means
from statebackend.columns import SchemaLike, arrow_schema
from statebackend.durations import Duration, in_words, milliseconds
from statebackend.errors import ProgramError
from statebackend.stores.store import BlobNotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPLIT: Final = re.compile(r"(?P<index>\d+) of (?P<splits>[1-9]\d*) of (?P<log>[0-9a-f]{16}) from (?P<start>\d+)")
_DELAY: Final = "spark.watermarkDelayMs"
"""Spark notes under this name in a column's metadata how late its times may be."""
_SPAN_EVERY: Final = 10.0
"""Seconds between two looks at a log that has nothing new, for whether it still is what it was."""


class NotStreaming(ProgramError, ValueError):
    """A DataFrame that is not streaming, of which no query can be started; the message says what to read instead."""


@dataclass(frozen=True, slots=True)
class SparkSource:
    """A source of the rows that a query of Structured Streaming writes to a log.

        clicks = Stream.read(SparkSource("user string, cents bigint", "/data/log"), uid="clicks")

    The query is `df.writeStream.format("epochcut.stream").option("checkpointLocation", ...).start("/data/log")`, of a
    session that `snapshot.structured.register` was called for. `schema` is the streaming DataFrame `df`, or its schema
    where the query runs in another application. `log` is a path or `s3://` address that the query and the program see.
    A micro-batch is read when the query has committed it, as a whole and once; attempts that failed or were repeated
    add nothing. Query and program may be started, stopped and killed one without the other. The log keeps batches as
    long as the query's option `keep` says ("7d").

    There are `splits`, or as many as partitions when the job is born. New batches are looked for `look_every` so often.
    With `expect_every`, a job that has waited longer for a batch reports that as a stall. `event_time` is what
    `withWatermark` says of the DataFrame, for `Stream.read(source, uid="clicks", event_time=source.event_time)`.
    """

    schema: pa.Schema
    log: str
    splits: int | None = None
    look_every: Duration = "50ms"
    expect_every: Duration | None = None
    event_time: EventTime | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "event_time", _event_time_of(self.schema))
        object.__setattr__(self, "schema", _schema_of(self.schema))
        object.__setattr__(self, "log", everywhere(self.log))
        milliseconds(self.look_every, "look_every")
        if self.expect_every is not None:
            milliseconds(self.expect_every, "expect_every")

    @property
    def bounded(self) -> bool:
        """Return False: the query may add batches at any time."""
        return False

    @property
    def blocking(self) -> bool:
        """Return True: a thread of its own reads the log."""
        return True

    @property
    def on_demand(self) -> bool:
        """Return False: all splits are read side by side."""
        return False

    @property
    def discover_every(self) -> float | None:
        """Return None: no splits are ever added."""
        return None

    def check(self) -> Sequence[str]:
        """Report a password in the place of the log, and a number of splits that makes no sense."""
        problems = list(password_faults(self.log))
        if self.splits is not None and self.splits < 1:
            problems.append(f"a log cannot have {self.splits} splits; splits must be 1 or more")
        if milliseconds(self.look_every) < 1:
            problems.append("look_every is 0; a log is looked at every millisecond at most")
        return problems

    def discover(self, parallelism: int) -> Sequence[str]:
        """Return the splits' names, which say of which log they are and with which batch they begin."""
        log, splits = open_log(self.log), self.splits or parallelism
        start = log.batches().start
        return [f"{index} of {splits} of {log.identity} from {start}" for index in range(splits)]

    def unavailable(self) -> Sequence[str]:
        """Return no reason."""
        return ()

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:  # noqa: ARG002
        """Return the end of the newest batch that is committed, the same for each split."""
        end = open_log(self.log).batches().stop
        return Available(ends={split: [end, 0, 0] for split in reading})

    def open(self, context: SplitContext) -> LogReader:
        """Open a split at the place in the log that the position says."""
        return LogReader(self, open_log(self.log), context)


class LogReader:
    """One split: those parts of each batch whose numbers, counted on by the batch's, are its own. A position is a
    batch, how many of its own parts are read, and how many rows of the next one.
    """

    def __init__(self, source: SparkSource, log: StreamLog, context: SplitContext) -> None:
        self._source, self._log, self._context = source, log, context
        match = _SPLIT.fullmatch(context.split)
        if match is None:
            raise self._wrong(f"{context.split!r} is no split of a log; the source was another one. Give it a new uid")
        self._index, self._splits, self._start = int(match["index"]), int(match["splits"]), int(match["start"])
        self._at = self._place(context.position) or (self._start, 0, 0)
        self._until = self._place(context.until)
        if log.identity != match["log"]:
            raise self._wrong(
                f"the log at {source.log} is not the one that the job began with. Put that one back, or give the "
                "source a new uid to begin with this one"
            )
        self._mine: Sequence[Part] | None = None
        self._rows: pa.RecordBatch | None = None
        self._looked_at = -_SPAN_EVERY
        self._since = means.monotonic()
        log.check_schema(source.schema)

    def read(self, most: int) -> Reading:
        """Return the next rows of one part, or the way over a batch that has none for this split."""
        if self._until is not None and self._at >= self._until:
            return Exhausted()
        if self._mine is None:
            self._mine = self._find()
        if self._mine is None:
            return Later(means.wall() + milliseconds(self._source.look_every) / 1000, self._silence())
        batch, part, row = self._at
        if part == len(self._mine):
            return self._moved(pa.RecordBatch.from_pylist([], self._source.schema), (batch + 1, 0, 0))
        if self._rows is None:
            self._rows = self._load(self._mine[part])
        rows = self._rows.slice(row, most)
        if row + rows.num_rows < self._rows.num_rows:
            return self._moved(rows, (batch, part, row + rows.num_rows))
        self._rows = None
        return self._moved(rows, (batch, part + 1, 0) if part + 1 < len(self._mine) else (batch + 1, 0, 0))

    def close(self) -> None:
        """Do nothing, as nothing is held open."""

    def _moved(self, rows: pa.RecordBatch, to: _Place) -> Batch:
        if to[0] != self._at[0]:
            self._mine = None
        self._at = to
        return Batch(rows, list(to))

    def _find(self) -> Sequence[Part] | None:
        """Return this split's parts of the next batch; None if it is not there yet."""
        number = self._at[0]
        found = self._log.batch(number)
        if found is None and means.monotonic() >= self._looked_at + _SPAN_EVERY:
            self._looked_at = means.monotonic()
            if not number or self._log.batch(number - 1) is None:  # else it is the one that comes next
                number = self._next_of(number, self._log.batches())
                found = self._log.batch(number)
        if found is None:
            return None
        self._since = means.monotonic()
        parts = [part for place, part in enumerate(found.parts) if (number + place) % self._splits == self._index]
        if self._at[1] > len(parts):
            raise self._wrong(f"{list(self._at)} is no position: batch {number} has {len(parts)} parts of this split")
        return parts

    def _next_of(self, number: int, there: range) -> int:
        """Return the batch to wait for; raise `WrongPosition` if it will never come."""
        if number == self._start and (first := self._log.first) is not None and first > number:
            self._at = (first, 0, 0)  # the log had not begun when the job was born
            return first
        if len(there) and number < there.start:
            raise self._wrong(_gone(number, there.start, self._source.log))
        if number > max(there.stop, self._start):
            raise self._wrong(
                f"the log at {self._source.log} ends before batch {there.stop}, and the job has read to batch "
                f"{number}: an older copy was put in its place. Put the newer one back"
            )
        return number

    def _load(self, part: Part) -> pa.RecordBatch:
        try:
            rows = self._log.rows(part, self._source.schema)
        except BlobNotFound as error:
            there = self._log.batches()
            raise self._wrong(_gone(self._at[0], there.start, self._source.log)) from error
        if self._at[2] >= rows.num_rows:
            raise self._wrong(f"{list(self._at)} is no position: the part has {rows.num_rows} rows")
        return rows

    def _silence(self) -> str:
        expected = self._source.expect_every
        if expected is None or (means.monotonic() - self._since) * 1000 < milliseconds(expected):
            return ""
        return (
            f"the log at {self._source.log} has had no batch for more than {in_words(milliseconds(expected))}; see "
            "whether the query that writes to it runs"
        )

    def _place(self, position: JsonLike) -> _Place | None:
        match position:
            case None:
                return None
            case [int(batch), int(part), int(row)] if min(batch, part, row) >= 0:
                return batch, part, row
            case _:
                raise self._wrong(f"{position!r} is no position in a log")

    def _wrong(self, what: str) -> WrongPosition:
        return WrongPosition(f"source {self._context.uid}, split {self._context.split!r}: {what}")


_Place: TypeAlias = tuple[int, int, int]


def _gone(number: int, oldest: int, log: str) -> str:
    return (
        f"batch {number} is no longer in the log at {log}, which begins with batch {oldest}. Restore a younger "
        "epoch, or give the source a new uid to begin there; let the query keep batches longer with its option 'keep'"
    )


def _schema_of(declared: SchemaLike | DataFrame) -> pa.Schema:
    frame: Any = declared
    if not hasattr(frame, "isStreaming"):
        return plain(arrow_schema(frame))
    if not frame.isStreaming:
        raise NotStreaming(
            "the DataFrame of a SparkSource is not streaming, so no query can write it to a log: make it with "
            "spark.readStream, or write its rows to files and read these with Files(...)"
        )
    return plain(arrow_schema(frame.schema))


def _event_time_of(declared: SchemaLike | DataFrame) -> EventTime | None:
    """Return the column with a watermark; None without one, or where a schema stands for the DataFrame."""
    frame: Any = declared
    for one in frame.schema.fields if hasattr(frame, "isStreaming") else ():
        if (delay := one.metadata.get(_DELAY)) is not None:
            return EventTime(one.name, timedelta(milliseconds=delay))
    return None
