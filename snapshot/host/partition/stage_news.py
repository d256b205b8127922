"""The news of a stage for the protocol: what its partition hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.cut.aligner import AlignmentBegan, Missed
from snapshot.cut.frames import Watermark
from snapshot.host.partition.channel_state import Frames
from snapshot.host.protocol.stage_now import StageNow
from snapshot.tree.manifest import SplitPosition
from statebackend.ids import Epoch


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
    now: StageNow | None = None
    """All else that the stage is, if its marker admits processes that go on from there."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """All that was in flight on the inputs of an unaligned cut: it is to be stored."""

    cut: StageCut
    frames: Frames


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An unaligned cut whose last marker is awaited."""

    cut: StageCut
    left: Frames
    """The frames that were off the channels' queues at the cut, and not processed yet."""

    def with_received(self, received: Frames) -> InFlight:
        """Return all that was in flight, with what stood in the queues or came before the markers."""
        channels = [*self.left, *(channel for channel in received if channel not in self.left)]
        return InFlight(self.cut, {c: [*self.left.get(c, ()), *received.get(c, ())] for c in channels})


@dataclass(frozen=True, slots=True)
class NeedsSplit:
    """The stage's source has nothing more to read, though it was told so often of splits."""

    heard: int


@dataclass(frozen=True, slots=True)
class StageEnded:
    """All input of the stage has ended, and so have its outputs."""


StageNews = AlignmentBegan | StageCut | InFlight | Missed | NeedsSplit | StageEnded
"""The news of a stage for the protocol. The stage's sinks are cut after the call that reports its cut."""
