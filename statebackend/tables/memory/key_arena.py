"""The canonical bytes of keys, by slot, compared as words, in rows of the same length.

Invariant: two keys are called the same only if they have the same length and every byte is equal; the bytes
after a key's last one in its row are zero. Null keys have no bytes and are not kept here.

While all keys have one width, the row of a key is its slot. Once a key of another width comes, each number of words has
rows of its own, and a slot says which row and how many bytes. A row is used again by the next key of as many words, so
no bytes are ever moved to reclaim others; and a batch is compared with one gather for each number of words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.keys.columns import KeyColumn
from statebackend.tables.memory.growing_array import GrowingArray
from statebackend.tables.memory.slot_table import Flags, Hashes, Integers

Bytes = NDArray[np.uint8]

_LENGTH = 32
_LENGTHS = (1 << _LENGTH) - 1

_WORD = 8
_KEPT = np.tril(np.full((_WORD, _WORD), 0xFF, dtype=np.uint8), -1).view(np.uint64).reshape(-1)
_KEPT[0] = np.uint64(0xFFFFFFFFFFFFFFFF)
"""The mask of the last word of a key, by the length of the key modulo the length of a word."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Some keys of a batch, none of them null: where in `data` each begins and how many bytes it has.

    `width` is set if all have that many. `dense` says that they lie one after the other without gaps.
    """

    data: Bytes
    starts: Integers
    widths: Integers
    hashes: Hashes
    width: int | None
    dense: bool

    @classmethod
    def of(cls, keys: KeyColumn) -> Spans:
        """Return all keys of the batch that are not null."""
        starts, hashes = keys.offsets[:-1], keys.hashes
        widths = keys.offsets[1:] - starts
        if keys.null is None or not keys.null.any():
            return cls(keys.data, starts, widths, hashes, keys.width or _common(widths), True)
        which = np.flatnonzero(~keys.null)
        starts, widths, hashes = starts[which], widths[which], hashes[which]
        return cls(keys.data, starts, widths, hashes, keys.width or _common(widths), False)

    def chosen(self, which: Integers) -> Spans:
        """Return the keys with these indices."""
        return Spans(self.data, self.starts[which], self.widths[which], self.hashes[which], self.width, False)

    def __len__(self) -> int:
        return len(self.starts)

    def rows(self, words: int) -> Bytes:
        """Return the bytes of keys that all have so many words, zeros after the last byte; to be read only."""
        width = words * _WORD
        if not len(self):
            return np.empty((0, width), dtype=np.uint8)
        if self.dense and self.width == width:
            first = int(self.starts[0])
            return self.data[first : first + len(self) * width].reshape(-1, width)
        data = self.data
        if int(self.starts.max()) + width > len(data):
            data = np.concatenate((data, np.zeros(width, dtype=np.uint8)))
        # Every stretch of so many bytes as one item: this is what numpy gathers fastest.
        stretches = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
        rows: Bytes = stretches[self.starts].view(np.uint8).reshape(-1, width)
        if self.width != width:
            rows.view(np.uint64)[:, -1] &= _KEPT[self.widths % _WORD]
        return rows


class Rows:
    """Rows of the same number of words, which is at least one, that are taken into use and given back."""

    def __init__(self, words: int, room: int = 0) -> None:
        self._rows = GrowingArray[np.void](f"V{words * _WORD}", room)
        self._free: Integers = np.empty(0, dtype=np.int64)
        self._limit = 0

    def new(self, number: int) -> Integers:
        """Return so many rows that are not in use."""
        left = max(0, len(self._free) - number)
        again, self._free = self._free[left:], self._free[:left]
        first, self._limit = self._limit, self._limit + number - len(again)
        self._rows.make_room(self._limit)
        return np.concatenate((again, np.arange(first, self._limit)))

    def give_back(self, rows: Integers) -> None:
        """Take back these rows, which are no longer in use."""
        self._free = np.concatenate((self._free, rows))

    def use(self, rows: Integers, limit: int) -> None:
        """Take these of the rows below `limit` as in use, and the others as free."""
        free = np.ones(limit, dtype=np.bool_)
        free[rows] = False
        self._free, self._limit = np.flatnonzero(free), limit

    def reserve(self, room: int) -> None:
        """Make room for the rows below this number at once."""
        self._rows.reserve(room)

    def make_room(self, limit: int) -> None:
        """Make sure that the rows below this number can be put."""
        self._rows.make_room(limit)

    def put(self, rows: Integers, content: Bytes) -> None:
        """Write this into the rows."""
        self._rows.put(rows, np.ascontiguousarray(content).view(self._rows.now.dtype).reshape(-1))

    def at(self, rows: Integers) -> Bytes:
        """Return what is in the rows."""
        return self._rows.now.take(rows).view(np.uint8).reshape(len(rows), self._rows.now.itemsize)

    def same(self, rows: Integers, wanted: Bytes) -> Flags:
        """Return for each row whether it has what is wanted."""
        found = self.at(rows)
        if pa.py_buffer(found).equals(pa.py_buffer(wanted)):  # nearly always, and that is the quickest to find out
            return np.ones(len(rows), dtype=np.bool_)
        return np.asarray((found.view(np.uint64) == wanted.view(np.uint64)).all(axis=1))

    @property
    def nbytes(self) -> int:
        """Return the memory in use."""
        return self._rows.nbytes + self._free.nbytes


class KeyArena:
    """The bytes of the keys at the slots of an index; made for the keys that come first, then open to all."""

    def __init__(self, first: Spans, room: int) -> None:
        self._width = first.width or None
        """The width of all keys, whose rows are their slots; None once they have different ones."""
        self._rows: dict[int, Rows] = {}
        self._where = GrowingArray[np.int64](np.int64, room if self._width is None else 0)
        """By slot: which row, and in the lower half how many bytes. Empty while all keys have one width."""
        if self._width is not None:
            self._rows[words_of(self._width)] = Rows(words_of(self._width), room)

    def reserve(self, room: int) -> None:
        """Make room for the slots below this number at once; with different widths, not for the keys themselves."""
        if self._width is None:
            self._where.reserve(room)
        else:
            self._rows[words_of(self._width)].reserve(room)

    def make_room(self, limit: int) -> None:
        """Make sure that keys can be put at the slots below this number."""
        if self._width is None:
            self._where.make_room(limit)
        else:
            self._rows[words_of(self._width)].make_room(limit)

    def takes(self, keys: Spans) -> bool:
        """True if the keys can be put here; if not, call `take_all` first."""
        return self._width is None or keys.width == self._width

    def take_all(self, in_use: Integers, limit: int) -> None:
        """Take keys of all widths from now on. No key is moved; they are at the slots `in_use`, below `limit`."""
        assert self._width is not None
        (rows,) = self._rows.values()
        rows.use(in_use, limit)
        self._where.reserve(limit)
        self._where.make_room(limit)
        self._where.put(in_use, in_use << _LENGTH | self._width)
        self._width = None

    def put(self, slots: Integers, keys: Spans) -> None:
        """Keep the bytes of each key at its slot, which is not in use."""
        if self._width is not None:
            words = words_of(self._width)
            self._rows[words].put(slots, keys.rows(words))
            return
        where = keys.widths.copy()
        for words, which in _by_words(keys.widths):
            rows = self._rows.setdefault(words, Rows(words))
            new = rows.new(len(which))
            rows.put(new, keys.chosen(which).rows(words))
            where[which] |= new << _LENGTH
        self._where.put(slots, where)

    def forget(self, slots: Integers) -> None:
        """Forget the bytes at these slots."""
        if self._width is None:
            where = self._where.now[slots]
            for words, which in _by_words(where & _LENGTHS):
                self._rows[words].give_back(where[which] >> _LENGTH)

    def same(self, slots: Integers, keys: Spans) -> Flags:
        """Return for each key whether exactly its bytes are at the slot, which is in use."""
        if self._width is not None and self._width == keys.width:
            words = words_of(self._width)
            return self._rows[words].same(slots, keys.rows(words))
        where = self._where_of(slots)
        result: Flags = where & _LENGTHS == keys.widths
        alike = np.flatnonzero(result)
        for words, which in _by_words(keys.widths[alike]):
            chosen = alike[which]
            result[chosen] = self._rows[words].same(where[chosen] >> _LENGTH, keys.chosen(chosen).rows(words))
        return result

    def at(self, slots: Integers, hashes: Hashes) -> KeyColumn:
        """Return the keys at these slots, with these hashes. Another thread may ask for slots that stay in use."""
        width = self._width
        if width is not None:
            offsets = np.arange(len(slots) + 1, dtype=np.int64) * width
            rows = self._rows[words_of(width)].at(slots)
            return KeyColumn(np.ascontiguousarray(rows[:, :width]).reshape(-1), offsets, hashes, width)
        where = self._where.now[slots]
        widths = where & _LENGTHS
        parts = [(np.flatnonzero(widths == 0), np.empty(0, dtype=np.uint8))]
        for words, which in _by_words(widths):
            rows = self._rows[words].at(where[which] >> _LENGTH)
            parts.append((which, rows[np.arange(words * _WORD) < widths[which, None]]))
        data, order = np.concatenate([data for _, data in parts]), np.concatenate([which for which, _ in parts])
        return KeyColumn(_put_in_order(data, widths, order), _offsets(widths), hashes)

    def key_bytes(self, slots: Integers) -> int:
        """Return how many bytes the keys at these slots have together."""
        return int((self._where_of(slots) & _LENGTHS).sum()) if self._width is None else len(slots) * self._width

    def _where_of(self, slots: Integers) -> Integers:
        return self._where.now.take(slots) if self._width is None else slots << _LENGTH | self._width

    @property
    def nbytes(self) -> int:
        """Return the memory in use."""
        return self._where.nbytes + sum(rows.nbytes for rows in self._rows.values())


def words_of(width: int) -> int:
    """Return how many words a key of that many bytes has."""
    return -(-width // _WORD)


def _common(widths: Integers) -> int | None:
    return int(widths[0]) if len(widths) and (widths == widths[0]).all() else None


def _by_words(widths: NDArray[np.signedinteger]) -> Iterator[tuple[int, Integers]]:
    """Yield each number of words but zero, with the indices of the keys that have it, ascending."""
    words = (widths + (_WORD - 1)) // _WORD
    if not len(words):
        return
    # Two bytes are sorted in linear time, and few keys are longer than that.
    order = np.argsort(words.astype(np.uint16) if int(words.max()) < 1 << 16 else words, kind="stable")
    ordered = words[order]
    for which in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        if words[which[0]]:
            yield int(words[which[0]]), which


def _offsets(widths: Integers) -> Integers:
    offsets = np.zeros(len(widths) + 1, dtype=np.int64)
    np.cumsum(widths, out=offsets[1:])
    return offsets


def _put_in_order(data: Bytes, widths: Integers, order: Integers) -> Bytes:
    """Return, in their own order, items that lie in `data` in another `order`; `widths` are in their own."""
    buffers = [None, pa.py_buffer(_offsets(widths[order])), pa.py_buffer(data)]
    items = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(widths), buffers)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    content = items.take(pa.array(places)).buffers()[2]
    return np.frombuffer(content, dtype=np.uint8) if content is not None else data
