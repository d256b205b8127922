"""Built-in aggregates per key and namespace, in columns: found, updated, frozen and loaded by the batch, never by key.

Invariant: what memory has of a key is right; of a key that it does not have, what `ColdKeys` has; and of a key
group that is not loaded, what its blocks say. The blocks of all frozen epochs say together what the table was at the
last cut. Time is what the caller says it is.

The places where a key may be, and which of them wins, are in `statebackend/README.md`. Here calls are put together from
parts with one job each: `Spaces` has the keys in memory, `Budget` says how many these may be, `Loader` brings keys from
blocks, and `Evictor` to the disk and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebackend.backends.scratch_file import NewFile, ScratchFile
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn, canonical_order
from statebackend.keys.types import KeyType
from statebackend.tables.disk.cold_keys import ColdKeys
from statebackend.tables.evictor import Evictor
from statebackend.tables.format.blocks import arrow_keys, hashed, joined, with_hashes
from statebackend.tables.format.stored_blocks import Entries
from statebackend.tables.loader import Loader
from statebackend.tables.memory.budget import Budget
from statebackend.tables.memory.frozen import FrozenTable
from statebackend.tables.memory.space import TableSpace
from statebackend.tables.memory.spaces import Spaces
from statebackend.tables.values.accumulators import Column
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.rounds import Rounds
from statebackend.tables.values.spec import Layout, TableSpec, expiries


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
        self.spec = spec
        self._layout = layout = Layout(spec.name, spec.accumulators, key_type, groups, max_parallelism)
        self._budget = budget = Budget(layout, max_slots, memory)
        self._spaces = spaces = Spaces(layout, restored_epoch)
        self._cold = cold = ColdKeys(layout, new_file)
        self._loader = loader = Loader(layout, store, spaces, cold, budget)
        self._evictor = Evictor(spec, layout, store, spaces, cold, budget, loader, restored_epoch)

    def __len__(self) -> int:
        """Return how many keys are in memory."""
        return len(self._spaces)

    def memory_bytes(self) -> int:
        """Return about how much memory the table occupies; what is frozen is not counted."""
        return self._spaces.memory_bytes() + self._cold.memory_bytes() + self._loader.read_ahead_bytes

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
            aggregation.update(self.spec.accumulators_of(output, space.columns), slots, values)
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
                self.spec.accumulators_of(output, space.columns),
                None if aggregation.column is None else columns[aggregation.column],
            )
            for output, aggregation in self.spec.outputs.items()
        }
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))

    def _slots_to_update(
        self, keys: KeyColumn, columns: Mapping[str, pa.Array], namespace: bytes, now: int | None
    ) -> tuple[TableSpace, Slots]:
        """Return the slots of keys to be updated, in memory, touched, and as new if they had expired."""
        self._layout.check_keys(keys)
        self.spec.check_inputs(columns, len(keys))
        self._loader.load_those(keys, namespace)
        self._evictor.make_room(now)
        space, slots = self._slots_to_write(keys, namespace)
        if self.spec.ttl is not None:
            time, expires = self.spec.time(now), expiries(space.columns)
            space.reset(slots[expires[slots] <= time])
            expires[slots] = time + self.spec.ttl
        return space, slots

    def _slots_to_write(self, keys: KeyColumn, namespace: bytes) -> tuple[TableSpace, Slots]:
        space = self._spaces.space(namespace)
        slots, new = self._spaces.find_or_add(space, keys)
        space.touch(slots)
        self._evictor.bring_back(namespace, space, new)
        return space, slots

    def put(self, accumulated: Accumulated, namespace: bytes = b"") -> None:
        """Set these accumulators for these keys, in place of what there was; of a key that is repeated, the last.

        The caller owes every column of the table, each of its type.
        """
        keys = accumulated.keys
        self._layout.check_keys(keys)
        self._loader.load_those(keys, namespace)
        self._evictor.evict_excess()
        space, slots = self._slots_to_write(keys, namespace)
        for name, column in accumulated.columns.items():
            space.columns[name][slots] = column

    def results(self, slots: Slots, namespace: bytes = b"") -> pa.RecordBatch:
        """Return the results of keys, by the slots that `update` gave; one column for each output."""
        return self.spec.results(self._spaces.known(namespace).columns, slots)

    def read(self, keys: KeyColumn, namespace: bytes = b"", now: int | None = None) -> pa.RecordBatch:
        """Return the results of these keys, all null for a key that is not there or has expired."""
        self._layout.check_keys(keys)
        self._loader.load_those(keys, namespace)
        self._evictor.make_room(now)
        self._evictor.bring_in(namespace, keys)
        space = self._spaces.known(namespace)
        slots = space.find(keys)
        present = slots >= 0
        space.look_at(slots[present])
        if self.spec.ttl is not None:
            present &= expiries(space.columns)[slots] > self.spec.time(now)
        found = self.spec.results(space.columns, slots[present])
        return found.take(pa.array(np.cumsum(present) - 1, mask=~present))

    def remove(self, keys: KeyColumn, namespace: bytes = b"") -> None:
        """Forget these keys, which need not be there."""
        self._layout.check_keys(keys)
        self._loader.load_those(keys, namespace)
        self._evictor.evict_excess()
        self._evictor.bring_in(namespace, keys)
        space = self._spaces.known(namespace)
        slots = space.find(keys)
        self._evictor.forget(namespace, space, np.unique(slots[slots >= 0]))

    # --- by namespace -------------------------------------------------------------------------------------------------

    def namespaces(self) -> tuple[bytes, ...]:
        """Return the namespaces that have keys, sorted.

        Of those not in memory as a whole, some may have none any more: let no result depend on these.
        """
        ahead = self._loader.namespaces_ahead()
        return tuple(sorted(self._spaces.namespaces() | ahead | self._cold.namespaces()))

    def keys_and_results(self, namespace: bytes = b"", now: int | None = None) -> KeyedResults:
        """Return all keys of a namespace and their results, by the keys' hashes, and by bytes where these are equal.

        The order follows from the keys alone: a table that lived gives the same as one that was restored.
        """
        self._loader.load_all()
        space = self._spaces.known(namespace)
        slots = space.in_order(self.spec.unexpired(space.columns, space.slots(), now))
        keys, results = space.keys_at(slots), self.spec.results(space.columns, slots)
        cold = self._only_cold(namespace, space)
        rows = self.spec.unexpired(cold.columns, np.arange(len(cold.keys)), now)
        if not len(rows):
            return KeyedResults(keys, results)
        both, order = self._merged(keys, arrow_keys(cold.keys).take(pa.array(rows)))
        results = pa.concat_batches([results, self.spec.results(cold.columns, rows)])
        return KeyedResults(both, results.take(pa.array(order)))

    def accumulators(self, namespace: bytes = b"") -> Accumulated:
        """Return all keys of a namespace and what is kept of each, in the order of `keys_and_results`.

        Expired keys are among them until they are forgotten, as when memory is full: let no result depend on these.
        """
        self._loader.load_all()
        space = self._spaces.known(namespace)
        slots = space.in_order(space.slots())
        keys = space.keys_at(slots)
        cold = self._only_cold(namespace, space)
        if not len(cold.keys):
            return Accumulated(keys, {name: column[slots] for name, column in space.columns.items()})
        both, order = self._merged(keys, arrow_keys(cold.keys))
        columns = {name: np.concatenate((space.columns[name][slots], cold.columns[name])) for name in space.columns}
        return Accumulated(both, {name: column[order] for name, column in columns.items()})

    def _merged(self, keys: KeyColumn, others: pa.Array) -> tuple[KeyColumn, Slots]:
        """Return all keys in the canonical order, and at which place each was, the others counted behind the keys."""
        both = joined([arrow_keys(keys), others])
        unsorted = hashed(both, self._layout.key_type)
        order = canonical_order(unsorted.hashes, lambda places: both.take(pa.array(places)).to_pylist())
        return with_hashes(both.take(pa.array(order)), unsorted.hashes[order]), order

    def _only_cold(self, namespace: bytes, space: TableSpace) -> Accumulated:
        """Return the keys that are on the disk and not in memory, and their accumulators."""
        keys, columns = self._cold.of(namespace)
        absent = np.flatnonzero(space.find(keys) < 0)
        if len(absent) == len(keys):
            return Accumulated(keys, columns)
        keys = hashed(arrow_keys(keys).take(pa.array(absent)), self._layout.key_type)
        return Accumulated(keys, {name: column[absent] for name, column in columns.items()})

    def drop(self, namespace: bytes = b"") -> None:
        """Forget all keys of a namespace."""
        self._loader.load_all()
        self._evictor.drop(namespace)

    def remove_expired(self, now: int) -> None:
        """Forget the keys in memory that have expired; else they occupy it until memory is full."""
        self._evictor.remove_expired(now)

    # --- cutting and going back ---------------------------------------------------------------------------------------

    def freeze(self, epoch_number: int) -> FrozenTable:
        """Cut: return what changed since the last cut. Costs what changed, at most a copy of the accumulators."""
        all_read = not self._loader.has_read_ahead
        parts = self._spaces.freeze(epoch_number, lambda namespace: all_read and not self._cold.has(namespace))
        self._evictor.begin_epoch(epoch_number)
        if self._loader.is_done:
            self._spaces.note_copies(parts, self._evictor.bytes_for_images)
        complete = self._loader.is_done and not self._cold.some
        complete = complete and sum(part.whole for part in parts) == len(self._spaces.namespaces())
        return FrozenTable(self._layout, epoch_number, parts, (self._layout.groups,) if complete else ())

    @property
    def losses(self) -> int:
        """Return a number that rises whenever keys leave memory, or come to it that are not new.

        What was kept of keys is not known then.
        """
        return self._spaces.losses

    def keep_keys(self, frozen: FrozenTable, most_values: float) -> None:
        """Store what was just frozen as a whole in such a way that later cuts can refer to its keys.

        Where accumulators would be more than that part of it, keys are not stored apart.
        """
        self._spaces.keep_keys(frozen, most_values)

    def completed(self, epoch_number: int) -> None:
        """Forget what only a rewind to a cut before that of this epoch would need."""
        self._spaces.completed(epoch_number)

    def rewind(self, epoch_number: int) -> bool:
        """Go back to what was cut for this epoch, or opened; False if that is not known: then the table is useless.

        The store has to be what it was then as well. It is as if the epoch had been completed.
        """
        if not self._spaces.rewind(epoch_number):
            return False
        self._evictor.begin_epoch(epoch_number)
        return True

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, go_on: Callable[[], bool]) -> None:
        """Load what is stored into memory, as far as there is room and as long as `go_on`, asked now and then, says so.

        What is not loaded then is when it is first used.
        """
        self._loader.load(go_on)

    def read_ahead(self) -> None:
        """Read what is stored, as far as there is room, so that `load_more` and calls for keys find it read."""
        self._loader.read_ahead()

    def load_more(self) -> bool:
        """Take some of what was read ahead into memory; True if there is more. It takes some milliseconds."""
        return self._loader.load_more()

    def unload(self, groups: Iterable[KeyGroupRange]) -> None:
        """Forget what is stored of these groups: it has changed. Nothing was changed here since the last cut."""
        self._loader.unload(groups)

    def bring_up_to_date(self, blocks: Iterable[tuple[bytes, bytes]]) -> None:
        """Take in what newer blocks say of the groups that are loaded; they are stored as well.

        They come by group, and in a group and namespace the oldest first. Nothing was changed here since the last cut.
        """
        self._loader.bring_up_to_date(blocks)

    def take_over(self, other: Table) -> None:
        """Take what another one has in memory; it has nothing on the disk, and is not used any more.

        What is stored is the same, and nothing was changed there since the last cut.
        """
        other._loader.load_read_ahead()
        self._spaces.take_over(other._spaces)
        self._budget.take_over(other._budget)
        self._loader.take_over(other._loader)
