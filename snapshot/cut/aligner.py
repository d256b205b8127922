"""The marker rule of one subtask with many inputs: when to cut its state, and what was in flight at that moment.

Invariant: every frame is processed once and in the order of its channel; epochs are cut in rising order;
and at a cut the state holds exactly what came before the marker on each channel, less what is reported as channel
state (aligned and unaligned), or at least that (at-least-once).

One rule serves every mode. An epoch's marker *arrives* when it enters a channel's queue and is *reached* when all
before it has been processed. A subtask cuts when the marker was reached on every live channel that it must wait
for: all of them in an aligned epoch, in an unaligned one only those that cannot be overtaken (broadcast, forward,
rebalance), as soon as one marker has arrived and no savepoint is waiting to be cut before. A channel whose marker
was reached is held back until the cut. What stands before a marker that has not been reached at the cut, or has not
even arrived, is channel state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from snapshot.cut.frames import Boundary, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.ids import ChannelId
from statebackend.errors import JobError
from statebackend.ids import NO_EPOCH, Epoch


@dataclass(frozen=True, slots=True)
class Arrived:
    """A frame has come in on a channel."""

    channel: ChannelId
    frame: Frame


@dataclass(frozen=True, slots=True)
class Proceed:
    """The operator is ready for its next frame."""


@dataclass(frozen=True, slots=True)
class Triggered:
    """The coordinator has begun an epoch. It makes a subtask without live inputs cut; to all others it is a notice."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class AlignmentTimedOut:
    """An aligned epoch has waited long enough: it turns unaligned here and downstream. Savepoints never do."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Aborted:
    """The coordinator has given an epoch up."""

    epoch: Epoch


AlignerEvent = Arrived | Proceed | Triggered | AlignmentTimedOut | Aborted


@dataclass(frozen=True, slots=True)
class Process:
    """Hand this frame to the operator now."""

    channel: ChannelId
    frame: Data | Watermark


@dataclass(frozen=True, slots=True)
class AlignmentBegan:
    """The first marker of an epoch is here: the time from now to its `Cut` is the epoch's alignment."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the state now, and send `marker` on every output before anything else.

    If the marker is unaligned, `InFlight` follows once the last marker is in, and the epoch may not be acknowledged
    before what it reports is durable.
    """

    marker: Marker


@dataclass(frozen=True, slots=True)
class InFlight:
    """The channel state of an unaligned epoch, complete: sent before the marker, not processed at the cut.

    `channels` are those with any, in the order in which the aligner was given them.
    """

    epoch: Epoch
    channels: tuple[tuple[ChannelId, tuple[Data, ...]], ...]

    @property
    def size(self) -> int:
        """Return how many bytes go into the snapshot."""
        return sum(frame.size for _, frames in self.channels for frame in frames)


class WhyMissed(Enum):
    """The reason why a subtask cannot contribute to an epoch."""

    SKIPPED = "a channel delivered the marker of a later epoch without this one's"
    SUBSUMED = "a later epoch was cut first"


@dataclass(frozen=True, slots=True)
class Missed:
    """An epoch can no longer be cut here, or its channel state cannot be completed. Decline it."""

    epoch: Epoch
    why: WhyMissed


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """Nothing comes on this channel any more: its watermark no longer counts."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class AllEnded:
    """Every input has ended; flush, and send `End` on every output.

    It is said before a `Cut` that the last end completes: whether a subtask hears first of the epoch or of the end, its
    part of the epoch has what follows from the end, as that of every other one with the same senders.
    """


AlignerInstruction = Process | AlignmentBegan | Cut | InFlight | Missed | ChannelEnded | AllEnded


class UnexpectedBoundary(JobError):
    """A channel closed a round, where the inputs are not taken in rounds: its sender has another scheme."""

    def __init__(self, channel: ChannelId) -> None:
        super().__init__(f"channel {channel} closed a round, and no rounds are taken here; restart the attempt")
        self.channel = channel


