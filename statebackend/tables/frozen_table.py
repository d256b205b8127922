"""What of a table a cut has frozen, and how it becomes blocks, in the background.

What always holds: a frozen table never changes, and all that it needs of the table are the keys, which stay in their
slots until they were read or the frozen table is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from threading import Lock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend import entries
from statebackend.keygroups import KeyGroupRange
from statebackend.tables.aggregations import Slots
from statebackend.tables.blocks import CLEAR, Block, Column, Encoder, arrow_keys, encode, joined
from statebackend.tables.slot_index import SlotIndex
from statebackend.tables.table_spec import Layout

_TYPICAL_KEY = 64
"""What a key is taken to have in a file, to tell small files from large ones."""


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


class FrozenSpace:
    """What changed in one namespace.

    What older blocks say does not count any more in groups that were `cleared`; and if the part is `whole`, in all
    groups in which it has a key.
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
    ) -> None:
        self.namespace = namespace
        self.whole = whole
        self._layout = layout
        self._index = index
        self._changed = changed
        self._deleted = deleted
        self._cleared = layout.no_groups() if cleared is None else cleared
        self._sorted: tuple[Block, NDArray[np.int64]] | None = None
        self._sorting = Lock()

    @property
    def by_slot(self) -> Mapping[str, Column] | None:
        """All accumulators at the cut, by slot; None if not all were copied."""
        return self._changed.columns if self._changed.by_slot else None

    @property
    def keys(self) -> int:
        """How many keys it speaks of."""
        changed = sum(map(len, self._changed.slots))
        return changed + sum(len(part.keys) for part in self._deleted)

    @property
    def has_read(self) -> bool:
        """Whether it needs the slots of its keys no more."""
        return self._sorted is not None

    def sorted(self) -> tuple[Block, NDArray[np.int64]]:
        """All rows by key group, deleted keys first in each, and the groups. May be called by any thread."""
        with self._sorting:
            if self._sorted is None:
                self._sorted = self._sort()
            return self._sorted

    def _sort(self) -> tuple[Block, NDArray[np.int64]]:
        slots = np.concatenate([np.empty(0, dtype=np.int64), *self._changed.slots])
        source = slots if self._changed.by_slot else np.arange(len(slots))
        places = self._layout.places(self._index.hashes[slots])
        if not self._deleted:
            # Only what lies in order is copied: there may be a hundred megabytes of keys.
            order = np.argsort(places.astype(np.uint16), kind="stable")
            keys = arrow_keys(self._index.keys_at(slots[order]))
            rows = source[order]
            columns = {name: column[rows] for name, column in self._changed.columns.items() if len(column)}
            return Block(keys, columns), places[order]
        all_keys = joined([*(part.keys for part in self._deleted), arrow_keys(self._index.keys_at(slots))])
        places = np.concatenate([*(part.places for part in self._deleted), places])
        order = np.argsort(places.astype(np.uint16), kind="stable")
        gone = len(places) - len(slots)
        rows = np.concatenate((np.zeros(gone, dtype=np.int64), source))[order]
        deleted = order < gone
        columns = {name: _chosen(column, rows, deleted) for name, column in self._changed.columns.items()}
        block = Block(all_keys.take(pa.array(order)), columns, deleted if gone else None)
        return block, places[order]

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Each group in which something changed, in order, counted from the first of the partition, and its block."""
        block, places = self.sorted()
        encoder = Encoder(block)
        edges = [0, *(np.flatnonzero(places[1:] != places[:-1]) + 1).tolist(), len(places)]
        parts = {int(places[start]): (start, end) for start, end in pairwise(edges) if start < end}
        for place in sorted(parts.keys() | set(np.flatnonzero(self._cleared).tolist())):
            if place in parts:
                yield place, encoder.encode(*parts[place], bool(self.whole or self._cleared[place]))
            else:
                yield place, encode(CLEAR)


@dataclass(frozen=True, slots=True, eq=False)
class FrozenTable:
    """What changed in a table in one epoch. May be handed to another thread, which is then the only one to use it.

    `covers` are the key groups of which the blocks say all that there is of this table, rows included: files with
    nothing else of these groups could be bases.
    """

    layout: Layout
    epoch_number: int
    parts: Sequence[FrozenSpace]
    covers: tuple[KeyGroupRange, ...]

    @property
    def size(self) -> int:
        """About how many bytes the blocks will have."""
        width = _TYPICAL_KEY + sum(accumulator.dtype.itemsize for accumulator in self.layout.columns.values())
        return width * sum(part.keys for part in self.parts)

    def blocks(self) -> list[tuple[bytes, bytes]]:
        """Names and payloads of all blocks, in order. The same ones each time that it is called."""
        return list(self.in_order())

    def in_order(self) -> Iterator[tuple[bytes, bytes]]:
        """What `blocks` gives, made one by one, as all of them are as large as the table."""
        for part in self.parts:
            part.sorted()  # first all keys: then slots whose keys are gone meanwhile can be used again
        return merge(*(self._encoded(part) for part in self.parts))

    def _encoded(self, part: FrozenSpace) -> Iterator[tuple[bytes, bytes]]:
        first, state = self.layout.groups.first, self.layout.state
        for place, payload in part.blocks():
            yield entries.block(first + place, state, part.namespace, self.epoch_number), payload


def _chosen(column: Column, rows: NDArray[np.int64], deleted: NDArray[np.bool_]) -> Column:
    """The column's values of these rows, zeros for the deleted."""
    if not len(column):
        return np.zeros(len(rows), dtype=column.dtype)
    values = column[rows]
    values[deleted] = 0
    return values
