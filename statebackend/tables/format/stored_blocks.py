"""The blocks of a table as they are stored: found by key group, decoded, and checked before anything is made of them.

Invariant: a block that is handed out has the columns of the table, and keys of the group that it was stored
under, as far as one of them tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend import entries
from statebackend.tables.format.blocks import (
    Block,
    DamagedBlock,
    Stretch,
    decode,
    decode_together,
    hashed,
    is_whole,
    joined,
    sliced,
    where,
)
from statebackend.tables.format.values_blocks import joined_up, resolved
from statebackend.tables.values.accumulators import bytes_of
from statebackend.tables.values.spec import Layout


class Entries(Protocol):
    """The place of a table's blocks, and of those that cannot wait for a cut; `RowStore` is one."""

    def put(self, name: bytes, payload: bytes) -> None:
        """Set an entry."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return names and payloads from `start` up to, not including, `end`, in order."""


Stored: TypeAlias = tuple[bytes, bytes]
"""A block as it is stored: its name and its payload."""

Found: TypeAlias = tuple[bytes, bytes | Block]
"""The same, but that some are decoded: they are whole, and so come before all others that count of their group."""

_DECODED_TOGETHER: Final = 1 << 20
"""So many bytes of blocks are decoded in one go: that is quicker than one by one, and it is known then how many rows
there are."""

_FEWEST_BYTES: Final = 16.0
"""That many a row has at least, until some were seen."""

_JOINED: Final = 1 << 14
"""About so many rows are in memory at a time, if a group has more."""


class StoredBlocks:
    """The blocks of one table; groups are counted from the first of the partition."""

    def __init__(self, layout: Layout, store: Entries) -> None:
        self._layout = layout
        self._store = store
        self._columns = {name: accumulator.dtype for name, accumulator in layout.columns.items()}
        self._bytes_per_row = _FEWEST_BYTES

    def place_of(self, name: bytes) -> int:
        """Return the group that a block is stored under."""
        return entries.group_of(name) - self._layout.groups.first

    def first(self, places: NDArray[np.int64], enough: int, most: int) -> tuple[int, Mapping[bytes, Sequence[Block]]]:
        """Return how many of these groups were read, and what counts of their blocks, by namespace.

        These are the first groups, as many as have together about `enough` rows, but not more than `most`. The oldest
        block of a group comes first.
        """
        found: dict[bytes, list[Block]] = {}
        number = rows = 0
        while number < len(places) and rows < enough:
            size = int(min(_DECODED_TOGETHER, (enough - rows) * self._bytes_per_row))
            count, some = self._decode_first(places[number:], size)
            if some is None or rows + _rows(some) > most:
                few = self.few(int(places[number]), most - rows)
                if few is None:
                    break
                count, some = 1, few
            for namespace, blocks in some.items():
                found.setdefault(namespace, []).extend(blocks)
            rows += _rows(some)
            number += count
        return number, found

    def _decode_first(self, places: NDArray[np.int64], most: int) -> tuple[int, Mapping[bytes, Sequence[Block]] | None]:
        """Do as `first` for as many groups as have about so many bytes, all decoded in one go.

        Return 0 and None if the first group has more than should be decoded so.
        """
        waiting: dict[bytes, list[Found]] = {}
        size = number = 0
        for place in places.tolist():
            own: dict[bytes, list[Found]] = {}
            of_group = 0  # without the blocks that do not count, or a row would seem larger than it is
            for name, found in self._scan(place):
                namespace, _ = entries.parse_block(name)
                if _is_whole(found):
                    of_group -= sum(_size(older) for _, older in own.pop(namespace, ()))
                own.setdefault(namespace, []).append((name, found))
                of_group += _size(found)
                if size + of_group > 2 * _DECODED_TOGETHER:
                    break
            if size + of_group > 2 * _DECODED_TOGETHER:
                break
            size += of_group
            for namespace, blocks in own.items():
                waiting.setdefault(namespace, []).extend(blocks)
            number += 1
            if size >= most:
                break
        if not number:
            return 0, None
        decoded: dict[bytes, list[Block]] = {}
        rows = self._decode(waiting, decoded)
        if rows:
            self._bytes_per_row = max(1.0, size / rows)
        return number, decoded

    def few(self, place: int, most: int) -> Mapping[bytes, list[Block]] | None:
        """Return what counts of a group's blocks, by namespace, oldest first; None if it has more than `most` rows."""
        decoded: dict[bytes, list[Block]] = {}
        waiting: dict[bytes, list[Found]] = {}
        size = 0
        for name, found in self._scan(place):
            namespace, _ = entries.parse_block(name)
            if _is_whole(found):
                waiting.pop(namespace, None)
                most += sum(len(older.keys) for older in decoded.pop(namespace, ()))
            waiting.setdefault(namespace, []).append((name, found))
            size += _size(found)
            if size >= _DECODED_TOGETHER:
                most -= self._decode(waiting, decoded)
                waiting, size = {}, 0
                if most < 0:
                    return None
        most -= self._decode(waiting, decoded)
        return None if most < 0 else decoded

    def _decode(self, blocks: Mapping[bytes, Sequence[Found]], into: dict[bytes, list[Block]]) -> int:
        """Append blocks, given by namespace, to those that are known; return how many rows they have."""
        rows = 0
        stored: list[tuple[bytes, Stored]] = []
        for namespace, some in blocks.items():
            for name, found in some:
                if isinstance(found, bytes):
                    stored.append((namespace, (name, found)))
                elif len(found.keys):
                    self._check(Stretch(found, [len(found.keys)]), [name])
                    into.setdefault(namespace, []).append(found)
                    rows += len(found.keys)
        for namespace, block in self._together(stored):
            into.setdefault(namespace, []).append(block)
            rows += len(block.keys)
        return rows

    def together(self, blocks: Mapping[bytes, Iterable[Stored]]) -> Iterator[tuple[bytes, Block]]:
        """Yield the rows of blocks of any groups, given by namespace; of a group the oldest block comes first.

        Many blocks are one, with nothing that says which are whole.
        """
        some: list[tuple[bytes, Stored]] = []
        size = 0
        for namespace, stored in blocks.items():
            for one in stored:
                some.append((namespace, one))
                size += len(one[1])
                if size >= _DECODED_TOGETHER:
                    yield from self._together(some)
                    some, size = [], 0
        yield from self._together(some)

    def _together(self, blocks: Sequence[tuple[bytes, Stored]]) -> Iterator[tuple[bytes, Block]]:
        names = [name for _, (name, _) in blocks]
        payloads = [payload for _, (_, payload) in blocks]
        begin = 0
        for stretch in decode_together(payloads, lambda number: where(self._layout.table, names[number])):
            end = begin + len(stretch.counts)
            self._check(stretch, names[begin:end])
            yield from _by_namespace(stretch, [namespace for namespace, _ in blocks[begin:end]])
            begin = end

    def joined(self, place: int) -> Iterator[tuple[bytes, Block]]:
        """Yield what counts of a group's blocks, with namespaces, many in one: of a key, what comes last is right."""
        few = self.few(place, _JOINED)
        if few is not None:
            yield from ((namespace, in_one(blocks)) for namespace, blocks in few.items() if blocks)
            return
        some: dict[bytes, list[Block]] = {}
        rows = 0
        for namespace, block in self._each(place):
            some.setdefault(namespace, []).append(block)
            rows += len(block.keys)
            if rows >= _JOINED:
                yield from ((namespace, in_one(blocks)) for namespace, blocks in some.items())
                some, rows = {}, 0
        yield from ((namespace, in_one(blocks)) for namespace, blocks in some.items())

    def _each(self, place: int) -> Iterator[tuple[bytes, Block]]:
        """Yield what counts of a group's blocks, one by one, however many; those of a namespace oldest first."""
        whole = {}
        for name, found in self._scan(place):
            if _is_whole(found):
                whole[entries.parse_block(name)[0]] = name
        for name, found in self._scan(place):
            namespace, _ = entries.parse_block(name)
            if name >= whole.get(namespace, b""):
                block = self._decoded(name, found)
                if len(block.keys):
                    yield namespace, block

    def _scan(self, place: int) -> Iterator[Found]:
        start = entries.head(self._layout.groups.first + place, self._layout.state, entries.BLOCK)
        return joined_up(self._store.scan(start, entries.after(start)), self._layout.table)

    def resolved(self, blocks: Iterable[Stored]) -> Iterator[Stored]:
        """Return blocks that can be read alone for these, which are in order; the keys they refer to are stored."""
        return resolved(blocks, self._layout.table, self._store.scan)

    def _decoded(self, name: bytes, found: bytes | Block) -> Block:
        block = found if isinstance(found, Block) else decode(found, where(self._layout.table, name))
        self._check(Stretch(block, [len(block.keys)]), [name])
        return block

    def _check(self, stretch: Stretch, names: Sequence[bytes]) -> None:
        """Raise `DamagedBlock` unless blocks have the table's columns and keys of their group, as the first tells."""
        block, counts = stretch.block, np.array(stretch.counts)
        some = np.flatnonzero(counts)
        if not len(some):
            return
        found = {name: column.dtype for name, column in block.columns.items()}
        if found != self._columns:
            at = where(self._layout.table, names[some[0]])
            raise DamagedBlock(
                f"a block has columns {found} instead of {self._columns} ({at}); declare the table as it was"
            )
        first = block.keys.take(pa.array((np.cumsum(counts) - counts)[some]))
        places = np.array([self.place_of(names[int(which)]) for which in some])
        wrong = np.flatnonzero(self._layout.places(hashed(first, self._layout.key_type).hashes) != places)
        if len(wrong):
            raise misplaced(where(self._layout.table, names[some[wrong[0]]]))


