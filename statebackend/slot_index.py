"""Which slot each key has: a hash table in numpy arrays that finds the slots of a batch of keys at once.

What always holds: a key in the index has exactly one slot, keeps it until it is removed, and is told from every other
key by all of its bytes, never by its hash alone.

The table is an array of 64-bit entries, in buckets that fill a cache line each. An entry is the upper half of a key's
hash, its lowest bit set, and the slot. The low bits of the hash say where the entry belongs (the high bits are the key
group, which the keys of a table have in common): at its home if that is free, else anywhere in the home's bucket, else
in the next bucket that has a free place. A bucket that was full once never gets an `_EMPTY` place again, only
`_REMOVED` ones: so a search may end at the first bucket that has an `_EMPTY` one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from statebackend.key_arena import Integers, KeyArena, Ragged, Rows, chosen, grown, width_of
from statebackend.key_columns import KeyColumn

ABSENT = -1
"""What stands instead of a slot where a key has none."""

Hashes = NDArray[np.uint64]

_BUCKET = 8
_EMPTY = np.uint64(0)
_REMOVED = np.uint64(1)
_FREE = np.uint64(2)  # below this an entry is empty or removed
_UPPER = np.uint64(0xFFFFFFFF00000000)
_TAKEN = np.uint64(0x0000000100000000)
_SLOTS = np.uint64(0x100000000)  # what is below this is a slot alone


class SlotIndex:
    """Slots of keys: small numbers, dense from 0, so that what belongs to the keys can lie in arrays by slot.

    `hashes` has the hash of the key at each slot that is in use. Slots are given out in increasing order, but those
    of removed keys first.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = max(capacity, _BUCKET)
        self.clear()

    def clear(self) -> None:
        """Forget all keys, and give their memory back."""
        self._table = _table_for(self._capacity)
        self.hashes: Hashes = np.zeros(self._capacity, dtype=np.uint64)
        self._used: NDArray[np.bool_] = np.zeros(self._capacity, dtype=np.bool_)
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
        if keys.null is None or not keys.null.any():
            return self._find(keys)
        slots = np.full(len(keys), self._null, dtype=np.int64)
        present = np.flatnonzero(~keys.null)
        slots[present] = self._find(chosen(keys, present))
        return slots

    def _find(self, keys: KeyColumn) -> Integers:
        slots = self._candidates(keys.hashes)
        if self._keys is None or not len(slots):
            return slots
        if (slots >= 0).all():
            same = self._keys.same(slots, keys)
            if same.all():
                return slots
            doubtful = np.flatnonzero(~same)
        else:
            found = np.flatnonzero(slots >= 0)
            doubtful = found[~self._keys.same(slots[found], chosen(keys, found))]
        if len(doubtful):
            slots[doubtful] = self._find_among_alike(self._keys, chosen(keys, doubtful))
        return slots

    def _candidates(self, hashes: Hashes) -> Integers:
        """For each hash the slot of a key that has most probably the same, `ABSENT` if none can have it."""
        homes = self._homes(hashes)
        tags = _tags(hashes)
        slots = self._table.take(homes) ^ tags
        missed = np.flatnonzero(slots >= _SLOTS)
        result = slots.view(np.int64)
        if len(missed):
            result[missed] = self._candidates_in_buckets(homes[missed] // _BUCKET, tags[missed])
        return result

    def _candidates_in_buckets(self, buckets: Integers, tags: Hashes) -> Integers:
        result = np.full(len(tags), ABSENT, dtype=np.int64)
        rows = np.arange(len(tags))
        table = self._table.reshape(-1, _BUCKET)
        while len(rows):
            places = table.take(buckets, axis=0)
            slots = places ^ tags[:, None]
            which = (slots < _SLOTS).argmax(axis=1)
            first = slots[np.arange(len(rows)), which]
            hit = first < _SLOTS
            result[rows[hit]] = first[hit].view(np.int64)
            on = np.flatnonzero(~hit)
            on = on[(places[on] != _EMPTY).all(axis=1)]
            rows, tags, buckets = rows[on], tags[on], (buckets[on] + 1) % len(table)
        return result

    def _find_among_alike(self, arena: KeyArena, keys: KeyColumn) -> Integers:
        """The slots of keys for which an entry was found that another key has: every entry is looked at."""
        result = np.full(len(keys), ABSENT, dtype=np.int64)
        rows, tags, buckets = np.arange(len(keys)), _tags(keys.hashes), self._homes(keys.hashes) // _BUCKET
        table = self._table.reshape(-1, _BUCKET)
        while len(rows):
            places = table.take(buckets, axis=0)
            slots = places ^ tags[:, None]
            for place in range(_BUCKET):
                maybe = np.flatnonzero((slots[:, place] < _SLOTS) & (result[rows] < 0))
                found = slots[maybe, place].view(np.int64)
                same = arena.same(found, chosen(keys, rows[maybe]))
                result[rows[maybe[same]]] = found[same]
            on = np.flatnonzero((result[rows] < 0) & (places != _EMPTY).all(axis=1))
            rows, tags, buckets = rows[on], tags[on], (buckets[on] + 1) % len(table)
        return result

    def _homes(self, hashes: Hashes) -> Integers:
        return (hashes & np.uint64(len(self._table) - 1)).view(np.int64)

    def keys_at(self, slots: Integers) -> KeyColumn:
        """The keys at these slots, which must be in use."""
        hashes = self.hashes[slots]
        null = slots == self._null
        if self._keys is None or null.any():
            return self._keys_and_null_at(slots, null, hashes)
        return self._keys.at(slots, hashes)

    def _keys_and_null_at(self, slots: Integers, null: NDArray[np.bool_], hashes: Hashes) -> KeyColumn:
        offsets = np.zeros(len(slots) + 1, dtype=np.int64)
        if self._keys is None:
            return KeyColumn(np.empty(0, dtype=np.uint8), offsets, hashes, null=null)
        keys = self._keys.at(slots[~null], hashes[~null])
        widths = np.zeros(len(slots), dtype=np.int64)
        widths[~null] = np.diff(keys.offsets)
        np.cumsum(widths, out=offsets[1:])
        return KeyColumn(keys.data, offsets, hashes, null=null)

    # --- adding -------------------------------------------------------------------------------------------------------

    def find_or_add(self, keys: KeyColumn) -> tuple[Integers, Integers]:
        """The slot of each key, which is added if it has none, and the slots that are new.

        A new key that comes several times has one slot. Arrays by slot need the length `slot_limit` afterwards.
        """
        if keys.null is None or not keys.null.any():
            return self._find_or_add(keys)
        slots = np.empty(len(keys), dtype=np.int64)
        present = np.flatnonzero(~keys.null)
        slots[present], added = self._find_or_add(chosen(keys, present))
        if self._null == ABSENT:
            (self._null,) = new = self._new_slots(1)
            self.hashes[new] = keys.hashes[keys.null][:1]
            added = np.concatenate((added, new))
        slots[keys.null] = self._null
        return slots, added

    def _find_or_add(self, keys: KeyColumn) -> tuple[Integers, Integers]:
        slots = self._find(keys)
        added = [np.empty(0, dtype=np.int64)]
        absent = np.flatnonzero(slots < 0)
        while len(absent):
            # One of each hash is added. Those left out are found then, but for different keys with equal hashes.
            first = absent[_one_of_each(keys.hashes[absent])]
            slots[first] = self._add(chosen(keys, first))
            added.append(slots[first])
            absent = absent[slots[absent] < 0]
            slots[absent] = self._find(chosen(keys, absent))
            absent = absent[slots[absent] < 0]
        return slots, np.concatenate(added)

    def _add(self, keys: KeyColumn) -> Integers:
        slots = self._new_slots(len(keys))
        if self._keys is None:
            width = width_of(keys)
            self._keys = Ragged(len(self._used)) if width is None else Rows(width, len(self._used))
        elif isinstance(self._keys, Rows) and width_of(keys) != self._keys.width:
            in_use = self.occupied()
            in_use = in_use[(in_use != self._null) & ~np.isin(in_use, slots)]
            self._keys = Ragged.of(self._keys, in_use, len(self._used))
        self.hashes[slots] = keys.hashes
        self._keys.put(slots, keys)
        self._place(keys.hashes, slots)
        return slots

    def _new_slots(self, number: int) -> Integers:
        self._make_room(number)
        again = min(number, len(self._freed))
        fresh = np.arange(self._limit, self._limit + number - again)
        slots = np.concatenate((self._freed[len(self._freed) - again :], fresh))
        self._freed = self._freed[: len(self._freed) - again]
        self._limit += len(fresh)
        self._count += number
        self._used[slots] = True
        return slots

    def _make_room(self, number: int) -> None:
        slots = self._limit + max(0, number - len(self._freed))
        if slots > len(self._used):
            self.hashes, self._used = grown(self.hashes, slots), grown(self._used, slots)
        if self._keys is not None:
            self._keys.reserve(len(self._used))
        if 2 * (self._count + number + self._removed) > len(self._table):
            self._rebuild(max(2 * (self._count + number), self._capacity))

    def _rebuild(self, capacity: int) -> None:
        self._table = _table_for(capacity)
        self._removed = 0
        slots = self.occupied()
        slots = slots[slots != self._null]
        self._place(self.hashes[slots], slots)

    def _place(self, hashes: Hashes, slots: Integers) -> None:
        """Enter slots that have no entry yet."""
        entries = _tags(hashes) | slots.view(np.uint64)
        homes = self._homes(hashes)
        left = self._write(entries, homes)
        entries, buckets = entries[left], homes[left] // _BUCKET
        table = self._table.reshape(-1, _BUCKET)
        while len(entries):
            free = table.take(buckets, axis=0) < _FREE
            place = free.argmax(axis=1)
            full = ~free[np.arange(len(free)), place]
            left = self._write(entries, np.where(full, -1, buckets * _BUCKET + place))
            buckets = np.where(full, (buckets + 1) % len(table), buckets)
            entries, buckets = entries[left], buckets[left]
        return

    def _write(self, entries: Hashes, places: Integers) -> Integers:
        """Write each entry at its place if that is free, and say which could not be written."""
        before = self._table.take(places, mode="wrap")
        free = np.flatnonzero((before < _FREE) & (places >= 0))
        self._table[places[free]] = entries[free]
        written = free[self._table[places[free]] == entries[free]]
        self._removed -= int(np.count_nonzero(before[written] == _REMOVED))
        left = np.ones(len(entries), dtype=np.bool_)
        left[written] = False
        return np.flatnonzero(left)

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, slots: Integers) -> None:
        """Forget the keys at these slots, which must be in use, and free the slots for other keys."""
        slots = np.unique(slots)
        if not len(slots):
            return
        if slots[0] < 0 or slots[-1] >= self._limit or not self._used[slots].all():
            raise ValueError("slots that are not in use cannot be removed from the index: pass what find returned")
        self._used[slots] = False
        self._freed = np.concatenate((self._freed, slots))
        self._count -= len(slots)
        if self._null >= 0 and not self._used[self._null]:
            slots = slots[slots != self._null]
            self._null = ABSENT
        if self._keys is not None:
            self._keys.forget(slots)
            self._unplace(slots)

    def _unplace(self, slots: Integers) -> None:
        hashes = self.hashes[slots]
        entries = _tags(hashes) | slots.view(np.uint64)
        buckets = self._homes(hashes) // _BUCKET
        table = self._table.reshape(-1, _BUCKET)
        where = np.empty(len(slots), dtype=np.int64)
        rows = np.arange(len(slots))
        while len(rows):
            here = table.take(buckets, axis=0) == entries[:, None]
            place = here.argmax(axis=1)
            hit = here[np.arange(len(rows)), place]
            where[rows[hit]] = buckets[hit] * _BUCKET + place[hit]
            rows, entries, buckets = rows[~hit], entries[~hit], (buckets[~hit] + 1) % len(table)
        full = (table.take(where // _BUCKET, axis=0) != _EMPTY).all(axis=1)
        self._table[where] = np.where(full, _REMOVED, _EMPTY)
        self._removed += int(np.count_nonzero(full))


def _table_for(keys: int) -> Hashes:
    """An empty table that is at most half full with so many keys."""
    return np.zeros(1 << (2 * keys - 1).bit_length(), dtype=np.uint64)


def _tags(hashes: Hashes) -> Hashes:
    return (hashes & _UPPER) | _TAKEN


def _one_of_each(hashes: Hashes) -> Integers:
    """The index of one of each of the different hashes, ascending."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    return np.sort(order[first])
