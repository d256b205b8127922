"""Rows from a list, with places at which the job fails, waits or ends for now: what tests of programs read.

Invariant: the list is the whole truth; from a position on the same rows follow in the same order.
"""

from __future__ import annotations

from collections.abc import Collection as AnyOf
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

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

_WAIT = 60.0
"""Seconds until a split that has ended for now is asked again, in vain."""


@dataclass(frozen=True, slots=True)
class ABORT:
    """Here the attempt fails with `Aborted`, once: the k-th of a split does so in attempts up to k, of each start."""


@dataclass(frozen=True, slots=True)
class EOF:
    """Here the split ends for now, and the job waits. An attempt that starts from a cut that was made while it waited
    goes on behind it: the next start after a savepoint, or the attempt after a crash. At least a row stands before it.
    """


@dataclass(frozen=True, slots=True)
class PAUSE:
    """Here nothing comes for so many seconds; a restored reader that meets it waits again."""

    seconds: float


Row: TypeAlias = "Sequence[object] | Mapping[str, object]"
Item: TypeAlias = "Row | ABORT | EOF | PAUSE"


class Aborted(SourceError):
    """A collection has come to an `ABORT()`: the test wanted it."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A source of these rows: tuples, lists and named tuples in the order of the columns, or mappings by name.

    With several splits, items are dealt out in turns, `ABORT`, `EOF` and `PAUSE` among them: of n splits, split s has
    the items i with i % n == s.
    """

    rows: Sequence[Item]
    schema: pa.Schema
    splits: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", arrow_schema(self.schema))

    @property
    def bounded(self) -> bool:
        """True if no split stops to wait at an `EOF`."""
        return not any(isinstance(item, EOF) for item in self.rows)

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
        """Report rows that do not fit the schema, and an `EOF` that no attempt would get past."""
        if self.splits < 1:
            return [f"a collection cannot have {self.splits} splits; splits must be 1 or more"]
        problems = []
        for place, item in enumerate(self.rows):
            if isinstance(item, EOF) and not any(
                _is_row(before) for before in self.rows[place % self.splits : place : self.splits]
            ):
                problems.append(f"item {place} of the collection is an EOF, and no row stands before it in its split")
        try:
            _batch([(place, item) for place, item in enumerate(self.rows)], self.schema)
        except SourceError as error:
            problems.append(str(error))
        return problems

    def discover(self, parallelism: int) -> Sequence[str]:  # noqa: ARG002
        """Return the names of the splits, the same for every parallelism."""
        return [str(index) for index in range(self.splits)]

    def unavailable(self) -> Sequence[str]:
        """Return no reason."""
        return ()

    def available(self, known: AnyOf[str], reading: Mapping[str, JsonLike]) -> Available:  # noqa: ARG002
        """Return the places of the next `EOF` of each split."""
        ends: dict[str, JsonLike] = {}
        for split, position in reading.items():
            items = self.rows[int(split) :: self.splits] if split.isdecimal() else []
            done = position if isinstance(position, int) else 0
            behind = [place for place in range(done, len(items)) if isinstance(items[place], EOF)]
            if position is not None and behind and not any(map(_is_row, items[done : behind[0]])):
                del behind[0]  # the split had ended there when the position was noted
            if behind:
                ends[split] = behind[0]
        return Available(ends=ends)

    def open(self, context: SplitContext) -> CollectionReader:
        """Open a split, from the item on that the position counts."""
        position = context.position
        if not context.split.isdecimal() or not 0 <= int(context.split) < self.splits:
            raise WrongPosition(f"source {context.uid}: {context.split!r} is no split of a collection of {self.splits}")
        if position is not None and not isinstance(position, int):
            raise WrongPosition(
                f"source {context.uid}, split {context.split}: {position!r} is no position in a collection"
            )
        return CollectionReader(self, int(context.split), position, context)


class CollectionReader:
    """One split; a position is how many of its items are done."""

    def __init__(self, source: Collection, split: int, position: int | None, context: SplitContext) -> None:
        self._items = list(enumerate(source.rows))[split :: source.splits]
        self._schema = source.schema
        self._next = position or 0
        self._until = context.until if isinstance(context.until, int) else len(self._items)
        self._passes_eof = position is not None
        self._context = context
        self._resume_at: float | None = None

    def read(self, most: int) -> Reading:
        """Return the rows up to the next `ABORT`, `EOF` or `PAUSE`."""
        while self._next < self._until:
            match self._items[self._next][1]:
                case ABORT():
                    self._abort()
                case EOF():
                    if not self._passes_eof:
                        return Later(means.wall() + _WAIT)
                case PAUSE(seconds):
                    if (until := self._paused(seconds)) is not None:
                        return Later(until)
                case _:
                    return self._rows(most)
            self._next += 1
        return Exhausted()

    def close(self) -> None:
        """Do nothing, as nothing is held open."""

    def _rows(self, most: int) -> Batch:
        self._passes_eof = False
        chosen = []
        for place, item in self._items[self._next : self._next + most]:
            if not _is_row(item):
                break
            chosen.append((place, item))
        self._next += len(chosen)
        return Batch(_batch(chosen, self._schema), self._next)

    def _abort(self) -> None:
        number = sum(1 for _, item in self._items[: self._next + 1] if isinstance(item, ABORT))
        if self._context.attempt <= number:
            raise Aborted(
                f"source {self._context.uid}, split {self._context.split}: item {self._items[self._next][0]} of the "
                f"collection is an ABORT, the split's number {number}; attempts from {number + 1} on get past it"
            )

    def _paused(self, seconds: float) -> float | None:
        """Return the time at which the pause ends; None if it is over."""
        now = means.wall()
        self._resume_at = now + seconds if self._resume_at is None else self._resume_at
        if now < self._resume_at:
            return self._resume_at
        self._resume_at = None
        return None


def _is_row(item: Item) -> bool:
    return not isinstance(item, ABORT | EOF | PAUSE)


def _batch(items: Sequence[tuple[int, Item]], schema: pa.Schema) -> pa.RecordBatch:
    rows = [(place, _values(place, item, schema)) for place, item in items if not isinstance(item, ABORT | EOF | PAUSE)]
    columns = []
    for number, field in enumerate(schema):
        try:
            columns.append(pa.array([values[number] for _, values in rows], field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError):
            for place, values in rows:
                _check_value(place, values[number], field)
            raise
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(place: int, row: Row, schema: pa.Schema) -> Sequence[object]:
    if isinstance(row, Mapping):
        missing, more = set(schema.names) - row.keys(), row.keys() - set(schema.names)
        if missing or more:
            raise SourceError(
                f"item {place} of the collection has the columns {', '.join(map(str, row))}; "
                f"the schema has {', '.join(schema.names)}"
            )
        return [row[name] for name in schema.names]
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        raise SourceError(f"item {place} of the collection is {row!r}, which is no tuple, list or mapping")
    if len(row) != len(schema):
        raise SourceError(f"item {place} of the collection has {len(row)} values; the schema has {len(schema)} columns")
    return row


def _check_value(place: int, value: object, field: pa.Field) -> None:
    try:
        pa.array([value], field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as error:
        raise SourceError(
            f"item {place} of the collection has {value!r} in the column {field.name!r} of {field.type}: {error}"
        ) from error
