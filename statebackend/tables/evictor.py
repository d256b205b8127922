"""The way of keys between memory and the disk, when memory is full.

Invariant: before a key leaves memory, `ColdKeys` has it, and an *early* block has what the next cut would have
written of it. `ColdKeys` only finds keys again: it does not survive the process, and it cannot be rewound, so after a
change of it the table cannot be rewound in place to an earlier cut.

Keys in use may be spread over all groups, so no group is brought back as a whole. For each key that is used, one page
is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from statebackend import entries
from statebackend.backends.unused_memory import give_back_of_thread
from statebackend.keys.columns import KeyColumn
from statebackend.tables.disk.cold_keys import ColdKeys
from statebackend.tables.format.blocks import arrow_keys, hashed
from statebackend.tables.format.stored_blocks import Entries
from statebackend.tables.loader import Loader
from statebackend.tables.memory.budget import Budget
from statebackend.tables.memory.space import TableSpace
from statebackend.tables.memory.spaces import Spaces
from statebackend.tables.values.accumulators import Column
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.spec import Layout, TableSpec, expiries

_EVICTED_AT_ONCE = 4
"""The part of all keys that leaves memory at once when it is full: a fourth."""

_LEAVING_AT_ONCE = 1 << 13
_LEAVING_PART = 32
"""So many keys, or that part of all of them, are on their way to the disk at a time: they are copied several times."""


class Evictor:
    """Makes room in a table's memory, and finds the keys again that have left it."""

    def __init__(
        self,
        spec: TableSpec,
        layout: Layout,
        store: Entries,
        spaces: Spaces,
        cold: ColdKeys,
        budget: Budget,
        loader: Loader,
        restored_epoch: int,
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._store = store
        self._spaces = spaces
        self._cold = cold
        self._budget = budget
        self._loader = loader
        self.begin_epoch(restored_epoch)

    def begin_epoch(self, last: int) -> None:
        """Name early blocks as blocks of what came after the cut of this epoch."""
        self._last_epoch, self._early_blocks = last, 0

    # --- out of memory ------------------------------------------------------------------------------------------------

    def make_room(self, now: int | None) -> None:
        """Let keys leave memory if it is full, expired ones first; a table with a time to live has to know `now`."""
        if self._spec.ttl is not None:
            time = self._spec.time(now)  # asked for before anything changes, as it may be missing
            if len(self._spaces) > self._budget.max_slots:
                self._spaces.forget_images()
                self.remove_expired(time)
        self.evict_excess()

    def remove_expired(self, now: int) -> None:
        """Forget the keys in memory that have expired."""
        if self._spec.ttl is None:
            return
        for namespace, space in self._spaces.items():
            slots = space.slots()
            self.forget(namespace, space, slots[expiries(space.columns)[slots] <= now])

    def evict_excess(self) -> None:
        """Move the least recently used keys to the disk if there are more than memory has room for."""
        self._budget.weigh(self._spaces, self._cold.memory_bytes)
        if self.bytes_for_images() < 0:
            self._spaces.forget_images()  # they must not take the room of keys
        if self._loader.room >= 0:
            return
        self._loader.load_read_ahead()
        excess = len(self._spaces) - self._budget.max_slots
        if excess > 0:
            self._spaces.forget_images()
            self._evict(min(len(self._spaces), excess + self._budget.max_slots // _EVICTED_AT_ONCE))

    def bytes_for_images(self) -> float:
        """Return how many bytes more may be noted to go back to former cuts."""
        return self._budget.bytes_for_images(self._loader.room, self._spaces.noted_bytes)

    def _evict(self, count: int) -> None:
        """Move that many keys to the disk."""
        spaces = list(self._spaces.items())
        slots = [space.slots() for _, space in spaces]
        touched = np.concatenate([space.touched(some) for (_, space), some in zip(spaces, slots, strict=True)])
        leaving = np.zeros(len(touched), dtype=np.bool_)
        leaving[np.argpartition(touched, count - 1)[:count]] = True
        edges = np.cumsum([len(some) for some in slots])[:-1]
        for (namespace, space), some, which in zip(spaces, slots, np.split(leaving, edges), strict=True):
            some = some[which]
            if len(some):
                self._cold.put(namespace, self._leaving(namespace, space, some), len(some))
                self._spaces.evict(space, some)
        give_back_of_thread()

    def _leaving(
        self, namespace: bytes, space: TableSpace, slots: Slots
    ) -> Iterator[tuple[KeyColumn, Mapping[str, Column]]]:
        """Yield what `ColdKeys` has to take of keys that leave memory, by parts, as all would need much of it."""
        slots = space.in_order(slots)
        most = max(_LEAVING_AT_ONCE, self._budget.max_slots // _LEAVING_PART)
        for first in range(0, len(slots), most):
            some = slots[first : first + most]
            self._put_early(namespace, space, some)
            changed = space.changed_of(some)
            yield space.keys_at(changed), {name: column[changed] for name, column in space.columns.items()}

    def _put_early(self, namespace: bytes, space: TableSpace, slots: Slots) -> None:
        """Write what the next cut would say of keys that leave memory into blocks of their own."""
        unsaved = self._spaces.unsaved(namespace, space, slots)
        if unsaved is None:
            return
        first, state = self._layout.groups.first, self._layout.state
        for place, payload in unsaved.blocks():
            name = entries.early_block(first + place, state, namespace, self._last_epoch, self._early_blocks)
            self._store.put(name, payload)
        self._early_blocks += 1

    # --- back into memory ---------------------------------------------------------------------------------------------

    def bring_back(self, namespace: bytes, space: TableSpace, new: Slots) -> None:
        """Give those of the new keys that are on the disk what they have there: they are about to change."""
        if len(new) and self._cold.has(namespace):
            found = self._cold.find(namespace, space.keys_at(new), np.arange(len(new)))
            if found is not None:
                space.bring_back(new[found.which], found.columns)

    def bring_in(self, namespace: bytes, keys: KeyColumn) -> None:
        """Take those of the keys that are on the disk alone into memory, too: they stay on the disk as they are."""
        if not self._cold.has(namespace):
            return
        absent = np.flatnonzero(self._spaces.known(namespace).find(keys) < 0)
        found = self._cold.find(namespace, keys, absent)
        if found is None:
            return
        space = self._spaces.space(namespace)
        brought = hashed(arrow_keys(keys).take(pa.array(found.which)), self._layout.key_type)
        slots, _ = self._spaces.find_or_add(space, brought)
        space.bring_back(slots, found.columns)
        space.same(slots)

    # --- gone ---------------------------------------------------------------------------------------------------------

    def forget(self, namespace: bytes, space: TableSpace, slots: Slots) -> None:
        """Forget these keys in memory and on the disk, each given once."""
        if len(slots):
            if self._cold.has(namespace):
                self._spaces.forget_images()
                self._cold.forget(namespace, space.keys_at(slots))
            self._spaces.remove(space, slots)

    def drop(self, namespace: bytes) -> None:
        """Forget all keys of a namespace. The caller owes that all groups are loaded."""
        stored = self._cold.groups_of(namespace)
        if self._cold.has(namespace):
            self._spaces.forget_images()
        self._cold.drop(namespace)
        self._spaces.drop(namespace, stored)
