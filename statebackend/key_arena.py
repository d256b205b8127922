"""Where the canonical bytes of keys live, by slot: as rows while all keys have one width, else one after the other.

What always holds: `at` gives exactly the bytes that were last put at a slot, and `same` compares all of them.
Null keys have no bytes and are not kept here.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.key_columns import KeyColumn

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

_Array = TypeVar("_Array", bound=np.generic)

_SMALLEST_COMPACTION = 1 << 16


class Rows:
    """Keys of one width, a row for each slot. Nothing needs to be reclaimed: a slot's row is used again with it."""

    def __init__(self, width: int, slots: int) -> None:
        self.width = width
        self.rows: Bytes = np.empty((slots, width), dtype=np.uint8)

    def same(self, slots: Integers, keys: KeyColumn) -> NDArray[np.bool_]:
        """For each key whether exactly its bytes are at the slot, which must be in use."""
        width = width_of(keys)
        if width is None:
            return _same_bytes(self.at(slots, keys.hashes), keys)
        if width != self.width:
            return np.zeros(len(keys), dtype=np.bool_)
        found = self.rows.take(slots, axis=0)
        wanted = _rows_of(keys, width)
        if _equal(found, wanted):
            return np.ones(len(keys), dtype=np.bool_)
        return np.asarray((found == wanted).all(axis=1))

    def put(self, slots: Integers, keys: KeyColumn) -> None:
        """Keep the bytes of each key at its slot, which must not be in use."""
        self.rows[slots] = _rows_of(keys, self.width)

    def forget(self, slots: Integers) -> None:
        """The bytes at these slots are needed no more."""

    def at(self, slots: Integers, hashes: NDArray[np.uint64]) -> KeyColumn:
        """The keys at these slots, which have these hashes."""
        offsets = np.arange(len(slots) + 1, dtype=np.int64) * self.width
        return KeyColumn(self.rows.take(slots, axis=0).reshape(-1), offsets, hashes, self.width)

    def reserve(self, slots: int) -> None:
        """Make room for slots below this number."""
        if slots > len(self.rows):
            self.rows = grown(self.rows, slots)

    @property
    def nbytes(self) -> int:
        """The memory that is held."""
        return self.rows.nbytes


class Ragged:
    """Keys of any width: their bytes one after the other in the order in which they came.

    Forgotten bytes stay until they are more than half of all; then all others are moved together.
    """

    def __init__(self, slots: int) -> None:
        self._entry: NDArray[np.int64] = np.zeros(slots, dtype=np.int64)
        self._offsets: Integers = np.zeros(slots + 1, dtype=np.int64)
        self._data: Bytes = np.empty(0, dtype=np.uint8)
        self._entries = 0
        self._dead_bytes = 0
        self._live: NDArray[np.bool_] = np.zeros(slots, dtype=np.bool_)

    @classmethod
    def of(cls, arena: Rows, slots: Integers, room: int) -> Ragged:
        """An arena with room for that many slots, that holds what another one holds at the given slots."""
        result = cls(room)
        result.put(slots, arena.at(slots, np.zeros(len(slots), dtype=np.uint64)))
        return result

    def same(self, slots: Integers, keys: KeyColumn) -> NDArray[np.bool_]:
        """For each key whether exactly its bytes are at the slot, which must be in use."""
        return _same_bytes(self.at(slots, keys.hashes), keys)

    def put(self, slots: Integers, keys: KeyColumn) -> None:
        """Keep the bytes of each key at its slot, which must not be in use."""
        first, end = int(keys.offsets[0]), int(keys.offsets[-1])
        begin, entries = int(self._offsets[self._entries]), self._entries + len(slots)
        if entries >= len(self._offsets):
            self._offsets = grown(self._offsets, entries + 1)
        if begin + end - first > len(self._data):
            self._data = grown(self._data, begin + end - first)
        self._data[begin : begin + end - first] = keys.data[first:end]
        self._offsets[self._entries + 1 : entries + 1] = keys.offsets[1:] + (begin - first)
        self._entry[slots] = np.arange(self._entries, entries)
        self._live[slots] = True
        self._entries = entries

    def forget(self, slots: Integers) -> None:
        """The bytes at these slots are needed no more."""
        entries = self._entry[slots]
        self._dead_bytes += int((self._offsets[entries + 1] - self._offsets[entries]).sum())
        self._live[slots] = False
        dead = self._entries - np.count_nonzero(self._live)
        if 2 * self._dead_bytes > self._offsets[self._entries] or 2 * dead > self._entries > _SMALLEST_COMPACTION:
            self._compact()

    def _compact(self) -> None:
        live = np.flatnonzero(self._live)
        slots = live[np.argsort(self._entry[live])]
        kept = self.at(slots, np.zeros(len(slots), dtype=np.uint64))
        self._entries = self._dead_bytes = 0
        self._data = np.empty(0, dtype=np.uint8)
        self._offsets = np.zeros(len(self._entry) + 1, dtype=np.int64)
        self.put(slots, kept)

    def at(self, slots: Integers, hashes: NDArray[np.uint64]) -> KeyColumn:
        """The keys at these slots, which have these hashes."""
        return _taken(self._data, self._offsets[: self._entries + 1], self._entry[slots], hashes)

    def reserve(self, slots: int) -> None:
        """Make room for slots below this number."""
        if slots > len(self._entry):
            self._entry, self._live = grown(self._entry, slots), grown(self._live, slots)

    @property
    def nbytes(self) -> int:
        """The memory that is held."""
        return self._entry.nbytes + self._offsets.nbytes + self._data.nbytes + self._live.nbytes


