"""Rows made by a function of their number: as many as wanted, as fast or as slowly as wanted, and again the same.

Invariant: row i of a source is a function of i alone (and, if it has a scheduled time, of its split's name), so that a
split that is read again gives what it gave before, and a test that knows the function can compute the truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from snapshot.program.source import (
    Available,
    Batch,
    Exhausted,
    Later,
    Reading,
    SourceError,
    SplitContext,
    WrongPosition,
)
from snapshot.tree.frozen_json import JsonLike
from statebackend import means
from statebackend.columns import arrow_schema

Indices: TypeAlias = NDArray[np.int64]
Columns: TypeAlias = Mapping[str, "ArrayLike | pa.Array"]
Clock: TypeAlias = Callable[[], float]
"""Seconds since 1970."""

_TICK = 0.001
"""Rows that are due within this time come together, so that a slow source costs little."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_SPLIT = re.compile(r"(?P<index>\d+) of (?P<splits>[1-9]\d*)(?: from (?P<start>\d+))?")


@dataclass(frozen=True, slots=True)
class Generate:
    """A source of the rows 0, 1, 2 ... up to `count`, or without an end.

    `function` takes the numbers of the rows that are wanted and gives their columns, as a record batch or by name; it
    must depend on nothing else, and be known by import or by value to the processes that run partitions. Splits have
    the rows in turns: of n splits, split s has the rows i with i % n == s. There are `splits` of them, or as many as
    partitions when the job is born.

    With a `rate`, in rows per second of all splits together, row i is made when `start + i / rate` has come and not
    earlier; what an outage has delayed follows at once. The start is the moment at which the job is born, and it is
    part of the splits' names, so that rows keep their times when they are made again. `scheduled` names the column of
    the schema that has this time: a timestamp, or int64 for microseconds since 1970. The function does not give it.
    """

    function: Callable[[Indices], pa.RecordBatch | Columns]
    schema: pa.Schema
    count: int | None = None
    rate: float | None = None
    scheduled: str | None = None
    splits: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", arrow_schema(self.schema))

    @property
    def bounded(self) -> bool:
        """True if there is a `count`."""
        return self.count is not None

    @property
    def blocking(self) -> bool:
        """Return False: reads wait for nothing."""
        return False

    @property
    def on_demand(self) -> bool:
        """Return False: all splits are read side by side."""
        return False

    @property
    def discover_every(self) -> float | None:
        """Return None: no splits are ever added."""
        return None

    def check(self) -> Sequence[str]:
        """Return what is wrong with the arguments, in sentences."""
        problems = []
        function: object = self.function
        if not callable(function):
            problems.append(f"the function of a generator is {function!r}, which cannot be called")
        if self.count is not None and self.count < 0:
            problems.append(f"a generator cannot make {self.count} rows; count must be 0 or more")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            problems.append(f"a generator cannot make {self.rate} rows per second; rate must be more than 0")
        if self.splits is not None and self.splits < 1:
            problems.append(f"a generator cannot have {self.splits} splits; splits must be 1 or more")
        if self.scheduled is not None:
            problems += self._check_scheduled(self.scheduled)
        return problems

    def _check_scheduled(self, name: str) -> Sequence[str]:
        if self.rate is None:
            return [f"rows of a generator without a rate have no scheduled time for the column {name!r}; give a rate"]
        if self.schema.get_field_index(name) < 0:
            return [f"the schema has no column {name!r} for the scheduled time; it has {', '.join(self.schema.names)}"]
        type = self.schema.field(name).type
        if not pa.types.is_timestamp(type) and type != pa.int64():
            return [f"the column {name!r} for the scheduled time is {type}; it must be a timestamp or int64"]
        return []

    def discover(self, parallelism: int) -> Sequence[str]:
        """Return names that contain all that the splits' rows depend on besides the function and the rate."""
        splits = self.splits or parallelism
        start = "" if self.rate is None else f" from {means.wall_ns() // 1_000}"
        return [f"{index} of {splits}{start}" for index in range(splits)]

    def unavailable(self) -> Sequence[str]:
        """Refuse rows without an end and without a rate, as none of them is ever due."""
        if self.count is not None or self.rate is not None:
            return ()
        return ("a generator without count and rate makes rows for ever, and has no end now; give one of them",)

    def available(self, known: Collection[str], reading: Mapping[str, JsonLike]) -> Available:  # noqa: ARG002
        """Return how many rows of each split are due now, if there is a rate."""
        return Available(ends={} if self.rate is None else {name: self._due(name, means.wall()) for name in reading})

    def _due(self, name: str, now: float) -> int:
        """Return how many rows of a split have a scheduled time that has come."""
        assert self.rate is not None
        match = _SPLIT.fullmatch(name)
        if match is None:
            return 0
        return _due(now, int(match["start"] or 0), self.rate, int(match["index"]), int(match["splits"]))

    def open(self, context: SplitContext) -> GenerateReader:
        """Open a split, from the row on that the position counts."""
        return GenerateReader(self, context, means.wall)


