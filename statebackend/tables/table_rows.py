"""The keys of a table that memory has no room for: each is a row, whose payload is its accumulators, packed.

What always holds: a key lives in the table or in a row, never in both; whoever takes a key from here into the table
deletes its row by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from statebackend import entries
from statebackend.keys.columns import KeyColumn, canonical_column
from statebackend.tables.blocks import Column
from statebackend.tables.table_spec import Layout


class DamagedRow(Exception):
    """A row of a table that is not what was written; the message says of which table and key group."""


class Entries(Protocol):
    """Where a table finds its blocks and keeps its rows; `RowStore` is one."""

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """The payloads of these entries, None where there is none."""

    def put(self, name: bytes, payload: bytes) -> None:
        """Set an entry."""

    def delete(self, name: bytes) -> None:
        """Remove an entry."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Names and payloads from `start` up to, not including, `end`, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Evicted:
    """Keys, their accumulators and the names of their rows, one for one."""

    keys: KeyColumn
    columns: Mapping[str, Column]
    names: Sequence[bytes]


class TableRows:
    """The rows of one table in the key groups of a partition."""

    def __init__(self, layout: Layout, store: Entries) -> None:
        self._layout = layout
        self._store = store
        # By name, so that the order in which outputs are declared means nothing.
        self._record = np.dtype(
            [(name, layout.columns[name].dtype.newbyteorder("<")) for name in sorted(layout.columns)]
        )
        self._groups = layout.no_groups()
        self._unread_groups = layout.no_groups()
        self._namespaces: set[bytes] = set()

    def look_for(self, place: int) -> None:
        """Find out whether a group, counted from the first of the partition, has rows from before."""
        if next(self._scan(place), None) is not None:
            self._groups[place] = self._unread_groups[place] = True

    @property
    def some(self) -> bool:
        """Whether there may be rows."""
        return bool(self._groups.any())

    def put(self, keys: KeyColumn, namespace: bytes, columns: Mapping[str, Column]) -> None:
        """Keep these keys."""
        packed = np.empty(len(keys), dtype=self._record)
        for column, values in columns.items():
            packed[column] = values
        places = self._layout.places(keys.hashes)
        size, data = self._record.itemsize, packed.tobytes()
        for row, name in enumerate(self._names(places, _listed(keys), namespace)):
            self._store.put(name, data[row * size : (row + 1) * size])
        self._groups[places] = True
        self._namespaces.add(namespace)

    def take(self, keys: KeyColumn, which: NDArray[np.int64], namespace: bytes) -> Evicted | None:
        """Hand out those of some of the keys that are here, and delete their rows; None if none is here."""
        places = self._layout.places(keys.hashes)
        which = which[self._groups[places[which]]]
        if not len(which):
            return None
        listed = _listed(keys)
        wanted = [listed[row] for row in which.tolist()]
        by_name = dict(zip(self._names(places[which], wanted, namespace), wanted, strict=True))
        payloads = self._store.get_many(list(by_name))
        found = {name: payload for name, payload in zip(by_name, payloads, strict=True) if payload is not None}
        if not found:
            return None
        evicted = self._unpacked([by_name[name] for name in found], found)
        self.delete(evicted)
        return evicted

    def delete(self, evicted: Evicted) -> None:
        """Remove these rows."""
        for name in evicted.names:
            self._store.delete(name)

    def of(self, namespace: bytes) -> Evicted:
        """All keys of a namespace that are here."""
        found: dict[bytes, bytes] = {}
        keys: list[bytes | None] = []
        if namespace in self.namespaces():
            for place in np.flatnonzero(self._groups).tolist():
                for name, payload in self._scan(place):
                    key, of_key, _ = entries.parse_row(name)
                    if of_key == namespace:
                        keys.append(key)
                        found[name] = payload
        return self._unpacked(keys, found)

    def forget(self, namespace: bytes) -> None:
        """There are no rows of this namespace any more."""
        self._namespaces.discard(namespace)

    def namespaces(self) -> set[bytes]:
        """The namespaces that may have rows."""
        for place in np.flatnonzero(self._unread_groups).tolist():
            self._namespaces.update(entries.parse_row(name)[1] for name, _ in self._scan(place))
            self._unread_groups[place] = False
        return self._namespaces

    def _scan(self, place: int) -> Iterator[tuple[bytes, bytes]]:
        start = entries.head(self._layout.groups.first + place, self._layout.state, entries.ROW)
        return self._store.scan(start, entries.after(start))

    def _names(self, places: NDArray[np.int64], keys: Sequence[bytes | None], namespace: bytes) -> list[bytes]:
        first, state = self._layout.groups.first, self._layout.state
        return [
            entries.row(first + place, state, key, namespace) for place, key in zip(places.tolist(), keys, strict=True)
        ]

    def _unpacked(self, keys: Sequence[bytes | None], found: Mapping[bytes, bytes]) -> Evicted:
        for name, payload in found.items():
            if len(payload) != self._record.itemsize:
                raise DamagedRow(
                    f"a row of state {self._layout.table!r}, key group {entries.group_of(name)}, has {len(payload)} "
                    f"bytes instead of {self._record.itemsize}; restore an older epoch"
                )
        packed = np.frombuffer(b"".join(found.values()), dtype=self._record)
        columns = {name: packed[name].astype(accumulator.dtype) for name, accumulator in self._layout.columns.items()}
        return Evicted(canonical_column(keys, self._layout.key_type), columns, list(found))


def _listed(keys: KeyColumn) -> list[bytes | None]:
    start = int(keys.offsets[0])
    data = keys.data[start : int(keys.offsets[-1])].tobytes()
    listed: list[bytes | None] = [data[begin - start : end - start] for begin, end in pairwise(keys.offsets.tolist())]
    if keys.null is not None:
        for row in np.flatnonzero(keys.null).tolist():
            listed[row] = None
    return listed
