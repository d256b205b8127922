"""Rows of some key groups that were read from their blocks and are not in a table's memory yet, found by their hashes.

What always holds: each row is handed out once, and all that are of one key together, in the order in which they were
stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from statebackend.keys.columns import KeyColumn
from statebackend.tables.blocks import Block, chosen, with_hashes

Hashes = NDArray[np.uint64]
Rows = tuple[KeyColumn, Block]


class WaitingRows:
    """All rows of these groups, counted from the first of the partition: by namespace, keys and what blocks say."""

    def __init__(self, places: NDArray[np.int64], rows: Mapping[bytes, Rows]) -> None:
        self.places = places
        self._rows = {namespace: _Rows(keys, block) for namespace, (keys, block) in rows.items()}

    def __len__(self) -> int:
        """How many rows there are still."""
        return sum(rows.left for rows in self._rows.values())

    def left(self, namespace: bytes) -> int:
        """How many rows of a namespace there are still."""
        rows = self._rows.get(namespace)
        return 0 if rows is None else rows.left

    @property
    def nbytes(self) -> int:
        """The memory that they occupy, about."""
        return sum(rows.nbytes for rows in self._rows.values())

    def take(self, namespace: bytes, hashes: Hashes) -> Block | None:
        """The rows of the keys that have these hashes, which are sorted; None if there are none."""
        rows = self._rows.get(namespace)
        return None if rows is None or not rows.left else rows.take(hashes)

    def take_all(self) -> Iterator[tuple[bytes, Rows, bool]]:
        """All rows that there are still, by namespace: those whose hashes all differ, which is said, and others."""
        for namespace, rows in self._rows.items():
            if rows.left:
                for some, all_differ in rows.take_all():
                    yield namespace, some, all_differ


class _Rows:
    """Those of one namespace."""

    def __init__(self, keys: KeyColumn, block: Block) -> None:
        self._keys = keys
        self._block = block
        self._order = np.argsort(keys.hashes)
        self._sorted = keys.hashes[self._order]
        self._here = np.ones(len(keys), dtype=np.bool_)
        self.left = len(keys)

    @property
    def nbytes(self) -> int:
        arrays = (self._keys.hashes, self._order, self._sorted, self._here, *self._block.columns.values())
        return int(self._block.keys.nbytes) + sum(array.nbytes for array in arrays)

    def take(self, hashes: Hashes) -> Block | None:
        # Most of the hashes are of other groups, which are other stretches of all hashes.
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
