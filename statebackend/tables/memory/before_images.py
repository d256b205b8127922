"""The former content of a namespace's changed keys, as of the begin of a time between two cuts.

Invariant: of every slot that had a key when the interval began, and has lost it or has other accumulators
now, it is known here that it had a key, and which accumulators. So going back is putting that back, the youngest
interval first; and what is noted follows what changed, not what exists.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from statebackend.tables.memory.touches import TouchClock
from statebackend.tables.values.accumulators import Column, bytes_of
from statebackend.tables.values.aggregations import Slots

_KEY = 160
"""The memory of a removed key besides its accumulators as long as it may come back, about."""

_ARRAY = 120
_NOTE = 330
"""The memory of an array besides its items, and of a note besides its arrays, about: many are of one key."""

_FEW = 8
"""If more than this part of all slots changed, all are put back."""


class BeforeImages:
    """The before-images of one namespace in one interval. For one thread."""

    __slots__ = ("_columns", "_life", "_slots", "_whole", "interval", "kept_bytes", "nbytes")

    def __init__(self, interval: int, whole: Mapping[str, Column] | None = None) -> None:
        """Begin an interval; `whole` are all accumulators by slot as they are then, if they were copied anyway."""
        self.interval = interval
        self._whole = whole
        self._slots: list[Slots] = []
        self._columns: list[Mapping[str, Column]] = []
        self._life: list[tuple[Slots, bool]] = []
        self.nbytes = 0 if whole is None else _bytes_of(whole)
        """The memory that the notes occupy, about."""
        self.kept_bytes = 0
        """The memory of the keys that are only kept because they may come back, about."""

    def changing(self, slots: Slots, columns: Mapping[str, Column]) -> int:
        """Note these slots' accumulators before they first change; return by how much the notes have grown."""
        self._slots.append(slots)
        size = slots.nbytes + _ARRAY
        if self._whole is None:
            before = {name: column.take(slots) for name, column in columns.items()}
            self._columns.append(before)
            size += _NOTE + _bytes_of(before)
        self.nbytes += size
        return size

    def born(self, slots: Slots) -> int:
        """Note that these slots get a key; return by how much the notes have grown."""
        return self._lives(slots, False)

    def died(self, slots: Slots, columns: Mapping[str, Column]) -> int:
        """Note that these slots lose their keys, which are kept for now; return how much more memory that takes."""
        kept = len(slots) * (_KEY + sum(column.itemsize for column in columns.values()))
        self.kept_bytes += kept
        return kept + self._lives(slots, True)

    def _lives(self, slots: Slots, before: bool) -> int:
        self._life.append((slots, before))
        size = slots.nbytes + _ARRAY
        self.nbytes += size
        return size

    def put_back(self, columns: Mapping[str, Column], alive: NDArray[np.bool_]) -> None:
        """Make these what they were when the interval began, given that they are what they were when it ended."""
        if self._whole is not None:
            self._put_whole_back(self._whole, columns)
        elif self._slots:
            # Of a slot that comes repeatedly numpy keeps what comes last: that shall be what was noted first.
            slots = np.concatenate(self._slots[::-1])
            for name, column in columns.items():
                column[slots] = np.concatenate([before[name] for before in reversed(self._columns)])
        for slots, before in reversed(self._life):
            alive[slots] = before

    def _put_whole_back(self, whole: Mapping[str, Column], columns: Mapping[str, Column]) -> None:
        limit = min(map(len, whole.values()), default=0)
        if _FEW * sum(map(len, self._slots)) > limit:
            for name, before in whole.items():
                columns[name][:limit] = before
        elif self._slots:
            slots = np.concatenate(self._slots)
            slots = slots[slots < limit]  # the others have got their keys since
            for name, before in whole.items():
                columns[name][slots] = before[slots]


class Images:
    """The before-images of one namespace, of every interval to which one may go back, the youngest last.

    What they occupy is counted by the clock, over all namespaces.
    """

    def __init__(self, clock: TouchClock) -> None:
        self._clock = clock
        self._intervals: list[BeforeImages] = []

    def __bool__(self) -> bool:
        """True if something is noted."""
        return bool(self._intervals)

    @property
    def nbytes(self) -> int:
        """Return the memory that the notes occupy, about."""
        return sum(images.nbytes for images in self._intervals)

    def _now(self) -> BeforeImages:
        if not self._intervals or self._intervals[-1].interval != self._clock.interval:
            self._intervals.append(BeforeImages(self._clock.interval))
        return self._intervals[-1]

    def changing(self, slots: Slots, columns: Mapping[str, Column]) -> None:
        """Note these slots' accumulators before they first change in this interval."""
        self._clock.noted_bytes += self._now().changing(slots, columns)

    def born(self, slots: Slots) -> None:
        """Note that these slots get a key."""
        self._clock.noted_bytes += self._now().born(slots)

    def died(self, slots: Slots, columns: Mapping[str, Column]) -> None:
        """Note that these slots lose their keys, which are kept for now."""
        self._clock.noted_bytes += self._now().died(slots, columns)

    def begin_with(self, columns: Mapping[str, Column], room: float) -> None:
        """Begin the interval with all accumulators, which were copied anyway, if they take no more bytes than that."""
        images = BeforeImages(self._clock.interval, columns)
        if images.nbytes <= room:
            self._intervals.append(images)
            self._clock.noted_bytes += images.nbytes

    def forget(self) -> None:
        """Forget the intervals before the clock's `kept`."""
        while self._intervals and self._intervals[0].interval < self._clock.kept:
            gone = self._intervals.pop(0)
            self._clock.noted_bytes -= gone.nbytes + gone.kept_bytes

    def put_back(self, interval: int, columns: Mapping[str, Column], alive: NDArray[np.bool_]) -> bool:
        """Make these what they were when this interval began, and forget all; False if nothing has changed since."""
        since, self._intervals = [some for some in self._intervals if some.interval >= interval], []
        for images in reversed(since):
            images.put_back(columns, alive)
        return bool(since)


def _bytes_of(columns: Mapping[str, Column]) -> int:
    return sum(bytes_of(column) + _ARRAY for column in columns.values())
