"""Rows of a stage on their way: through the chains after its operator, to its sinks, and on channels to the next stage.

Invariant: rows go through a chain one batch after the other, completely, before the operator goes on. On each
channel rows leave in the order in which they came, and a frame that is put comes after all rows that came before it. No
frame has more than `batch_bytes`, but for a single row that has. As far as rows before can tell, neither have the rows
that wait for others on a channel, nor those that it has `room` for at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import Data, End, Frame
from snapshot.host.flow.allowances import UNLIMITED, Allowance
from snapshot.host.net.rows_wire import RowsWire
from snapshot.ids import ChannelId, Copy, Member
from snapshot.operators.operator import Apply
from snapshot.operators.rows import Rows, joined, keys_in
from snapshot.program.plan import Edge, Exchange, Step, Target, ToEdge, ToSink
from statebackend.ids import Epoch, Uid
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType

Take = Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of chains: sinks, edges, and the place where rows get their event time."""

    sinks: Mapping[Uid, Take]
    edges: Mapping[Edge, Take]
    stamp: Callable[[Step, Rows], Rows]


def chained(targets: Sequence[Target], ends: Ends) -> Take:
    """Return a function that takes rows to all of these targets."""
    takes = [_take(target, ends) for target in targets]
    if len(takes) == 1:
        return takes[0]

    def fan_out(rows: Rows) -> None:
        for take in takes:
            take(rows)

    return fan_out


def _take(target: Target, ends: Ends) -> Take:
    match target:
        case ToSink(uid):
            return ends.sinks[uid]
        case ToEdge(edge):
            return ends.edges[edge]
        case Step(transform, event_time, then):
            after = chained(then, ends)
            if event_time is not None:
                after = _stamped(ends.stamp, target, after)
            return after if transform is None else _transformed(transform.open(), transform.label, after)


def _stamped(stamp: Callable[[Step, Rows], Rows], step: Step, after: Take) -> Take:
    def take(rows: Rows) -> None:
        after(stamp(step, rows))

    return take


def _transformed(apply: Apply, label: str, after: Take) -> Take:
    def take(rows: Rows) -> None:
        try:
            results = apply(rows)
        except BaseException as error:
            error.add_note(f"in {label}")
            raise
        for result in results:
            if len(result):
                after(result)

    return take


_NO_LIMIT: Final = 1 << 62
_LAG: Final = 8 << 20

Overtaken = dict[ChannelId, tuple[Data, ...]]


class Outlet(Protocol):
    """The way to one receiver: the sending end of a channel, or several to processes that all have its role."""

    @property
    def id(self) -> ChannelId:
        """Return the channel's id."""

    @property
    def bytes(self) -> int:
        """Return how many bytes wait to be taken."""

    @property
    def allowed(self) -> Allowance:
        """Return how many rows may be put."""

    def put(self, frame: Frame) -> tuple[Data, ...]:
        """Queue a frame, and return the data that it overtook."""


class SendingEnd(Outlet, Protocol):
    """The sending end of a channel to one process."""

    @property
    def copy(self) -> Copy:
        """Return from which process to which it goes."""


