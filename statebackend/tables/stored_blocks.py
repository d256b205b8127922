"""The blocks of a table as they are stored: found by key group, decoded, and checked before anything is made of them.

What always holds: a block that is handed out has the columns of the table, and keys of the group that it was stored
under, as far as one of them tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from statebackend import entries
from statebackend.tables.blocks import Block, DamagedBlock, decode, is_whole, joined, where
from statebackend.tables.table_spec import Layout


class Entries(Protocol):
    """Where a table finds its blocks, and where it puts those that cannot wait for a cut; `RowStore` is one."""

    def put(self, name: bytes, payload: bytes) -> None:
        """Set an entry."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Names and payloads from `start` up to, not including, `end`, in order."""


_JOINED: Final = 1 << 14
"""About so many rows are in memory at a time, if a group has more."""


class StoredBlocks:
    """The blocks of one table; groups are counted from the first of the partition."""

    def __init__(self, layout: Layout, store: Entries) -> None:
        self._layout = layout
        self._store = store

    def few(self, place: int, most: int) -> Mapping[bytes, list[Block]] | None:
        """What counts of a group's blocks, by namespace, oldest first; None if it has more rows than that."""
        found: dict[bytes, list[Block]] = {}
        for name, payload in self._scan(place):
            namespace, _ = entries.parse_block(name)
            block = self.decoded(place, name, payload)
            if block.whole:
                most += sum(len(older.keys) for older in found.get(namespace, ()))
                found[namespace] = []
            if len(block.keys):
                found.setdefault(namespace, []).append(replace(block, whole=False))
                most -= len(block.keys)
            if most < 0:
                return None
        return found

    def joined(self, place: int) -> Iterator[tuple[bytes, Block]]:
        """What counts of a group's blocks, with their namespaces, many in one: of a key, what comes last is right."""
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
        """What counts of a group's blocks, one after the other, however many; those of a namespace oldest first."""
        whole = {}
        for name, payload in self._scan(place):
            if is_whole(payload, where(self._layout.table, name)):
                whole[entries.parse_block(name)[0]] = name
        for name, payload in self._scan(place):
            namespace, _ = entries.parse_block(name)
            if name >= whole.get(namespace, b""):
                block = self.decoded(place, name, payload)
                if len(block.keys):
                    yield namespace, block

    def _scan(self, place: int) -> Iterator[tuple[bytes, bytes]]:
        start = entries.head(self._layout.groups.first + place, self._layout.state, entries.BLOCK)
        return self._store.scan(start, entries.after(start))

    def decoded(self, place: int, name: bytes, payload: bytes) -> Block:
        """A stored block of this group."""
        at = where(self._layout.table, name)
        block = decode(payload, at)
        wanted = {name: accumulator.dtype for name, accumulator in self._layout.columns.items()}
        found = {name: column.dtype for name, column in block.columns.items()}
        if len(block.keys):
            if found != wanted:
                raise DamagedBlock(
                    f"a block has columns {found} instead of {wanted} ({at}); declare the table as it was"
                )
            # One key tells almost as much as all of them.
            hashes = np.array([self._layout.key_type.hash_of(block.keys[0].as_py())], dtype=np.uint64)
            if self._layout.places(hashes)[0] != place:
                raise misplaced(at)
        return block


def misplaced(at: str) -> DamagedBlock:
    """The error for a block that is not of the group that it was stored under."""
    return DamagedBlock(f"a block has keys of another key group or type ({at}); restore an older epoch")


def in_one(blocks: Sequence[Block]) -> Block:
    """The rows of all of them, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    deleted = None
    if any(block.deleted is not None for block in blocks):
        none = [np.zeros(len(block.keys), np.bool_) if block.deleted is None else block.deleted for block in blocks]
        deleted = np.concatenate(none)
    columns = {name: np.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns}
    return Block(joined([block.keys for block in blocks]), columns, deleted)
