"""A pipeline of keyed shuffles on a simulated clock, in which the real aligners and outboxes do the cutting.

Invariant: equal settings give equal results; and every cut is exact, or the run ends with `InexactCut`: at each
stage, what was processed before the cut and what was recorded in flight up to there is what the sources had sent.

Each source and each operator is one event loop, as a worker is: while it works on a frame, whatever comes in waits.
A frame goes to the network when the receiver has room for it, and an operator takes its next frame when there is room
in all of its outboxes, so that back-pressure reaches the sources. The last operator has one slow subtask. A marker
that overtakes needs no room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from snapshot.cut.aligner import (
    Aligner,
    AlignerEvent,
    AlignerInstruction,
    AlignmentBegan,
    Arrived,
    Cut,
    InFlight,
    Proceed,
    Process,
    Triggered,
)
from snapshot.cut.frames import Data, Frame, Marker, MarkerMode
from snapshot.cut.outbox import Outbox
from snapshot.ids import ChannelId
from statebackend.ids import Epoch, Generation, Partition, Uid

SECOND = 1_000_000
"""Times are in microseconds."""
SERVICE = 2_000
"""What an operator needs for a frame, on average; single frames differ by up to half of it."""
SLOW_SERVICE = 4_000
"""What the slow subtask needs."""
SOURCE_SERVICE = 500
"""What a source needs; so it catches up faster than anybody works."""
LATENCY = 500
"""From the sender's outbox to the receiver's queue."""
FRAME_BYTES = 32 * 1024
QUEUE_FRAMES = 4
"""Frames of one channel that fit into the sender's outbox, and as many into the receiver's queue."""
WARM_UP = 3 * SECOND
INTERVAL = SECOND // 2
WINDOW = 10 * SECOND

_EVERYTHING = 2**64


class InexactCut(Exception):
    """A cut that has lost something or has something twice: the figures would be worth nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. `load` is what the sources offer, as a share of what the slow subtask can take.

    Without a `mode` there are no epochs.
    """

    shuffles: int
    parallelism: int
    load: float
    mode: MarkerMode | None
    warm_up: int = WARM_UP
    window: int = WINDOW


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What one epoch took: from the trigger to the last cut and, if unaligned, to the last of what was in flight."""

    duration: int
    held_back: float
    """From the first marker to the cut, mean over the operators' subtasks."""
    recorded: int
    """Bytes of in-flight data."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to. `delivered` are the frames that went through all of the pipeline in the window."""

    epochs: tuple[EpochCost, ...]
    delivered: int


@dataclass(frozen=True, slots=True)
class _Record:
    id: int


@dataclass(slots=True)
class Tally:
    """A multiset of records, as far as it takes to tell two apart: their number, and the sum of their mixed ids."""

    count: int = 0
    total: int = 0

    def add(self, record: int) -> None:
        """One more record."""
        self.count += 1
        self.total = (self.total + mixed(record)) % _EVERYTHING

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(self.count + other.count, (self.total + other.total) % _EVERYTHING)


@dataclass(slots=True)
class _Subtask:
    stage: int
    partition: int
    aligner: Aligner
    outboxes: list[Outbox]
    channels: list[ChannelId]
    service: int
    state: Tally = field(default_factory=Tally)
    under_way: list[int] = field(default_factory=list)  # frames per output that the receiver has not processed
    full: set[int] = field(default_factory=set)  # outputs whose outbox has no room
    mailbox: list[AlignerEvent] = field(default_factory=list)
    busy: bool = False
    waiting: bool = False  # a source, for its next record to be due
    next_record: int = 0


@dataclass(slots=True)
class _Epoch:
    """An epoch under way. `cuts` and `in_flight` are by stage."""

    marker: Marker
    triggered: int
    cuts: list[Tally]
    in_flight: list[Tally]
    missing: int
    began: dict[tuple[int, int], int] = field(default_factory=dict)
    held_back: int = 0
    recorded: int = 0


