"""Built-in aggregates per key and namespace, in columns: found, updated, frozen and loaded by the batch, never by key.

What always holds: what memory has of a key is right; of a key that it does not have, what `ColdKeys` has. What the
blocks of all frozen epochs say together is the table at the last cut. A key group is read from its blocks when it is
first touched. If there is room, those of its keys that are asked for are taken into memory at once, and the others wait
until it is their turn, so that the first batches do not wait for all keys; else all go into `ColdKeys`, some blocks at
a time.

Of keys that leave memory, what the next cut has to say goes into blocks at once, as if it were a small cut of its own.
`ColdKeys` is only there to find them again: keys in use may be spread over all groups, so no group is ever brought back
as a whole, but of each key a page. Time is what the caller says it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend import entries
from statebackend.backends.scratch_file import NewFile, ScratchFile
from statebackend.backends.unused_memory import give_back_of_thread
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn
from statebackend.keys.types import KeyType
from statebackend.tables.disk.cold_keys import ColdKeys
from statebackend.tables.format.blocks import Block, arrow_keys, hashed, is_whole, joined
from statebackend.tables.format.stored_blocks import Entries, Stored, StoredBlocks, in_one, misplaced
from statebackend.tables.memory.frozen import FrozenSpace, FrozenTable
from statebackend.tables.memory.read_ahead_rows import ReadAheadRows, Rows
from statebackend.tables.memory.space import TableSpace, TouchClock
from statebackend.tables.values.accumulators import OBJECTS, Column
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.rounds import Rounds
from statebackend.tables.values.spec import EXPIRES, Layout, TableError, TableSpec, column_of

_EVICTED_AT_ONCE = 4
"""When memory is full, that part of all keys leaves it at once."""

_LEAVING_AT_ONCE = 1 << 13
_LEAVING_PART = 32
"""So many keys, or that part of all of them, are on their way to the disk at a time: they are copied several times."""

_ENOUGH_TO_WEIGH = 1 << 12
_ENOUGH_OF_OBJECTS = 1 << 8
"""With fewer keys than that, what a key takes is not known yet; texts and bytes are weighed sooner, and time and again.
"""

_LOADED_AT_ONCE = 1 << 16
_LOADED_PART = 16
"""So many rows are taken into memory together, as much of the work is per call; no more than that part of all. With
more of them at once, memory is taken from the system anew that is given back in between."""

_READ_AHEAD_TOGETHER = 1 << 13
"""So many rows wait together, or those of one group: a batch has to wait for them when their turn comes."""


class ForeignKeys(TableError):
    """Keys of key groups that belong to another partition: the exchange before the table sent them here by mistake."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyedResults:
    """Keys and their results, row by row."""

    keys: KeyColumn
    results: pa.RecordBatch


@dataclass(frozen=True, slots=True, eq=False)
class Accumulated:
    """Keys and their accumulators, row by row."""

    keys: KeyColumn
    columns: Mapping[str, Column]


