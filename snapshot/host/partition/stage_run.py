"""One stage of a program in one partition and attempt: the marker rule wired to operator, chains and outputs.

Invariant: no rule of the protocol is decided here. Frames, triggers and time-outs are fed to the aligner, and
what it says is done, in order; rows are processed only as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf

from snapshot import fail_points
from snapshot.cut import aligner as align
from snapshot.cut.frames import LATEST, Data, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.pauses import Then
from snapshot.fail_points import reached
from snapshot.host.flow.inlets import Dropped, Flush, Instruction, RoundBegan, RoundOver
from snapshot.host.partition.opening import StatePlacement
from snapshot.host.partition.operator_run import OperatorRun
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.router import Outlet
from snapshot.host.partition.sink_run import Output
from snapshot.host.partition.source_run import SourceRun
from snapshot.host.partition.stage_inputs import Input, StageInputs
from snapshot.host.partition.stage_news import NeedsSplit, StageCut, StageEnded, StageNews, Unfinished
from snapshot.host.partition.stage_outputs import StageOutputs
from snapshot.host.partition.stage_source import Pacing
from snapshot.host.partition.stage_time import StageTime, time_at_opening
from snapshot.host.protocol.messages import SinkFigures, StageFigures
from snapshot.host.protocol.stage_now import StageNow
from snapshot.ids import ChannelId, Copy
from snapshot.operators.rows import Rows
from snapshot.program.plan import Stage, Step
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Uid
from statebackend.keyed_state import KeyedState


class StageRun:
    """A stage from its restore to the end of the attempt.

    `outlets` are the ways to the receivers of its channels. The caller owes: `inputs.connect` with the receiving
    ends of the channels that end here, then `begin`, and for a keyed operator `open` with its state. Until then
    the stage is `pending`: what comes waits, so much of it as may be queued, and no epoch is triggered.
    """

    def __init__(
        self,
        stage: Stage,
        placement: StatePlacement,
        epoch: Epoch | None,
        outlets: Mapping[ChannelId, Outlet],
        sinks: Mapping[Uid, Output],
        report: Callable[[StageRun, StageNews], object],
        wake: Callable[[], None],
        attempt: Attempt,
        parts: StageParts,
        now: StageNow | None = None,
    ) -> None:
        """Make it; it begins where a peer is `now` that has the same role, or else as the epoch says alone."""
        self.stage = stage
        self.uid = stage.uid
        self.sinks = sinks
        self._report = report
        self._placement = placement
        clock = parts.clock()
        if now is not None:
            clock.go_on(now.clock)
        self._now = clock.now
        self._joins = now is not None
        self._monotonic = clock.monotonic
        self._close_round = clock.close_round
        self.inputs = StageInputs(stage.inputs, placement, epoch, self._take, parts, clock)
        takes = {uid: sink.rows for uid, sink in sinks.items()}
        self.outputs = StageOutputs(stage, placement, outlets, takes, self._stamp, parts, clock)
        time = time_at_opening(placement.role.watermark, now)
        self.operator = OperatorRun(stage, placement, self.outputs.emit, time, clock)
        self._time = StageTime(placement.role.watermark, self.inputs, self.operator, self.outputs)
        self._source: Pacing | None = None
        if stage.source is not None:
            self._source = parts.pacing(stage, stage.source, placement, attempt, wake, clock)
        self._closing: int | None = None  # the round of which all was handed out
        self._due: list[Marker] = []  # of epochs whose cut waits for rows
        self._early: list[Marker] = []  # of epochs that were triggered before the state was there
        self._unfinished: dict[Epoch, Unfinished] = {}
        self._rows_in = 0
        self._busy = 0.0
        self._ending = False  # all input has ended
        self.ended = False
        """True if all its input has ended, and so have its outputs."""
        if now is not None:
            self._go_on(now)

    def _go_on(self, now: StageNow) -> None:
        assert not now.ending, "what follows from the end of its input is under way"
        self._ending = self.ended = now.ended
        self.inputs.go_on(now.inputs)
        self.outputs.go_on(now.put, ended=now.ended)
        self._time.go_on(now.announced, had_ended=now.had_ended)
        if self._source is not None and now.source is not None:
            self._source.go_on(now.source)

    # --- beginning ----------------------------------------------------------------------------------------------------

    @property
    def source(self) -> SourceRun | None:
        """Return the splits that the stage reads; None if it does not begin with a source."""
        return None if self._source is None else self._source.splits

    def drain(self) -> None:
        """Let the source end where it is."""
        if self._source is not None:
            self._source.drain()

    @property
    def pending(self) -> bool:
        """True if the stage waits for its state."""
        return self.operator.pending

    def begin(self) -> None:
        """Announce the restored event time, and go on unless the state is awaited.

        A process that goes on from where its peers are announces nothing, as they do not, either.
        """
        if not self._joins:
            self._time.begin()
        elif self.ended:
            self._tell_end()
        if self.pending:
            self.inputs.opening()
        else:
            self.inputs.take_back()

    def open(self, state: KeyedState) -> None:
        """Go on with the state as the epoch has it; it stays the caller's, and is used here until `close`."""
        self.operator.open(state)
        self.inputs.take_back()
        early, self._early = self._early, []
        for marker in early:
            self._do(self.inputs.inlet.told(align.Triggered(marker)))

    # --- what comes in ------------------------------------------------------------------------------------------------

    def arrived(self, copy: Copy, frame: Frame) -> None:
        """Take a frame that has come in on a channel, from one of its senders."""
        self._do(self.inputs.arrived(copy, frame))

    def triggered(self, marker: Marker, then: Then = Then.READ_ON) -> None:
        """Begin an epoch that the coordinator has triggered; one that joins may hear of it before it has its state."""
        if self.pending:
            self._early.append(marker)
            return
        if self._source is not None:
            self._source.triggered(marker.epoch, then)
            while self._source.owes and not self._ending:
                self._read_once(self._source)
            if (self._source.gathers or self._due) and not self._ending:
                self._due.append(marker)
                return
        self._do(self.inputs.inlet.told(align.Triggered(marker)))

    def alignment_timed_out(self, epoch: Epoch) -> None:
        """Let the alignment of the epoch time out, as it has taken long enough."""
        self._do(self.inputs.inlet.told(align.AlignmentTimedOut(epoch)))

    def abandoned(self, epoch: Epoch) -> None:
        """Give up an epoch that the coordinator has given up."""
        if self._source is not None:
            self._source.over(epoch, complete=False)
        self._due = [marker for marker in self._due if marker.epoch != epoch]
        self._unfinished.pop(epoch, None)
        self._do(self.inputs.inlet.told(align.Aborted(epoch)))

    def completed(self, epoch: Epoch, files: FileSet | None = None) -> None:
        """Let the state and the sinks do what is due once the epoch is complete; `files` as in `EpochIsOver`."""
        if self._source is not None:
            self._source.over(epoch, complete=True)
        self.operator.completed(epoch, files)
        for sink in self.sinks.values():
            sink.completed(epoch)

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, until: float, *, sparing: bool = False) -> bool:
        """Read or process for a while, until nothing is to do or an output is full; return whether anything was done.

        A call of the user's function that has begun by then is waited for, or a piece of rows that is known to take a
        few milliseconds. What it leaves, it goes on with when it is called again.

        If it is `sparing`, as a state of the partition is awaited, no split of its source is read more than once: while
        rows are made others become due. While it is pending nothing is, but that its channels are not read when too
        much waits.
        """
        if self.pending:
            self.inputs.govern(opening=True)
            return False
        began = now = self._monotonic()
        done = self._wake_if_due()
        if done:
            now = self._monotonic()
        source = self._source
        reads = max(1, len(source.splits.splits)) if sparing and source is not None else inf
        while not self.outputs.is_blocked():
            if source is not None:
                if reads < 1 or not self._read_once(source):
                    break
                reads -= 1
            elif not self._step():
                break
            done = True
            now = self._monotonic()
            if now >= until:
                break
        self._busy += now - began
        self.inputs.govern(opening=sparing)
        if source is None:
            self.inputs.account(busy=self._time.is_moving)
        return done

    def _step(self) -> bool:
        """Do the next thing; return False if there is none.

        While event time moves on, rows wait until all timers have fired that it makes due, but not while markers are
        being aligned: then rows come first, or the timers would hold up the markers behind them. That is as if event
        time had moved on later, which it may.
        """
        if self._time.is_moving and not self.inputs.inlet.aligning:
            self._move_on()
        elif self.inputs.are_to_be_handed_on:
            self._hand_on()
        elif self._closing is not None:
            self._go_on_closing(self._closing)
        elif not self.inputs.inlet.idle:
            self._do(self.inputs.inlet.proceed())
        elif self._time.is_moving:
            self._move_on()
        else:
            return False
        return True

    def _hand_on(self) -> None:
        """Hand rows on; what follows from those that no sender has goes out before there are others."""
        had_unowned = self.inputs.has_unowned
        self.inputs.hand_on(self.outputs.most(self.operator.at_once))
        if had_unowned and not self.inputs.has_unowned:
            self.outputs.flush()

    def _read_once(self, source: Pacing) -> bool:
        if self._ending:
            return self._pass_marker(source)
        if self._due and not source.gathers:
            self._cut_gathered(source)
            return True
        if source.reads and source.ended:
            self._end()
            return True
        if self._pass_marker(source):
            return True
        if not source.reads:
            return False
        began, out = self._monotonic(), self.outputs.rows_out
        with self.operator.noting("reading a split"):
            batch = source.read(self.outputs.most(self.operator.at_once))
        if source.owes:
            self.outputs.open_round()
        if batch is not None:
            self._rows_in += len(batch)
            if len(batch):
                self._time.begin_anew()
                for rows in self.operator.noted(Rows(batch)):
                    self.outputs.hand_out(rows)
                self.operator.worked(len(batch), began)
                self.outputs.gave(len(batch), out)
        if source.splits.wants_split():
            self._report(self, NeedsSplit(source.splits.assigned))
        self._time.announce(source.watermark())
        number = source.closes()
        if number is not None:
            self.outputs.boundary(number)
        gathered = bool(self._due) and not source.gathers
        return gathered or batch is not None or number is not None or source.ended

    def _cut_gathered(self, source: Pacing) -> None:
        """Cut for the epochs that waited for rows: all of these were read."""
        self._time.announce(source.watermark(at_once=True))
        due, self._due = self._due, []
        for marker in due:
            self._do(self.inputs.inlet.told(align.Triggered(marker)))

    def _pass_marker(self, source: Pacing) -> bool:
        """Cut for the marker that the source has come to, if it has."""
        marker = source.marker()
        if marker is not None:
            self._do(self.inputs.inlet.told(align.Triggered(marker)))
        return marker is not None

    def _go_on_closing(self, number: int) -> None:
        """Close a round on the outputs when all is done that is due by its time."""
        assert self._close_round is not None
        self._close_round(number)
        if self._wakes_now:
            self.operator.wake()
            return
        self._closing = None
        if not self._ending:
            self.outputs.boundary(number)

    def _wake_if_due(self) -> bool:
        """Wake the operator by the clock; within a round it stands still."""
        if self._close_round is not None or not self._wakes_now or self.outputs.is_blocked():
            return False
        self.operator.wake()
        return True

    @property
    def _wakes_now(self) -> bool:
        wakes_in = None if self._ending else self.operator.wakes_in()
        return wakes_in is not None and wakes_in <= 0

    def next_due(self) -> float:
        """Return in how many seconds the stage has something to do by the clock; infinity if nothing."""
        due = inf
        if self._ending or self.outputs.was_blocked:
            return due
        wakes_in = self.operator.wakes_in()
        if wakes_in is not None and self._close_round is None:
            due = max(0.0, wakes_in)
        return due if self._source is None else min(due, self._source.next_due())

    def _stamp(self, step: Step, rows: Rows) -> Rows:
        assert self._source is not None
        return self._source.stamp(step, rows)

    # --- what the aligner says ----------------------------------------------------------------------------------------

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, align.Process) and isinstance(instruction.frame, Data):
                self.inputs.gather(instruction.channel, instruction.frame)
                continue
            match instruction:
                case align.Process(channel, Watermark() as watermark):
                    if watermark.timestamp < LATEST and not watermark.idle:
                        self._time.heard_more(self.inputs.of(channel))
                    self._advance(self.inputs.heard(channel, watermark))
                case align.Process():
                    raise AssertionError("nothing else is processed")
                case align.AlignmentBegan():
                    self._report(self, instruction)
                case align.Cut(marker):
                    self._cut(marker)
                case align.InFlight(epoch, channels):
                    self._report(self, self._unfinished.pop(epoch).with_received(dict(channels)))
                case align.Missed(epoch):
                    self._unfinished.pop(epoch, None)
                    self._report(self, instruction)
                case align.ChannelEnded(channel):
                    self._advance(self.inputs.ended(channel))
                case align.AllEnded():
                    self._end()
                case RoundBegan():
                    self.outputs.open_round()
                case RoundOver(number):
                    self._closing = number
                case Dropped(channel, rows):
                    self.inputs.dropped(channel, rows)
                case Flush(then):
                    self.outputs.flush()
                    then()

    def _take(self, place: Input, rows: Rows) -> int:
        self._time.heard_more(place)
        out = self.outputs.rows_out
        taken = self.operator.rows(place.edge.input, rows)
        self.outputs.gave(taken, out)
        self._rows_in += taken
        return taken

    def _advance(self, watermark: Watermark | None) -> None:
        if watermark is not None:
            self._time.advance(watermark)
            self._end_outputs_if_done()

    def _move_on(self) -> None:
        self._time.move_on()
        self._end_outputs_if_done()

    # --- the cut ------------------------------------------------------------------------------------------------------

    def _cut(self, marker: Marker) -> None:
        began = self._monotonic()
        unaligned = marker.mode is MarkerMode.UNALIGNED
        anywhere = self.inputs.inlet.cuts_anywhere
        before = unaligned or anywhere or not self.inputs.gathered
        assert before, "a marker was reached before the rows in front of it were done"
        overtaken = self.outputs.marker(marker)
        self.operator.cut(marker.epoch)
        positions = () if self._source is None else self._source.positions()
        # All partitions have the same, and the first one's counts.
        broadcast = self.operator.operator.broadcast() if self._placement.partition == 0 else None
        took = self._monotonic() - began
        now = None
        if marker.admits:
            now = self._where_it_is()
            self.inputs.admit(marker.epoch)
        stored = unaligned or anywhere
        cut = StageCut(marker.epoch, stored, positions, self._time.at_cut, broadcast, overtaken, took, now)
        if stored:
            left = self.inputs.unowned() if anywhere else self.inputs.left()
            self._unfinished[marker.epoch] = Unfinished(cut, left)
        self._report(self, cut)
        for sink in self.sinks.values():
            sink.cut(marker.epoch)
            reached(fail_points.SINKS_SEALED)

    def _where_it_is(self) -> StageNow:
        return StageNow(
            self.inputs.now(),
            self.outputs.rows_put,
            self._time.announced,
            self._time.had_ended,
            self.operator.time,
            self._now(),
            None if self._source is None else self._source.now(),
            self.ended,
            self._ending and not self.ended,
        )

    def encoded(self, channel: ChannelId, rows: Rows) -> Data:
        """Encode rows that were in flight on a channel that ends or begins here; any thread may ask."""
        received = self.inputs.encoded(channel, rows)
        return self.outputs.encoded(channel, rows) if received is None else received

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End event time, unless it goes on in a later run, then the stage's outputs; timers of processing time that
        wait still do not fire.
        """
        if self._ending:
            return
        self._ending = True
        self.operator.end()
        if self._placement.time_goes_on:
            self._time.announce(None if self._source is None else self._source.watermark(at_once=True))
        elif not self._time.at_end:
            self._advance(Watermark(LATEST))
        self._end_outputs_if_done()

    def _end_outputs_if_done(self) -> None:
        if not self._ending or self.ended or self._time.is_moving:
            return
        self.ended = True
        self.outputs.end(self.inputs.inlet.round if self._source is None else self._source.closes_last())
        self._tell_end()

    def _tell_end(self) -> None:
        for sink in self.sinks.values():
            sink.no_more_rows()
        self._report(self, StageEnded())

    def figures(self) -> StageFigures:
        """Return what the stage has done, and where it stands."""
        source = self.source
        return StageFigures(
            self._rows_in,
            self.outputs.all_rows_out,
            self._time.announced,
            self.inputs.queued_bytes,
            len(self.inputs.inlet.held_back),
            self.outputs.blocked_for * 1000,
            self.operator.operator.late,
            "" if source is None else source.waits_for,
            0 if source is None else source.bad,
            "" if source is None else source.why,
            self.inputs.window,
            self._busy * 1000,
            self.outputs.bytes_out,
        )

    def sink_figures(self) -> Mapping[Uid, SinkFigures]:
        """Return what its sinks have committed, and what waits for that."""
        return {uid: sink.figures for uid, sink in self.sinks.items()}

    def close(self) -> None:
        """Give up readers, the operator and sinks; what is in the store and prepared in targets stays.

        All of them are closed, whatever one of them raises; that comes out in the end.
        """
        with ExitStack() as closing:
            closing.callback(self.operator.close)
            for sink in self.sinks.values():
                closing.callback(sink.close)
            if self.source is not None:
                closing.callback(self.source.close)
