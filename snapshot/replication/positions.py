"""Places on a channel that all copies of it share, as they are counted from the channel's contents alone.

Invariant: a marker begins a new segment, in which elements are counted anew; so a copy of a channel that begins behind
a marker needs no history to know its place, and no count grows without bound while epochs go on.
"""

from __future__ import annotations

from dataclasses import dataclass

from snapshot.cut.frames import Data, Frame, Marker
from statebackend.ids import NO_EPOCH, Epoch


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The place behind `element` elements of a segment: each row is one, and each frame that is not data.

    The segment has the name of the epoch whose marker began it; the first of a channel is that of the epoch from which
    its attempt started.
    """

    segment: Epoch = NO_EPOCH
    element: int = 0

    def after(self, frame: Frame) -> Position:
        """Return the place behind a frame that begins here."""
        if isinstance(frame, Marker):
            return Position(frame.epoch)
        return Position(self.segment, self.element + elements(frame))

    def __str__(self) -> str:
        return f"element {self.element} behind the marker of {self.segment}"


def elements(frame: Frame) -> int:
    """Return how many elements a frame has."""
    return frame.rows if isinstance(frame, Data) else 1