class Table:
    """The aggregates of the keys of some key groups. All calls come from one thread.

    At most `max_slots` keys, and those of one batch more, are in memory; the least recently used ones go to the disk.
    If `memory` is given, then so many keys as take about that many bytes, once it is known what a key takes.
    What is used is known by the epoch, and within an epoch by when it was first used.

    An error that is no `TableError` may leave a batch applied in part: return to the last epoch then.
    """

    def __init__(
        self,
        spec: TableSpec,
        key_type: KeyType,
        groups: KeyGroupRange,
        max_parallelism: int,
        store: Entries,
        max_slots: int,
        memory: int | None = None,
        *,
        restored_epoch: int = 0,
        new_file: NewFile = ScratchFile,
    ) -> None:
        if max_slots < 1:
            raise TableError(f"table {spec.name!r} may have {max_slots} keys in memory; allow at least one")
        self.spec = spec
        self._layout = Layout(spec.name, spec.accumulators, key_type, groups, max_parallelism)
        self._store = store
        self._max_slots = max_slots
        self._memory = memory
        self._bytes_per_slot = None if memory is None else memory / max_slots
        self._of_objects = any(one.dtype == OBJECTS for one in self._layout.columns.values())
        self._enough_to_weigh = _ENOUGH_OF_OBJECTS if self._of_objects else _ENOUGH_TO_WEIGH
        self._weigh_at = self._enough_to_weigh
        self._least_hash = np.uint64(-(-(groups.first << 64) // max_parallelism))
        self._greatest_hash = np.uint64(-(-(groups.end << 64) // max_parallelism) - 1)
        self._clock = TouchClock()
        self._begun = [restored_epoch]
        """The epochs of the cuts to which one may go back: those with which the intervals from `kept` on began."""
        self._dropped: list[tuple[int, bytes, TableSpace]] = []
        """What may come back with them: namespaces, and in which interval each was dropped."""
        self._spaces: dict[bytes, TableSpace] = {}
        self._cleared: dict[bytes, NDArray[np.bool_]] = {}
        self._stored = StoredBlocks(self._layout, store)
        self._cold = ColdKeys(self._layout, new_file)
        self._last_epoch = restored_epoch
        self._early_blocks = 0
        self._unloaded = ~self._layout.no_groups()
        self._some_unloaded = True
        self._ahead = ReadAheadRows(self._layout)
        """What was read of groups that are not loaded; nothing is in `ColdKeys` as long as something waits."""
        self._size = 0

    def __len__(self) -> int:
        """Return how many keys are in memory."""
        return self._size

    def memory_bytes(self) -> int:
        """Return about how much memory the table occupies; what is frozen is not counted."""
        spaces = [*self._spaces.values(), *(space for _, _, space in self._dropped)]
        of_spaces = sum(space.memory_bytes() + space.noted_bytes() for space in spaces)
        return of_spaces + self._cold.memory_bytes() + self._ahead.nbytes

    # --- by keys ------------------------------------------------------------------------------------------------------

    def update(
        self, keys: KeyColumn, columns: Mapping[str, pa.Array], namespace: bytes = b"", now: int | None = None
    ) -> Slots:
        """Fold a batch in, and return the slot of each key, valid until the table is changed or read next.

        `columns` has the input columns, row for row with the keys. A table with a time to live has to know `now`.
        """
        space, slots = self._slots_to_update(keys, columns, namespace, now)
        for output, aggregation in self.spec.outputs.items():
            values = None if aggregation.column is None else columns[aggregation.column]
            aggregation.update(self._accumulators(space.columns, output), slots, values)
        return slots

    def update_each(
        self, keys: KeyColumn, columns: Mapping[str, pa.Array], namespace: bytes = b"", now: int | None = None
    ) -> pa.RecordBatch:
        """Fold a batch in as `update` does, and return for each row the results of its key right after that row."""
        space, slots = self._slots_to_update(keys, columns, namespace, now)
        rounds = Rounds.of(slots)
        arrays = {
            output: rounds.folded(
                aggregation,
                self._accumulators(space.columns, output),
                None if aggregation.column is None else columns[aggregation.column],
            )
            for output, aggregation in self.spec.outputs.items()
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _slots_to_update(
        self, keys: KeyColumn, columns: Mapping[str, pa.Array], namespace: bytes, now: int | None
    ) -> tuple[TableSpace, Slots]:
        """Return the slots of keys to be updated, in memory, touched, and as new if they had expired."""
        self._check(keys, columns)
        self._load_those(keys, namespace)
        self._make_room(now)
        space = self._space(namespace)
        slots, new = space.find_or_add(keys)
        self._size += len(new)
        space.touch(slots)
        self._bring_back(namespace, space, new)
        if self.spec.ttl is not None:
            time = self._time(now)
            expires = _expiries(space.columns)
            space.reset(slots[expires[slots] <= time])
            expires[slots] = time + self.spec.ttl
        return space, slots

    def results(self, slots: Slots, namespace: bytes = b"") -> pa.RecordBatch:
        """Return the results of keys, by the slots that `update` gave; one column for each output."""
        return self._results(self._known(namespace).columns, slots)

    def read(self, keys: KeyColumn, namespace: bytes = b"", now: int | None = None) -> pa.RecordBatch:
        """Return the results of these keys, all null for a key that is not there or has expired."""
        self._check(keys, None)
        self._load_those(keys, namespace)
        self._make_room(now)
        self._bring_in(namespace, keys)
        space = self._known(namespace)
        slots = space.find(keys)
        present = slots >= 0
        space.look_at(slots[present])
        if self.spec.ttl is not None:
            present &= _expiries(space.columns)[slots] > self._time(now)
        found = self._results(space.columns, slots[present])
        return found.take(pa.array(np.cumsum(present) - 1, mask=~present))

    def remove(self, keys: KeyColumn, namespace: bytes = b"") -> None:
        """Forget these keys, which need not be there."""
        self._check(keys, None)
        self._load_those(keys, namespace)
        self._evict_excess()
        self._bring_in(namespace, keys)
        space = self._known(namespace)
        slots = space.find(keys)
        self._forget(namespace, space, np.unique(slots[slots >= 0]))

    # --- by namespace -------------------------------------------------------------------------------------------------

    def namespaces(self) -> set[bytes]:
        """Return the namespaces that have keys; of those not in memory as a whole, some may have none any more."""
        self.read_ahead()
        if (self._unloaded & ~self._ahead.groups).any():
            self._load_everything()
        here = {namespace for namespace, space in self._spaces.items() if len(space)}
        return here | self._ahead.namespaces() | self._cold.namespaces()

    def keys_and_results(self, namespace: bytes = b"", now: int | None = None) -> KeyedResults:
        """Return all keys of a namespace and their results, in no particular order."""
        self._load_everything()
        space = self._known(namespace)
        slots = self._unexpired(space.columns, space.slots(), now)
        keys, results = space.keys_at(slots), self._results(space.columns, slots)
        cold = self._only_cold(namespace, space)
        rows = self._unexpired(cold.columns, np.arange(len(cold.keys)), now)
        if not len(rows):
            return KeyedResults(keys, results)
        both = joined([arrow_keys(keys), arrow_keys(cold.keys).take(pa.array(rows))])
        results = pa.concat_batches([results, self._results(cold.columns, rows)])
        return KeyedResults(hashed(both, self._layout.key_type), results)

    def _only_cold(self, namespace: bytes, space: TableSpace) -> Accumulated:
        """Return the keys that are on the disk and not in memory, and their accumulators."""
        keys, columns = self._cold.of(namespace)
        absent = np.flatnonzero(space.find(keys) < 0)
        if len(absent) == len(keys):
            return Accumulated(keys, columns)
        keys = hashed(arrow_keys(keys).take(pa.array(absent)), self._layout.key_type)
        return Accumulated(keys, {name: column[absent] for name, column in columns.items()})

    def accumulators(self, namespace: bytes = b"") -> Accumulated:
        """Return all keys of a namespace and what is kept of each, expired ones included, in no particular order."""
        self._load_everything()
        space = self._known(namespace)
        slots = space.slots()
        cold = self._only_cold(namespace, space)
        keys = joined([arrow_keys(space.keys_at(slots)), arrow_keys(cold.keys)])
        columns = {name: np.concatenate((space.columns[name][slots], cold.columns[name])) for name in space.columns}
        return Accumulated(hashed(keys, self._layout.key_type), columns)

    def put(self, accumulated: Accumulated, namespace: bytes = b"") -> None:
        """Set these accumulators for these keys, in place of what there was; of a key that is repeated, the last.

        The caller owes every column of the table, each of its type.
        """
        keys = accumulated.keys
        self._check(keys, None)
        self._load_those(keys, namespace)
        self._evict_excess()
        space = self._space(namespace)
        slots, new = space.find_or_add(keys)
        self._size += len(new)
        space.touch(slots)
        self._bring_back(namespace, space, new)
        for name, column in accumulated.columns.items():
            space.columns[name][slots] = column

    def drop(self, namespace: bytes = b"") -> None:
        """Forget all keys of a namespace."""
        self._load_everything()
        stored = self._cold.groups_of(namespace)
        if self._cold.has(namespace):
            self._forget_images()
        self._cold.drop(namespace)
        space = self._spaces.pop(namespace, None)
        if space is not None:
            self._size -= len(space)
            stored = stored | space.stored_groups
            if self._clock.notes:
                self._dropped.append((self._clock.interval, namespace, space))
                self._clock.noted_bytes += space.memory_bytes()
        self._clock.losses += 1
        if stored.any():
            self._cleared[namespace] = stored | self._cleared.get(namespace, self._layout.no_groups())

    def remove_expired(self, now: int) -> None:
        """Forget the keys in memory that have expired; else they occupy it until memory is full."""
        if self.spec.ttl is None:
            return
        for namespace, space in self._spaces.items():
            slots = space.slots()
            self._forget(namespace, space, slots[_expiries(space.columns)[slots] <= now])

    # --- cutting and loading ------------------------------------------------------------------------------------------

    def freeze(self, epoch_number: int) -> FrozenTable:
        """Cut: return what changed since the last cut. Costs what changed, at most a copy of the accumulators."""
        changed: list[tuple[TableSpace, FrozenSpace]] = []
        for namespace, space in self._spaces.items():
            cleared = self._cleared.pop(namespace, None)
            if cleared is not None or space.has_changes:
                all_here = not self._ahead and not self._cold.has(namespace)
                changed.append((space, space.freeze(namespace, cleared, all_here=all_here)))
        for namespace, cleared in self._cleared.items():
            space = TableSpace(self._layout, self._clock)
            changed.append((space, space.freeze(namespace, cleared, all_here=True)))
        self._cleared = {}
        self._clock.cut = self._clock.now
        self._last_epoch, self._early_blocks = epoch_number, 0
        self._clock.interval += 1
        self._begun.append(epoch_number)
        self._remove_empty_spaces()
        if not self._some_unloaded:
            for space, part in changed:
                space.begins_with(part, self._room_for_images())
        parts = [part for _, part in changed]
        complete = not self._some_unloaded and not self._cold.some
        complete = complete and sum(part.whole for part in parts) == sum(len(one) > 0 for one in self._spaces.values())
        return FrozenTable(self._layout, epoch_number, parts, (self._layout.groups,) if complete else ())

    @property
    def losses(self) -> int:
        """Return a number that rises whenever keys leave memory, or come to it that are not new.

        What was kept of keys is not known then.
        """
        return self._clock.losses

    def keep_keys(self, frozen: FrozenTable, most_values: float) -> None:
        """Store what was just frozen as a whole in such a way that later cuts can refer to its keys.

        Where accumulators would be more than that part of it, keys are not stored apart.
        """
        for part in frozen.parts:
            if part.whole:
                self._spaces[part.namespace].keep_keys(part, frozen.epoch_number, most_values)

    def completed(self, epoch_number: int) -> None:
        """Forget what only a rewind to a cut before that of this epoch would need."""
        clock, kept = self._clock, self._clock.kept
        while len(self._begun) > 1 and self._begun[1] <= epoch_number:
            del self._begun[0]
            clock.kept += 1
        if clock.kept > kept:
            self._let_go()

    def rewind(self, epoch_number: int) -> bool:
        """Go back to what was cut for this epoch, or opened; False if that is not known: then the table is useless.

        The store has to be what it was then as well. It is as if the epoch had been completed.
        """
        clock = self._clock
        later = sum(begun > epoch_number for begun in self._begun)
        if later == len(self._begun):
            return False
        interval = clock.interval - later
        for when, namespace, space in reversed(self._dropped):
            if when >= interval:
                self._spaces[namespace] = space
        for space in self._spaces.values():
            space.rewind(interval)
        self._size = sum(map(len, self._spaces.values()))
        self._dropped, self._cleared = [], {}
        self._last_epoch, self._early_blocks = epoch_number, 0
        clock.now += 1
        clock.cut, clock.interval, clock.noted_bytes = clock.now, clock.interval + 1, 0
        clock.kept, self._begun = clock.interval, [epoch_number]
        self._remove_empty_spaces()
        return True

    def _forget_images(self) -> None:
        """Forget all that is noted to go back to cuts that were made by now."""
        if self._clock.notes:
            self._clock.kept = self._clock.interval + 1
            self._begun.clear()
            self._let_go()

    def _let_go(self) -> None:
        """Drop before-images and namespaces of cuts that can no longer be rewound to."""
        for space in (*self._spaces.values(), *(space for _, _, space in self._dropped)):
            space.forget_images()
        for when, _, space in self._dropped:
            if when < self._clock.kept:
                self._clock.noted_bytes -= space.memory_bytes()
        self._dropped = [dropped for dropped in self._dropped if dropped[0] >= self._clock.kept]

    def _remove_empty_spaces(self) -> None:
        """Remove the spaces that are useless, but not those whose keys may come back."""
        for namespace in [name for name, space in self._spaces.items() if space.is_useless]:
            del self._spaces[namespace]

    def _groups_of(self, keys: KeyColumn) -> NDArray[np.bool_]:
        groups = self._layout.no_groups()
        groups[self._layout.places(keys.hashes)] = True
        return groups

    def _load_those(self, keys: KeyColumn, namespace: bytes) -> None:
        """Load what is stored of these keys into memory or, if there is no room for it, into `ColdKeys`."""
        if not self._some_unloaded:
            return
        wanted = self._groups_of(keys) & self._unloaded
        self._read_ahead(np.flatnonzero(wanted & ~self._ahead.groups))
        if (wanted & self._unloaded & ~self._ahead.groups).any():
            self._load(wanted)
            return
        block = self._ahead.take(namespace, keys.hashes)
        if block is not None:
            self._take_in(namespace, hashed(block.keys, self._layout.key_type), block)
        while self._ahead.is_due:
            self.load_more()
        self._some_unloaded = bool(self._unloaded.any())

    def _load_everything(self) -> None:
        if self._some_unloaded:
            self._load(self._unloaded)

    def load(self, go_on: Callable[[], bool]) -> None:
        """Load what is stored into memory, as far as there is room and as long as `go_on`, asked now and then, says so.

        What is not loaded then is when it is first used.
        """
        while self._ahead and go_on():
            self.load_more()
        self._load_as_fits(np.flatnonzero(self._unloaded & ~self._ahead.groups), go_on)
        self._some_unloaded = bool(self._unloaded.any())

    def read_ahead(self) -> None:
        """Read what is stored, as far as there is room, so that `load_more` and calls for keys find it read."""
        self._read_ahead(np.flatnonzero(self._unloaded & ~self._ahead.groups))
        self._some_unloaded = bool(self._unloaded.any())

    def load_more(self) -> bool:
        """Take some of what was read ahead into memory; True if there is more. It takes some milliseconds."""
        if self._ahead:
            places, waited = self._ahead.next()
            for namespace, (keys, block), all_differ in waited:
                self._take_in(namespace, keys, block, all_differ=all_differ)
            self._unloaded[places] = False
            self._some_unloaded = bool(self._unloaded.any())
            self._weigh()
        return bool(self._ahead)

    def _load_read_ahead(self) -> None:
        """Load all rows that wait: what follows knows only what is in memory and what is stored."""
        while self.load_more():
            pass

    def unload(self, groups: Iterable[KeyGroupRange]) -> None:
        """Forget what is stored of these groups: it has changed. Nothing was changed here since the last cut."""
        self._load_read_ahead()
        gone, first = self._layout.no_groups(), self._layout.groups.first
        for part in groups:
            gone[part.first - first : part.end - first] = True
        for space in self._spaces.values():
            if (space.stored_groups & gone).any():
                space.unload(space.in_groups(gone))
                space.stored_groups &= ~gone
        self._unloaded |= gone
        self._some_unloaded = bool(self._unloaded.any())
        self._remove_empty_spaces()
        self._count_keys()

    def bring_up_to_date(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in what newer blocks say of the groups that are loaded; they are stored as well.

        They come by group, and in a group and namespace the oldest first. Nothing was changed here since the last cut.
        """
        self._load_read_ahead()
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
                space = self._known(namespace)
                space.unload(space.in_groups(group))
            some.append((name, payload))
        by_namespace = {namespace: chain.from_iterable(places.values()) for namespace, places in found.items()}
        for namespace, block in self._stored.together(by_namespace):
            keys = hashed(block.keys, self._layout.key_type)
            self._space(namespace).load(keys, block, len(keys))
        self._remove_empty_spaces()
        self._count_keys()
        self._weigh()
        if self._size > self._max_slots:
            self.unload([self._layout.groups])

    def take_over(self, other: Table) -> None:
        """Take what another one has in memory; it has nothing on the disk, and is not used any more.

        What is stored is the same, and nothing was changed there since the last cut.
        """
        other._load_read_ahead()
        self._clock, self._spaces, self._unloaded = other._clock, other._spaces, other._unloaded
        self._some_unloaded, self._size = other._some_unloaded, other._size
        self._max_slots, self._weigh_at, self._bytes_per_slot = other._max_slots, other._weigh_at, other._bytes_per_slot
        for space in self._spaces.values():
            space.begin()

    def _count_keys(self) -> None:
        self._size = sum(map(len, self._spaces.values()))

    def _load(self, wanted: NDArray[np.bool_]) -> None:
        if (wanted & self._ahead.groups).any():
            self._load_read_ahead()
        places = self._load_as_fits(np.flatnonzero(wanted & self._unloaded), lambda: True)
        if len(places):
            self._load_read_ahead()
            self._load_cold(places)
            self._unloaded[places] = False
        self._some_unloaded = bool(self._unloaded.any())

    def _load_as_fits(
        self, places: NDArray[np.int64], go_on: Callable[[], bool], enough: int = sys.maxsize
    ) -> NDArray[np.int64]:
        """Take these groups, of which none waits, into memory as far as there is room; return those left.

        Stop when keys had to go to the disk, or there are enough keys, or `go_on` says no.
        """
        while len(places) and not self._cold.some and self._size < enough and go_on():
            most = min(_LOADED_AT_ONCE, self._max_slots // _LOADED_PART + 1, enough - self._size)
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
        """Read these groups, of which none waits, as far as there is room and unless others had to go to the disk."""
        if self._memory is not None:  # what a key takes is only known when there are some
            places = self._load_as_fits(places, lambda: True, self._enough_to_weigh)
        while len(places) and not self._cold.some:
            number, found = self._read(places, min(_READ_AHEAD_TOGETHER, self._max_slots // _LOADED_PART + 1))
            if not number:
                break
            self._ahead.add(places[:number], found)
            places = places[number:]

    def _read(self, places: NDArray[np.int64], most: int) -> tuple[int, Mapping[bytes, Rows]]:
        """Read what is stored of the first of these groups; return how many these are, and the rows by namespace.

        These are as many groups as have so many rows, as far as there is room; their rows come in one.
        """
        number, found = self._stored.first(places, most, self._room)
        blocks = {namespace: in_one(some) for namespace, some in found.items() if some}
        return number, {name: (self._keys_of(block, places[:number]), block) for name, block in blocks.items()}

    def _keys_of(self, block: Block, places: NDArray[np.int64]) -> KeyColumn:
        """Return the keys of a block; raise `DamagedBlock` if they are not of these groups."""
        keys = hashed(block.keys, self._layout.key_type)
        if not np.isin(self._layout.places(keys.hashes), places).all():
            groups = (self._layout.groups.first + places).tolist()
            raise misplaced(f"state {self.spec.name!r}, key groups {groups}")
        return keys

    def _take_in(
        self, namespace: bytes, keys: KeyColumn, block: Block, coming: int = 0, *, all_differ: bool = False
    ) -> None:
        """Take rows into memory, of which that many are still to come, these included, besides those that wait."""
        space = self._space(namespace)
        before = len(space)
        coming = max(coming, len(keys)) + self._ahead.left(namespace)
        space.load(keys, block, min(coming, self._max_slots - self._size), all_differ=all_differ)
        self._size += len(space) - before

    def _load_cold(self, places: NDArray[np.int64]) -> None:
        """Take groups that memory has no room for to the disk, some blocks at a time, however many there are."""
        loading = self._cold.loading()
        for place in places.tolist():
            for namespace, block in self._stored.joined(place):
                keys = hashed(block.keys, self._layout.key_type)
                if (self._layout.places(keys.hashes) != place).any():
                    raise misplaced(f"state {self.spec.name!r}, key group {self._layout.groups.first + place}")
                loading.add(namespace, keys, block)
            loading.end_group()
        loading.end()

    # --- memory -------------------------------------------------------------------------------------------------------

    def _make_room(self, now: int | None) -> None:
        if self.spec.ttl is not None:
            time = self._time(now)  # asked for before anything changes, as it may be missing
            if self._size > self._max_slots:
                self._forget_images()
                self.remove_expired(time)
        self._evict_excess()

    def _evict_excess(self) -> None:
        self._weigh()
        if self._room_for_images() < 0:
            self._forget_images()  # they must not take the room of keys
        excess = -self._room
        if excess > 0:
            self._load_read_ahead()
            excess = self._size - self._max_slots
        if excess > 0:
            self._forget_images()  # `ColdKeys` does not go back
            self._evict(min(self._size, excess + self._max_slots // _EVICTED_AT_ONCE))

    @property
    def _room(self) -> int:
        """Return how many keys more there may be in memory, those that wait counted as if they were there."""
        return self._max_slots - self._size - len(self._ahead)

    def _room_for_images(self) -> float:
        """Return how many bytes more may be noted to go back to former cuts."""
        if self._bytes_per_slot is None:
            return inf
        return max(0, self._room) * self._bytes_per_slot - self._clock.noted_bytes

    def _weigh(self) -> None:
        """Learn what a key takes. What counts are all slots there ever were, as their memory is not given back but for
        that of texts and bytes.
        """
        if self._memory is None or self._size < self._weigh_at:
            return
        spaces = self._spaces.values()
        slots = sum(space.slot_limit for space in spaces)
        taken = sum(space.memory_bytes() for space in spaces)
        # What is in memory of the keys on the disk does not become less when more of them are there.
        memory = max(self._memory - self._cold.memory_bytes(), self._memory // 2)
        # What was made for keys that are still to come does not become more with them.
        made = sum(space.table_bytes for space in spaces)
        made_for = sum(space.room_in_table for space in spaces)
        fit_in = min(made_for, (memory - made) * slots // (taken - made))
        self._max_slots = max(1, memory * slots // taken, fit_in)
        of_objects = sum(space.object_bytes() for space in spaces)
        if of_objects and memory < taken - of_objects + of_objects * slots // self._size:
            self._max_slots = max(1, (memory - taken + of_objects) * self._size // of_objects)
        self._bytes_per_slot = memory / self._max_slots
        self._weigh_at = min(_ENOUGH_OF_OBJECTS if self._of_objects else self._size * 5 // 4, self._max_slots)

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
                space.evict(some)
                self._size -= len(some)
        give_back_of_thread()

    def _leaving(
        self, namespace: bytes, space: TableSpace, slots: Slots
    ) -> Iterator[tuple[KeyColumn, Mapping[str, Column]]]:
        """Yield what `ColdKeys` has to take of keys that leave memory, by parts, as all would need much of it."""
        slots = space.by_hash(slots)
        most = max(_LEAVING_AT_ONCE, self._max_slots // _LEAVING_PART)
        for first in range(0, len(slots), most):
            some = slots[first : first + most]
            self._put_early(namespace, space, some)
            changed = space.changed_of(some)
            yield space.keys_at(changed), {name: column[changed] for name, column in space.columns.items()}

    def _put_early(self, namespace: bytes, space: TableSpace, slots: Slots) -> None:
        """Write what the next cut would say of keys that leave memory into blocks of their own."""
        unsaved = space.unsaved(namespace, slots, self._cleared.pop(namespace, None))
        if unsaved is None:
            return
        first, state = self._layout.groups.first, self._layout.state
        for place, payload in unsaved.blocks():
            name = entries.early_block(first + place, state, namespace, self._last_epoch, self._early_blocks)
            self._store.put(name, payload)
        self._early_blocks += 1

    def _bring_back(self, namespace: bytes, space: TableSpace, new: Slots) -> None:
        """Give those of the new keys that are on the disk what they have there."""
        if len(new) and self._cold.has(namespace):
            found = self._cold.find(namespace, space.keys_at(new), np.arange(len(new)))
            if found is not None:
                space.bring_back(new[found.which], found.columns)

    def _bring_in(self, namespace: bytes, keys: KeyColumn) -> None:
        """Take those of the keys that are on the disk alone into memory, too."""
        if not self._cold.has(namespace):
            return
        absent = np.flatnonzero(self._known(namespace).find(keys) < 0)
        found = self._cold.find(namespace, keys, absent)
        if found is None:
            return
        space = self._space(namespace)
        slots, new = space.find_or_add(hashed(arrow_keys(keys).take(pa.array(found.which)), self._layout.key_type))
        self._size += len(new)
        space.bring_back(slots, found.columns)
        space.same(slots)

    def _forget(self, namespace: bytes, space: TableSpace, slots: Slots) -> None:
        if len(slots):
            if self._cold.has(namespace):
                self._forget_images()
                self._cold.forget(namespace, space.keys_at(slots))
            space.remove(slots)
            self._size -= len(slots)

    # --- what the others are made of ----------------------------------------------------------------------------------

    def _space(self, namespace: bytes) -> TableSpace:
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = TableSpace(self._layout, self._clock)
        return space

    def _known(self, namespace: bytes) -> TableSpace:
        """Return the keys of a namespace, to look at or to remove: one without keys is not made for that."""
        space = self._spaces.get(namespace)
        return TableSpace(self._layout, self._clock) if space is None else space

    def _accumulators(self, columns: Mapping[str, Column], output: str) -> Mapping[str, Column]:
        names = self.spec.outputs[output].accumulators
        return {name: columns[column_of(output, name)] for name in names}

    def _results(self, columns: Mapping[str, Column], slots: Slots) -> pa.RecordBatch:
        arrays = {
            output: aggregation.result(self._accumulators(columns, output), slots)
            for output, aggregation in self.spec.outputs.items()
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _unexpired(self, columns: Mapping[str, Column], slots: Slots, now: int | None) -> Slots:
        return slots if self.spec.ttl is None else slots[_expiries(columns)[slots] > self._time(now)]

    def _time(self, now: int | None) -> int:
        if now is None:
            raise TableError(f"table {self.spec.name!r} has a time to live, so it has to be told the time: give `now`")
        return now

    def _check(self, keys: KeyColumn, columns: Mapping[str, pa.Array] | None) -> None:
        hashes = keys.hashes
        if len(hashes) and (hashes.min() < self._least_hash or hashes.max() > self._greatest_hash):
            foreign = np.count_nonzero((hashes < self._least_hash) | (hashes > self._greatest_hash))
            raise ForeignKeys(
                f"{foreign} of {len(hashes)} keys given to table {self.spec.name!r} are not of its key groups "
                f"{self._layout.groups}; send each key to the partition that owns its group (see Operator.owners_of)"
            )
        if columns is not None:
            for aggregation in self.spec.outputs.values():
                name = aggregation.column
                if name is not None and name not in columns:
                    raise TableError(f"table {self.spec.name!r} needs column {name!r}; given are {', '.join(columns)}")
                if name is not None and len(columns[name]) != len(hashes):
                    raise TableError(
                        f"column {name!r} for table {self.spec.name!r} has {len(columns[name])} rows, and there are "
                        f"{len(hashes)} keys"
                    )


def _expiries(columns: Mapping[str, Column]) -> NDArray[np.int64]:
    return columns[EXPIRES].view(np.int64)
