"""The keys of one namespace of a table: their slots, their accumulators, and which of them changed since the last cut.

Invariant: as long as a frozen part has not read its keys, every slot that it refers to keeps its key; and so
does every slot as long as one may go back to a cut at which it had that key. A key that is removed meanwhile is only
marked as dead, and leaves the index later.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from statebackend.keys.columns import KeyColumn, canonical_order
from statebackend.tables.format.blocks import Block, arrow_keys
from statebackend.tables.memory.before_images import Images
from statebackend.tables.memory.frozen import Changed, Deleted, FrozenSpace
from statebackend.tables.memory.kept_keys import LastKept
from statebackend.tables.memory.slot_index import ABSENT, SlotIndex
from statebackend.tables.memory.touches import LONG_AGO, TouchClock, Touches
from statebackend.tables.values.accumulators import OBJECTS, Column, blank, bytes_of, clear, grown
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.spec import Layout

_FEW = 16
"""For so many keys a namespace has room at first: there may be thousands of namespaces."""

_FEWEST_KEPT = 16
_LARGEST_KEPT = 8 << 20
"""Keys are stored apart if groups have so many of them or more, and no more bytes of keys and accumulators than that,
both on average: making a base takes all of one group into memory, with the blocks that came since."""

_NONE: Slots = np.empty(0, dtype=np.int64)

Mask = NDArray[np.bool_]


class TableSpace:
    """Keys and their accumulators: `columns` are arrays by slot, at least as long as there are slots.

    A slot is valid until its key is removed. All calls come from one thread.
    """

    def __init__(self, layout: Layout, clock: TouchClock) -> None:
        self._layout = layout
        self._clock = clock
        self._index = SlotIndex(_FEW)
        self.columns: dict[str, Column] = {
            name: blank(_FEW, accumulator.dtype) for name, accumulator in layout.columns.items()
        }
        self._objects = [name for name, accumulator in layout.columns.items() if accumulator.dtype == OBJECTS]
        self._added: NDArray[np.int64] = np.zeros(_FEW, dtype=np.int64)
        self._touches = Touches(clock, _FEW)
        self._alive: Mask = np.zeros(_FEW, dtype=np.bool_)
        self._same: Mask = np.zeros(_FEW, dtype=np.bool_)
        self._dead: list[Slots] = []
        self._may_come_back: deque[tuple[int, Slots]] = deque()
        """Dead keys to which one may go back, with the interval in which they died."""
        self._dead_count = 0
        self._images = Images(clock)
        self._new_groups = layout.no_groups()
        self._readers: list[weakref.ref[FrozenSpace]] = []
        self._kept = LastKept()
        self.stored_groups = layout.no_groups()
        """In which groups there may be blocks of this namespace that were frozen since the last clear."""
        self._deleted: list[Deleted] = []
        self._removed_some = False

    def begin(self) -> None:
        """Begin an epoch with nothing changed or removed: what is here is what was stored."""
        self._touches.begin_epoch()
        self._deleted = []
        self._removed_some = False

    def __len__(self) -> int:
        return len(self._index) - self._dead_count

    @property
    def slot_limit(self) -> int:
        """Return how many slots there ever were at once."""
        return self._index.slot_limit

    def memory_bytes(self) -> int:
        """Return about how much memory it occupies."""
        by_slot = (*self.columns.values(), self._added, self._alive, self._same)
        per_slot = sum(array.itemsize for array in by_slot) + Touches.BYTES_PER_SLOT
        lists = self._touches.list_bytes + self._kept.nbytes
        return self._index.memory_bytes() + self._index.slot_limit * per_slot + self.object_bytes() + lists

    def object_bytes(self) -> int:
        """Return the part of it that texts and bytes take, which is given back with their keys."""
        columns = (self.columns[name][: self.slot_limit] for name in self._objects)
        return sum(bytes_of(column) - column.nbytes for column in columns)

    @property
    def table_bytes(self) -> int:
        """Return the part of it that is sized for keys still to come. See `SlotIndex.table_bytes`."""
        return self._index.table_bytes

    @property
    def room_in_table(self) -> int:
        """Return for how many keys altogether that part is large enough."""
        return self._index.room_in_table

    def noted_bytes(self) -> int:
        """Return about how much more it occupies to go back to former cuts."""
        return self._images.nbytes

    # --- finding and adding -------------------------------------------------------------------------------------------

    def find(self, keys: KeyColumn) -> Slots:
        """Return the slot of each key, `ABSENT` where it has none."""
        slots = self._index.find(keys)
        if self._dead_count:
            slots[(slots >= 0) & ~self._alive[slots]] = ABSENT
        return slots

    def find_or_add(self, keys: KeyColumn) -> tuple[Slots, Slots]:
        """Return the slot of each key, and those slots that are new; these have the initial accumulators."""
        slots, added, new = self._find_or_add(keys)
        if len(new):
            if self._clock.notes:
                if len(new) > len(added):
                    self._images.changing(np.setdiff1d(new, added), self.columns)
                self._images.born(new)
            self._begin(new)
        return slots, new

    def _find_or_add(self, keys: KeyColumn) -> tuple[Slots, Slots, Slots]:
        """Return the slot of each key, those that are new in the index, and those that have to begin."""
        self._let_go()
        slots, added = self._index.find_or_add(keys)
        if len(added):
            self._grow()
        new = added
        if self._dead_count:
            new = np.unique(slots[~self._alive[slots]])
            self._dead_count -= len(new) - len(added)
        return slots, added, new

    def _grow(self) -> None:
        limit = self._index.slot_limit
        if limit > len(self._alive):
            self._alive, self._same = grown(self._alive, limit), grown(self._same, limit)
            self._added = grown(self._added, limit)
            self._touches.grow(limit)
            self.columns = {name: grown(column, limit) for name, column in self.columns.items()}

    def _begin(self, slots: Slots) -> None:
        self._alive[slots] = True
        self._same[slots] = False
        self._touches.born(slots)
        self._added[slots] = self._clock.now
        self._kept.come(slots)
        self._new_groups[self._layout.places(self._index.hashes[slots])] = True
        self.reset(slots)

    def reset(self, slots: Slots) -> None:
        """Give these keys the accumulators that a key begins with."""
        for name, accumulator in self._layout.columns.items():
            self.columns[name][slots] = accumulator.initial

    def load(self, keys: KeyColumn, block: Block, coming: int, *, all_differ: bool = False) -> None:
        """Take what a block says of keys, which are not here: of a key that is repeated, the last.

        They are not changed by that, and removing them is news. So many keys are still to come, about, these included.
        It is quicker if all hashes differ.
        """
        self._index.reserve(coming)
        if all_differ and keys.null is None and not self._dead_count:
            slots = new = self._index.add(keys)
            self._grow()
        else:
            slots, _, new = self._find_or_add(keys)  # they were there at every cut to which one may go back
        self._begin(new)
        self._lose()
        self._added[slots] = LONG_AGO
        self._touches.not_lately(slots)
        for name, column in block.columns.items():
            self.columns[name][slots] = column
        self.stored_groups[self._layout.places(keys.hashes)] = True
        if block.deleted is not None:
            last = np.empty(self._index.slot_limit, dtype=np.bool_)
            last[slots] = block.deleted  # numpy keeps the last of several
            self._bury(np.unique(slots[last[slots]]), for_good=True)

    def bring_back(self, slots: Slots, columns: Mapping[str, Column]) -> None:
        """Give keys that are new here the accumulators that they have in `ColdKeys`: to remove them is news."""
        self._added[slots] = LONG_AGO
        for name, column in columns.items():
            self.columns[name][slots] = column

    def same(self, slots: Slots) -> None:
        """Note that these keys, which were brought back, were not changed: `ColdKeys` has them as they are here."""
        self._same[slots] = True
        self._touches.not_lately(slots)

    def touch(self, slots: Slots) -> None:
        """Note that these keys were changed. The same slot may come repeatedly."""
        fresh, changing = self._touches.touch(slots)
        if len(changing):
            self._images.changing(changing, self.columns)
        if len(fresh):
            self._same[fresh] = False

    def look_at(self, slots: Slots) -> None:
        """Note that these keys were read: more recently than what was touched before the last cut."""
        self._touches.look_at(slots)

    # --- looking around -----------------------------------------------------------------------------------------------

    def slots(self) -> Slots:
        """Return the slots of all keys."""
        return np.flatnonzero(self._alive[: self._index.slot_limit])

    def keys_at(self, slots: Slots) -> KeyColumn:
        """Return the keys at these slots."""
        return self._index.keys_at(slots)

    def in_order(self, slots: Slots) -> Slots:
        """Return these slots in the canonical order of their keys. See `canonical_order`."""
        hashes = self._index.hashes[slots]
        return slots[canonical_order(hashes, lambda places: self._index.keys_at(slots[places]).keys())]

    def touched(self, slots: Slots) -> NDArray[np.int64]:
        """Return when these keys were first touched in the epoch of their last use: small is long ago."""
        return self._touches.when(slots)

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, slots: Slots) -> None:
        """Forget these keys, each given once. Blocks that may speak of them are contradicted by the next one."""
        stored = slots[self._added[slots] < self._clock.cut]
        if len(stored):
            keys = self._index.keys_at(stored)
            self._deleted.append(Deleted(arrow_keys(keys), self._layout.places(keys.hashes)))
        self._bury(slots)

    def _bury(self, slots: Slots, *, for_good: bool = False) -> None:
        self._removed_some = True
        self._lose()
        self._alive[slots] = False
        if for_good or not self._clock.notes:
            self._dead.append(slots)
        else:
            self._images.died(slots, self.columns)
            self._may_come_back.append((self._clock.interval, slots))
        self._dead_count += len(slots)
        self._let_go()

    def _lose(self) -> None:
        self._clock.losses += 1
        self._kept.forget()

    def in_groups(self, groups: Mask) -> Slots:
        """Return the slots of the keys of these groups."""
        slots = self.slots()
        return slots[groups[self._layout.places(self._index.hashes[slots])]]

    def unload(self, slots: Slots) -> None:
        """Drop these keys, each given once, as if never loaded; no block has to say anything of that."""
        self._bury(slots, for_good=True)

    def changed_of(self, slots: Slots) -> Slots:
        """Return those of these slots that `ColdKeys` does not have as they are here."""
        return slots[~self._same[slots]]

    def unsaved(self, namespace: bytes, slots: Slots, cleared: Mask | None) -> FrozenSpace | None:
        """Return what the next cut would say of these keys and of all that were removed; it need not say that any more.

        None if that is nothing. The caller reads it at once. `cleared` are groups that were emptied before.
        """
        few = slots[self._touches.is_dirty[slots]]
        deleted, self._deleted = self._deleted, []
        if not len(few) and not deleted and cleared is None:
            return None
        self.stored_groups |= self._new_groups
        changed = Changed([few], {name: column[few] for name, column in self.columns.items()}, False)
        return FrozenSpace(self._layout, namespace, self._index, changed, deleted, cleared, False)

    def evict(self, slots: Slots) -> None:
        """Drop these keys, each given once, as `ColdKeys` has them now; no block has to say anything of that.

        The caller forgets before what is noted to go back to former cuts: `ColdKeys` does not go back.
        """
        assert not self._clock.notes, "keys that leave memory would come back with a rewind, and be there twice"
        self._bury(slots)
        if self._dead:
            # Here and now what frozen parts need of them is read, or new keys would need as much memory once more.
            for ref in self._readers:
                if (reader := ref()) is not None:
                    reader.sorted()
            self._let_go()

    def _let_go(self) -> None:
        """Free the slots of dead keys, unless a frozen part has still to read its keys, or they may come back."""
        waiting = self._may_come_back
        while waiting and waiting[0][0] < self._clock.kept:
            self._dead.append(waiting.popleft()[1])
        if not self._dead or any(not reader.has_read for ref in self._readers if (reader := ref()) is not None):
            return
        dead = np.unique(np.concatenate(self._dead))
        dead = dead[~self._alive[dead]]
        if waiting:  # some may have lived and died again
            dead = np.setdiff1d(dead, np.concatenate([slots for _, slots in waiting]))
        self._index.remove(dead)
        for name in self._objects:
            clear(self.columns[name], dead)
        self._readers.clear()
        self._dead.clear()
        self._dead_count -= len(dead)

    # --- going back ---------------------------------------------------------------------------------------------------

    def begins_with(self, part: FrozenSpace, room: float) -> None:
        """Note all accumulators if they were copied for this part, which was just frozen, and there is room for them.

        They need not be noted once more then. The caller owes that no key will be loaded any more.
        """
        if part.by_slot is not None:
            self._images.begin_with(part.by_slot, room)

    def forget_images(self) -> None:
        """Forget what is noted to go back to cuts before the clock's `kept`."""
        self._images.forget()

    def rewind(self, interval: int) -> None:
        """Go back to the keys and accumulators of when this interval began. All else is as after that cut.

        The table moves the clock on when all namespaces are rewound, beyond this interval and all that were begun.
        """
        self._lose()
        if not self._images.put_back(interval, self.columns, self._alive):
            return
        self.begin()
        self._new_groups[:] = False
        in_use = self._index.occupied()
        self._dead = [in_use[~self._alive[in_use]]]
        self._dead_count = len(self._dead[0])
        self._may_come_back.clear()

    # --- cutting ------------------------------------------------------------------------------------------------------

    @property
    def is_useless(self) -> bool:
        """True if there is no key, nothing to be said of any, and none that may come back."""
        return not len(self) and not self.has_changes and not self._images

    @property
    def has_changes(self) -> bool:
        """True if a key was changed or removed since the last cut."""
        return bool(self._touches.dirty or self._deleted)

    def freeze(self, namespace: bytes, cleared: Mask | None, *, all_here: bool) -> FrozenSpace:
        """Return what changed since the last cut. `cleared` are groups that were emptied before.

        It can only say all there is if all keys of the namespace are in memory.
        The table sets the clock's `cut` when all namespaces are frozen.
        """
        part = self._changes(namespace, cleared, all_here)
        self.stored_groups |= self._new_groups
        self._new_groups[:] = False
        self.begin()
        self._readers = [ref for ref in self._readers if (reader := ref()) is not None and not reader.has_read]
        self._readers.append(weakref.ref(part))
        return part

    def keep_keys(self, part: FrozenSpace, epoch_number: int, most_values: float) -> None:
        """Store the keys of what was just frozen as a whole apart, if that pays, so that later cuts can refer to them.

        It pays if values are at most that part of all bytes, and there are enough of them to be stored apart; of texts
        and bytes it is not known how long they are.
        """
        self._kept.forget()
        if self._objects:
            return
        slots, groups = self.slots(), len(self._layout.groups)
        of_values = len(slots) * sum(accumulator.dtype.itemsize for accumulator in self._layout.columns.values())
        size = of_values + self._index.key_bytes(slots)
        if len(slots) >= _FEWEST_KEPT * groups and size <= _LARGEST_KEPT * groups and of_values <= most_values * size:
            self._kept.keep(part.keep_keys(epoch_number))

    def _changes(self, namespace: bytes, cleared: Mask | None, all_here: bool) -> FrozenSpace:
        # Writing all is better than leaving a few keys to older blocks; copying all is quicker than gathering many.
        whole = all_here and 8 * self._touches.dirty_count >= 7 * len(self) > 0 and not self._removed_some
        limit = self._index.slot_limit
        if whole or 8 * self._touches.dirty_count > limit:
            slots = [self.slots()] if whole else [self._still_here()] if self._removed_some else self._touches.dirty
            changed = Changed(slots, {name: column[:limit].copy() for name, column in self.columns.items()}, True)
        else:
            few = self._still_here()
            changed = Changed([few], {name: column[few] for name, column in self.columns.items()}, False)
        known = self._kept.known() if whole else None
        return FrozenSpace(self._layout, namespace, self._index, changed, self._deleted, cleared, whole, known)

    def _still_here(self) -> Slots:
        """Return the changed slots that have a key, each once: those of removed keys may have none, or another."""
        slots = np.concatenate([_NONE, *self._touches.dirty])
        if not self._removed_some:
            return slots
        slots = slots[self._alive[slots]]
        limit = self._index.slot_limit
        if 16 * len(slots) < limit:
            return np.unique(slots)
        mask = np.zeros(limit, dtype=np.bool_)
        mask[slots] = True
        return np.flatnonzero(mask)
