"""The part of one partition in every epoch: its participant's machine, fed by the stages, and its acknowledgement.

Invariant: no rule is decided here. What stages, sinks and state report goes to the participant; when that says
that all is durable, the parts are put together as they were reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from snapshot import fail_points
from snapshot.cut.participant import (
    Acknowledge,
    Decline,
    EpochGivenUp,
    Part,
    PartDurable,
    PartFailed,
    Participant,
    ParticipantEvent,
    SubtaskContent,
    SubtaskCut,
)
from snapshot.epochs.transaction_events import Committable
from snapshot.fail_points import reached
from snapshot.host.partition.channel_state import Frames, size_of
from snapshot.host.partition.stage_news import StageCut
from snapshot.host.partition.stalls import PendingEpoch
from snapshot.host.protocol.messages import Acknowledgement, Declining, FromWorker, PartitionCost
from snapshot.tree.manifest import ChannelState, CommitPayload, SubtaskSnapshot
from statebackend import means
from statebackend.ids import NO_EPOCH, Epoch, Incarnation, Partition, Uid
from statebackend.snapshots.uploads import Durable


@dataclass(frozen=True, slots=True)
class ChannelParts:
    """In-flight data of one stage, durable: what it had received, and what its markers overtook."""

    received: tuple[ChannelState, ...]
    overtaken: tuple[ChannelState, ...]


Content = StageCut | Durable | tuple[Committable[CommitPayload], ...] | ChannelParts | None


_AWAITED: Final = {
    Part.FILES: "its files to be written and uploaded",
    Part.TRANSACTIONS: "its sink to prepare what was written",
    Part.CHANNELS: "in-flight data to be stored",
}


@dataclass(slots=True)
class _Clock:
    """The times of an epoch's steps in this process."""

    triggered: float
    began: dict[Uid, float] = field(default_factory=dict)
    alignment: float = 0.0
    sync: float = 0.0
    last_cut: float = 0.0
    channel_bytes: int = 0


