"""Rows of some key groups that were read from their blocks and are not in a table's memory yet, found by their hashes.

Invariant: each row is handed out once, and all that are of one key together, in the order in which they were
stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from statebackend.keys.columns import KeyColumn
from statebackend.tables.format.blocks import Block, chosen, with_hashes
from statebackend.tables.format.stored_blocks import in_one
from statebackend.tables.values.accumulators import bytes_of
from statebackend.tables.values.spec import Layout

Hashes = NDArray[np.uint64]
Rows = tuple[KeyColumn, Block]

_FOR_EACH: Final = 8
"""For each key that is asked for, so many that wait may come, or their turn might never come."""


class ReadAheadRows:
    """The rows that were read of some groups, counted from the partition's first: pieces that wait their turn."""

    def __init__(self, layout: Layout) -> None:
        self.groups = layout.no_groups()
        """Those of which all rows wait but for those that were asked for."""
        self._pieces: list[_Piece] = []
        self._due = 0
        """The number of rows that may come for the requests so far."""

    def __bool__(self) -> bool:
        """True if a group waits, all rows of which may have been asked for."""
        return bool(self._pieces)

    def __len__(self) -> int:
        """Return how many rows are left."""
        return sum(len(piece) for piece in self._pieces)

    def left(self, namespace: bytes) -> int:
        """Return how many rows of a namespace are left."""
        return sum(piece.rows[namespace].left for piece in self._pieces if namespace in piece.rows)

    def namespaces(self) -> set[bytes]:
        """Return the namespaces that some of the rows are of."""
        return {namespace for piece in self._pieces for namespace, rows in piece.rows.items() if rows.left}

    @property
    def nbytes(self) -> int:
        """Return about how much memory the rows occupy."""
        return sum(rows.nbytes for piece in self._pieces for rows in piece.rows.values())

    def add(self, places: NDArray[np.int64], rows: Mapping[bytes, Rows]) -> None:
        """Add all rows of these groups, by namespace: the keys, and what blocks say."""
        self._pieces.append(
            _Piece(places, {namespace: _Rows(keys, block) for namespace, (keys, block) in rows.items()})
        )
        self.groups[places] = True

    def take(self, namespace: bytes, hashes: Hashes) -> Block | None:
        """Take out the rows of the keys that have these hashes; None if there are none."""
        if not self._pieces:
            return None
        self._due += _FOR_EACH * len(hashes)
        hashes = np.sort(hashes)
        some = [piece.rows[namespace] for piece in self._pieces if namespace in piece.rows]
        found = [block for rows in some if rows.left and (block := rows.take(hashes)) is not None]
        return in_one(found) if found else None

    @property
    def is_due(self) -> bool:
        """True if it is the next piece's turn: for each key asked for, some of those that wait may come."""
        return bool(self._pieces) and self._due >= len(self._pieces[-1])

    def next(self) -> tuple[NDArray[np.int64], Iterator[tuple[bytes, Rows, bool]]]:
        """Take out a piece: return its groups, and all its rows that are left, by namespace.

        Those whose hashes all differ, which is said, come apart from the others.
        """
        piece = self._pieces.pop()
        self._due = max(0, self._due - len(piece)) if self._pieces else 0
        self.groups[piece.places] = False
        return piece.places, piece.take_all()


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """All rows of some groups."""

    places: NDArray[np.int64]
    rows: Mapping[bytes, _Rows]

    def __len__(self) -> int:
        return sum(rows.left for rows in self.rows.values())

    def take_all(self) -> Iterator[tuple[bytes, Rows, bool]]:
        for namespace, rows in self.rows.items():
            if rows.left:
                for some, all_differ in rows.take_all():
                    yield namespace, some, all_differ


class _Rows:
    """Those of one namespace, of groups that are a stretch of all hashes."""

    def __init__(self, keys: KeyColumn, block: Block) -> None:
        self._keys = keys
        self._block = block
        self._order = np.argsort(keys.hashes)
        self._sorted = keys.hashes[self._order]
        self._here = np.ones(len(keys), dtype=np.bool_)
        self.left = len(keys)

    @property
    def nbytes(self) -> int:
        arrays = (self._keys.hashes, self._order, self._sorted, self._here)
        columns = sum(map(bytes_of, self._block.columns.values()))
        return int(self._block.keys.nbytes) + sum(array.nbytes for array in arrays) + columns

    def take(self, hashes: Hashes) -> Block | None:
        # They are sorted, and most of them are of other groups.
        first, last = np.searchsorted(hashes, self._sorted[[0, -1]])
        wanted = np.unique(hashes[first : last + 1])
        begin = np.searchsorted(self._sorted, wanted)
        counts = np.searchsorted(self._sorted, wanted, "right") - begin
        before = np.cumsum(counts) - counts
        found = self._order[np.repeat(begin - before, counts) + np.arange(counts.sum())]
        rows = np.sort(found[self._here[found]])
        if not len(rows):
            return None
        self._here[rows] = False
        self.left -= len(rows)
        return chosen(self._block, rows)

    def take_all(self) -> Iterator[tuple[Rows, bool]]:
        again = self._sorted[1:] == self._sorted[:-1]
        if self.left == len(self._here) and not again.any():
            yield (self._keys, self._block), True
        else:
            repeated = np.zeros(len(self._here), dtype=np.bool_)
            repeated[self._order[1:][again]] = repeated[self._order[:-1][again]] = True
            for rows, all_differ in ((self._here & ~repeated, True), (self._here & repeated, False)):
                if rows.any():
                    yield self._chosen(np.flatnonzero(rows)), all_differ
        self.left = 0

    def _chosen(self, rows: NDArray[np.int64]) -> Rows:
        block = chosen(self._block, rows)
        return with_hashes(block.keys, self._keys.hashes[rows]), block
