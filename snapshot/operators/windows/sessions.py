"""The sessions of a key: rows of a batch that belong together, sessions that become one, and their stored form.

Invariant: two times of a key are in one session if less than the gap is between them, or between neighbours
all the way from one to the other; sessions of a key do not overlap. What ends beyond 64 bits is cut off there, and the
last of all times, which would be in no session then, counts as the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from snapshot.cut.frames import LATEST
from snapshot.operators.rows import Times
from statebackend.entries import delimited, undelimited
from statebackend.keys.columns import KeyColumn
from statebackend.states.codecs import Codec, refusal
from statebackend.tables.format.blocks import arrow_keys

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Piece(Generic[C]):
    """A session, or a part of one: the times from `start` up to, not including, `end`, and what it has come to."""

    start: int
    end: int
    content: C


@dataclass(frozen=True, slots=True, eq=False)
class BatchSessions:
    """The sessions that the rows of a batch make up by themselves, those of a key side by side and ascending.

    `of_row` is the session of each row; `first_row` a row of each session, `starts` and `ends` its times.
    """

    of_row: NDArray[np.int64]
    first_row: NDArray[np.int64]
    starts: Times
    ends: Times
    of_key: NDArray[np.int64]
    """Equal for sessions of one key, and different for those of different ones."""

    @classmethod
    def of(cls, keys: KeyColumn, times: Times, gap: int) -> BatchSessions:
        """Return the sessions of rows with these keys and times; there must be at least one row."""
        codes = pc.dictionary_encode(arrow_keys(keys), null_encoding="encode").indices.to_numpy().astype(np.int64)
        times = np.minimum(times, LATEST - 1)
        by_time = np.lexsort((times, codes))
        code, time = codes[by_time], times[by_time]
        # Of a key they ascend, and how far one is behind the other needs all 64 bits.
        behind = (time[1:] - time[:-1]).view(np.uint64)
        begins = np.concatenate(([True], (code[1:] != code[:-1]) | (behind >= gap)))
        of_row = np.empty(len(times), dtype=np.int64)
        of_row[by_time] = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(times)) - 1
        ends = np.minimum(time[last], LATEST - gap) + gap
        return cls(of_row, by_time[first], time[first], ends, code[first])

    def __len__(self) -> int:
        return len(self.starts)


def united(pieces: Sequence[Piece[C]]) -> Iterator[list[Piece[C]]]:
    """Yield the pieces of each session of one key, in the order of the sessions' starts; within, in the order given."""
    ordered = sorted(range(len(pieces)), key=lambda at: pieces[at].start)
    together: list[int] = []
    end = 0
    for at in ordered:
        if together and pieces[at].start >= end:
            yield [pieces[one] for one in sorted(together)]
            together = []
        end = max(end, pieces[at].end) if together else pieces[at].end
        together.append(at)
    if together:
        yield [pieces[one] for one in sorted(together)]


T = TypeVar("T")


class SequenceCodec(Codec[tuple[T, ...]]):
    """Tuples of any length. A tuple is taken as it is: the caller owes items that the inner codec takes."""

    exact = tuple

    def __init__(self, inner: Codec[T]) -> None:
        self._inner = inner
        self.name = f"sequence<{inner.name}>"
        self.immutable = inner.immutable

    def encode(self, value: tuple[T, ...]) -> bytes:
        """Write each item with its length."""
        return b"".join([delimited(self._inner.encode(item)) for item in value])

    def decode(self, data: bytes) -> tuple[T, ...]:
        """Read the items that `encode` wrote."""
        items: list[T] = []
        at = 0
        while at < len(data):
            item, at = undelimited(data, at)
            items.append(self._inner.decode(item or b""))
        return tuple(items)

    def accept(self, value: object) -> tuple[T, ...]:
        """Return a plain tuple of the items as the inner codec takes them; raise `NotEncodable` for no sequence."""
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise refusal(self.name, value)
        items: Sequence[Any] = value
        return tuple([self._inner.accept(item) for item in items])
