"""The source of simulated programs: splits whose whole content is known, read in small pieces, with pauses.

Invariant: the items are the whole truth; from a position on the same rows follow in the same order. How much is read
at once, and when, is the reader's to vary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from snapshot.program.source import Batch, Exhausted, Later, Reading, SplitContext, WrongPosition
from statebackend import means
from statebackend.columns import schema_of

_FOR_EVER: Final = 3600.0
"""Seconds until an endless split that was read is asked again, in vain."""

SCHEMA: Final = schema_of({"k": int, "id": int, "at": int, "v": int})
"""The columns of simulated rows: a key, the row's own number, its event time in milliseconds, and a value."""

IDS_OF_A_SPLIT: Final = 1_000
"""The row at place p of split s has the number s * 1000 + p, or more in further sources."""


@dataclass(frozen=True, slots=True)
class Item:
    """One row."""

    key: int
    id: int
    at: int
    value: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """A pause of so many seconds; a restored reader that meets it pauses again."""

    seconds: float


Step: TypeAlias = "Item | Quiet"


def never_fails(_: str) -> None:
    """Let the call that is about to be made be."""


Failing: TypeAlias = "Callable[[str], None]"
"""Raises an error in place of the call with this name, or does nothing."""

_FAILING: Final[dict[str, Failing]] = {}


def let_fail(name: str, failing: Failing | None) -> None:
    """Have the sources and functions of this name ask `failing` before each call; with None no more."""
    if failing is None:
        _FAILING.pop(name, None)
    else:
        _FAILING[name] = failing


def perhaps_fail(name: str, call: str) -> None:
    """Raise what the sources and functions of this name are to raise in this call, if anything."""
    _FAILING.get(name, never_fails)(call)


@dataclass(frozen=True, slots=True)
class SimulatedSource:
    """A source of these splits, `piece` rows at once at most, with a pause of `pace` seconds after each piece.

    An `endless` one waits for more where its splits end.
    """

    name: str
    splits: tuple[tuple[Step, ...], ...]
    piece: int = 2
    pace: float = 0.01
    on_demand: bool = False
    blocking: bool = False
    endless: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of all simulated rows."""
        return SCHEMA

    @property
    def bounded(self) -> bool:
        """True unless it is endless."""
        return not self.endless

    @property
    def discover_every(self) -> float | None:
        """Return None: no splits are added."""
        return None

    def check(self) -> Sequence[str]:
        """Return no problem."""
        return []

    def discover(self, parallelism: int) -> Sequence[str]:  # noqa: ARG002
        """Return the names of the splits, the same for every parallelism."""
        return [str(index) for index in range(len(self.splits))]

    def open(self, context: SplitContext) -> SimulatedReader:
        """Open a split, from the item on that the position counts."""
        position = 0 if context.position is None else context.position
        if not context.split.isdecimal() or not 0 <= int(context.split) < len(self.splits):
            raise WrongPosition(f"source {context.uid}: {context.split!r} is no split of {len(self.splits)}")
        if not isinstance(position, int):
            raise WrongPosition(f"source {context.uid}, split {context.split}: {position!r} is no position")
        return SimulatedReader(self, int(context.split), position)

    def read_up_to(self, positions: Mapping[int, int | None]) -> Iterator[Item]:
        """Yield the rows before these positions of splits; None is the end of a split."""
        for split, position in sorted(positions.items()):
            yield from (item for item in self.splits[split][:position] if isinstance(item, Item))

    @property
    def items(self) -> list[Item]:
        """Return all rows."""
        return list(self.read_up_to(dict.fromkeys(range(len(self.splits)))))


class SimulatedReader:
    """One split; a position is how many of its items are done."""

    def __init__(self, source: SimulatedSource, split: int, position: int) -> None:
        self._source = source
        self._items = source.splits[split]
        self._next = position
        self._not_before = 0.0

    def read(self, most: int) -> Reading:
        """Return the next rows, or when there are some."""
        source, now = self._source, means.monotonic()
        if now < self._not_before:
            return Later(means.wall() + self._not_before - now)
        perhaps_fail(source.name, "read")
        while self._next < len(self._items):
            chosen: list[Item] = []
            for item in self._items[self._next : self._next + min(most, source.piece)]:
                if isinstance(item, Quiet):
                    break
                chosen.append(item)
            if chosen:
                self._next += len(chosen)
                self._not_before = now + source.pace
                return Batch(batch_of(chosen), self._next)
            pause = self._items[self._next]
            assert isinstance(pause, Quiet)
            self._next += 1
            if pause.seconds > 0:
                self._not_before = now + pause.seconds
                return Later(means.wall() + pause.seconds)
        return Later(means.wall() + _FOR_EVER) if source.endless else Exhausted()

    def close(self) -> None:
        """Do nothing, as nothing is held open."""


def batch_of(items: Sequence[Item]) -> pa.RecordBatch:
    """Return the rows as a batch."""
    columns = ([getattr(item, name) for item in items] for name in ("key", "id", "at", "value"))
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)
