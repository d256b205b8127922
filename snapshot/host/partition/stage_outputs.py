"""The outputs of a stage: its chains, the channels that begin there, and how much room there is.

Invariant: a marker or a watermark leaves after all rows that were emitted before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from snapshot import fail_points
from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, Watermark
from snapshot.fail_points import reached
from snapshot.host.flow.pace import Yield
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.router import Ends, Outlet, Router, Take, chained
from snapshot.host.partition.stage_clock import StageClock
from snapshot.ids import ChannelId
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, Stage, Step
from statebackend.ids import Uid

_NOT_YET: Final = float("inf")
_MUCH: Final = 1 << 30
"""Rows for which there is always room."""
_LEAST_FRAME: Final = 64 << 10
"""Rows of so many bytes go in one frame, however little may wait on a channel."""


class StageOutputs:
    """The way of rows out of a stage: to `sinks`, and by `outlets` to other stages; `stamp` gives them event times."""

    def __init__(
        self,
        stage: Stage,
        placement: StatePlacement,
        outlets: Mapping[ChannelId, Outlet],
        sinks: Mapping[Uid, Take],
        stamp: Callable[[Step, Rows], Rows],
        parts: StageParts,
        clock: StageClock,
    ) -> None:
        self._options = placement.options
        self._clock = clock
        self._routers = [_router(edge, placement, outlets) for edge in stage.edges]
        ends = Ends(sinks, {router.edge: router.rows for router in self._routers}, stamp)
        self._chains = {side: chained(targets, ends) for side, targets in stage.outputs.items() if targets}
        most = self._options.batch_rows
        self._emitted = {side: parts.batches(chain, most) for side, chain in self._chains.items()}
        self._yield = Yield()
        self._in_round = False
        self._had_ended = False  # before this process was there: receivers expect nothing of it, not even markers
        self._buffered_since = _NOT_YET
        self._blocked_since: float | None = None
        self._blocked = 0.0

    def emit(self, rows: Rows, side: str | None = None) -> None:
        """Take rows of the operator through the chain of an output."""
        if len(rows):
            emitted = self._emitted.get(side)
            if emitted is not None:
                emitted.rows(rows)

    def hand_out(self, rows: Rows) -> None:
        """Take a batch of the source through its chain, as it is."""
        take = self._chains.get(None)
        if take is not None:
            take(rows)

    # --- other frames than rows -----------------------------------------------------------------------------------

    def watermark(self, watermark: Watermark) -> None:
        """Announce a watermark."""
        self._put(watermark)

    def open_round(self) -> None:
        """Let all rows out that come before the round is closed, whatever receivers allow.

        A receiver takes none of them before, and so allows no more. A stage that waits for room has closed all that it
        has sent; so rounds wait for each other in the order of their numbers alone, never in a circle.
        """
        self._in_round = True

    def boundary(self, number: int) -> None:
        """Close the round."""
        self._put(Boundary(number))
        self._in_round = False

    def _put(self, frame: Frame) -> None:
        self._flush_emitted()
        for router in self._routers:
            router.put(frame)

    def _flush_emitted(self) -> None:
        for emitted in self._emitted.values():
            emitted.flush()

    def marker(self, marker: Marker) -> dict[ChannelId, Sequence[Data]]:
        """Send a marker; return the frames that it overtook."""
        self._flush_emitted()
        overtaken: dict[ChannelId, Sequence[Data]] = {}
        for router in self._routers:
            if not self._had_ended:
                overtaken.update(router.put(marker))
            if self._clock.close_round is not None:
                router.begin_anew()
            if marker.admits:
                router.admit(marker.epoch)
            reached(fail_points.MARKER_SENT)
        return overtaken

    @property
    def rows_put(self) -> Mapping[ChannelId, int]:
        """Return how many rows each channel was given."""
        return {channel: rows for router in self._routers for channel, rows in router.rows_put.items()}

    def go_on(self, rows_put: Mapping[ChannelId, int], *, ended: bool) -> None:
        """Begin where another process is that has given each channel so many rows, and perhaps `ended` all of them."""
        self._had_ended = ended
        for router in self._routers:
            router.go_on(rows_put)

    def end(self, number: int) -> None:
        """End all channels with the round of this number, or 0 where there are no rounds."""
        self._flush_emitted()
        for router in self._routers:
            router.put(End(number))
            reached(fail_points.OUTPUT_ENDED)

    # --- rows that wait for others --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Let rows leave that wait for others."""
        for router in self._routers:
            router.flush()
        self._buffered_since = _NOT_YET

    def flush_if_lingering(self, now: float) -> None:
        """Let rows leave that have waited long enough."""
        if not any(router.has_waiting for router in self._routers):
            self._buffered_since = _NOT_YET
        elif self._buffered_since == _NOT_YET:
            self._buffered_since = now
        elif now - self._buffered_since >= self._options.linger / 1000:
            self.flush()

    # --- room -----------------------------------------------------------------------------------------------------

    def is_blocked(self) -> bool:
        """True if an output is full; the time that this lasts is noted."""
        full = False
        for router in self._routers:
            full = full or router.is_full(self._options.channel_buffer, heed_allowances=not self._in_round)
        if full and self._blocked_since is None:
            self._blocked_since = self._clock.monotonic()
        elif not full and self._blocked_since is not None:
            self._blocked += self._clock.monotonic() - self._blocked_since
            self._blocked_since = None
        return full

    @property
    def was_blocked(self) -> bool:
        """True if an output was full when `is_blocked` was asked last."""
        return self._blocked_since is not None

    @property
    def blocked_for(self) -> float:
        """Return for how many seconds outputs have been full."""
        return self._blocked + (self._clock.monotonic() - self._blocked_since if self._blocked_since is not None else 0)

    def most(self, rows: int) -> int:
        """Return how many rows to work on at once, `rows` at most, so that their output fits where it goes."""
        for router in self._routers:
            room = router.room
            if room < _MUCH:
                rows = min(rows, self._yield.rows_for(room))
        return rows

    def gave(self, rows: int, before: int) -> None:
        """Learn how many rows came out for `rows` that went in, when `rows_out` was at `before`."""
        self._yield.gave(rows, self.rows_out - before)

    @property
    def rows_out(self) -> int:
        """Return how many rows went out to that edge which had most."""
        most = 0
        for router in self._routers:
            most = max(most, router.rows_out)
        return most

    @property
    def all_rows_out(self) -> int:
        """Return how many rows went out to all edges."""
        return sum(router.rows_out for router in self._routers)

    @property
    def bytes_out(self) -> Mapping[Uid, int]:
        """Return the bytes of rows that went out to each stage."""
        found: dict[Uid, int] = {}
        for router in self._routers:
            found[router.edge.target] = found.get(router.edge.target, 0) + router.bytes_out
        return found

    def encoded(self, channel: ChannelId, rows: Rows) -> Data:
        """Encode rows that wait on a channel; any thread may ask."""
        return self._wire(channel).encode(rows)

    def counted(self, channel: ChannelId, data: Data) -> Data:
        """Return data of a channel, as it is encoded, with the number of its rows."""
        return replace(data, rows=len(self._wire(channel).decode(data)))

    def _wire(self, channel: ChannelId) -> RowsWire:
        return next(router.wire for router in self._routers if router.has(channel))


def _router(edge: Edge, placement: StatePlacement, outlets: Mapping[ChannelId, Outlet]) -> Router:
    receivers = edge.receivers(placement.partition, placement.parallelism)
    channels = [outlets[edge.channel(placement.partition, receiver)] for receiver in receivers]
    options = placement.options
    most = min(max(options.channel_buffer, _LEAST_FRAME), options.max_frame // 2)
    return Router(edge, channels, placement.max_parallelism, options.batch_rows, most)
