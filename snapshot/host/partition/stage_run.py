"""One stage of a program in one partition and attempt: the marker rule wired to operator, chains and outputs.

Invariant: no rule of the protocol is decided here. Frames, triggers and time-outs are fed to the aligner, and
what it says is done, in order; rows are processed only as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from snapshot import fail_points
from snapshot.cut import aligner as align
from snapshot.cut.frames import EARLIEST, LATEST, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.watermarks import Watermarks, going_on
from snapshot.fail_points import reached
from snapshot.host.flow.allowances import Allowance, Allowances
from snapshot.host.flow.gathering import RowGatherer
from snapshot.host.flow.pace import Pace, Yield
from snapshot.host.net.rows_wire import RowsWire
from snapshot.host.partition.channel_state import Frames, recalled
from snapshot.host.partition.last_words import LastWords, Notes
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.router import Ends, Router, SendingEnd, chained
from snapshot.host.partition.sink_run import SinkRun
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.source_times import SourceTimes
from snapshot.host.partition.stage_operators import Awaited, KeyedRun, Passage
from snapshot.host.protocol.messages import Role, StageFigures
from snapshot.host.protocol.options import HostOptions
from snapshot.ids import ChannelId
from snapshot.operators.operator import Note, Operator, TakingBatches
from snapshot.operators.rows import Rows, keys_in
from snapshot.program.plan import Edge, Exchange, Stage, Step
from snapshot.tree.manifest import SplitPosition
from statebackend import means
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange, range_of
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType

_NOBODY = float("inf")
_NO_LIMIT = float("inf")
_PROCEED = align.Proceed()
_UNNOTED = nullcontext()
_ANNOUNCE: Final = 0.05
"""Sources announce their watermark as often as this at most, in seconds, when they are asked for rows."""
_PIECE: Final = 0.02
"""Seconds that rows should take that are worked on at once; not all that they go through can be interrupted."""
_TOO_LONG: Final = 2 * _PIECE
"""Seconds after which those are interrupted that can be: later than they should have been done, as it costs something
to begin again.
"""

_MUCH: Final = 1 << 30
"""Rows for which there is always room."""

_LEAST_FRAME: Final = 64 << 10
"""Rows of so many bytes go in one frame, however little may wait on a channel."""

_FOR_MARKERS = 4
"""So many times the input's buffer may be queued while a marker that overtakes is awaited."""


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class StageCut:
    """The facts that a stage noted in the moment of its cut."""

    epoch: Epoch
    unaligned: bool
    positions: tuple[SplitPosition, ...]
    watermark: Watermark | None
    broadcast: bytes | None
    """In the first partition only."""
    overtaken: Frames
    """The frames that the stage's own markers overtook on their way out."""
    took: float
    """In seconds."""


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """An unaligned cut whose last marker is awaited."""

    cut: StageCut
    left: Mapping[ChannelId, Sequence[Data]]
    """The frames that were off the channels' queues at the cut, and not processed yet."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """All that was in flight on the inputs of an unaligned cut: it is to be stored."""

    cut: StageCut
    frames: Frames


@dataclass(frozen=True, slots=True)
class NeedsSplit:
    """The stage's source has nothing more to read."""


@dataclass(frozen=True, slots=True)
class StageEnded:
    """All input of the stage has ended, and so have its outputs."""


StageNews = align.AlignmentBegan | StageCut | InFlight | align.Missed | NeedsSplit | StageEnded
"""The news of a stage for the protocol. The stage's sinks are cut after the call that reports its cut."""


class ReceivingEnd(Protocol):
    """The receiving end of a channel, as far as a stage governs it."""

    def pause(self) -> None:
        """Do not read from the channel."""

    def resume(self) -> None:
        """Read from the channel again."""

    def allow(self, allowance: Allowance) -> None:
        """Allow the sender this much."""


