"""Rows of a table on the local disk that never change: sorted by place, found with one read of a small page for each.

Invariant: a run has at most one row of a key and namespace, and all that is in memory of it are the first place
of each page and, unless it is large, a filter of 12 bits for each row. Its files have no names: they are gone with it.

The place of a row is its key's hash with the lowest bits put in the place of the namespace's number. So the rows of a
key group lie side by side, and those that a key has in many namespaces are told apart without being read. What has no
fixed width, texts and bytes that are kept of a key, lies behind the bytes of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from statebackend.backends.scratch_file import NewFile
from statebackend.keys.columns import KeyColumn

Bytes = NDArray[np.uint8]
Heads = NDArray[np.void]
Integers = NDArray[np.int64]
Places = NDArray[np.uint64]

NULL: Final = -1
"""The size of a null key."""

_PAGE: Final = 32
_READ_AT_ONCE: Final = 1024
_READ_THROUGH: Final = 8
"""If what is needed is at least that part of what lies in between, all of it is read at once."""

_MERGED_AT_ONCE: Final = 8192
_LARGE: Final = 1 << 20
"""A larger run has no filter: there are few of them, and a page is read in little more than a microsecond."""

_FILTER_BITS: Final = 12
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_TAIL: Final = "size of "
_NAMESPACE_BITS: Final = 20
_NAMESPACE_MASK: Final = np.uint64((1 << _NAMESPACE_BITS) - 1)


def head_type(columns: Sequence[tuple[str, DTypeLike]], tails: Sequence[str]) -> np.dtype[np.void]:
    """Return what is kept of a row besides the bytes of its key, which are `size` bytes from `start` on.

    After these lie as many of each of the `tails` as the field with its name says.
    """
    beginning = [("place", "u8"), ("space", "u4"), ("size", "i4"), ("start", "i8"), ("gone", "?")]
    return np.dtype([*beginning, *columns, *((_TAIL + name, "i4") for name in tails)])


def sizes_of(heads: Heads) -> Integers:
    """Return how many bytes each row has besides its head."""
    sizes: Integers = np.maximum(heads["size"], 0).astype(np.int64)
    for name in tails_of(heads):
        sizes += heads[_TAIL + name]
    return sizes


def tails_of(heads: Heads) -> list[str]:
    """Return the names of the columns without a fixed width."""
    return [name.removeprefix(_TAIL) for name in heads.dtype.names or () if name.startswith(_TAIL)]


def with_tails(heads: Heads, keys: Sequence[bytes], tails: Mapping[str, Sequence[bytes]]) -> Bytes:
    """Return what stands after these heads, and set the sizes of the tails in them; there are some."""
    for name, tail in tails.items():
        heads[_TAIL + name] = [len(one) for one in tail]
    return np.frombuffer(b"".join(map(b"".join, zip(keys, *tails.values(), strict=True))), dtype=np.uint8)


def divided(heads: Heads, records: Sequence[bytes]) -> Mapping[str, list[bytes]]:
    """Return the tails, each by its name, of what stands after these heads."""
    at, found = np.maximum(heads["size"], 0).astype(np.int64), {}
    for name in tails_of(heads):
        end = at + heads[_TAIL + name]
        some = zip(records, at.tolist(), end.tolist(), strict=True)
        found[name] = [record[first:last] for record, first, last in some]
        at = end
    return found


def places_of(hashes: NDArray[np.uint64], space: int) -> Places:
    """Return where the rows of keys with these hashes lie in the namespace with this number."""
    mixed = np.uint64(space * 0x9E3779B1 & int(_NAMESPACE_MASK))
    return (hashes & ~_NAMESPACE_MASK) | mixed


@dataclass(frozen=True, slots=True, eq=False)
class ColdRows:
    """Some rows, and the bytes that stand behind each head. `start` in the heads need not fit to these."""

    heads: Heads
    data: Bytes

    def __len__(self) -> int:
        return len(self.heads)

    def offsets(self) -> Integers:
        """Return where in `data` each row begins, and the last one ends."""
        offsets = np.zeros(len(self.heads) + 1, dtype=np.int64)
        np.cumsum(sizes_of(self.heads), out=offsets[1:])
        return offsets

    def records(self) -> pa.Array:
        """Return what stands after each head."""
        buffers = [None, pa.py_buffer(self.offsets()), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.heads), buffers)

    def keys(self) -> pa.Array:
        """Return the keys, with empty ones instead of nulls."""
        if not tails_of(self.heads):
            return self.records()
        sizes = np.maximum(self.heads["size"], 0).astype(np.int64)
        return _binary(sizes, self.data[_ranges(self.offsets()[:-1], sizes)])

    def chosen(self, rows: Integers) -> ColdRows:
        """Return these rows, in this order."""
        heads = self.heads[rows]
        data = self.records().take(pa.array(rows)).buffers()[2]
        size = int(sizes_of(heads).sum())
        return ColdRows(heads, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8, size))


def _binary(sizes: Integers, data: Bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(np.concatenate(([0], np.cumsum(sizes)))), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)


def joined(parts: Sequence[ColdRows]) -> ColdRows:
    """Join all rows, one after the other; at least one part."""
    return ColdRows(np.concatenate([part.heads for part in parts]), np.concatenate([part.data for part in parts]))


def newest(rows: ColdRows) -> ColdRows:
    """Sort the rows by place; of several with one key and namespace, keep the last."""
    rows = rows.chosen(np.argsort(rows.heads["place"], kind="stable"))
    heads = rows.heads
    alike = np.flatnonzero((heads["place"][1:] == heads["place"][:-1]) & (heads["space"][1:] == heads["space"][:-1]))
    if not len(alike):
        return rows
    keys, sizes = rows.keys(), heads["size"]
    same = pc.equal(keys.take(pa.array(alike)), keys.take(pa.array(alike + 1))).to_numpy(zero_copy_only=False)
    same &= sizes[alike] == sizes[alike + 1]
    kept = np.ones(len(heads), dtype=np.bool_)
    kept[alike[same]] = False
    if not same.all():
        _drop_older(rows, np.unique(np.concatenate((alike, alike + 1))), kept)
    return rows.chosen(np.flatnonzero(kept))


def _drop_older(rows: ColdRows, among: Integers, kept: NDArray[np.bool_]) -> None:
    """Keep the last row of each key, where different keys have one place: its rows need not be side by side."""
    keys, last = rows.keys(), {}
    for row in among.tolist():
        head = rows.heads[row]
        last[int(head["place"]), int(head["space"]), int(head["size"]), keys[row].as_py()] = row
    kept[among] = False
    kept[list(last.values())] = True


class _Filter:
    """The places that are certainly not in a run, found for 98 of 100 such: four bits in one word for each."""

    def __init__(self, rows: int) -> None:
        self.words = np.zeros(max(1, rows * _FILTER_BITS // 64), dtype=np.uint64)

    def add(self, places: Places) -> None:
        mixed = places * _SPREAD
        np.bitwise_or.at(self.words, self._at(mixed), _four_bits(mixed))

    def maybe(self, places: Places) -> Integers:
        mixed = places * _SPREAD
        bits = _four_bits(mixed)
        return np.flatnonzero(self.words[self._at(mixed)] & bits == bits)

    def _at(self, mixed: Places) -> Integers:
        return (((mixed >> np.uint64(32)) * np.uint64(len(self.words))) >> np.uint64(32)).view(np.int64)


def _four_bits(mixed: Places) -> Places:
    bits = np.zeros(len(mixed), dtype=np.uint64)
    # The lowest bits tell next to nothing: they follow from those of the places, which are the namespace's.
    for shift in (20, 26, 32, 38):
        bits |= np.uint64(1) << ((mixed >> np.uint64(shift)) & np.uint64(63))
    return bits


class Run:
    """Rows that were written by a `RunWriter`. Closed when nothing refers to it any more."""

    def __init__(self, writer: RunWriter) -> None:
        self._heads, self._keys = writer.heads_file, writer.keys_file
        self._type, self._filter = writer.type, writer.filter
        self._fence = np.concatenate([np.empty(0, dtype=np.uint64), *writer.fence])
        self._rows = writer.rows

    def __len__(self) -> int:
        return self._rows

    @property
    def nbytes(self) -> int:
        """Return the memory in use."""
        return self._fence.nbytes + (0 if self._filter is None else self._filter.words.nbytes)

    @property
    def fence(self) -> Places:
        """Return the first place of each page."""
        return self._fence

    def find(self, places: Places, space: int, keys: KeyColumn, which: Integers) -> tuple[Integers, Heads]:
        """Return which of these places, which are ascending, have a row with the key; and the heads of the rows.

        `which` says for each place which of the keys it is about.
        """
        maybe = np.arange(len(places)) if self._filter is None else self._filter.maybe(places)
        here, heads = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=self._type)]
        for first in range(0, len(maybe), _READ_AT_ONCE):
            some = maybe[first : first + _READ_AT_ONCE]
            owners, found = self._at_places(places[some], space)
            rows = some[owners]
            same = self._same(found, [keys.key(key) for key in which[rows].tolist()])
            here.append(rows[same])
            heads.append(found[same])
        return np.concatenate(here), np.concatenate(heads)

    def _at_places(self, places: Places, space: int) -> tuple[Integers, Heads]:
        """Return which of the places have a row, with whatever key; and the heads of the rows."""
        firsts = np.maximum(np.searchsorted(self._fence, places, "left") - 1, 0) * _PAGE
        ends = np.maximum(np.minimum(np.searchsorted(self._fence, places, "right") * _PAGE, self._rows), firsts)
        first, size = int(firsts[0]), self._type.itemsize
        between = int(ends[-1]) - first
        if between <= _READ_THROUGH * int((ends - firsts).sum()):
            data = self._heads.read(between * size, first * size)
            heads = np.frombuffer(data, dtype=self._type)
            there = np.ascontiguousarray(heads["place"])
            firsts, ends = np.searchsorted(there, places, "left"), np.searchsorted(there, places, "right")
            counts = ends - firsts
            heads = heads[_ranges(firsts, counts)]
        else:
            counts = ends - firsts
            pages = self._heads.read_each((counts * size).tolist(), (firsts * size).tolist())
            heads = np.frombuffer(b"".join(pages), dtype=self._type)
        owners = np.repeat(np.arange(len(places)), counts)
        hit = np.flatnonzero((heads["place"] == places[owners]) & (heads["space"] == space))
        return owners[hit], heads[hit]

    def _same(self, heads: Heads, keys: Sequence[bytes | None]) -> Integers:
        """Return which of these rows have exactly these keys."""
        sizes, starts = np.maximum(heads["size"], 0), heads["start"]
        between = int(starts[-1] + sizes[-1] - starts[0]) if len(heads) else 0
        if 0 < between <= _READ_THROUGH * int(sizes.sum(dtype=np.int64)):
            data, at = self._keys.read(between, int(starts[0])), starts - starts[0]
            stored = [data[start : start + size] for start, size in zip(at.tolist(), sizes.tolist(), strict=True)]
        else:
            stored = self._keys.read_each(sizes.tolist(), starts.tolist())
        null = (heads["size"] == NULL).tolist()
        same = [
            none if key is None else not none and key == found
            for key, found, none in zip(keys, stored, null, strict=True)
        ]
        return np.flatnonzero(np.array(same, dtype=np.bool_))

    def records(self, heads: Heads) -> list[bytes]:
        """Read what stands after these heads."""
        return list(self._keys.read_each(sizes_of(heads).tolist(), heads["start"].tolist()))

    def below(self, first: int, cut: np.uint64 | None) -> ColdRows:
        """Read the rows from this one on whose places are less than the cut; all of them without a cut."""
        last = self._rows if cut is None else min(int(np.searchsorted(self._fence, cut, "left")) * _PAGE, self._rows)
        size = self._type.itemsize
        count = max(last - first, 0)
        heads = np.frombuffer(self._heads.read(count * size, first * size), dtype=self._type)
        if cut is not None:
            heads = heads[: np.searchsorted(heads["place"], cut, "left")]
        data = b""
        if len(heads):
            start, length = int(heads["start"][0]), int(sizes_of(heads).sum())
            data = self._keys.read(length, start)
        return ColdRows(heads, np.frombuffer(data, dtype=np.uint8))


def _ranges(firsts: Integers, counts: Integers) -> Integers:
    """Return the numbers of all these ranges, one after the other."""
    ends = np.cumsum(counts)
    return np.repeat(firsts - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)


class RunWriter:
    """Makes a run of rows that come in order."""

    def __init__(self, of_type: np.dtype[np.void], new_file: NewFile, most: int) -> None:
        """Begin a run of at most so many rows."""
        self.type = of_type
        self.heads_file, self.keys_file = new_file(), new_file()
        self.filter = _Filter(most) if most <= _LARGE else None
        self.fence: list[Places] = []
        self.rows = 0
        self._bytes = 0

    def append(self, rows: ColdRows) -> None:
        """Write rows that are sorted, and have no place before those of the rows that were written."""
        heads = rows.heads.copy()
        heads["start"] = rows.offsets()[:-1] + self._bytes
        self.heads_file.append(heads.tobytes())
        self.keys_file.append(rows.data.tobytes())
        self.fence.append(heads["place"][-self.rows % _PAGE :: _PAGE].copy())
        if self.filter is not None:
            self.filter.add(heads["place"])
        self.rows += len(heads)
        self._bytes += len(rows.data)

    def finish(self) -> Run:
        """Return the run that was written."""
        return Run(self)


class Merge:
    """Several runs becoming one, a part at a time. They are given from the oldest to the newest, and stay as they are.

    Only with `all_there_are` is it forgotten that keys are gone. Rows of namespaces that are not `live` are left out.
    """

    def __init__(
        self, runs: Sequence[Run], writer: RunWriter, live: Callable[[], NDArray[np.uint32]], *, all_there_are: bool
    ) -> None:
        """Merge into this writer, after the rows that it has."""
        self.runs = runs
        self.done = False
        self.writer = writer
        self._live, self._forget_gone = live, all_there_are
        self._next = [0] * len(runs)
        fences = np.sort(np.concatenate([run.fence for run in runs]))
        self._cuts: Iterator[np.uint64 | None] = iter(
            [*fences[_MERGED_AT_ONCE // _PAGE :: _MERGED_AT_ONCE // _PAGE], None]
        )

    def step(self) -> int:
        """Merge a part, and return how many rows that took. In the end it is `done`."""
        cut = next(self._cuts)
        parts = [run.below(first, cut) for run, first in zip(self.runs, self._next, strict=True)]
        self._next = [first + len(part) for first, part in zip(self._next, parts, strict=True)]
        self.writer.append(self._worth_keeping(newest(joined(parts))))
        self.done = cut is None
        return max(sum(map(len, parts)), 1)

    def _worth_keeping(self, rows: ColdRows) -> ColdRows:
        kept = np.isin(rows.heads["space"], self._live())
        if self._forget_gone:
            kept &= ~rows.heads["gone"]
        return rows if kept.all() else rows.chosen(np.flatnonzero(kept))
