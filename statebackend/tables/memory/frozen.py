"""The part of a table that a cut has frozen, and the blocks that the background makes of it.

Invariant: a frozen table never changes, and all that it needs of the table are the keys, which stay in their
slots until they were read or the frozen table is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend import entries, means
from statebackend.keygroups import KeyGroupRange
from statebackend.tables.format.blocks import CLEAR, Block, Encoder, arrow_keys, encode, joined
from statebackend.tables.format.values_blocks import KeysEncoder, ValuesEncoder
from statebackend.tables.memory.kept_keys import KeptKeys, Known, by_group, parts_of
from statebackend.tables.memory.slot_index import SlotIndex
from statebackend.tables.values.accumulators import OBJECTS, Column, blank, clear
from statebackend.tables.values.aggregations import Slots
from statebackend.tables.values.spec import Layout

_NO_SLOTS: Slots = np.empty(0, dtype=np.int64)

_TYPICAL_KEY = 64
"""The assumed size of a key, a text or bytes in a file, to tell small files from large ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Deleted:
    """Keys that were removed, and their key groups, counted from the first of the partition."""

    keys: pa.Array
    places: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """Keys that were changed, by their slots, in pieces; and their accumulators.

    The columns are by slot if `by_slot`, else there is one piece and they are by its rows.
    """

    slots: Sequence[Slots]
    columns: Mapping[str, Column]
    by_slot: bool


_NOTHING = Changed((), {}, False)

Parts = Mapping[int, tuple[int, int]]
"""By key group, counted from the first of the partition, where its rows begin and end."""