class FrameAfterEnd(JobError):
    """A channel went on after its end: its sender is broken, and nothing that it says can be trusted."""

    def __init__(self, channel: ChannelId) -> None:
        super().__init__(f"channel {channel} delivered a frame after its end; restart the attempt")
        self.channel = channel


_Queued: TypeAlias = Data | Marker | Watermark | End


@dataclass(slots=True)
class _Pending:
    """An epoch between its first marker and its cut."""

    marker: Marker
    unreached: set[ChannelId]
    arrived: set[ChannelId] = field(default_factory=set)
    unaligned: bool = False


@dataclass(slots=True)
class _Recording:
    """An unaligned epoch between its cut and its last marker; `open` are the channels whose marker is awaited."""

    frames: dict[ChannelId, list[Data]]
    open: set[ChannelId]


class Aligner:
    """The inputs of one subtask in one attempt.

    `restored` is the epoch that the subtask started from: markers up to it are late. `ordered` are the channels whose
    state cannot be recorded because it could not be split when the job is rescaled. The caller owes: frames of a
    channel in its order, and instructions carried out in order before the next event. A source is a subtask
    without channels: it cuts when triggered. Nothing here survives a crash; the next attempt has a new aligner.
    """

    def __init__(
        self,
        channels: Collection[ChannelId],
        *,
        ordered: Iterable[ChannelId] = (),
        restored: Epoch = NO_EPOCH,
    ) -> None:
        self._queues: dict[ChannelId, deque[_Queued]] = {channel: deque() for channel in channels}
        self._ordered = frozenset(ordered)
        self._live = set(channels)
        self._ending: set[ChannelId] = set()  # their End is in the queue or processed
        self._held: dict[ChannelId, Epoch] = {}
        self._ready: dict[ChannelId, None] = {}  # an ordered set: takes turns among channels with frames
        self._pending: dict[Epoch, _Pending] = {}
        self._recordings: dict[Epoch, _Recording] = {}
        self._floor = restored  # nothing up to here is cut any more
        self._aborted: set[Epoch] = set()
        self._newest: dict[ChannelId, Epoch] = dict.fromkeys(channels, restored)  # the last marker to arrive
        self._gaps: set[tuple[Epoch, Epoch]] = set()  # no epoch between the two can be cut any more
        self._queued_bytes = 0

    @property
    def held_back(self) -> Collection[ChannelId]:
        """Return the channels that an alignment holds back; the host need not read from them."""
        return self._held.keys()

    @property
    def queued_bytes(self) -> int:
        """Return how many bytes of data have arrived and were not processed yet."""
        return self._queued_bytes

    @property
    def awaited(self) -> Collection[ChannelId]:
        """Return the channels whose marker an unaligned epoch awaits; the host reads them, however much is queued."""
        channels = {channel for recording in self._recordings.values() for channel in recording.open}
        for pending in self._pending.values():
            if pending.unaligned or pending.marker.mode is MarkerMode.UNALIGNED:
                channels |= pending.unreached - pending.arrived - self._ending
        return channels

    def unreached(self, epoch: Epoch) -> Collection[ChannelId]:
        """Return the channels on which the marker of an epoch that is not cut yet has not been processed."""
        pending = self._pending.get(epoch)
        return frozenset(self._live if pending is None else pending.unreached)

    @property
    def idle(self) -> bool:
        """True if `Proceed` would do nothing now."""
        return not self._ready

    @property
    def next(self) -> Frame | None:
        """Return the frame that `Proceed` would look at first; None if it would do nothing."""
        return self._queues[next(iter(self._ready))][0] if self._ready else None

    @property
    def aligning(self) -> bool:
        """True if a marker has arrived of an epoch that cannot be cut yet."""
        return any(pending.arrived for pending in self._pending.values())

    def handle(self, event: AlignerEvent) -> list[AlignerInstruction]:
        """Take an event; return the instructions to carry out, in order."""
        match event:
            case Arrived(channel, frame):
                return self._arrived(channel, frame)
            case Proceed():
                return self._proceed()
            case Triggered(marker):
                return self._triggered(marker)
            case AlignmentTimedOut(epoch):
                return self._timed_out(epoch)
            case Aborted(epoch):
                return self._abort(epoch)

    # --- frames come in -------------------------------------------------------------------------------------------

    def _arrived(self, channel: ChannelId, frame: Frame) -> list[AlignerInstruction]:
        if channel in self._ending:
            raise FrameAfterEnd(channel)
        if isinstance(frame, Boundary):
            raise UnexpectedBoundary(channel)
        self._queues[channel].append(frame)
        if channel not in self._held:
            self._ready[channel] = None
        match frame:
            case Data():
                self._queued_bytes += frame.size
                self._record(channel, frame)
                return []
            case Marker():
                return self._marker_arrived(channel, frame)
            case End():
                self._ending.add(channel)
                return self._close(channel, None)
            case Watermark():
                return []

    def _record(self, channel: ChannelId, frame: Data) -> None:
        for recording in self._recordings.values():
            if channel in recording.open:
                recording.frames[channel].append(frame)

    def _marker_arrived(self, channel: ChannelId, marker: Marker) -> list[AlignerInstruction]:
        instructions = [*self._close(channel, marker.epoch), *self._skip(channel, marker.epoch)]
        if self._wanted(marker.epoch):
            pending = self._await(marker)
            if not pending.arrived:
                instructions.append(AlignmentBegan(marker.epoch))
            pending.arrived.add(channel)
            pending.unaligned = pending.unaligned or marker.mode is MarkerMode.UNALIGNED
        return instructions + self._cut_what_is_due()

    def _close(self, channel: ChannelId, epoch: Epoch | None) -> list[AlignerInstruction]:
        """Stop recording this channel at the marker of `epoch`, or at the channel's end if that is None."""
        instructions: list[AlignerInstruction] = []
        for recorded, recording in list(self._recordings.items()):
            if channel not in recording.open or (epoch is not None and epoch < recorded):
                continue
            if epoch is not None and epoch > recorded:
                del self._recordings[recorded]
                instructions.append(Missed(recorded, WhyMissed.SKIPPED))
                continue
            recording.open.discard(channel)
            instructions += self._finish_recording(recorded)
        return instructions

    def _skip(self, channel: ChannelId, epoch: Epoch) -> list[AlignerInstruction]:
        """Give up the epochs whose marker this one went ahead of: on a FIFO channel it never comes any more."""
        newest = self._newest[channel]
        if epoch <= newest:
            return []
        self._newest[channel] = epoch
        self._gaps.add((newest, epoch))
        skipped = [pending for pending in self._pending if newest < pending < epoch]
        for missed in skipped:
            self._give_up(missed)
        return [Missed(missed, WhyMissed.SKIPPED) for missed in skipped]

    # --- the operator moves on ------------------------------------------------------------------------------------

    def _proceed(self) -> list[AlignerInstruction]:
        while self._ready:
            channel = next(iter(self._ready))
            frame = self._queues[channel].popleft()
            del self._ready[channel]
            if self._queues[channel]:
                self._ready[channel] = None
            match frame:
                case Data():
                    self._queued_bytes -= frame.size
                    return [Process(channel, frame)]
                case Watermark():
                    return [Process(channel, frame)]
                case Marker():
                    instructions = self._marker_reached(channel, frame)
                case End():
                    instructions = self._ended(channel)
            if instructions:
                return instructions
        return []

    def _marker_reached(self, channel: ChannelId, marker: Marker) -> list[AlignerInstruction]:
        pending = self._pending.get(marker.epoch)
        if pending is None or channel not in pending.unreached:
            return []  # late, aborted, or the second of its kind
        pending.unreached.remove(channel)
        if marker.mode is not MarkerMode.AT_LEAST_ONCE:
            self._held[channel] = marker.epoch
            self._ready.pop(channel, None)
        return self._cut_what_is_due()

    def _ended(self, channel: ChannelId) -> list[AlignerInstruction]:
        self._live.discard(channel)
        instructions: list[AlignerInstruction] = [ChannelEnded(channel)]
        if not self._live:
            instructions.append(AllEnded())
        for pending in list(self._pending.values()):
            pending.unreached.discard(channel)
        return instructions + self._cut_what_is_due()

    # --- the coordinator and the clock ----------------------------------------------------------------------------

    def _triggered(self, marker: Marker) -> list[AlignerInstruction]:
        if self._wanted(marker.epoch):
            self._await(marker)
        return self._cut_what_is_due()

    def _timed_out(self, epoch: Epoch) -> list[AlignerInstruction]:
        pending = self._pending.get(epoch)
        if pending is None or pending.marker.savepoint or pending.marker.mode is not MarkerMode.ALIGNED:
            return []
        pending.unaligned = True
        return self._cut_what_is_due()

    def _abort(self, epoch: Epoch) -> list[AlignerInstruction]:
        self._recordings.pop(epoch, None)
        self._give_up(epoch)
        if epoch > self._floor:
            self._aborted.add(epoch)
        return self._cut_what_is_due()

    # --- the cut --------------------------------------------------------------------------------------------------

    def _wanted(self, epoch: Epoch) -> bool:
        if epoch <= self._floor or epoch in self._aborted:
            return False
        return not any(before < epoch < after for before, after in self._gaps)

    def _await(self, marker: Marker) -> _Pending:
        return self._pending.setdefault(marker.epoch, _Pending(marker, set(self._live)))

    def _cut_what_is_due(self) -> list[AlignerInstruction]:
        instructions: list[AlignerInstruction] = []
        for epoch in sorted(self._pending):
            pending = self._pending.get(epoch)
            if pending is not None and (not pending.unreached or self._may_overtake(pending)):
                instructions += self._cut(pending)
        return instructions

    def _may_overtake(self, pending: _Pending) -> bool:
        if not (pending.unaligned and pending.arrived and pending.unreached.isdisjoint(self._ordered)):
            return False
        # A savepoint would be given up if a later epoch were cut first, and under load no savepoint would succeed.
        return not any(older.marker.savepoint for epoch, older in self._pending.items() if epoch < pending.marker.epoch)

    def _cut(self, pending: _Pending) -> list[AlignerInstruction]:
        epoch = pending.marker.epoch
        subsumed = [older for older in self._pending if older < epoch]
        for gone in [*subsumed, epoch]:
            self._give_up(gone)
        self._floor = epoch
        self._aborted = {aborted for aborted in self._aborted if aborted > epoch}
        self._gaps = {(before, after) for before, after in self._gaps if after > epoch}
        instructions: list[AlignerInstruction] = [Missed(older, WhyMissed.SUBSUMED) for older in sorted(subsumed)]
        if not pending.unaligned and pending.marker.mode is not MarkerMode.UNALIGNED:
            return [*instructions, Cut(pending.marker)]
        self._recordings[epoch] = _Recording(
            {channel: self._before_marker(channel, epoch) for channel in self._queues if channel in pending.unreached},
            {c for c in pending.unreached if c not in pending.arrived and c not in self._ending},
        )
        return [*instructions, Cut(Marker(epoch, MarkerMode.UNALIGNED)), *self._finish_recording(epoch)]

    def _before_marker(self, channel: ChannelId, epoch: Epoch) -> list[Data]:
        frames: list[Data] = []
        for frame in self._queues[channel]:
            if isinstance(frame, Marker) and frame.epoch == epoch:
                break
            if isinstance(frame, Data):
                frames.append(frame)
        return frames

    def _finish_recording(self, epoch: Epoch) -> list[AlignerInstruction]:
        recording = self._recordings[epoch]
        if recording.open:
            return []
        del self._recordings[epoch]
        channels = tuple((channel, tuple(frames)) for channel, frames in recording.frames.items() if frames)
        return [InFlight(epoch, channels)]

    def _give_up(self, epoch: Epoch) -> None:
        """Forget a pending epoch, and release the channels that it held back."""
        self._pending.pop(epoch, None)
        for channel in [channel for channel, held_by in self._held.items() if held_by == epoch]:
            del self._held[channel]
            if self._queues[channel]:
                self._ready[channel] = None
