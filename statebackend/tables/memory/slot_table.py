"""A hash table from the hashes of keys to their slots: which slot may be a key's, found for many at once with numpy.

Invariant: every slot that was entered with a hash is found with it. A slot that is found was entered with the
same hash or, rarely, with another one: comparing the keys themselves makes it certain.

The table is an array of 64-bit entries, in buckets that fill a cache line each. An entry is the upper half of a key's
hash, its lowest bit set, and the slot. The low bits of the hash say where the entry belongs (the high bits are the key
group, which the keys of a table have in common): at its home if that is free, else at the first free place of the
home's bucket, else of the next bucket; in which order, the home says as well. A place that was taken once is never
`_EMPTY` again, only `_REMOVED`: so a search may end at the first place that is `_EMPTY`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Hashes = NDArray[np.uint64]
Integers = NDArray[np.int64]
Same = Callable[[Integers, Integers], Flags]

_Item = TypeVar("_Item", bound=np.generic)

ABSENT = -1
"""The number in place of a slot where there is none."""

_BUCKET = 8
_NEAR = 5
"""So many places are looked at one by one, for most entries are there; then all of a bucket at once, which costs more.
"""

_EMPTY = np.uint64(0)
_REMOVED = np.uint64(1)
_FREE = np.uint64(2)  # below this an entry is empty or removed
_UPPER = np.uint64(0xFFFFFFFF00000000)
_LOWER = np.uint64(0x00000000FFFFFFFF)
_TAKEN = np.uint64(0x0000000100000000)
_SLOTS = np.uint64(0x100000000)  # what is below this is a slot alone


class SlotTable:
    """Slots below 2^31 by hash; made for so many of them, with which it is half full at most."""

    def __init__(self, capacity: int) -> None:
        self._entries: Hashes = np.zeros(max(_BUCKET, 1 << (2 * capacity - 1).bit_length()), dtype=np.uint64)
        self._buckets = self._entries.reshape(-1, _BUCKET)
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of places."""
        return len(self._entries)

    @property
    def load(self) -> int:
        """Return how many places are taken, by entries or by what is left of removed ones."""
        return self._taken

    @property
    def nbytes(self) -> int:
        """Return the memory that is held."""
        return self._entries.nbytes

    def candidates(self, hashes: Hashes) -> Integers:
        """Return for each hash one slot that was most probably entered with it, `ABSENT` if none was."""
        homes, tags = self._homes(hashes), _tags(hashes)
        slots = self._entries.take(homes)
        slots ^= tags
        result = slots.view(np.int64)
        rows = missed = np.flatnonzero(slots >= _SLOTS)
        found, homes, tags = slots.take(missed), homes.take(missed), tags.take(missed)
        on = np.flatnonzero(found != tags)  # where they are equal, the place is `_EMPTY`
        for step in range(1, _NEAR):
            if not len(on):
                break
            rows, homes, tags = rows.take(on), homes.take(on), tags.take(on)
            found = self._entries.take(self._places(homes, step))
            found ^= tags
            slots[rows] = found
            on = np.flatnonzero((found >= _SLOTS) & (found != tags))
        result[missed[slots.take(missed) >= _SLOTS]] = ABSENT
        if len(on):
            result[rows.take(on)] = self._candidates_in_buckets(homes.take(on) // _BUCKET, tags.take(on))
        return result

    def _candidates_in_buckets(self, buckets: Integers, tags: Hashes) -> Integers:
        result = np.full(len(tags), ABSENT, dtype=np.int64)
        rows = np.arange(len(tags))
        while len(rows):
            places = self._buckets.take(buckets, axis=0)
            slots = places ^ tags[:, None]
            first = _one_in_each(slots, (slots < _SLOTS).argmax(axis=1))
            hit = first < _SLOTS
            result[rows[hit]] = first[hit].view(np.int64)
            on = np.flatnonzero(~hit)
            on = on[(places[on] != _EMPTY).all(axis=1)]
            rows, tags, buckets = rows[on], tags[on], self._after(buckets[on])
        return result

    def search(self, hashes: Hashes, same: Same) -> Integers:
        """Return the slot for each hash that `same` confirms, asking for every candidate; `ABSENT` if none is.

        `same(rows, slots)` says for each pair of an index in `hashes` and a candidate whether it is the one.
        """
        result = np.full(len(hashes), ABSENT, dtype=np.int64)
        rows, tags, buckets = np.arange(len(hashes)), _tags(hashes), self._homes(hashes) // _BUCKET
        while len(rows):
            places = self._buckets.take(buckets, axis=0)
            slots = places ^ tags[:, None]
            for place in range(_BUCKET):
                maybe = np.flatnonzero((slots[:, place] < _SLOTS) & (result[rows] < 0))
                found = slots[maybe, place].view(np.int64)
                confirmed = same(rows[maybe], found)
                result[rows[maybe[confirmed]]] = found[confirmed]
            on = np.flatnonzero((result[rows] < 0) & (places != _EMPTY).all(axis=1))
            rows, tags, buckets = rows[on], tags[on], self._after(buckets[on])
        return result

    def add(self, hashes: Hashes, slots: Integers) -> Integers:
        """Enter slots, which are not in the table, and return the places where they are now."""
        entries, homes = _entries(hashes, slots), self._homes(hashes)
        places = homes.copy()
        left = self._write(entries, homes)
        step = 0
        while len(left):
            step += 1
            places[left] = tried = self._places(homes[left], step)
            left = left[self._write(entries[left], tried)]
        return places

    def _write(self, entries: Hashes, places: Integers) -> Integers:
        """Write each entry at its place if that is free, and return those that could not be written."""
        before = self._entries.take(places)
        free = before < _FREE
        self._entries[places[free]] = entries[free]
        written = self._entries.take(places) == entries
        self._taken += int(np.count_nonzero(before[written] == _EMPTY))
        return np.flatnonzero(~written)

    def remove(self, hashes: Hashes, slots: Integers) -> Integers:
        """Remove slots that were entered with these hashes, and return the places where they were."""
        entries, homes = _entries(hashes, slots), self._homes(hashes)
        places = homes.copy()
        rows = np.flatnonzero(self._entries.take(homes) != entries)
        entries, buckets = entries[rows], homes[rows] // _BUCKET
        while len(rows):
            here = self._buckets.take(buckets, axis=0) == entries[:, None]
            which = here.argmax(axis=1)
            places[rows] = buckets * _BUCKET + which
            on = np.flatnonzero(~_one_in_each(here, which))
            rows, entries, buckets = rows[on], entries[on], self._after(buckets[on])
        self._entries[places] = _REMOVED
        return places

    def slots_in(self, first: int, end: int) -> Integers:
        """Return the slots at these places of the table."""
        entries = self._entries[first:end]
        return (entries[entries >= _FREE] & _LOWER).view(np.int64)

    def _homes(self, hashes: Hashes) -> Integers:
        return (hashes & np.uint64(len(self._entries) - 1)).view(np.int64)

    def _places(self, homes: Integers, step: int) -> Integers:
        """Return the place so many steps after each home: all of the home's bucket first, then the next one."""
        near, beyond = step % _BUCKET, step - step % _BUCKET
        return (homes + beyond & len(self._entries) - 1) ^ near if beyond else homes ^ near

    def _after(self, buckets: Integers) -> Integers:
        return (buckets + 1) % len(self._buckets)


def _tags(hashes: Hashes) -> Hashes:
    tags = hashes & _UPPER
    tags |= _TAKEN
    return tags


def _entries(hashes: Hashes, slots: Integers) -> Hashes:
    return _tags(hashes) | slots.view(np.uint64)


def _one_in_each(rows: NDArray[_Item], which: Integers) -> NDArray[_Item]:
    """Return the item of each row that has this index."""
    return rows[np.arange(len(rows)), which]
