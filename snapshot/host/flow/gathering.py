"""Rows that an operator is about to be given: small batches become larger ones, as its work is mostly per batch.

Invariant: of each input rows are handed on in the order in which they were added; and what was not taken stays
in front, with the channel that it came on, as long as it takes.
A source that is on time makes a batch each millisecond: what has waited for a second, for a state that was being opened
or in an outage, would else be a thousand batches of a few rows each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from snapshot.ids import ChannelId
from snapshot.operators.rows import Rows, joined

Input = TypeVar("Input")

_ENOUGH: Final = 4096
"""So many rows are not worth a copy to have more of them together."""
_ENOUGH_BYTES: Final = 1 << 20
"""Nor are so many bytes, however few rows they are."""


@dataclass(slots=True)
class Line:
    """The rows of one input, in order: batches with the channel and the size of each."""

    pieces: deque[tuple[ChannelId, Rows, int]] = field(default_factory=deque)
    count: int = 0
    bytes: int = 0


class RowGatherer(Generic[Input]):
    """Rows of several inputs on their way to `take`, which says how many of the first ones it took: one at least.

    It gets no more than `most` at once, and no more bytes than are worth it, unless a batch has more. The caller owes
    that all is handed on before anything that has its place behind the rows, and as soon as there is enough.
    """

    def __init__(
        self, take: Callable[[Input, Rows], int], most: int, on_taken: Callable[[ChannelId, int], object]
    ) -> None:
        """`on_taken` hears how many rows were taken that have come on which channel."""
        self._take = take
        self._on_taken = on_taken
        self._most = min(most, _ENOUGH)
        self._lines: dict[Input, Line] = {}

    def __bool__(self) -> bool:
        """True if there are rows."""
        return bool(self._lines)

    @property
    def is_enough(self) -> bool:
        """True if an input has so many rows that waiting for more is not worth it."""
        return any(self._has_enough(line) for line in self._lines.values())

    @property
    def bytes(self) -> int:
        """Return roughly how much memory the rows refer to."""
        return sum(line.bytes for line in self._lines.values())

    def add(self, input: Input, channel: ChannelId, rows: Rows) -> None:
        """Take a batch of an input that has come on this channel."""
        if not len(rows):
            return
        line = self._lines.get(input)
        if line is None:
            line = self._lines[input] = Line()
        size = rows.size
        line.pieces.append((channel, rows, size))
        line.count += len(rows)
        line.bytes += size

    def hand_on(self, limit: int) -> None:
        """Hand on a batch, of so many rows at most, of an input that has enough, or else of that which began first."""
        enough = (input for input, line in self._lines.items() if self._has_enough(line))
        input = next(enough, next(iter(self._lines)))
        line = self._lines[input]
        batch = self._batch(line, limit)
        taken = self._take(input, batch)
        line.count -= taken
        if not line.count:
            del self._lines[input]
        while taken:
            channel, rows, size = line.pieces.popleft()
            some = min(taken, len(rows))
            line.bytes -= size
            if some < len(rows):
                left = rows.slice(some, len(rows) - some)
                line.pieces.appendleft((channel, left, left.size))
                line.bytes += left.size
            taken -= some
            self._on_taken(channel, some)

    def flush(self) -> None:
        """Hand on all that is here, however long it takes."""
        while self._lines:
            self.hand_on(self._most)

    def left(self) -> Mapping[ChannelId, list[Rows]]:
        """Return the rows that were not taken, in order, by the channel that they came on."""
        found: dict[ChannelId, list[Rows]] = {}
        for line in self._lines.values():
            for channel, rows, _ in line.pieces:
                found.setdefault(channel, []).append(rows)
        return found

    def _has_enough(self, line: Line) -> bool:
        return line.count >= self._most or line.bytes >= _ENOUGH_BYTES

    def _batch(self, line: Line, limit: int) -> Rows:
        """Return the first rows of an input: whole batches within the bounds, at least one, cut to `limit` rows."""
        some: list[Rows] = []
        count = together = 0
        for _, rows, size in line.pieces:
            if some and (count + len(rows) > self._most or together + size > _ENOUGH_BYTES):
                break
            some.append(rows)
            count, together = count + len(rows), together + size
            if count >= limit:
                break
        batch = joined(some)
        return batch if count <= limit else batch.slice(0, limit)


class EvenGatherer(RowGatherer[Input]):
    """Hands on batches of exactly `most` rows, whatever the pieces in which rows come, and what is left as it is.

    So the caller owes to say when no more rows of the input can come to those that are left.
    """

    def __init__(
        self, take: Callable[[Input, Rows], int], most: int, on_taken: Callable[[ChannelId, int], object]
    ) -> None:
        super().__init__(take, most, on_taken)
        self._most = most

    def _has_enough(self, line: Line) -> bool:
        return line.count >= self._most

    def _batch(self, line: Line, limit: int) -> Rows:
        """Return the next batch, whatever the limit."""
        del limit
        some: list[Rows] = []
        count = 0
        for _, rows, _ in line.pieces:
            some.append(rows)
            count += len(rows)
            if count >= self._most:
                break
        batch = joined(some)
        return batch if count <= self._most else batch.slice(0, self._most)


Take = Callable[[Rows], None]


class AtOnce:
    """Rows that an operator gives to its outputs, each batch as it comes."""

    def __init__(self, take: Take, most: int) -> None:
        del most
        self.rows = take

    def flush(self) -> None:
        """Do nothing, as nothing waits."""


class Even:
    """Rows that an operator gives to its outputs, in batches of exactly `most`, and what is left when it is flushed.

    So it cannot be told from the batches in how many pieces the operator did its work.
    """

    def __init__(self, take: Take, most: int) -> None:
        self._take = take
        self._most = most
        self._pieces: list[Rows] = []
        self._count = 0

    def rows(self, rows: Rows) -> None:
        """Take rows."""
        self._pieces.append(rows)
        self._count += len(rows)
        while self._count >= self._most:
            together = joined(self._pieces)
            left = len(together) - self._most
            self._pieces = [together.slice(self._most, left)] if left else []
            self._count = left
            self._take(together.slice(0, self._most) if left else together)

    def flush(self) -> None:
        """Hand on what is left."""
        if self._count:
            together = joined(self._pieces)
            self._pieces, self._count = [], 0
            self._take(together)
