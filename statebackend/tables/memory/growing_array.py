"""An array that grows while it is used, without a pause: its successor is filled a little at every write.

Invariant: `now` has every value that was put. Another thread may read from it the items that no thread writes
meanwhile: it is replaced by a whole successor, never moved.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Item = TypeVar("_Item", bound=np.generic)

_FULL = 3 / 4
"""From here on a successor is filled."""

_COPIED = 5
"""So many items are copied for each that is put: the successor is complete before the array is full."""


class GrowingArray(Generic[_Item]):
    """Items by number, zero where nothing was put. All writes go through `put`, after `make_room`."""

    def __init__(self, dtype: DTypeLike, room: int) -> None:
        self.now: NDArray[_Item] = np.zeros(room, dtype=dtype)
        """The items, to be read at once: after the next `make_room` it may be another array."""
        self._next: NDArray[_Item] | None = None
        self._copied = 0
        self._limit = 0

    def reserve(self, room: int) -> None:
        """Make room for the items below this number, so that it does not grow until they are there. May copy all."""
        if room > _FULL * len(self.now):
            self._grow(room + room // 2)

    def make_room(self, limit: int) -> None:
        """Make sure that the items below this number can be put."""
        self._limit = max(self._limit, limit)
        if limit > len(self.now):
            self._grow(max(limit, 2 * len(self.now)))
        elif self._next is None and limit > _FULL * len(self.now):
            self._next, self._copied = np.zeros(2 * len(self.now), dtype=self.now.dtype), 0

    def put(self, at: NDArray[np.int64], items: NDArray[_Item] | _Item) -> None:
        """Write the items at these numbers."""
        self.now[at] = items
        if self._next is not None:
            self._next[at] = items
            self._copy(_COPIED * len(at))

    def _grow(self, room: int) -> None:
        if self._next is None or len(self._next) < room:
            self._next, self._copied = np.zeros(room, dtype=self.now.dtype), 0
        self._copy(len(self.now))
        self.now, self._next = self._next, None

    def _copy(self, number: int) -> None:
        assert self._next is not None
        end = min(self._copied + number, len(self.now))
        self._next[self._copied : end] = self.now[self._copied : end]
        self._copied = end

    @property
    def nbytes(self) -> int:
        """Return the memory in use; room that no item came to takes none yet."""
        copied = 0 if self._next is None else self._copied
        return (self._limit + copied) * self.now.itemsize
