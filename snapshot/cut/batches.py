"""The batches of a source: what is there at an epoch's trigger is read, then the source is cut, and it stands still
until the epoch is over.

Invariant: nothing is read but for an epoch whose cut waits for it; a batch ends, also if more comes than can be read.
"""

from __future__ import annotations

from snapshot.cut.pauses import Pauses, Then
from statebackend.ids import Epoch


class Batches:
    """The batches of one source in one partition and attempt. Times are in seconds.

    A batch ends when the source has nothing more, when it has `at_most` rows, or when it was read for `longest`.
    """

    def __init__(self, at_most: int | None, longest: float) -> None:
        self._at_most = at_most
        self._longest = longest
        self._pauses = Pauses()
        self._reads = False
        self._rows = 0
        self._began = 0.0

    @property
    def is_read(self) -> bool:
        """True while the cut of an epoch waits for rows."""
        return self._reads

    @property
    def stands_still(self) -> bool:
        """True while an epoch is under way, or if it was the last one."""
        return self._pauses.stands_still

    @property
    def may_end(self) -> bool:
        """True if a source that has nothing more may say so: after its cut, whatever epoch is under way.

        Were it to wait until none is, it might wait for ever: the next one begins as soon as one is over.
        """
        return not self._pauses.has_stopped

    def left(self, most: int) -> int:
        """Return how many rows are to be read next, where `most` could be."""
        return most if self._at_most is None else min(most, self._at_most - self._rows)

    def next_due(self, now: float) -> float:
        """Return in how many seconds the batch that is being read ends at the latest."""
        return max(0.0, self._began + self._longest - now)

    def triggered(self, epoch: Epoch, then: Then, now: float) -> None:
        """Begin the batch of an epoch; one that is triggered while another is under way has no rows of its own."""
        if not self._pauses.stands_still:
            self._reads, self._rows, self._began = True, 0, now
        self._pauses.triggered(epoch, then)

    def took(self, rows: int, now: float) -> None:
        """Take the word that so many rows were read, or none yet, though there may be more."""
        self._rows += rows
        full = self._at_most is not None and self._rows >= self._at_most
        if full or now >= self._began + self._longest:
            self._reads = False

    def found_nothing(self) -> None:
        """Take the word that there is nothing more to be read now."""
        self._reads = False

    def over(self, epoch: Epoch, *, complete: bool) -> None:
        """Take the word that an epoch is complete, or was given up; its rows then belong to the next one."""
        self._pauses.over(epoch, complete=complete)
        if not self._pauses.stands_still:
            self._reads = False
