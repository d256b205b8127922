"""The way of keys from their blocks into memory, or to the disk where memory has no room for them.

Invariant: every key of a loaded key group is in memory or in `ColdKeys`. For any other group the blocks are right;
except for the keys that were asked for, its rows may have been read ahead. As long as some rows are read ahead, nothing
is in `ColdKeys`.

A key group is read when it is first touched. If there is room, those of its keys that are asked for are taken into
memory at once and the others by and by, so that the first batches do not wait for all keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from statebackend import entries
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn
from statebackend.tables.disk.cold_keys import ColdKeys
from statebackend.tables.format.blocks import Block, hashed, is_whole
from statebackend.tables.format.stored_blocks import Entries, Stored, StoredBlocks, in_one, misplaced
from statebackend.tables.memory.budget import Budget
from statebackend.tables.memory.read_ahead_rows import ReadAheadRows, Rows
from statebackend.tables.memory.spaces import Spaces
from statebackend.tables.values.spec import Layout

_LOADED_AT_ONCE = 1 << 16
_LOADED_PART = 16
"""So many rows are taken into memory together, as much of the work is per call; no more than that part of all. With
more of them at once, memory is taken from the system anew that is given back in between."""

_READ_AHEAD_TOGETHER = 1 << 13
"""So many rows are read ahead together, or those of one group: a batch has to wait for them when their turn comes."""


class Loader:
    """The loaded and read-ahead parts of a table's blocks. Groups are counted from the partition's first one."""

    def __init__(self, layout: Layout, store: Entries, spaces: Spaces, cold: ColdKeys, budget: Budget) -> None:
        self._layout = layout
        self._stored = StoredBlocks(layout, store)
        self._spaces = spaces
        self._cold = cold
        self._budget = budget
        self._unloaded = ~layout.no_groups()
        self._some_unloaded = True
        self._ahead = ReadAheadRows(layout)

    @property
    def is_done(self) -> bool:
        """True if all groups are loaded."""
        return not self._some_unloaded

    @property
    def has_read_ahead(self) -> bool:
        """True if rows may be read ahead that are not in memory yet."""
        return bool(self._ahead)

    @property
    def read_ahead_bytes(self) -> int:
        """Return about how much memory the rows occupy that are read ahead."""
        return self._ahead.nbytes

    @property
    def room(self) -> int:
        """Return how many keys more there may be in memory, those that are read ahead counted as if they were there."""
        return self._budget.max_slots - len(self._spaces) - len(self._ahead)

    # --- what is asked for --------------------------------------------------------------------------------------------

    def load_those(self, keys: KeyColumn, namespace: bytes) -> None:
        """Load what is stored of these keys into memory or, if there is no room for it, into `ColdKeys`."""
        if not self._some_unloaded:
            return
        groups = self._layout.no_groups()
        groups[self._layout.places(keys.hashes)] = True
        wanted = groups & self._unloaded
        self._read_ahead(np.flatnonzero(wanted & ~self._ahead.groups))
        if (wanted & self._unloaded & ~self._ahead.groups).any():
            self._load(wanted)
            return
        block = self._ahead.take(namespace, keys.hashes)
        if block is not None:
            self._take_in(namespace, hashed(block.keys, self._layout.key_type), block)
        while self._ahead.is_due:
            self.load_more()
        self._see_what_is_left()

    def load_all(self) -> None:
        """Load all groups into memory or, those for which there is no room, into `ColdKeys`."""
        if self._some_unloaded:
            self._load(self._unloaded)

    def namespaces_ahead(self) -> set[bytes]:
        """Load or read ahead all there is, and return the namespaces of the rows that are read ahead."""
        self.read_ahead()
        if (self._unloaded & ~self._ahead.groups).any():
            self.load_all()
        return self._ahead.namespaces()

    # --- by and by ----------------------------------------------------------------------------------------------------

    def load(self, go_on: Callable[[], bool]) -> None:
        """Load groups as far as there is room in memory and as long as `go_on`, asked now and then, says so."""
        while self._ahead and go_on():
            self.load_more()
        self._load_as_fits(np.flatnonzero(self._unloaded & ~self._ahead.groups), go_on)
        self._see_what_is_left()

    def read_ahead(self) -> None:
        """Read what is stored, as far as there is room, so that `load_more` and `load_those` find it read."""
        self._read_ahead(np.flatnonzero(self._unloaded & ~self._ahead.groups))
        self._see_what_is_left()

    def load_more(self) -> bool:
        """Take some of what was read ahead into memory; True if there is more."""
        if self._ahead:
            places, rows = self._ahead.next()
            for namespace, (keys, block), all_differ in rows:
                self._take_in(namespace, keys, block, all_differ=all_differ)
            self._unloaded[places] = False
            self._see_what_is_left()
            self._weigh()
        return bool(self._ahead)

    def load_read_ahead(self) -> None:
        """Load all rows that were read ahead: what follows knows only what is in memory and what is stored."""
        while self.load_more():
            pass

    # --- what others have written to the store ------------------------------------------------------------------------

    def unload(self, groups: Iterable[KeyGroupRange]) -> None:
        """Forget what is stored of these groups: it has changed. Nothing was changed here since the last cut."""
        self.load_read_ahead()
        gone, first = self._layout.no_groups(), self._layout.groups.first
        for part in groups:
            gone[part.first - first : part.end - first] = True
        self._spaces.unload(gone)
        self._spaces.remove_useless()
        self._unloaded |= gone
        self._see_what_is_left()

    def bring_up_to_date(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in what newer blocks say of the groups that are loaded. See `Table.bring_up_to_date`."""
        self.load_read_ahead()
        found: dict[bytes, dict[int, list[Stored]]] = {}
        loaded = (one for one in blocks if not self._unloaded[self._stored.place_of(one[0])])
        for name, payload in self._stored.resolved(loaded):
            place = self._stored.place_of(name)
            namespace, _ = entries.parse_block(name)
            some = found.setdefault(namespace, {}).setdefault(place, [])
            if is_whole(payload):
                some.clear()
                group = self._layout.no_groups()
                group[place] = True
                self._spaces.unload_some(namespace, group)
            some.append((name, payload))
        by_namespace = {namespace: chain.from_iterable(places.values()) for namespace, places in found.items()}
        for namespace, block in self._stored.together(by_namespace):
            keys = hashed(block.keys, self._layout.key_type)
            self._spaces.load(namespace, keys, block, len(keys))
        self._spaces.remove_useless()
        self._weigh()
        if len(self._spaces) > self._budget.max_slots:
            self.unload([self._layout.groups])

    def take_over(self, other: Loader) -> None:
        """Take which groups another one has loaded. Its spaces have everything that it had read ahead."""
        self._unloaded, self._some_unloaded = other._unloaded, other._some_unloaded

    # --- from blocks to memory, or to the disk ------------------------------------------------------------------------

    def _see_what_is_left(self) -> None:
        self._some_unloaded = bool(self._unloaded.any())

    def _weigh(self) -> None:
        self._budget.weigh(self._spaces, self._cold.memory_bytes)

    def _load(self, wanted: NDArray[np.bool_]) -> None:
        if (wanted & self._ahead.groups).any():
            self.load_read_ahead()
        places = self._load_as_fits(np.flatnonzero(wanted & self._unloaded), lambda: True)
        if len(places):
            self.load_read_ahead()
            self._load_cold(places)
            self._unloaded[places] = False
        self._see_what_is_left()

    def _load_as_fits(
        self, places: NDArray[np.int64], go_on: Callable[[], bool], enough: int = sys.maxsize
    ) -> NDArray[np.int64]:
        """Take these groups into memory, where none of them is read ahead, as far as there is room; return those left.

        Stop when keys had to go to the disk, or there are enough keys, or `go_on` says no.
        """
        while len(places) and not self._cold.some and len(self._spaces) < enough and go_on():
            most = min(_LOADED_AT_ONCE, self._budget.max_slots // _LOADED_PART + 1, enough - len(self._spaces))
            number, found = self._read(places, most)
            if not number:
                break
            coming = len(places) / number  # the others are about as large as these
            for namespace, (keys, block) in found.items():
                self._take_in(namespace, keys, block, int(len(keys) * coming))
            self._unloaded[places[:number]] = False
            places = places[number:]
            self._weigh()
        return places

    def _read_ahead(self, places: NDArray[np.int64]) -> None:
        """Read these groups, none of which was read, as far as there is room and unless keys had to go to the disk."""
        if self._budget.is_of_bytes:  # what a key takes is only known when there are some
            places = self._load_as_fits(places, lambda: True, self._budget.enough_to_weigh)
        while len(places) and not self._cold.some:
            number, found = self._read(places, min(_READ_AHEAD_TOGETHER, self._budget.max_slots // _LOADED_PART + 1))
            if not number:
                break
            self._ahead.add(places[:number], found)
            places = places[number:]

    def _read(self, places: NDArray[np.int64], most: int) -> tuple[int, Mapping[bytes, Rows]]:
        """Read what is stored of the first of these groups; return how many these are, and the rows by namespace.

        These are as many groups as have so many rows, as far as there is room; their rows come in one.
        """
        number, found = self._stored.first(places, most, self.room)
        blocks = {namespace: in_one(some) for namespace, some in found.items() if some}
        return number, {name: (self._keys_of(block, places[:number]), block) for name, block in blocks.items()}

    def _keys_of(self, block: Block, places: NDArray[np.int64]) -> KeyColumn:
        """Return the keys of a block; raise `DamagedBlock` if they are not of these groups."""
        keys = hashed(block.keys, self._layout.key_type)
        if not np.isin(self._layout.places(keys.hashes), places).all():
            groups = (self._layout.groups.first + places).tolist()
            raise misplaced(f"state {self._layout.table!r}, key groups {groups}")
        return keys

    def _take_in(
        self, namespace: bytes, keys: KeyColumn, block: Block, coming: int = 0, *, all_differ: bool = False
    ) -> None:
        """Take rows into memory, of which that many are still to come, these included, besides those read ahead."""
        coming = max(coming, len(keys)) + self._ahead.left(namespace)
        most = self._budget.max_slots - len(self._spaces)
        self._spaces.load(namespace, keys, block, min(coming, most), all_differ=all_differ)

    def _load_cold(self, places: NDArray[np.int64]) -> None:
        """Take groups that memory has no room for to the disk, some blocks at a time, however many there are."""
        loading = self._cold.loading()
        for place in places.tolist():
            for namespace, block in self._stored.joined(place):
                loading.add(namespace, self._keys_of(block, np.array([place])), block)
            loading.end_group()
        loading.end()