def _due(now: float, start: int, rate: float, index: int, splits: int) -> int:
    """Return how many rows of this split have a scheduled time that has come; they began at `start` in microseconds."""
    return max(0, (int((now - start / 1e6) * rate) - index) // splits + 1)


class GenerateReader:
    """One split; a position is how many of its rows have been made. `SourceError` for what the function should not do,
    and as they are the exceptions that it raises.
    """

    def __init__(self, source: Generate, context: SplitContext, clock: Clock) -> None:
        match = _SPLIT.fullmatch(context.split)
        if match is None or (source.rate is not None and match["start"] is None):
            raise WrongPosition(
                f"source {context.uid}: {context.split!r} is no split of this generator; it was another source, or had "
                f"no rate, when the job was born. Give the source a new uid"
            )
        made = 0 if context.position is None else context.position
        if not isinstance(made, int):
            raise WrongPosition(f"source {context.uid}, split {context.split}: {made!r} is no position of a generator")
        self._source = source
        self._context = context
        self._clock = clock
        self._index, self._splits = int(match["index"]), int(match["splits"])
        self._start = int(match["start"] or 0)
        self._made = made
        self._looks_at = 0.0  # what falls due while rows are made is little, and a batch costs the same for few rows
        last = None if source.count is None else source.count - self._index
        self._all = None if last is None else max(0, -(-last // self._splits))
        if isinstance(context.until, int):
            self._all = context.until if self._all is None else min(self._all, context.until)
        names = [name for name in source.schema.names if name != source.scheduled]
        self._given = pa.schema([source.schema.field(name) for name in names])

    def read(self, most: int) -> Reading:
        """Return the next rows that are due."""
        end = self._made + most
        if self._all is not None:
            if self._made >= self._all:
                return Exhausted()
            end = min(end, self._all)
        if self._source.rate is not None:
            now = self._clock()
            if now < self._looks_at:
                return Later(self._looks_at)
            due = _due(now, self._start, self._source.rate, self._index, self._splits)
            if due <= self._made:
                return Later(max(now + _TICK, self._time(self._index + self._made * self._splits)))
            if due <= end:
                end, self._looks_at = due, now + _TICK
        first = self._index + self._made * self._splits
        indices = np.arange(first, self._index + end * self._splits, self._splits, dtype=np.int64)
        batch = self._batch(indices)
        self._made = end
        return Batch(batch, end)

    def close(self) -> None:
        """Do nothing, as nothing is held open."""

    def _time(self, index: int) -> float:
        assert self._source.rate is not None
        return self._start / 1e6 + index / self._source.rate

    def _batch(self, indices: Indices) -> pa.RecordBatch:
        made = self._source.function(indices)
        if isinstance(made, pa.RecordBatch):
            made = dict(zip(made.schema.names, made.columns, strict=True))
        arrays = {field.name: self._column(made, field, len(indices)) for field in self._given}
        if self._source.scheduled is not None:
            arrays[self._source.scheduled] = self._scheduled(indices)
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._source.schema.names], schema=self._source.schema
        )

    def _column(self, made: Columns, field: pa.Field, rows: int) -> pa.Array:
        column = made.get(field.name)
        if column is None:
            raise self._refusal(f"gave no column {field.name!r}; it gave {', '.join(map(str, made)) or 'none'}")
        try:
            array = pa.array(column, field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise self._refusal(f"gave a column {field.name!r} that is not {field.type}: {error}") from error
        if len(array) != rows:
            raise self._refusal(f"was asked for {rows} rows, and gave {len(array)} in the column {field.name!r}")
        return array

    def _scheduled(self, indices: Indices) -> pa.Array:
        assert self._source.rate is not None
        assert self._source.scheduled is not None
        type = self._source.schema.field(self._source.scheduled).type
        micros = self._start + (indices * (1e6 / self._source.rate)).astype(np.int64)
        per_second = _PER_SECOND[type.unit] if pa.types.is_timestamp(type) else 1_000_000
        if per_second <= 1_000_000:
            return pa.array(micros // (1_000_000 // per_second)).cast(type)
        return pa.array(micros * (per_second // 1_000_000)).cast(type)

    def _refusal(self, what: str) -> SourceError:
        name = getattr(self._source.function, "__name__", repr(self._source.function))
        return SourceError(f"source {self._context.uid}, split {self._context.split}: the function {name} {what}")