KeyArena: TypeAlias = Rows | Ragged


def width_of(keys: KeyColumn) -> int | None:
    """How many bytes each of the keys has, None if that differs. No key may be null."""
    if keys.width is not None or not len(keys):
        return keys.width
    widths = np.diff(keys.offsets)
    return int(widths[0]) if (widths == widths[0]).all() else None


def chosen(keys: KeyColumn, which: Integers) -> KeyColumn:
    """Some of the keys, none of which may be null."""
    hashes = keys.hashes[which]
    if keys.width is not None:
        rows = _rows_of(keys, keys.width).take(which, axis=0)
        offsets = np.arange(len(which) + 1, dtype=np.int64) * keys.width
        return KeyColumn(rows.reshape(-1), offsets, hashes, keys.width)
    return _taken(keys.data, keys.offsets, which, hashes)


def grown(array: NDArray[_Array], least: int) -> NDArray[_Array]:
    """The same array with zeros behind it: at least so long, and at least twice as long as before."""
    size = max(least, 2 * len(array))
    result: NDArray[_Array] = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    result[: len(array)] = array
    return result


def _rows_of(keys: KeyColumn, width: int) -> Bytes:
    first = int(keys.offsets[0])
    return keys.data[first : first + len(keys) * width].reshape(len(keys), width)


def _equal(one: Bytes, other: Bytes) -> bool:
    one, other = one.reshape(-1), other.reshape(-1)
    if not one.size % 8:
        return bool((one.view(np.uint64) == other.view(np.uint64)).all())
    return bool((one == other).all())


def _same_bytes(some: KeyColumn, others: KeyColumn) -> NDArray[np.bool_]:
    """For each pair of keys whether they have the same bytes."""
    widths = np.diff(some.offsets)
    same: NDArray[np.bool_] = widths == np.diff(others.offsets)
    if not same.all():
        alike = np.flatnonzero(same)
        same[alike] = _same_bytes(chosen(some, alike), chosen(others, alike))
        return same
    one, other = _data_of(some), _data_of(others)
    if not _equal(one, other):
        ends = np.concatenate(([0], np.cumsum(one != other)))[np.concatenate(([0], np.cumsum(widths)))]
        same = ends[1:] == ends[:-1]
    return same


def _data_of(keys: KeyColumn) -> Bytes:
    return keys.data[int(keys.offsets[0]) : int(keys.offsets[-1])]


def _taken(data: Bytes, offsets: Integers, which: Integers, hashes: NDArray[np.uint64]) -> KeyColumn:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    _, starts, content = array.take(pa.array(which)).buffers()
    taken = np.frombuffer(content, dtype=np.uint8) if content is not None else np.empty(0, dtype=np.uint8)
    return KeyColumn(taken, np.frombuffer(starts, dtype=np.int64)[: len(which) + 1], hashes)
