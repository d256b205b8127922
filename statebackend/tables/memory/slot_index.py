"""The slot of each key: found for all keys of a batch at once, by their hashes and then by every byte.

Invariant: a key in the index has exactly one slot, keeps it until it is removed, and is told from every other
key by its canonical bytes, never by its hash alone. Unless room is reserved, nothing happens to all keys at once: a
larger table and larger arrays are filled while keys are added, a part with each batch.
"""

from __future__ import annotations

import numpy as np

from statebackend.keys.columns import KeyColumn
from statebackend.tables.memory.growing_array import GrowingArray
from statebackend.tables.memory.key_arena import KeyArena, Spans
from statebackend.tables.memory.slot_table import ABSENT, Hashes, Integers, SlotTable

__all__ = ["ABSENT", "SlotIndex"]

_FULL = 0.5
"""From this load on a larger table is filled."""

_FULLEST = 0.625
"""With this load it is complete at the latest."""

_MOVED = 9
"""So many places of the table are moved for each key that is added: all of them in between, with some to spare."""

_PIECE = 1 << 16
"""At most so many places are moved at a time: they, and what they need of the new table, stay in the cache."""


class SlotIndex:
    """Slots of keys: small numbers, dense from 0, so that what belongs to the keys can lie in arrays by slot.

    Slots are given out in increasing order, but those of removed keys first. All calls but `keys_at` come from one
    thread. Room that is only reserved takes no memory until it is used, but for the table.

    With a million keys of 80 bytes, in batches of 32k, one core takes about 60 ns to find a key and 300 ns to add one
    if room was reserved. Without that it takes about twice as long, because about 100 ns for each key that there is are
    spent on the next table, and some on larger arrays. That is spread over the keys that are added before these are
    needed, so a batch with few new keys notices little of it.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = max(capacity, 1)
        self.clear()

    def clear(self) -> None:
        """Forget all keys, and give their memory back."""
        self._table = SlotTable(self._capacity)
        self._next: SlotTable | None = None
        self._moved = 0
        self._hashes = GrowingArray[np.uint64](np.uint64, self._capacity)
        self._used = GrowingArray[np.bool_](np.bool_, self._capacity)
        self._keys: KeyArena | None = None
        self._freed: Integers = np.empty(0, dtype=np.int64)
        self._null = ABSENT
        self._count = 0
        self._limit = 0

    def __len__(self) -> int:
        return self._count

    @property
    def slot_limit(self) -> int:
        """Return one more than the highest slot ever used: the least length of an array by slot."""
        return self._limit

    @property
    def hashes(self) -> Hashes:
        """Return the keys' hashes by slot, to be read at once; they mean nothing at slots that are not in use."""
        return self._hashes.now

    def occupied(self) -> Integers:
        """Return all slots in use, ascending."""
        return np.flatnonzero(self._used.now[: self._limit])

    def memory_bytes(self) -> int:
        """Return the memory in use. Room made for keys that have not come is only counted in the table."""
        larger = 0 if self._next is None else self._next.nbytes
        arena = 0 if self._keys is None else self._keys.nbytes
        return self._table.nbytes + larger + self._hashes.nbytes + self._used.nbytes + self._freed.nbytes + arena

    @property
    def table_bytes(self) -> int:
        """Return the part of it made for more keys than there are, which takes no more until these have come."""
        return self._table.nbytes if self._next is None else self._next.nbytes

    @property
    def room_in_table(self) -> int:
        """Return for how many keys altogether that part is large enough."""
        return int(_FULL * len(self._table if self._next is None else self._next))

    def reserve(self, keys: int) -> None:
        """Make room for that many more keys at once, so that nothing grows while they are added. May move all keys."""
        slots = self._limit + max(0, keys - len(self._freed))
        self._hashes.reserve(slots)
        self._used.reserve(slots)
        if self._keys is not None:
            self._keys.reserve(slots)
        if self._table.load + keys > _FULL * len(self._table):
            self._begin_moving(keys)
            self._move(len(self._table))

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, keys: KeyColumn) -> Integers:
        """Return the slot of each key, `ABSENT` where it has none."""
        return self._with_null(keys, self._find(Spans.of(keys)))

    def _with_null(self, keys: KeyColumn, found: Integers) -> Integers:
        if len(found) == len(keys):
            return found
        assert keys.null is not None
        slots = np.full(len(keys), self._null, dtype=np.int64)
        slots[~keys.null] = found
        return slots

    def _find(self, keys: Spans) -> Integers:
        slots = self._table.candidates(keys.hashes)
        arena = self._keys
        if arena is None or not len(slots):
            return slots
        if slots.min() >= 0:
            doubtful = np.flatnonzero(~arena.same(slots, keys))
        else:
            found = np.flatnonzero(slots >= 0)
            doubtful = found[~arena.same(slots[found], keys.chosen(found))]
        if len(doubtful):
            some = keys.chosen(doubtful)
            slots[doubtful] = self._table.search(some.hashes, lambda rows, at: arena.same(at, some.chosen(rows)))
        return slots

    def keys_at(self, slots: Integers) -> KeyColumn:
        """Return the keys at these slots, which must be in use.

        May be called from another thread while keys are found and added, for slots that are not removed meanwhile.
        """
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

    def key_bytes(self, slots: Integers) -> int:
        """Return how many bytes the keys at these slots have together."""
        return 0 if self._keys is None else self._keys.key_bytes(slots[slots != self._null])

    # --- adding -------------------------------------------------------------------------------------------------------

    def find_or_add(self, keys: KeyColumn) -> tuple[Integers, Integers]:
        """Return the slot of each key, which is added if it has none, and the slots that are new.

        A new key that comes several times has one slot. Arrays by slot need the length `slot_limit` afterwards.
        """
        found, added = self._find_or_add(Spans.of(keys))
        if len(found) < len(keys) and self._null == ABSENT:
            assert keys.null is not None
            new = self._new_slots(keys.hashes[keys.null][:1])
            self._null = int(new[0])
            added = np.concatenate((added, new))
        return self._with_null(keys, found), added

    def add(self, keys: KeyColumn) -> Integers:
        """Add keys, and return their slots.

        The caller owes that none is there or null, and no two hashes are equal.
        """
        return self._add(Spans.of(keys))

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
        self._keys = arena = self._keys or KeyArena(keys, len(self.hashes))
        if not arena.takes(keys):
            arena.take_all(self.occupied(), self._limit)
        self._make_room_in_table(len(keys))
        slots = self._new_slots(keys.hashes)
        arena.make_room(self._limit)
        arena.put(slots, keys)
        places = self._table.add(keys.hashes, slots)
        if self._next is not None:
            moved = np.flatnonzero(places < self._moved)
            self._next.add(keys.hashes[moved], slots[moved])
        return slots

    def _new_slots(self, hashes: Hashes) -> Integers:
        left = max(0, len(self._freed) - len(hashes))
        again, self._freed = self._freed[left:], self._freed[:left]
        first, self._limit = self._limit, self._limit + len(hashes) - len(again)
        slots = np.concatenate((again, np.arange(first, self._limit)))
        self._count += len(slots)
        self._hashes.make_room(self._limit)
        self._hashes.put(slots, hashes)
        self._used.make_room(self._limit)
        self._used.put(slots, np.True_)
        return slots

    def _make_room_in_table(self, number: int) -> None:
        if self._next is None and self._table.load + number > _FULL * len(self._table):
            self._begin_moving(number)
        if self._next is not None:
            self._move(_MOVED * number)
        if self._table.load + number > _FULLEST * len(self._table):
            if self._next is None:
                self._begin_moving(number)
            self._move(len(self._table))

    def _begin_moving(self, number: int) -> None:
        # What is added until all places are moved must fit as well. With few keys left it becomes a smaller one.
        self._next, self._moved = SlotTable(self._count + number + len(self._table) // 8), 0

    def _move(self, places: int) -> None:
        """Enter the slots at so many more places of the table into the next one as well; take that if it has all.

        Both are gone through in nearly the same order, because both are ordered by the low bits of the hashes.
        """
        assert self._next is not None
        end = min(self._moved + places, len(self._table))
        while self._moved < end:
            first, self._moved = self._moved, min(self._moved + _PIECE, end)
            slots = self._table.slots_in(first, self._moved)
            self._next.add(self.hashes.take(slots), slots)
        if self._moved == len(self._table):
            self._table, self._next = self._next, None

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, slots: Integers) -> None:
        """Forget the keys at these slots, which must be in use, and free the slots for other keys."""
        slots = np.unique(slots)
        if not len(slots):
            return
        if slots[0] < 0 or slots[-1] >= self._limit or not self._used.now[slots].all():
            raise ValueError("slots that are not in use cannot be removed from the index: pass what find returned")
        self._used.put(slots, np.False_)
        self._freed = np.concatenate((self._freed, slots[::-1]))
        self._count -= len(slots)
        if self._null >= 0 and not self._used.now[self._null]:
            slots = slots[slots != self._null]
            self._null = ABSENT
        if self._keys is not None:
            self._keys.forget(slots)
            self._remove_from_table(slots)

    def _remove_from_table(self, slots: Integers) -> None:
        hashes = self.hashes[slots]
        places = self._table.remove(hashes, slots)
        if self._next is not None:
            moved = np.flatnonzero(places < self._moved)
            self._next.remove(hashes[moved], slots[moved])


def _some_of_different_hashes(hashes: Hashes) -> Integers:
    """Return ascending indices of hashes of which no two are equal: of most of them, if most differ."""
    places = 1 << (4 * len(hashes) - 1).bit_length()
    place = (hashes & np.uint64(places - 1)).view(np.int64)
    last = np.empty(places, dtype=np.int64)
    numbers = np.arange(len(hashes))
    last[place] = numbers
    return np.flatnonzero(last[place] == numbers)