class FanOut:
    """All ways to one receiver: every process with its role is given all frames, in the form that was made once.

    A process that is slower than another one holds nothing up until it has `lag` bytes more to take than that.
    """

    def __init__(self, ends: Sequence[SendingEnd], lag: int = _LAG) -> None:
        self._ends = list(ends)
        self._parked: list[tuple[SendingEnd, Epoch]] = []
        self._ended = False
        self._lag = lag
        self.id = ends[0].id
        """The channel's id."""

    def drop(self, receiver: Member) -> None:
        """Put nothing more to a process that is gone; another one has its role."""
        self._ends = [end for end in self._ends if end.copy.receiver != receiver]
        self._parked = [(end, after) for end, after in self._parked if end.copy.receiver != receiver]

    def park(self, end: SendingEnd, after: Epoch) -> None:
        """Keep the way to a process that joins behind a marker, of an epoch `after` this one."""
        self._parked.append((end, after))

    @property
    def parked(self) -> Sequence[SendingEnd]:
        """Return the ways to those that have not joined."""
        return [end for end, _ in self._parked]

    def admit(self, epoch: Epoch) -> None:
        """Put all that comes from now on, behind the marker of this epoch, to those that have waited for it as well.

        Behind the end nothing comes, which they know.
        """
        if not self._ended:
            self._ends += [end for end, after in self._parked if epoch > after]
        self._parked = [(end, after) for end, after in self._parked if epoch <= after]

    @property
    def bytes(self) -> int:
        """Return how many bytes wait to be taken by that process which has the fewest left, mostly."""
        waiting = [end.bytes for end in self._ends] or [0]
        return max(min(waiting), max(waiting) - self._lag)

    @property
    def allowed(self) -> Allowance:
        """Return how many rows may be put, as that process says which allows most."""
        return max((end.allowed for end in self._ends), key=lambda allowance: allowance.rows, default=UNLIMITED)

    def put(self, frame: Frame) -> tuple[Data, ...]:
        """Queue a frame to all; it overtakes nothing."""
        self._ended = self._ended or isinstance(frame, End)
        for end in self._ends:
            end.put(frame)
        return ()