@dataclass(frozen=True, slots=True, eq=False)
class Referring:
    """Accumulators of the keys that the cut of an epoch has kept, in the order of these."""

    keys_of: int
    columns: Mapping[str, Column]
    parts: Parts


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Rows by key group, but for those of which only the accumulators are stored."""

    block: Block
    parts: Parts
    referring: Referring | None = None


class FrozenSpace:
    """The changes in one namespace.

    What older blocks say does not count any more in groups that were `cleared`; and if the part is `whole`, in all
    groups in which it has a key. It is stored as blocks of keys with their accumulators, unless `keep_keys` or `refer`
    was called before it is read: then keys are stored apart, or only referred to.
    """

    def __init__(
        self,
        layout: Layout,
        namespace: bytes,
        index: SlotIndex,
        changed: Changed,
        deleted: Sequence[Deleted],
        cleared: NDArray[np.bool_] | None,
        whole: bool,
        known: Known | None = None,
    ) -> None:
        self.namespace = namespace
        self.whole = whole
        self.known = known
        self._layout = layout
        self._index = index
        self._changed = changed
        self._deleted = deleted
        self._cleared = layout.no_groups() if cleared is None else cleared
        self._keeps: KeptKeys | None = None
        self._refers = False
        self._sorted: _Sorted | None = None
        self._sorting = means.Lock()
        self._count = sum(map(len, changed.slots)) + sum(len(part.keys) for part in deleted)

    @property
    def by_slot(self) -> Mapping[str, Column] | None:
        """Return all accumulators at the cut, by slot; None if not all were copied."""
        return self._changed.columns if self._changed.by_slot else None

    @property
    def keys(self) -> int:
        """Return how many keys it speaks of."""
        return self._count

    @property
    def keys_stored(self) -> int:
        """Return how many keys it brings with it."""
        return self.keys - (len(self.known.kept) if self._refers and self.known is not None else 0)

    @property
    def refers(self) -> bool:
        """True if it refers to keys that are known to be kept."""
        return self._refers

    @property
    def has_read(self) -> bool:
        """True if it needs the slots of its keys no more."""
        return self._sorted is not None

    def keep_keys(self, epoch_number: int) -> KeptKeys:
        """Store keys so that cuts after that of this epoch, which this is of, can refer to them. The part is whole."""
        (slots,) = self._changed.slots
        self._keeps = KeptKeys(self._layout, self._index, slots, epoch_number)
        return self._keeps

    def refer(self) -> None:
        """Refer to the keys that are known to be kept, if there are any. The part is whole."""
        self._refers = self.known is not None

    def sorted(self) -> _Sorted:
        """Return all rows by key group, deleted keys first in each. May be called by any thread."""
        with self._sorting:
            if self._sorted is None:
                self._sorted = self._sort()
                self._changed, self._deleted = _NOTHING, ()  # from now on what is sorted says it all
            return self._sorted

    def written(self) -> None:
        """Give back the memory, as all is in files. Keeping keys for other cuts goes on."""
        with self._sorting:
            self._sorted = _Sorted(Block(pa.array([], pa.large_binary()), {}), {})

    def _sort(self) -> _Sorted:
        if self._refers and self.known is not None:
            slots, parts = self.known.kept.in_order()
            values = {name: column[slots] for name, column in self._changed.columns.items()}
            others = self._rows(np.concatenate([_NO_SLOTS, *self.known.others]))
            return _Sorted(*others, Referring(self.known.kept.epoch_number, values, parts))
        if self._keeps is not None:
            return _Sorted(*self._rows(self._keeps.in_order()[0]))
        slots = np.concatenate([_NO_SLOTS, *self._changed.slots])
        return _Sorted(*(self._rows_and_deleted(slots) if self._deleted else self._rows(slots)))

    def _rows(self, slots: Slots) -> tuple[Block, Parts]:
        source = slots if self._changed.by_slot else np.arange(len(slots))
        places = self._layout.places(self._index.hashes[slots])
        # Only what lies in order is copied: there may be a hundred megabytes of keys.
        order = by_group(places)
        keys = arrow_keys(self._index.keys_at(slots[order]))
        rows = source[order]
        columns = {name: column[rows] for name, column in self._changed.columns.items() if len(column)}
        return Block(keys, columns), parts_of(places[order])

    def _rows_and_deleted(self, slots: Slots) -> tuple[Block, Parts]:
        source = slots if self._changed.by_slot else np.arange(len(slots))
        places = self._layout.places(self._index.hashes[slots])
        all_keys = joined([*(part.keys for part in self._deleted), arrow_keys(self._index.keys_at(slots))])
        places = np.concatenate([*(part.places for part in self._deleted), places])
        order = by_group(places)
        gone = len(places) - len(slots)
        rows = np.concatenate((np.zeros(gone, dtype=np.int64), source))[order]
        deleted = order < gone
        columns = {name: _chosen(column, rows, deleted) for name, column in self._changed.columns.items()}
        block = Block(all_keys.take(pa.array(order)), columns, deleted if gone else None)
        return block, parts_of(places[order])

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield each changed group, in order, counted from the first of the partition, and its block."""
        found = self.sorted()
        encoder, parts = Encoder(found.block), found.parts
        for place in sorted(parts.keys() | set(np.flatnonzero(self._cleared).tolist())):
            if place in parts:
                yield place, encoder.encode(*parts[place], bool(self.whole or self._cleared[place]))
            else:
                yield place, encode(CLEAR)

    def entries(self, epoch_number: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield names and payloads of what is stored of this cut, which is the epoch's, in order."""
        first, state, namespace = self._layout.groups.first, self._layout.state, self.namespace
        found = self.sorted()
        if found.referring is not None:
            yield from self._values(found.referring, epoch_number)
        elif self._keeps is None:
            for place, payload in self.blocks():
                yield entries.block(first + place, state, namespace, epoch_number), payload
        else:
            values = ValuesEncoder(found.block.columns, epoch_number, epoch_number)
            keys = KeysEncoder(found.block.keys, epoch_number)
            for place, part in found.parts.items():
                yield entries.kept_keys(first + place, state, namespace, epoch_number), keys.encode(*part)
                yield entries.values(first + place, state, namespace, of_base=True), values.encode(*part)

    def _values(self, referring: Referring, epoch_number: int) -> Iterator[tuple[bytes, bytes]]:
        first, state, namespace = self._layout.groups.first, self._layout.state, self.namespace
        found, kept = self.sorted(), referring.parts
        values, others = ValuesEncoder(referring.columns, referring.keys_of, epoch_number), Encoder(found.block)
        for place in sorted(kept.keys() | found.parts.keys()):
            if place in kept:
                more = others.encode(*found.parts[place], whole=False) if place in found.parts else b""
                yield entries.values(first + place, state, namespace), values.encode(*kept[place], more)
            else:
                payload = others.encode(*found.parts[place], whole=True)
                yield entries.block(first + place, state, namespace, epoch_number), payload


@dataclass(frozen=True, slots=True, eq=False)
class FrozenTable:
    """The changes in a table in one epoch. May be handed to another thread, which is then the only one to use it.

    `covers` are the key groups of which the blocks say all that there is of this table, rows included: files with
    nothing else of these groups could be bases.
    """

    layout: Layout
    epoch_number: int
    parts: Sequence[FrozenSpace]
    covers: tuple[KeyGroupRange, ...]

    @property
    def size(self) -> int:
        """Return about how many bytes the blocks will have."""
        return self._size_of(self.parts)

    @property
    def lasting_size(self) -> int:
        """Return how many of them have names that no other epoch's blocks have: of what does not refer to keys."""
        return self._size_of([part for part in self.parts if not part.refers])

    def _size_of(self, parts: Sequence[FrozenSpace]) -> int:
        columns = self.layout.columns.values()
        width = sum(_TYPICAL_KEY if one.dtype == OBJECTS else one.dtype.itemsize for one in columns)
        return sum(width * part.keys + _TYPICAL_KEY * part.keys_stored for part in parts)

    @property
    def keys(self) -> int:
        """Return how many keys it speaks of."""
        return sum(part.keys for part in self.parts)

    @property
    def keys_kept(self) -> int:
        """Return how many of them need only their accumulators stored."""
        return sum(len(part.known.kept) for part in self.parts if part.known is not None)

    def written(self) -> None:
        """Give back the memory, as all is in files; `blocks` and `in_order` give nothing any more."""
        for part in self.parts:
            part.written()

    def refer(self) -> None:
        """Store only the accumulators of known keys. The caller owes that these were kept without a loss since."""
        for part in self.parts:
            if part.known is not None:
                part.refer()

    def blocks(self) -> list[tuple[bytes, bytes]]:
        """Return names and payloads of all blocks, in order. The same ones each time that it is called."""
        return list(self.in_order())

    def in_order(self) -> Iterator[tuple[bytes, bytes]]:
        """Return what `blocks` gives, made one by one, as all of them are as large as the table."""
        for part in self.parts:
            part.sorted()  # first all keys: then slots whose keys are gone meanwhile can be used again
        return merge(*(part.entries(self.epoch_number) for part in self.parts))


def _chosen(column: Column, rows: NDArray[np.int64], deleted: NDArray[np.bool_]) -> Column:
    """Return the column's values of these rows, nothing for the deleted."""
    if not len(column):
        return blank(len(rows), column.dtype)
    values = column[rows]
    clear(values, deleted)
    return values