def _by_namespace(stretch: Stretch, namespaces: Sequence[bytes]) -> Iterator[tuple[bytes, Block]]:
    """Yield the parts of a stretch that are of one namespace; none without rows."""
    start = begin = 0
    for namespace, some in groupby(namespaces):
        end = begin + len(list(some))
        rows = sum(stretch.counts[begin:end])
        if rows:
            yield namespace, stretch.block if rows == len(stretch.block.keys) else sliced(stretch.block, start, rows)
        start, begin = start + rows, end


def _is_whole(found: bytes | Block) -> bool:
    return found.whole if isinstance(found, Block) else is_whole(found)


def _size(found: bytes | Block) -> int:
    if isinstance(found, bytes):
        return len(found)
    return int(found.keys.nbytes) + sum(map(bytes_of, found.columns.values()))


def _rows(blocks: Mapping[bytes, Sequence[Block]]) -> int:
    return sum(len(block.keys) for some in blocks.values() for block in some)


def misplaced(at: str) -> DamagedBlock:
    """Return the error for a block that is not of the group that it was stored under."""
    return DamagedBlock(f"a block has keys of another key group or type ({at}); restore an older epoch")


def in_one(blocks: Sequence[Block]) -> Block:
    """Return one block with the rows of all of them, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    deleted = None
    if any(block.deleted is not None for block in blocks):
        none = [np.zeros(len(block.keys), np.bool_) if block.deleted is None else block.deleted for block in blocks]
        deleted = np.concatenate(none)
    columns = {name: np.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns}
    return Block(joined([block.keys for block in blocks]), columns, deleted)