def mixed(value: int) -> int:
    """A 64-bit number that looks random and depends on the value alone (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) % _EVERYTHING
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _EVERYTHING
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _EVERYTHING
    return value ^ (value >> 31)


def run(settings: Settings) -> Result:
    """The pipeline from an empty start, through the warm-up, to the end of the window and of its last epoch."""
    return Pipeline(settings).run()


class Pipeline:
    """The subtasks of all stages, and the events to come. Stage 0 are the sources."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._gap = round(SLOW_SERVICE / settings.load)  # from one frame of a source to its next
        # An overloaded job starts behind, as after an outage: with as much as fits into the pipeline.
        behind = 2 * QUEUE_FRAMES * settings.parallelism * settings.shuffles
        self._behind = behind if settings.load > 1 else 0
        self._stages = [
            [self._subtask(stage, partition) for partition in range(settings.parallelism)]
            for stage in range(settings.shuffles + 1)
        ]
        self._epoch: _Epoch | None = None
        self._number = 0
        self._costs: list[EpochCost] = []
        self._delivered = 0

    def _subtask(self, stage: int, partition: int) -> _Subtask:
        last, everybody = self.settings.shuffles, range(self.settings.parallelism)
        slow = stage == last and partition == 0
        inputs = [_channel(stage - 1, sender, partition) for sender in everybody] if stage else []
        outputs = [_channel(stage, partition, receiver) for receiver in everybody] if stage < last else []
        return _Subtask(
            stage,
            partition,
            Aligner(inputs),
            [Outbox() for _ in outputs],
            outputs,
            (SLOW_SERVICE if slow else SERVICE) if stage else SOURCE_SERVICE,
            under_way=[0] * len(outputs),
        )

    # --- the clock ----------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Everything that happens until the window is over and no epoch is under way."""
        for source in self._stages[0]:
            self._after(0, partial(self._go_on, source))
        if self.settings.mode is not None:
            self._after(self.settings.warm_up, self._trigger)
        end = self.settings.warm_up + self.settings.window
        while self.now < end or self._epoch is not None:
            self.now, _, happen = heappop(self._events)
            happen()
        return Result(tuple(self._costs), self._delivered)

    def _after(self, delay: int, happen: Callable[[], None]) -> None:
        self._scheduled += 1
        heappush(self._events, (self.now + delay, self._scheduled, happen))

    # --- work ---------------------------------------------------------------------------------------------------------

    def _deliver(self, subtask: _Subtask, event: AlignerEvent) -> None:
        if subtask.busy:
            subtask.mailbox.append(event)
        else:
            self._carry_out(subtask, subtask.aligner.handle(event))
            self._go_on(subtask)

    def _go_on(self, subtask: _Subtask) -> None:
        """Take the next frame, if there is one and room for what comes of it."""
        while not subtask.busy and not subtask.full:
            if subtask.stage == 0:
                self._read(subtask)
                return
            instructions = subtask.aligner.handle(Proceed())
            if not instructions:
                return
            self._carry_out(subtask, instructions)

    def _read(self, source: _Subtask) -> None:
        if source.waiting:
            return
        due = self._due(source)
        if due > self.now:
            source.waiting = True
            self._after(due - self.now, partial(self._wake, source))
            return
        record = _Record(source.next_record * self.settings.parallelism + source.partition)
        source.next_record += 1
        self._work(source, Data(record, FRAME_BYTES))

    def _wake(self, source: _Subtask) -> None:
        source.waiting = False
        self._go_on(source)

    def _due(self, source: _Subtask) -> int:
        offset = source.partition * self._gap // self.settings.parallelism
        return (source.next_record - self._behind) * self._gap + offset

    def _work(self, subtask: _Subtask, frame: Data) -> None:
        subtask.busy = True
        record = _record(frame)
        varied = mixed(record.id * 64 + 2 * subtask.stage) % subtask.service
        self._after(subtask.service // 2 + varied, partial(self._done, subtask, frame))

    def _done(self, subtask: _Subtask, frame: Data) -> None:
        subtask.busy = False
        record = _record(frame)
        subtask.state.add(record.id)
        if subtask.outboxes:
            receiver = mixed(record.id * 64 + 2 * subtask.stage + 1) % self.settings.parallelism
            subtask.outboxes[receiver].put(frame)
            self._pump(subtask, receiver)
        elif self.settings.warm_up <= self.now < self.settings.warm_up + self.settings.window:
            self._delivered += 1
        waiting, subtask.mailbox = subtask.mailbox, []
        for event in waiting:
            self._carry_out(subtask, subtask.aligner.handle(event))
        self._go_on(subtask)

    # --- channels -----------------------------------------------------------------------------------------------------

    def _pump(self, sender: _Subtask, receiver: int) -> None:
        """Send what the receiver has room for."""
        outbox = sender.outboxes[receiver]
        while len(outbox) and sender.under_way[receiver] < QUEUE_FRAMES:
            self._send(sender, receiver, outbox.take())
        if outbox.bytes < QUEUE_FRAMES * FRAME_BYTES:
            sender.full.discard(receiver)
        else:
            sender.full.add(receiver)

    def _send(self, sender: _Subtask, receiver: int, frame: Frame) -> None:
        if isinstance(frame, Data):
            sender.under_way[receiver] += 1
        arrived = Arrived(sender.channels[receiver], frame)
        target = self._stages[sender.stage + 1][receiver]
        self._after(LATENCY, partial(self._deliver, target, arrived))

    def _carry_out(self, subtask: _Subtask, instructions: Iterable[AlignerInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Process(channel, Data() as frame):
                    self._work(subtask, frame)
                    sender = self._stages[subtask.stage - 1][channel.sender]
                    sender.under_way[subtask.partition] -= 1
                    self._pump(sender, subtask.partition)
                    self._go_on(sender)
                case AlignmentBegan():
                    self._under_way.began[subtask.stage, subtask.partition] = self.now
                case Cut(marker):
                    self._cut(subtask, marker)
                case InFlight():
                    self._in_flight(subtask, instruction)
                case _:
                    raise AssertionError(f"{instruction} in a run without aborted epochs, watermarks and ends")

    # --- epochs -------------------------------------------------------------------------------------------------------

    @property
    def _under_way(self) -> _Epoch:
        assert self._epoch is not None
        return self._epoch

    def _trigger(self) -> None:
        """Begin an epoch, now or with the next interval if one is under way."""
        if self.now >= self.settings.warm_up + self.settings.window:
            return
        self._after(INTERVAL, self._trigger)
        if self._epoch is not None:
            return
        assert self.settings.mode is not None
        self._number += 1
        marker = Marker(Epoch(Generation(1), self._number), self.settings.mode)
        stages = len(self._stages)
        parts = 2 if self.settings.mode is MarkerMode.UNALIGNED else 1  # the cut, and what was in flight
        missing = parts * stages * self.settings.parallelism
        tallies = [Tally() for _ in range(stages)], [Tally() for _ in range(stages)]
        self._epoch = _Epoch(marker, self.now, *tallies, missing)
        for source in self._stages[0]:
            self._deliver(source, Triggered(marker))

    def _cut(self, subtask: _Subtask, marker: Marker) -> None:
        epoch = self._under_way
        epoch.cuts[subtask.stage] = epoch.cuts[subtask.stage].plus(subtask.state)
        epoch.held_back += self.now - epoch.began.get((subtask.stage, subtask.partition), self.now)
        for receiver, outbox in enumerate(subtask.outboxes):
            self._record(subtask.stage + 1, outbox.put(marker))
            if marker.mode is MarkerMode.UNALIGNED:
                self._send(subtask, receiver, outbox.take())
            self._pump(subtask, receiver)
        self._contributed()

    def _in_flight(self, subtask: _Subtask, in_flight: InFlight) -> None:
        for _, frames in in_flight.channels:
            self._record(subtask.stage, frames)
        self._contributed()

    def _record(self, stage: int, frames: Iterable[Data]) -> None:
        epoch = self._under_way
        for frame in frames:
            epoch.in_flight[stage].add(_record(frame).id)
            epoch.recorded += frame.size

    def _contributed(self) -> None:
        epoch = self._under_way
        epoch.missing -= 1
        if epoch.missing:
            return
        _check_exact(epoch)
        operators = self.settings.shuffles * self.settings.parallelism
        self._costs.append(EpochCost(self.now - epoch.triggered, epoch.held_back / operators, epoch.recorded))
        self._epoch = None


def _check_exact(epoch: _Epoch) -> None:
    sent, recorded = epoch.cuts[0], Tally()
    for stage, processed in enumerate(epoch.cuts):
        recorded = recorded.plus(epoch.in_flight[stage])
        if processed.plus(recorded) != sent:
            raise InexactCut(
                f"epoch {epoch.marker.epoch}: the sources had sent {sent}; stage {stage} had processed {processed}, "
                f"and {recorded} was recorded in flight up to there"
            )


def _record(frame: Data) -> _Record:
    assert isinstance(frame.payload, _Record)
    return frame.payload


def _channel(stage: int, sender: int, receiver: int) -> ChannelId:
    return ChannelId(Uid(f"stage-{stage}"), Uid(f"stage-{stage + 1}"), Partition(sender), Partition(receiver))