class StageRun:
    """A stage from its restore to the end of the attempt.

    `sending` are the channels that begin here. The caller owes: `connect` with the receiving ends of the channels that
    end here, then `begin`, and for a keyed operator `open` with its state. Until then the stage is `pending`: what
    comes waits, so much of it as may be queued, and no epoch is triggered.
    """

    def __init__(
        self,
        stage: Stage,
        placement: StatePlacement,
        epoch: Epoch | None,
        sending: Mapping[ChannelId, SendingEnd],
        sinks: Mapping[Uid, SinkRun],
        report: Callable[[StageRun, StageNews], object],
        wake: Callable[[], None],
        attempt: Attempt,
        clock: Clock | None = None,
    ) -> None:
        """Take as `clock` the one that tells the time until which the stage is to work."""
        self.stage = stage
        self.uid = stage.uid
        self.sinks = sinks
        self._report = report
        self._options: HostOptions = placement.options
        self._placement = placement
        self._routers = [_router(edge, placement, sending) for edge in stage.edges]
        self._inputs = _inputs(stage.inputs, placement)
        self._wires = {edge.port_of: RowsWire(edge.edge.schema, edge.edge.timed) for edge in self._inputs.values()}
        restored = epoch if epoch is not None else NO_EPOCH
        ordered = [channel for channel, place in self._inputs.items() if place.edge.ordered]
        self._aligner = align.Aligner(tuple(self._inputs), ordered=ordered, restored=restored)
        # An input without event time, such as a control stream, says nothing of it, and holds nobody back.
        self._timed = frozenset(channel for channel, place in self._inputs.items() if place.edge.timed)
        # Whether event time was at its end in the epoch, and the stage has not said yet how it goes on.
        self._had_ended = placement.role.watermark is not None and placement.role.watermark.timestamp == LATEST
        self._watermarks = Watermarks(self._timed, going_on(placement.role.watermark))
        self._gates: dict[ChannelId, ReceivingEnd] = {}
        self._paused: set[ChannelId] = set()
        self._times = _times(stage, placement.role)
        self._split = ""
        self._ends = self._outputs()
        self.source: SourceRun | None = None
        self.keyed: KeyedRun | None = None
        self._operator = self._stage_operator(wake, attempt)
        self._gathering = RowGatherer[_Input](self._take, placement.options.batch_rows, self._taken)
        self._pace = Pace(_PIECE, placement.options.batch_rows)
        self._yield = Yield()
        self._allowances = Allowances(tuple(self._inputs))
        self._backlog_since: float | None = None
        self._taken_back: dict[ChannelId, int] = {}  # what no sender of this attempt has sent
        self._clock: Clock = means.monotonic if clock is None else clock
        self._until = self._interrupt_at = 0.0
        self._unfinished: dict[Epoch, _Unfinished] = {}
        self._coming: Watermark | None = None  # it is announced when all that it makes due has been done
        self._watermark_due = 0.0
        self._announced: Watermark | None = None
        self._source_paused_by: Epoch | None = None
        self._buffered_since = _NOBODY
        self._blocked_since: float | None = None
        self._blocked = 0.0
        self._rows_in = 0
        self._ending = False  # all input has ended
        self._ended = False
        self._notes: Notes | None = None

    # --- making it ----------------------------------------------------------------------------------------------------

    def _outputs(self) -> dict[str | None, Callable[[Rows], None]]:
        ends = Ends(
            {uid: sink.rows for uid, sink in self.sinks.items()},
            {router.edge: router.rows for router in self._routers},
            self._stamp,
        )
        return {side: chained(targets, ends) for side, targets in self.stage.outputs.items() if targets}

    def _stage_operator(self, wake: Callable[[], None], attempt: Attempt) -> Operator:
        placement = self._placement
        source = self.stage.source
        if source is not None:
            positions, ends = placement.role.positions, placement.role.ends
            most = self._options.batch_rows
            self.source = SourceRun(self.uid, source, placement.partition, attempt, positions, most, wake, ends)
        return Passage(self._emit) if self.stage.operator is None else Awaited()

    def _emit(self, rows: Rows, side: str | None = None) -> None:
        if len(rows):
            take = self._ends.get(side)
            if take is not None:
                take(rows)

    def _stamp(self, step: Step, rows: Rows) -> Rows:
        assert self._times is not None
        return self._times.stamped(step, self._split, rows, _milliseconds())

    # --- beginning ----------------------------------------------------------------------------------------------------

    def connect(self, gates: Mapping[ChannelId, ReceivingEnd]) -> None:
        """Take the receiving ends of the channels that end here."""
        self._gates.update(gates)

    @property
    def channels(self) -> tuple[ChannelId, ...]:
        """Return the channels that end here."""
        return tuple(self._inputs)

    @property
    def pending(self) -> bool:
        """True if the stage waits for its state."""
        return isinstance(self._operator, Awaited)

    def begin(self) -> None:
        """Announce the restored watermark, and go on unless the state is awaited.

        If event time was at its end, nothing is announced before it shows what follows: an end alone, or more rows.
        """
        restored = going_on(self._placement.role.watermark)
        if restored is not None:
            self._send_watermark(restored)
        if not self.pending:
            self._take_back()
        else:
            self._allowances.opening(self._placement.window)
            self._allow()

    def open(self, state: KeyedState) -> None:
        """Go on with the state as the epoch has it; it stays the caller's, and is used here until `close`."""
        operator = self.stage.operator
        assert operator is not None
        with self._noting("its opening"):
            self.keyed = KeyedRun(operator, self._placement, state, self._emit, self._is_too_long, self._note)
        self._operator = self.keyed.operator
        self._take_back()

    def _take_back(self) -> None:
        """Take what was in flight before any new input."""
        for state in self._placement.role.channels:
            channel = self._channel_for(state.channel)
            place = self._inputs[channel]
            for frame in recalled(state, self._placement.files):
                rows = self._own(place, self._wires[place.port_of].decode(frame))
                self._gathering.add(place, channel, rows)
                self._taken_back[channel] = self._taken_back.get(channel, 0) + len(rows)
        reached(fail_points.IN_FLIGHT_TAKEN_BACK)

    def _own(self, place: _Input, rows: Rows) -> Rows:
        """Return the rows whose keys are this partition's; after a rescale others come as well."""
        if place.key_type is None:
            return rows
        groups = key_column(keys_in(rows.batch, place.edge.keys), place.key_type).groups(
            self._placement.max_parallelism
        )
        return rows.where((groups >= place.groups.first) & (groups < place.groups.end))

    def _channel_for(self, channel: ChannelId) -> ChannelId:
        """Return this channel; if it is of another parallelism, another one of the same input."""
        if channel in self._inputs:
            return channel
        return next(own for own, place in self._inputs.items() if place.port_of == (channel.source, channel.port))

    # --- what is called, for the case that it ends the process --------------------------------------------------------

    def note_calls(self, words: LastWords) -> None:
        """Say each call before it is made from now on, with rows one by one, as earlier processes died."""
        steps = [target.transform for target in self.stage.targets() if isinstance(target, Step)]
        self._notes = Notes(
            self.uid, words, batches=any(isinstance(one, TakingBatches) for one in (self.stage.operator, *steps))
        )

    def note_nothing(self) -> None:
        """Say no more calls, as the attempt has come further than those before it."""
        self._notes = None

    def _note(self) -> Note | None:
        return None if self._notes is None else self._notes.at

    def _noted(self, rows: Rows) -> Iterable[Rows]:
        return (rows,) if self._notes is None else self._notes.each(rows)

    def _noting(self, what: str) -> AbstractContextManager[None]:
        return _UNNOTED if self._notes is None else self._notes.during(what)

    # --- what comes in ------------------------------------------------------------------------------------------------

    def arrived(self, channel: ChannelId, frame: Frame) -> None:
        """Take a frame that has come in on a channel."""
        if self._backlog_since is None:
            self._backlog_since = self._clock()
        self._align(align.Arrived(channel, frame))

    def triggered(self, marker: Marker, *, then_pause: bool) -> None:
        """Begin an epoch that the coordinator has triggered."""
        if then_pause and self.source is not None:
            self._source_paused_by = marker.epoch
        self._align(align.Triggered(marker))

    def alignment_timed_out(self, epoch: Epoch) -> None:
        """Let the alignment of the epoch time out, as it has taken long enough."""
        self._align(align.AlignmentTimedOut(epoch))

    def abandoned(self, epoch: Epoch) -> None:
        """Give up an epoch that the coordinator has given up."""
        if self._source_paused_by == epoch:
            self._source_paused_by = None
        self._unfinished.pop(epoch, None)
        self._align(align.Aborted(epoch))

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, until: float, *, sparing: bool = False) -> bool:
        """Read or process for a while, until nothing is to do or an output is full; return whether anything was done.

        A call of the user's function that has begun by then is waited for, or a piece of rows that is known to take a
        few milliseconds. What it leaves, it goes on with when it is called again.

        If it is `sparing`, no split of its source is read more than once: while rows are made others become due.
        While it is pending nothing is, but that its channels are not read when too much waits.
        """
        if self.pending:
            self._govern_inputs()
            return False
        self._until = until
        done = self._wake_if_due()
        reads = max(1, len(self.source.splits)) if sparing and self.source is not None else _NO_LIMIT
        while not self._is_blocked():
            if self.source is not None:
                if reads < 1 or not self._read_once(self.source):
                    break
                reads -= 1
            elif not self._step():
                break
            done = True
            if self._is_overdue():
                break
        self._govern_inputs()
        if self.source is None:
            self._account()
        return done

    def _account(self) -> None:
        """Note how long the rows that came took, and tell the senders what they may send."""
        if self._backlog_since is not None:
            now = self._clock()
            self._allowances.worked(now - self._backlog_since)
            is_done = self._aligner.idle and not self._gathering and self._coming is None
            self._backlog_since = None if is_done else now
            self._allow()

    def _allow(self) -> None:
        for channel, allowance in self._allowances.news().items():
            gate = self._gates.get(channel)
            if gate is not None:
                gate.allow(allowance)

    def _taken(self, channel: ChannelId, rows: int) -> None:
        back = min(rows, self._taken_back.get(channel, 0))
        if back:
            self._taken_back[channel] -= back
        self._allowances.processed(channel, rows - back)

    def _most(self) -> int:
        """Return how many rows to work on at once, so that their output fits where it goes."""
        most = self._pace.rows
        for router in self._routers:
            room = router.room
            if room < _MUCH:
                most = min(most, self._yield.rows_for(room))
        return most

    def _rows_out(self) -> int:
        most = 0
        for router in self._routers:
            most = max(most, router.rows_out)
        return most

    def _is_overdue(self) -> bool:
        return self._clock() >= self._until

    def _is_too_long(self) -> bool:
        return self._clock() >= self._interrupt_at

    def _step(self) -> bool:
        """Do the next thing; return False if there is none.

        While event time moves on, rows wait until all timers have fired that it makes due, but not while markers are
        being aligned: then rows come first, or the timers would hold up the markers behind them. That is as if event
        time had moved on later, which it may.
        """
        if self._coming is not None and not self._aligner.aligning:
            self._move_on()
        elif self._gathering and (self._gathering.is_enough or not isinstance(self._aligner.next, Data)):
            self._gathering.hand_on(self._most())
        elif not self._aligner.idle:
            self._align(_PROCEED)
        elif self._coming is not None:
            self._move_on()
        else:
            return False
        return True

    def _is_blocked(self) -> bool:
        full = False
        for router in self._routers:
            full = full or router.is_full(self._options.channel_buffer)
        if full and self._blocked_since is None:
            self._blocked_since = means.monotonic()
        elif not full and self._blocked_since is not None:
            self._blocked += means.monotonic() - self._blocked_since
            self._blocked_since = None
        return full

    def _read_once(self, source: SourceRun) -> bool:
        if self._ending or self._source_paused_by is not None:
            return False
        if source.ended:
            self._end()
            return True
        began, out = self._clock(), self._rows_out()
        with self._noting("reading a split"):
            read = source.read(self._most())
        if read is not None:
            self._split, batch = read
            self._rows_in += len(batch)
            if len(batch):
                self._begin_anew()
                for rows in self._noted(Rows(batch)):
                    self._emit(rows)
                self._pace.took(len(batch), self._clock() - began)
                self._yield.gave(len(batch), self._rows_out() - out)
        if source.wants_split():
            self._report(self, NeedsSplit())
        self._announce_time()
        return read is not None or source.ended

    def _announce_time(self, *, at_once: bool = False) -> None:
        """Announce the source's watermark if that is due, or `at_once`."""
        now = means.monotonic()
        if self._times is None or self.source is None or (now < self._watermark_due and not at_once):
            return
        self._watermark_due = now + _ANNOUNCE
        watermark = self._times.watermark(self.source.splits, _milliseconds())
        if watermark is not None:
            self._send_watermark(watermark)

    def _wake_if_due(self) -> bool:
        at = None if self._ending else self._operator.wakes_at()
        if at is None or at > (now := _milliseconds()) or self._is_blocked():
            return False
        self._interrupt_at = self._clock() + _PIECE
        with self._noting("timers in processing time"):
            self._operator.wake(now)
        return True

    def _govern_inputs(self) -> None:
        """Read no more from channels that an alignment holds back, and from none while too much is queued.

        A marker that overtakes would wait behind what is not read, so where one is awaited several times as much may
        be queued. If all that is queued is held back, only what is read from the other channels can ever release it.
        """
        held, awaited, read_on = self._aligner.held_back, self._aligner.awaited, self._aligner.idle
        queued = self._aligner.queued_bytes
        for channel, gate in self._gates.items():
            paused = channel in self._paused
            most = self._options.input_buffer * (_FOR_MARKERS if channel in awaited else 1)
            wanted = channel not in held and (read_on or queued < (most // 2 if paused else most))
            if wanted and paused:
                self._paused.discard(channel)
                gate.resume()
            elif not wanted and not paused:
                self._paused.add(channel)
                gate.pause()

    def flush(self) -> None:
        """Let rows leave that wait for others."""
        for router in self._routers:
            router.flush()
        self._buffered_since = _NOBODY

    def flush_if_lingering(self, now: float) -> None:
        """Let rows leave that have waited long enough."""
        if not any(router.has_waiting for router in self._routers):
            self._buffered_since = _NOBODY
        elif self._buffered_since == _NOBODY:
            self._buffered_since = now
        elif now - self._buffered_since >= self._options.linger / 1000:
            self.flush()

    def next_due(self) -> float:
        """Return in how many seconds the stage has something to do by the clock; infinity if nothing."""
        due = _NOBODY
        if self._ending or self._blocked_since is not None:
            return due
        at = self._operator.wakes_at()
        if at is not None:
            due = max(0.0, (at - _milliseconds()) / 1000)
        if self.source is not None and self._source_paused_by is None:
            due = min(due, max(0.001, self.source.next_at - _milliseconds() / 1000))
            if self._times is not None:
                due = min(due, max(0.001, self._watermark_due - means.monotonic()))
        return due

    # --- what the aligner says ----------------------------------------------------------------------------------------

    def _align(self, event: align.AlignerEvent) -> None:
        for instruction in self._aligner.handle(event):
            if isinstance(instruction, align.Process) and isinstance(instruction.frame, Data):
                self._gather(instruction.channel, instruction.frame)
                continue
            match instruction:
                case align.Process(channel, Watermark() as watermark):
                    if watermark.timestamp < LATEST and not watermark.idle:
                        self._heard_more(self._inputs[channel])
                    if channel in self._timed:
                        self._advance(self._watermarks.advance(channel, watermark))
                case align.Process():
                    raise AssertionError("nothing else is processed")
                case align.AlignmentBegan():
                    self._report(self, instruction)
                case align.Cut(marker):
                    self._cut(marker)
                case align.InFlight(epoch, channels):
                    self._report_in_flight(self._unfinished.pop(epoch), dict(channels))
                case align.Missed(epoch):
                    self._unfinished.pop(epoch, None)
                    self._report(self, instruction)
                case align.ChannelEnded(channel):
                    if channel in self._timed:
                        over = self._watermarks.rest if self._placement.time_goes_on else self._watermarks.end
                        self._advance(over(channel))
                case align.AllEnded():
                    self._end()

    def _gather(self, channel: ChannelId, frame: Data) -> None:
        """Process the frame with what waits behind it, before anything else that comes behind it."""
        place, payload = self._inputs[channel], frame.payload
        rows = payload if isinstance(payload, Rows) else self._wires[place.port_of].decode(frame)
        self._gathering.add(place, channel, rows)

    def _take(self, place: _Input, rows: Rows) -> int:
        self._heard_more(place)
        began, out = self._clock(), self._rows_out()
        self._interrupt_at = began + _TOO_LONG
        if self._notes is None:
            some = self._operator.rows(place.edge.input, rows)
            taken = len(rows) if some is None else some
        else:
            taken = self._take_noted(self._notes, place, rows)
        self._pace.took(taken, self._clock() - began)
        self._yield.gave(taken, self._rows_out() - out)
        self._rows_in += taken
        return taken

    def _take_noted(self, notes: Notes, place: _Input, rows: Rows) -> int:
        taken = 0
        for some in notes.each(rows):
            of_these = self._operator.rows(place.edge.input, some)
            taken += len(some) if of_these is None else of_these
            if self._is_too_long():
                break
        return taken

    def _heard_more(self, place: _Input) -> None:
        """Note that more comes on an input; if no input has event time, each of them says whether it goes on."""
        if self._had_ended and (place.edge.timed or not self._timed):
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Take event time back from its end, if it was there, here and in all stages after, with or without rows."""
        if self._had_ended:
            self._send_watermark(Watermark(EARLIEST))

    def _advance(self, watermark: Watermark | None) -> None:
        if watermark is not None:
            self._coming = watermark
            self._move_on()

    def _move_on(self) -> None:
        """Move event time on to where it is to be; it is announced only after all that is due by then was done."""
        watermark = self._coming
        assert watermark is not None
        self._interrupt_at = self._clock() + _PIECE
        # What follows from the end was done. Only an operator with other inputs still has to know what time it is.
        others = 0 < len(self._timed) < len(self._inputs)
        knows = self._had_ended and watermark.timestamp == LATEST and not others
        if watermark.timestamp > EARLIEST and not knows:
            with self._noting(f"what follows from the watermark {watermark.timestamp}"):
                all_fired = self._operator.watermark(watermark.timestamp)
            if all_fired is False:
                return
        self._coming = None
        self._send_watermark(watermark)
        if self._ending:
            self._end_outputs()

    def _send_watermark(self, watermark: Watermark) -> None:
        self._announced = watermark
        self._had_ended = self._had_ended and watermark.idle
        for router in self._routers:
            router.put(watermark)

    def encoded(self, channel: ChannelId, rows: Rows) -> Data:
        """Encode rows that were in flight on a channel that ends or begins here; any thread may ask."""
        place = self._inputs.get(channel)
        if place is not None:
            return self._wires[place.port_of].encode(rows)
        return next(router.wire for router in self._routers if router.has(channel)).encode(rows)

    def _report_in_flight(self, unfinished: _Unfinished, received: Mapping[ChannelId, Sequence[Data]]) -> None:
        left, channels = unfinished.left, [*unfinished.left, *(c for c in received if c not in unfinished.left)]
        frames = {c: [*left.get(c, ()), *received.get(c, ())] for c in channels}
        self._report(self, InFlight(unfinished.cut, frames))

    def _cut(self, marker: Marker) -> None:
        began = means.monotonic()
        unaligned = marker.mode is MarkerMode.UNALIGNED
        assert unaligned or not self._gathering, "a marker was reached before the rows in front of it were processed"
        overtaken: dict[ChannelId, Sequence[Data]] = {}
        for router in self._routers:
            overtaken.update(router.put(marker))
            reached(fail_points.MARKER_SENT)
        if self.keyed is not None:
            self.keyed.cut(marker.epoch)
            reached(fail_points.STATE_CUT)
        positions = () if self.source is None else self.source.positions()
        watermark = Watermark(LATEST) if self._had_ended else self._announced
        # All partitions have the same, and the first one's counts.
        broadcast = self._operator.broadcast() if self._placement.partition == 0 else None
        took = means.monotonic() - began
        cut = StageCut(marker.epoch, unaligned, positions, watermark, broadcast, overtaken, took)
        if unaligned:
            left = {
                channel: [Data(rows, rows.size) for rows in some] for channel, some in self._gathering.left().items()
            }
            self._unfinished[marker.epoch] = _Unfinished(cut, left)
        self._report(self, cut)
        for sink in self.sinks.values():
            sink.cut(marker.epoch)
            reached(fail_points.SINKS_SEALED)

    def _end(self) -> None:
        """End event time, unless it goes on in a later run, then the stage's outputs; timers of processing time that
        wait still do not fire.
        """
        if self._ending:
            return
        self._ending = True
        with self._noting("the end of its input"):
            self._operator.end()
        if self._placement.time_goes_on:
            self._announce_time(at_once=True)
            if self._coming is None:
                self._end_outputs()
        elif self._announced is None or self._announced.timestamp < LATEST:
            self._advance(Watermark(LATEST))
        elif self._coming is None:
            self._end_outputs()

    def _end_outputs(self) -> None:
        self._ended = True
        for router in self._routers:
            router.put(End())
            reached(fail_points.OUTPUT_ENDED)
        for sink in self.sinks.values():
            sink.no_more_rows()
        self._report(self, StageEnded())

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True if all its input has ended, and so have its outputs."""
        return self._ended

    def unreached(self, epoch: Epoch) -> Collection[ChannelId]:
        """Return the channels whose marker the stage waits for, if it has not cut the epoch."""
        return self._aligner.unreached(epoch)

    def figures(self) -> StageFigures:
        """Return what the stage has done, and where it stands."""
        blocked = self._blocked + (means.monotonic() - self._blocked_since if self._blocked_since is not None else 0.0)
        return StageFigures(
            self._rows_in,
            sum(router.rows_out for router in self._routers),
            self._announced,
            self._aligner.queued_bytes + self._gathering.bytes,
            len(self._aligner.held_back),
            blocked * 1000,
            self._operator.late,
            "" if self.source is None else self.source.waits_for,
            0 if self.source is None else self.source.bad,
            "" if self.source is None else self.source.why,
            self._allowances.window,
        )

    def close(self) -> None:
        """Give up readers, the operator and sinks; what is in the store and prepared in targets stays.

        All of them are closed, whatever one of them raises; that comes out in the end.
        """
        with ExitStack() as closing:
            if self.keyed is not None:
                closing.callback(self.keyed.close)
            for sink in self.sinks.values():
                closing.callback(sink.close)
            if self.source is not None:
                closing.callback(self.source.close)


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """An edge that ends here; `key_type` with the partition's groups if it is keyed."""

    edge: Edge
    key_type: KeyType | None
    groups: KeyGroupRange

    @property
    def port_of(self) -> tuple[Uid, int]:
        """Return the edge's source and port, which tell the stage's edges apart."""
        return self.edge.source, self.edge.port


def _inputs(edges: Sequence[Edge], placement: StatePlacement) -> dict[ChannelId, _Input]:
    groups = range_of(placement.partition, placement.parallelism, placement.max_parallelism)
    inputs: dict[ChannelId, _Input] = {}
    for edge in edges:
        declared = tuple(edge.schema.field(name).type for name in edge.keys)
        key_type = None
        if edge.exchange is Exchange.KEYED:
            key_type = KeyType.of(declared[0] if len(declared) == 1 else declared)
        place = _Input(edge, key_type, groups)
        for sender in edge.senders(placement.partition, placement.parallelism):
            inputs[edge.channel(sender, placement.partition)] = place
    return inputs


def _router(edge: Edge, placement: StatePlacement, sending: Mapping[ChannelId, SendingEnd]) -> Router:
    receivers = edge.receivers(placement.partition, placement.parallelism)
    channels = [sending[edge.channel(placement.partition, receiver)] for receiver in receivers]
    options = placement.options
    most = min(max(options.channel_buffer, _LEAST_FRAME), options.max_frame // 2)
    return Router(edge, channels, placement.max_parallelism, options.batch_rows, most)


def _times(stage: Stage, role: Role) -> SourceTimes | None:
    steps = [target for target in stage.targets() if isinstance(target, Step) and target.event_time is not None]
    return SourceTimes(steps, going_on(role.watermark)) if steps else None


def _milliseconds() -> int:
    return int(means.wall() * 1000)
