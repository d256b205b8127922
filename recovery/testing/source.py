"""The source subtask of the simulated job: splits are read, and records sent to the owners of their keys.

Invariant: a position counts the records that were put into an outbox, and the marker goes into the same
outboxes in the same step in which the positions are noted.
"""

from __future__ import annotations

from collections.abc import Sequence

from recovery.testing.messages import SOURCE, WINDOWS, Role, SourceCut
from recovery.testing.stream import MAX_PARALLELISM, Item, Stream, group_of
from snapshot.cut.aligner import Aborted, Aligner, AlignerInstruction, Cut, Triggered
from snapshot.cut.frames import Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.cut.outbox import Outbox
from snapshot.cut.participant import SubtaskCut
from snapshot.ids import ChannelId
from statebackend.ids import Epoch, Partition
from statebackend.keygroups import owner_of


class SourceSubtask:
    """One partition's source, in one attempt."""

    def __init__(self, role: Role, parallelism: int, stream: Stream) -> None:
        self._stream = stream
        self._parallelism = parallelism
        self._aligner = Aligner(())
        self._positions = dict(role.positions)
        self._watermark = role.source_watermark
        self._no_more = False
        self._asked = False
        self._last_marker: Marker | None = None
        self.ended = False
        self.outboxes = {
            ChannelId(SOURCE, WINDOWS, role.partition, Partition(receiver)): Outbox() for receiver in range(parallelism)
        }
        self._put_on_all(Watermark(self._watermark))

    @property
    def active(self) -> Sequence[int]:
        """Return the splits that are not read to their end."""
        return [split for split, position in self._positions.items() if position < self._stream.length]

    def wants_split(self) -> bool:
        """True if the source is to ask for a split now; true once until it is answered."""
        if self.active or self._no_more or self._asked:
            return False
        self._asked = True
        return True

    def assigned(self, split: int | None) -> None:
        """Take the answer: a split, or None for the end."""
        self._asked = False
        if split is None:
            self._no_more = True
            self._end_if_done()
        else:
            self._positions[split] = 0

    def emit(self) -> None:
        """Read one record and send it on."""
        split = self.active[0]
        item = self._stream.item(split, self._positions[split])
        self._positions[split] += 1
        # Take turns among the splits that a rescale has brought together.
        self._positions[split] = self._positions.pop(split)
        self._last_marker = None
        self._put(item)
        self._advance_watermark(item)
        self._end_if_done()

    def trigger(self, marker: Marker) -> list[SubtaskCut[object]]:
        """Begin an epoch that the coordinator has triggered."""
        return self._carry_out(self._aligner.handle(Triggered(marker)))

    @property
    def has_sent_marker(self) -> bool:
        """True if nothing was read since the last marker and the source goes on: the marker could be sent again."""
        return self._last_marker is not None and not self.ended

    def repeat_marker(self, channel: ChannelId) -> None:
        """Send the last marker once more on a channel, as a confused sender might."""
        assert self._last_marker is not None
        mode = self._last_marker.mode
        # A second unaligned marker would overtake again; what it overtakes would be recorded twice.
        repeated = MarkerMode.ALIGNED if mode is MarkerMode.UNALIGNED else mode
        self.outboxes[channel].put(Marker(self._last_marker.epoch, repeated))

    def abandon(self, epoch: Epoch) -> None:
        """Abandon an epoch that the coordinator gives up."""
        self._aligner.handle(Aborted(epoch))

    def _carry_out(self, instructions: list[AlignerInstruction]) -> list[SubtaskCut[object]]:
        return [self._cut(instruction.marker) for instruction in instructions if isinstance(instruction, Cut)]

    def _cut(self, marker: Marker) -> SubtaskCut[object]:
        self._last_marker = marker
        overtaken = self._put_on_all(marker)
        content = SourceCut(dict(self._positions), self._watermark, overtaken)
        return SubtaskCut(marker.epoch, SOURCE, content, frozenset())

    def _put(self, item: Item) -> None:
        owner = owner_of(group_of(item.key), self._parallelism, MAX_PARALLELISM)
        for channel, outbox in self.outboxes.items():
            if channel.receiver == owner:
                outbox.put(Data(item, 1))

    def _put_on_all(self, frame: Frame) -> dict[ChannelId, tuple[Item, ...]]:
        """Put a frame on every channel; returns what it has overtaken on each."""
        overtaken = {}
        for channel, outbox in self.outboxes.items():
            items = [data.payload for data in outbox.put(frame)]
            overtaken[channel] = tuple(item for item in items if isinstance(item, Item))
        return {channel: items for channel, items in overtaken.items() if items}

    def _advance_watermark(self, last: Item) -> None:
        upcoming = [self._stream.item(split, self._positions[split]).timestamp for split in self.active]
        watermark = min(upcoming) - 1 if upcoming else last.timestamp
        if watermark > self._watermark:
            self._watermark = watermark
            self._put_on_all(Watermark(watermark))

    def _end_if_done(self) -> None:
        if self._no_more and not self.active and not self.ended:
            self.ended = True
            self._put_on_all(End())
