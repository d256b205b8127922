"""The times of last use of a namespace's keys, by slot, and the keys that changed since the last cut.

Invariant: a slot is in `dirty` once if its key was changed since the last cut, and `is_dirty` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statebackend.tables.values.accumulators import grown
from statebackend.tables.values.aggregations import Slots

LONG_AGO = -1
_BORN = -2
"""The time of a key that had no touch before, and is new since its touch or since the last cut."""

_NONE: Slots = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class TouchClock:
    """Numbers what is touched, over all namespaces; what was touched since the last cut has a number from `cut` on.

    The times between cuts are numbered, too. From the interval `kept` on, former contents are noted; none are if
    `kept` is yet to come. What is noted in all namespaces takes about so many bytes. Whenever keys leave, or come that
    are not new, that is one more of the `losses`.
    """

    now: int = 0
    cut: int = 0
    interval: int = 0
    kept: int = 0
    noted_bytes: int = 0
    losses: int = 0

    @property
    def notes(self) -> bool:
        """True if what is there is noted before it changes."""
        return self.kept <= self.interval


class Touches:
    """The touches of one namespace. A slot counts for nothing until its key is `born` or known `not_lately`."""

    BYTES_PER_SLOT = 9

    def __init__(self, clock: TouchClock, few: int) -> None:
        """Begin with arrays for so many slots."""
        self._clock = clock
        self._when: NDArray[np.int64] = np.zeros(few, dtype=np.int64)
        self.is_dirty: NDArray[np.bool_] = np.zeros(few, dtype=np.bool_)
        """True for each key that was changed since the last cut: in one byte, as this is asked for every row of every
        batch."""
        self._some_born = False
        self.dirty: list[Slots] = []
        self.dirty_count = 0

    @property
    def list_bytes(self) -> int:
        """Return how much memory it occupies besides its arrays by slot."""
        return sum(slots.nbytes for slots in self.dirty)

    def grow(self, least: int) -> None:
        """Have room for at least so many slots."""
        self._when, self.is_dirty = grown(self._when, least), grown(self.is_dirty, least)

    def born(self, slots: Slots) -> None:
        """Note that these slots have a key now."""
        self._when[slots] = _BORN
        self.is_dirty[slots] = False
        self._some_born = True

    def not_lately(self, slots: Slots) -> None:
        """Note that these keys are as they were at the last cut, and were not used since."""
        self._when[slots] = LONG_AGO
        self.is_dirty[slots] = False

    def touch(self, slots: Slots) -> tuple[Slots, Slots]:
        """Note that these keys were changed; the same slot may come repeatedly.

        Return those that were not changed before since the last cut, and those of them whose accumulators have to be
        noted before they change.
        """
        clock = self._clock
        fresh = slots[~self.is_dirty.take(slots)]
        if not len(fresh):
            return _NONE, _NONE
        before = self._when[fresh] if clock.notes and self._some_born else None
        numbers = np.arange(clock.now, clock.now + len(fresh))
        self._when[fresh] = numbers
        first = self._when[fresh] == numbers
        fresh = fresh[first]  # of a slot that came repeatedly, one
        clock.now += len(numbers)
        self._some_born = False
        self.is_dirty[fresh] = True
        self.dirty.append(fresh)
        self.dirty_count += len(fresh)
        if not clock.notes:
            return fresh, _NONE
        return fresh, fresh if before is None else fresh[before[first] != _BORN]

    def look_at(self, slots: Slots) -> None:
        """Note that these keys were read: more recently than what was touched before the last cut."""
        self._when[slots] = np.maximum(self._when[slots], self._clock.cut - 1)

    def when(self, slots: Slots) -> NDArray[np.int64]:
        """Return when these keys were first touched in the epoch of their last use: small is long ago."""
        return self._when[slots]

    def begin_epoch(self) -> None:
        """Begin with nothing changed."""
        if 8 * self.dirty_count > len(self.is_dirty):
            self.is_dirty.fill(False)
        else:
            for slots in self.dirty:
                self.is_dirty[slots] = False
        self.dirty, self.dirty_count = [], 0
