"""One channel out of several copies of it: whichever copy brings an element first, it is taken from there, once.

Invariant: the elements that are taken are those of the channel, in its order, none twice and none left out, however the
copies cut their rows into frames, wherever one of them breaks off, and whenever another one joins behind a marker.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from snapshot.cut.frames import Frame
from snapshot.replication.positions import Position, elements
from statebackend.errors import JobError
from statebackend.ids import NO_EPOCH, Epoch

Copy = TypeVar("Copy", bound=Hashable)


class TooEarly(JobError):
    """A copy was read that has come to a later segment than the channel; the host must not read it yet."""


class FirstCopy(Generic[Copy]):
    """The copies of one channel, from the segment on that `began` names.

    The caller owes: frames of each copy in their order, none of a copy that is not `wanted`, and of the frames that are
    taken only the last elements, as many as `take` says.
    """

    def __init__(self, copies: Iterable[Copy], began: Epoch = NO_EPOCH) -> None:
        self._at = Position(began)
        self._copies = dict.fromkeys(copies, self._at)

    @property
    def at(self) -> Position:
        """Return how far the channel has been taken."""
        return self._at

    def join(self, copy: Copy, began: Epoch) -> None:
        """Expect another copy, which begins right behind the marker of this epoch."""
        self._copies[copy] = Position(began)

    def drop(self, copy: Copy) -> None:
        """Forget a copy of which nothing comes any more."""
        del self._copies[copy]

    def is_wanted(self, copy: Copy) -> bool:
        """True if the copy may be read now: it has not come to a segment that the channel has yet to reach."""
        return self._copies[copy].segment <= self._at.segment

    def take(self, copy: Copy, frame: Frame) -> int:
        """Take the next frame of a copy; return how many of its elements, the last ones, are new: 0 if none is."""
        began = self._copies[copy]
        if began.segment > self._at.segment:
            raise TooEarly(f"copy {copy} is at {began}, and its channel only at {self._at}")
        self._copies[copy] = ends = began.after(frame)
        if began.segment < self._at.segment:
            return 0
        new = min(elements(frame), began.element + elements(frame) - self._at.element)
        if new <= 0:
            return 0
        self._at = ends
        return new