class EpochTracker:
    """The epochs in flight in one partition and attempt.

    `next_number` says which number the next file of the partition will have in its name; `tell` brings messages to the
    driver. With `mute`, the partition has another member, its primary, that does: nothing is said until `speak`.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        partition: Partition,
        subtasks: tuple[Uid, ...],
        restored: Epoch | None,
        next_number: Callable[[], int],
        tell: Callable[[FromWorker], None],
        *,
        mute: bool = False,
    ) -> None:
        self._incarnation = incarnation
        self._partition = partition
        self._participant: Participant[Content] = Participant(subtasks, restored if restored is not None else NO_EPOCH)
        self._next_number = next_number
        self._tell = tell
        self._subtasks = subtasks
        self._mute = mute
        self._unsaid: set[Epoch] = set()
        """The epochs that were cut, and that this process does not acknowledge."""
        self._clocks: dict[Epoch, _Clock] = {}
        self._numbers: dict[Epoch, int] = {}
        """The number of the next file when the epoch was first heard of, in rising order. An epoch that is heard of
        only after a later one has none."""

    # --- what the driver says -----------------------------------------------------------------------------------------

    def triggered(self, epoch: Epoch) -> None:
        """Start the epoch's clock at its trigger, or at the first marker before it."""
        if epoch > next(reversed(self._numbers), NO_EPOCH):
            self._numbers[epoch] = self._next_number()
        self._clocks.setdefault(epoch, _Clock(means.monotonic()))

    def completed(self, epoch: Epoch) -> None:
        """Note that the epoch is complete, and forget it and those before it."""
        self._participant.completed(epoch)
        self._clocks = {other: clock for other, clock in self._clocks.items() if other > epoch}
        self._unsaid = {other for other in self._unsaid if other > epoch}
        if self._mute:
            self._numbers = {other: number for other, number in self._numbers.items() if other >= epoch}

    def given_up(self, epoch: Epoch) -> None:
        """Give the epoch up, as it was abandoned."""
        self._clocks.pop(epoch, None)
        self._unsaid.discard(epoch)
        self.feed(EpochGivenUp(epoch))

    def speak(self) -> None:
        """Acknowledge from now on, as this process takes over; decline what was cut until now and may be awaited."""
        self._mute = False
        unsaid, self._unsaid = sorted(self._unsaid), set()
        for epoch in unsaid:
            self.failed(
                epoch, self._subtasks[0], "it was cut before this process took over from the partition's primary"
            )

    # --- what stages, sinks and state say -----------------------------------------------------------------------------

    def alignment_began(self, stage: Uid, epoch: Epoch) -> None:
        """Note that the first marker of the epoch has come to a stage."""
        self.triggered(epoch)
        self._clocks[epoch].began[stage] = means.monotonic()

    def cut(self, stage: Uid, cut: StageCut, owes: Mapping[Uid, frozenset[Part]]) -> None:
        """Note a stage's cut; its operator has noted what is in it, its sinks nothing."""
        self.triggered(cut.epoch)
        clock = self._clocks[cut.epoch]
        now = means.monotonic()
        clock.alignment = max(clock.alignment, now - clock.began.get(stage, now))
        clock.sync += cut.took
        clock.last_cut = now
        if self._mute:
            self._unsaid.add(cut.epoch)
            return
        for uid, parts in owes.items():
            self.feed(SubtaskCut(cut.epoch, uid, cut if uid == stage else None, parts))

    def durable(self, epoch: Epoch, uid: Uid, part: Part, content: Content) -> None:
        """Note that a part that was owed is durable."""
        if not self._mute:
            self.feed(PartDurable(epoch, uid, part, content))

    def failed(self, epoch: Epoch, uid: Uid, reason: str) -> None:
        """Note that a subtask cannot contribute to the epoch."""
        if not self._mute:
            self.feed(PartFailed(epoch, uid, reason))

    def has_in_flight(self, epoch: Epoch, frames: Frames) -> None:
        """Add in-flight data that goes into the epoch."""
        clock = self._clocks.get(epoch)
        if clock is not None:
            clock.channel_bytes += size_of(frames)

    def pending(self, markers: Callable[[Uid, Epoch], str]) -> list[PendingEpoch]:
        """Return unacknowledged epochs, oldest first, with what each awaits; `markers` says it of an uncut operator."""
        found: list[PendingEpoch] = []
        if self._mute:
            return found
        for epoch, clock in sorted(self._clocks.items()):
            awaited = self._participant.awaited(epoch)
            if awaited:
                waits = {
                    uid: " and ".join(_AWAITED[part] for part in parts) if parts else markers(uid, epoch)
                    for uid, parts in awaited.items()
                }
                found.append(PendingEpoch(epoch, clock.triggered, waits))
        return found

    def feed(self, event: ParticipantEvent[Content]) -> None:
        """Give an event to the participant, and do what it says."""
        for instruction in self._participant.handle(event):
            match instruction:
                case Acknowledge(epoch, subtasks):
                    reached(fail_points.BEFORE_ACKNOWLEDGE)
                    self._tell(self._acknowledgement(epoch, subtasks))
                    reached(fail_points.AFTER_ACKNOWLEDGE)
                case Decline(epoch, uid, reason):
                    self._tell(Declining(self._incarnation, self._partition, epoch, f"{uid}: {reason}"))

    # --- the acknowledgement ------------------------------------------------------------------------------------------

    def _acknowledgement(self, epoch: Epoch, contents: Mapping[Uid, SubtaskContent[Content]]) -> Acknowledgement:
        subtasks: dict[Uid, SubtaskSnapshot] = {}
        overtaken: list[ChannelState] = []
        broadcast: dict[Uid, bytes] = {}
        for uid, content in contents.items():
            subtasks[uid] = self._subtask(content)
            channels = content.parts.get(Part.CHANNELS)
            if isinstance(channels, ChannelParts):
                overtaken += channels.overtaken
            if isinstance(content.at_cut, StageCut) and content.at_cut.broadcast is not None:
                broadcast[uid] = content.at_cut.broadcast
        return Acknowledgement(
            self._incarnation,
            self._partition,
            epoch,
            subtasks,
            tuple(sorted(overtaken, key=lambda state: state.channel)),
            broadcast,
            self._cost(epoch, subtasks),
            self._named_from(epoch, contents.values()),
        )

    def _named_from(self, epoch: Epoch, contents: Collection[SubtaskContent[Content]]) -> int:
        """Return the lowest number of files that later epochs may name anew; 0 if that is not known."""
        parts = (part for content in contents for part in content.parts.values())
        since = min([epoch, *(part.since for part in parts if isinstance(part, Durable))])
        self._numbers = {known: number for known, number in self._numbers.items() if known >= since}
        return self._numbers.get(since, 0)

    def _subtask(self, content: SubtaskContent[Content]) -> SubtaskSnapshot:
        cut, parts = content.at_cut, content.parts
        files, committables = parts.get(Part.FILES), parts.get(Part.TRANSACTIONS, ())
        channels = parts.get(Part.CHANNELS)
        return SubtaskSnapshot(
            self._partition,
            state=files.files if isinstance(files, Durable) else None,
            positions=cut.positions if isinstance(cut, StageCut) else (),
            watermark=cut.watermark if isinstance(cut, StageCut) else None,
            channels=channels.received if isinstance(channels, ChannelParts) else (),
            committables=committables if isinstance(committables, tuple) else (),
        )

    def _cost(self, epoch: Epoch, subtasks: Mapping[Uid, SubtaskSnapshot]) -> PartitionCost:
        clock = self._clocks[epoch]
        files = [file for one in subtasks.values() if one.state is not None for file in one.state.files]
        return PartitionCost(
            self._partition,
            since_trigger_ms=0.0,
            alignment_ms=clock.alignment * 1000,
            sync_ms=clock.sync * 1000,
            async_ms=(means.monotonic() - clock.last_cut) * 1000,
            state_bytes=sum(file.size for file in files if file.epoch == epoch),
            channel_bytes=clock.channel_bytes,
        )
