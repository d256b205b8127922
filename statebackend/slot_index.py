"""Which slot each key has: a hash table in numpy arrays that finds the slots of a batch of keys at once.

What always holds: a key in the index has exactly one slot, keeps it until it is removed, and is told from every other
key by all of its bytes, never by its hash alone.

The table is an array of 64-bit entries, in buckets that fill a cache line each. An entry is the upper half of a key's
hash, its lowest bit set, and the slot. The low bits of the hash say where the entry belongs (the high bits are the key
group, which the keys of a table have in common): at its home if that is free, else anywhere in the home's bucket, else
in the next bucket that has a free place. A place that was taken once is never `_EMPTY` again, only `_REMOVED`, until
the table is rebuilt: so a search may end at an `_EMPTY` home, and at the first bucket that has an `_EMPTY` place.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from statebackend.key_arena import Flags, Hashes, Integers, KeyArena, Spans, grown
from statebackend.key_columns import KeyColumn

ABSENT = -1
"""What stands instead of a slot where a key has none."""

_Item = TypeVar("_Item", bound=np.generic)

_BUCKET = 8
_EMPTY = np.uint64(0)
_REMOVED = np.uint64(1)
_FREE = np.uint64(2)  # below this an entry is empty or removed
_UPPER = np.uint64(0xFFFFFFFF00000000)
_TAKEN = np.uint64(0x0000000100000000)
_SLOTS = np.uint64(0x100000000)  # what is below this is a slot alone
_LOWER = np.uint64(0x00000000FFFFFFFF)
_PIECE = 1 << 16
"""So many entries of an old table are moved at a time: they and what they need stay in the cache."""


class SlotIndex:
    """Slots of keys: small numbers, dense from 0, so that what belongs to the keys can lie in arrays by slot.

    `hashes` has the hash of the key at each slot that is in use. Slots are given out in increasing order, but those
    of removed keys first. Not for two threads at once.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = max(capacity, _BUCKET)
        self.clear()

    def clear(self) -> None:
        """Forget all keys, and give their memory back."""
        self._table = _table_for(self._capacity)
        self.hashes: Hashes = np.zeros(self._capacity, dtype=np.uint64)
        self._used: Flags = np.zeros(self._capacity, dtype=np.bool_)
        self._keys: KeyArena | None = None
        self._freed: Integers = np.empty(0, dtype=np.int64)
        self._null = ABSENT
        self._count = 0
        self._limit = 0
        self._removed = 0

    def __len__(self) -> int:
        return self._count

    @property
    def slot_limit(self) -> int:
        """One more than the highest slot that was ever used: the least length of an array by slot."""
        return self._limit

    def occupied(self) -> Integers:
        """All slots in use, ascending."""
        return np.flatnonzero(self._used[: self._limit])

    def memory_bytes(self) -> int:
        """The memory that the index holds."""
        arena = 0 if self._keys is None else self._keys.nbytes
        return self._table.nbytes + self.hashes.nbytes + self._used.nbytes + self._freed.nbytes + arena

    def reserve(self, keys: int) -> None:
        """Make room for that many more keys, so that adding them does not rebuild the table on the way."""
        self._make_room(keys)

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, keys: KeyColumn) -> Integers:
        """The slot of each key, `ABSENT` where it has none."""
        found = self._find(Spans.of(keys))
        if len(found) == len(keys):
            return found
        assert keys.null is not None
        slots = np.full(len(keys), self._null, dtype=np.int64)
        slots[~keys.null] = found
        return slots

    def _find(self, keys: Spans) -> Integers:
        slots = self._candidates(keys.hashes)
        if self._keys is None or not len(slots):
            return slots
        if slots.min() >= 0:
            same = self._keys.same(slots, keys)
            doubtful = np.flatnonzero(~same)
        else:
            found = np.flatnonzero(slots >= 0)
            doubtful = found[~self._keys.same(slots[found], keys.chosen(found))]
        if len(doubtful):
            slots[doubtful] = self._find_among_alike(self._keys, keys.chosen(doubtful))
        return slots

    def _candidates(self, hashes: Hashes) -> Integers:
        """For each hash the slot of a key that has most probably the same, `ABSENT` if none can have it."""
        homes, tags = self._homes(hashes), _tags(hashes)
        entries = self._table.take(homes)
        slots = entries ^ tags
        missed = np.flatnonzero(slots >= _SLOTS)
        result = slots.view(np.int64)
        if len(missed):
            result[missed] = ABSENT
            missed = missed[entries[missed] != _EMPTY]
            result[missed] = self._candidates_in_buckets(homes[missed] // _BUCKET, tags[missed])
        return result

    def _candidates_in_buckets(self, buckets: Integers, tags: Hashes) -> Integers:
        result = np.full(len(tags), ABSENT, dtype=np.int64)
        rows, table = np.arange(len(tags)), self._buckets()
        while len(rows):
            places = table.take(buckets, axis=0)
            slots = places ^ tags[:, None]
            which = (slots < _SLOTS).argmax(axis=1)
            first = _one_in_each(slots, which)
            hit = first < _SLOTS
            result[rows[hit]] = first[hit].view(np.int64)
            on = np.flatnonzero(~hit)
            on = on[(places[on] != _EMPTY).all(axis=1)]
            rows, tags, buckets = rows[on], tags[on], (buckets[on] + 1) % len(table)
        return result

    def _find_among_alike(self, arena: KeyArena, keys: Spans) -> Integers:
        """The slots of keys for which an entry was found that another key has: every entry is looked at."""
        result = np.full(len(keys), ABSENT, dtype=np.int64)
        rows, tags, table = np.arange(len(keys)), _tags(keys.hashes), self._buckets()
        buckets = self._homes(keys.hashes) // _BUCKET
        while len(rows):
            places = table.take(buckets, axis=0)
            slots = places ^ tags[:, None]
            for place in range(_BUCKET):
                maybe = np.flatnonzero((slots[:, place] < _SLOTS) & (result[rows] < 0))
                found = slots[maybe, place].view(np.int64)
                same = arena.same(found, keys.chosen(rows[maybe]))
                result[rows[maybe[same]]] = found[same]
            on = np.flatnonzero((result[rows] < 0) & (places != _EMPTY).all(axis=1))
            rows, tags, buckets = rows[on], tags[on], (buckets[on] + 1) % len(table)
        return result

    def _homes(self, hashes: Hashes) -> Integers:
        return (hashes & np.uint64(len(self._table) - 1)).view(np.int64)

    def _buckets(self) -> Hashes:
        return self._table.reshape(-1, _BUCKET)

    def keys_at(self, slots: Integers) -> KeyColumn:
        """The keys at these slots, which must be in use."""
        hashes = self.hashes[slots]
        null = slots == self._null
        if self._keys is not None and not null.any():
            return self._keys.at(slots, hashes)
        data, widths = np.empty(0, dtype=np.uint8), np.zeros(len(slots), dtype=np.int64)
        if self._keys is not None:
            keys = self._keys.at(slots[~null], hashes[~null])
            data, widths[~null] = keys.data, np.diff(keys.offsets)
        offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(widths)))
        return KeyColumn(data, offsets, hashes, null=null)

    # --- adding -------------------------------------------------------------------------------------------------------

    def find_or_add(self, keys: KeyColumn) -> tuple[Integers, Integers]:
        """The slot of each key, which is added if it has none, and the slots that are new.

        A new key that comes several times has one slot. Arrays by slot need the length `slot_limit` afterwards.
        """
        found, added = self._find_or_add(Spans.of(keys))
        if len(found) == len(keys):
            return found, added
        assert keys.null is not None
        if self._null == ABSENT:
            new = self._new_slots(1)
            self._null = int(new[0])
            self.hashes[self._null] = keys.hashes[keys.null][0]
            added = np.concatenate((added, new))
        slots = np.full(len(keys), self._null, dtype=np.int64)
        slots[~keys.null] = found
        return slots, added

    def _find_or_add(self, keys: Spans) -> tuple[Integers, Integers]:
        slots = self._find(keys)
        added = [np.empty(0, dtype=np.int64)]
        absent = np.flatnonzero(slots < 0)
        while len(absent):
            # No two with equal hashes are added at once. Those left out are found then, or are added next.
            first = _some_of_different_hashes(keys.hashes[absent])
            new = absent[first]
            slots[new] = self._add(keys.chosen(new))
            added.append(slots[new])
            absent = np.delete(absent, first)
            slots[absent] = self._find(keys.chosen(absent))
            absent = absent[slots[absent] < 0]
        return slots, np.concatenate(added)

    def _add(self, keys: Spans) -> Integers:
        slots = self._new_slots(len(keys))
        if self._keys is None:
            self._keys = KeyArena(keys, len(self._used))
        elif not self._keys.takes(keys):
            self._keys.take_all(np.setdiff1d(self.occupied(), slots, assume_unique=True))
        self.hashes[slots] = keys.hashes
        self._keys.put(slots, keys)
        self._place(_tags(keys.hashes) | slots.view(np.uint64), self._homes(keys.hashes))
        return slots

    def _new_slots(self, number: int) -> Integers:
        self._make_room(number)
        left = max(0, len(self._freed) - number)
        again, self._freed = self._freed[left:], self._freed[:left]
        first, self._limit = self._limit, self._limit + number - len(again)
        slots = np.concatenate((again, np.arange(first, self._limit)))
        self._count += number
        self._used[slots] = True
        return slots

    def _make_room(self, number: int) -> None:
        slots = self._limit + max(0, number - len(self._freed))
        self.hashes, self._used = grown(self.hashes, slots), grown(self._used, slots)
        if self._keys is not None:
            self._keys.reserve(len(self._used))
        if 2 * (self._count + number + self._removed) > len(self._table):
            self._rebuild(max(2 * (self._count + number), self._capacity))

    def _rebuild(self, capacity: int) -> None:
        """Enter all keys into an empty table: in the order of the old one, so that both are gone through in order."""
        old, self._table = self._table, _table_for(capacity)
        self._removed = 0
        for first in range(0, len(old), _PIECE):
            entries = old[first : first + _PIECE]
            entries = entries[entries >= _FREE]
            self._place(entries, self._homes(self.hashes.take((entries & _LOWER).view(np.int64))))

    def _place(self, entries: Hashes, homes: Integers) -> None:
        """Enter what is not in the table yet."""
        left = self._write(entries, homes)
        entries, buckets = entries[left], homes[left] // _BUCKET
        table = self._buckets()
        while len(entries):
            free = table.take(buckets, axis=0) < _FREE
            place = free.argmax(axis=1)
            full = ~_one_in_each(free, place)
            left = self._write(entries, np.where(full, ABSENT, buckets * _BUCKET + place))
            buckets = np.where(full, (buckets + 1) % len(table), buckets)
            entries, buckets = entries[left], buckets[left]

    def _write(self, entries: Hashes, places: Integers) -> Integers:
        """Write each entry at its place, if it has one that is free; those that could not be written."""
        before = self._table.take(places, mode="wrap")
        free = (before < _FREE) & (places >= 0)
        self._table[places[free]] = entries[free]
        written = self._table.take(places, mode="wrap") == entries
        self._removed -= int(np.count_nonzero(before[written] == _REMOVED))
        return np.flatnonzero(~written)

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, slots: Integers) -> None:
        """Forget the keys at these slots, which must be in use, and free the slots for other keys."""
        slots = np.unique(slots)
        if not len(slots):
            return
        if slots[0] < 0 or slots[-1] >= self._limit or not self._used[slots].all():
            raise ValueError("slots that are not in use cannot be removed from the index: pass what find returned")
        self._used[slots] = False
        self._freed = np.concatenate((self._freed, slots[::-1]))
        self._count -= len(slots)
        if self._null >= 0 and not self._used[self._null]:
            slots = slots[slots != self._null]
            self._null = ABSENT
        if self._keys is not None:
            self._keys.forget(slots)
            self._table[self._places_of(slots)] = _REMOVED
            self._removed += len(slots)

    def _places_of(self, slots: Integers) -> Integers:
        """Where in the table the entries of these slots are."""
        hashes = self.hashes[slots]
        entries, homes = _tags(hashes) | slots.view(np.uint64), self._homes(hashes)
        result, table = homes.copy(), self._buckets()
        rows = np.flatnonzero(self._table.take(homes) != entries)
        entries, buckets = entries[rows], homes[rows] // _BUCKET
        while len(rows):
            here = table.take(buckets, axis=0) == entries[:, None]
            place = here.argmax(axis=1)
            result[rows] = buckets * _BUCKET + place
            on = np.flatnonzero(~_one_in_each(here, place))
            rows, entries, buckets = rows[on], entries[on], (buckets[on] + 1) % len(table)
        return result


def _table_for(keys: int) -> Hashes:
    """An empty table that is at most half full with so many keys."""
    return np.zeros(1 << (2 * keys - 1).bit_length(), dtype=np.uint64)


def _tags(hashes: Hashes) -> Hashes:
    return (hashes & _UPPER) | _TAKEN


def _one_in_each(rows: NDArray[_Item], which: Integers) -> NDArray[_Item]:
    """The item of each row that has this index."""
    return rows[np.arange(len(rows)), which]


def _some_of_different_hashes(hashes: Hashes) -> Integers:
    """The indices of some of the hashes, ascending, of which no two are equal: all, or nearly all, if they may be."""
    places = 1 << (4 * len(hashes) - 1).bit_length()
    place = (hashes & np.uint64(places - 1)).view(np.int64)
    last = np.empty(places, dtype=np.int64)
    numbers = np.arange(len(hashes))
    last[place] = numbers
    return np.flatnonzero(last[place] == numbers)