class Router:
    """All channels of one edge that begin in this partition, in the order of their receivers."""

    def __init__(
        self, edge: Edge, channels: Sequence[Outlet], max_parallelism: int, batch_rows: int, batch_bytes: int
    ) -> None:
        self._edge = edge
        self._channels = channels
        self._max_parallelism = max_parallelism
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self.wire = RowsWire(edge.schema, edge.timed)
        """The form of rows between processes; rows that stay in this process may keep their own."""
        self._local = [channel.id.sender == channel.id.receiver for channel in channels]
        self._waiting: list[list[Rows]] = [[] for _ in channels]
        self._counts = [0] * len(channels)
        self._put = [0] * len(channels)
        """The number of rows that each channel was given, including those that wait for others."""
        self.bytes_out = 0
        """Bytes of rows that were put on all channels: as they are encoded, or as they are in memory."""
        self._turn = 0
        self._row_bytes = 0.0
        """The size of a row, estimated from the rows that have come."""
        self._key_type = KeyType.of(_declared(edge)) if edge.exchange is Exchange.KEYED else None
        self.rows_out = 0

    @property
    def edge(self) -> Edge:
        """Return the edge that the rows take."""
        return self._edge

    @property
    def has_waiting(self) -> bool:
        """True if rows wait for others to fill a batch."""
        return any(self._counts)

    def has(self, channel: ChannelId) -> bool:
        """True if it is one of these channels."""
        return any(own.id == channel for own in self._channels)

    def is_full(self, limit: int, *, heed_allowances: bool = True) -> bool:
        """True if a channel has `limit` bytes or more waiting, or has no room for more rows under its allowance."""
        for channel, put in zip(self._channels, self._put, strict=True):
            if channel.bytes >= limit or (heed_allowances and channel.allowed.room(put) <= 0):
                return True
        return False

    @property
    def room(self) -> int:
        """Return about how many rows may come now, 0 or less if none; those with keys are expected to be spread."""
        least = _NO_LIMIT if not self._row_bytes else max(1, int(self._batch_bytes / self._row_bytes))
        for channel, put in zip(self._channels, self._put, strict=True):
            least = min(least, channel.allowed.room(put))
        return least * len(self._channels) if self._edge.exchange is Exchange.KEYED else least

    def rows(self, rows: Rows) -> None:
        """Take rows; what has become a full batch leaves at once."""
        self.rows_out += len(rows)
        self._learn(rows)
        if len(self._channels) == 1:
            self._add(0, rows)
            return
        match self._edge.exchange:
            case Exchange.KEYED:
                self._divide(rows)
            case Exchange.REBALANCE:
                self._add(self._turn, rows)
                self._turn = (self._turn + 1) % len(self._channels)
            case Exchange.BROADCAST | Exchange.FORWARD:
                for place in range(len(self._channels)):
                    self._add(place, rows)

    def flush(self) -> None:
        """Let all rows leave that wait."""
        for place, count in enumerate(self._counts):
            if count:
                self._send(place)

    @property
    def rows_put(self) -> Mapping[ChannelId, int]:
        """Return how many rows each channel was given."""
        return {channel.id: put for channel, put in zip(self._channels, self._put, strict=True)}

    def go_on(self, rows_put: Mapping[ChannelId, int]) -> None:
        """Begin where another process is that has given each channel so many rows."""
        self._put = [rows_put[channel.id] for channel in self._channels]

    def admit(self, epoch: Epoch) -> None:
        """Let processes in that have waited for the marker of this epoch, which was put just now."""
        for channel in self._channels:
            if isinstance(channel, FanOut):
                channel.admit(epoch)

    def begin_anew(self) -> None:
        """Begin with the first receiver again, so that whose turn it is follows from what comes from now on."""
        self._turn = 0

    def put(self, frame: Frame) -> Overtaken:
        """Send a frame on every channel, behind all rows; return what it overtook on which."""
        self.flush()
        overtaken = {channel.id: channel.put(frame) for channel in self._channels}
        return {channel: frames for channel, frames in overtaken.items() if frames}

    def _divide(self, rows: Rows) -> None:
        assert self._key_type is not None
        groups = key_column(keys_in(rows.batch, self._edge.keys), self._key_type).groups(self._max_parallelism)
        owners = groups.astype(np.int64) * len(self._channels) // self._max_parallelism
        if len(self._channels) == 2:
            second = owners == 1
            places: Sequence[NDArray[np.int64]] = (np.flatnonzero(~second), np.flatnonzero(second))
        else:
            order = np.argsort(owners, kind="stable")
            ends = np.searchsorted(owners[order], np.arange(1, len(self._channels)))
            places = np.split(order, ends)
        for place, indices in enumerate(places):
            if len(indices) == len(rows):
                self._add(place, rows)
            elif len(indices):
                self._add(place, rows.take(indices))

    def _add(self, place: int, rows: Rows) -> None:
        self._waiting[place].append(rows)
        self._counts[place] += len(rows)
        self._put[place] += len(rows)
        count = self._counts[place]
        if count >= self._batch_rows or count * self._row_bytes >= self._batch_bytes:
            self._send(place)

    def _send(self, place: int) -> None:
        rows = joined(self._waiting[place])
        self._waiting[place] = []
        self._counts[place] = 0
        for start in range(0, len(rows), self._batch_rows):
            for piece in self._small(rows.slice(start, min(self._batch_rows, len(rows) - start))):
                data = Data(piece, piece.size, len(piece)) if self._local[place] else self.wire.encode(piece)
                self.bytes_out += data.size
                self._channels[place].put(data)

    def _learn(self, rows: Rows) -> None:
        """Learn the bytes per row: from larger rows than before at once, from smaller ones by and by."""
        size = rows.size / len(rows)
        self._row_bytes = max(size, (self._row_bytes + size) / 2)

    def _small(self, rows: Rows) -> Iterator[Rows]:
        """Yield the rows in batches that are not too many bytes; one row alone may be."""
        if len(rows) == 1 or rows.size <= self._batch_bytes:
            yield rows
            return
        half = len(rows) // 2
        yield from self._small(rows.slice(0, half))
        yield from self._small(rows.slice(half, len(rows) - half))


def _declared(edge: Edge) -> object:
    types: tuple[pa.DataType, ...] = tuple(edge.schema.field(name).type for name in edge.keys)
    return types[0] if len(types) == 1 else types
