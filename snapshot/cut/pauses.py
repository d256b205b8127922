"""The times in which sources stand still: from their cut for an epoch until it is over, or for good.

Invariant: a source that stands still goes on as soon as none of the epochs that hold it is under way; an epoch that is
given up holds no source.
"""

from __future__ import annotations

from enum import Enum, auto

from statebackend.ids import Epoch


class Then(Enum):
    """The way in which a source goes on after its cut for an epoch."""

    READ_ON = auto()
    PAUSE = auto()
    """It reads nothing until the epoch is complete, or was given up."""
    STOP = auto()
    """It reads nothing more, unless the epoch is given up."""


class Pauses:
    """The epochs that hold the source of one stage, in one attempt."""

    def __init__(self) -> None:
        self._held_by: dict[Epoch, Then] = {}

    @property
    def stands_still(self) -> bool:
        """True if nothing is to be read now."""
        return bool(self._held_by)

    @property
    def has_stopped(self) -> bool:
        """True if an epoch was the last one, unless it is given up."""
        return Then.STOP in self._held_by.values()

    def triggered(self, epoch: Epoch, then: Then) -> None:
        """Take the word that the source is cut for an epoch now."""
        if then is not Then.READ_ON:
            self._held_by[epoch] = then

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Take the word that an epoch is complete, or was given up."""
        if not (complete and self._held_by.get(epoch) is Then.STOP):
            self._held_by.pop(epoch, None)
