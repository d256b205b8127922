"""State in memory: for state that fits there, and for tests; everything a `Backend` promises, in dictionaries.

Invariant: only what is visible is kept, so no floor is compared when something is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from statebackend import means
from statebackend.backends.backend import Floors, FloorStamps
from statebackend.backends.rocksdb_tables import named_errors
from statebackend.backends.scratch_file import make_fresh, remove
from statebackend.backends.sst import Entry, read_newest, read_sst
from statebackend.entries import META_KEY, STAMP
from statebackend.keygroups import KeyGroupRange

_ENTRY_OVERHEAD: Final = 100


class _Group:
    """The entries of a key group."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None

    def apply(self, name: bytes, payload: bytes | None) -> int:
        """Set or delete an entry, and return by how much the group has grown."""
        before = self.entries.pop(name, None) if payload is None else self.entries.get(name)
        if payload is not None:
            self.entries[name] = payload
        if (before is None) != (payload is None):
            self._order = None
        return _size(name, payload) - _size(name, before)

    def memory(self) -> int:
        return sum(_size(name, payload) for name, payload in self.entries.items())

    def between(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        if self._order is None:
            self._order = sorted(self.entries)
        order, low = self._order, bisect_left(self._order, start)
        return [(name, self.entries[name]) for name in order[low : bisect_left(order, end, low)]]


def _size(name: bytes, payload: bytes | None) -> int:
    return 0 if payload is None else len(name) + len(payload) + _ENTRY_OVERHEAD


class HeapBackend:
    """A `Backend` in memory. It needs a folder only while it takes files, and so little of it."""

    def __init__(self, folder: Path, floors: Floors) -> None:
        """Begin empty. `folder` is made for it; `BackendError` if it has anything in it."""
        make_fresh(folder)
        self.folder = folder
        self._stamps = FloorStamps(floors)
        self._groups: dict[bytes, _Group] = {}
        self._memory = 0
        self._lock = means.Lock()

    def __repr__(self) -> str:
        return f"HeapBackend({str(self.folder)!r})"

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values by name. See `Backend.get_many`."""
        groups = self._groups
        with self._lock:
            return [groups[name[:2]].entries.get(name) if name[:2] in groups else None for name in names]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries in order. See `Backend.scan`."""
        found: list[tuple[bytes, bytes]] = []
        with self._lock:
            for group in sorted(group for group in self._groups if start[:2] <= group <= end[:2]):
                found += self._groups[group].between(start, end)
        return iter(found)

    def ingest(self, files: Sequence[Path]) -> None:
        """Take files. See `Backend.ingest`."""
        # With nothing here that they could delete, it is enough to know what they say together.
        self._take(self._newest_of(files) if files and not self._groups else self._contents_of(files), files)

    def _take(self, contents: list[Entry], files: Sequence[Path], replacing: Sequence[KeyGroupRange] = ()) -> None:
        with self._lock:
            for group in {group.to_bytes(2, "big") for group_range in replacing for group in group_range}:
                dropped = self._groups.pop(group, None)
                self._memory -= dropped.memory() if dropped else 0
            for entry in contents:
                self._apply(*entry)
        with named_errors(f"remove what {self} has taken"):
            for file in files:
                file.unlink()

    def _newest_of(self, files: Sequence[Path]) -> list[Entry]:
        with read_newest(files, self.folder) as entries:
            return [(name, value[STAMP.size :]) for name, value in entries if value >= self._stamps[name[:2]]]

    def _contents_of(self, files: Sequence[Path]) -> list[Entry]:
        # All are read before anything changes: one of them may be damaged.
        return [entry for file in files for entry in self._entries_of(file)]

    def _entries_of(self, file: Path) -> Iterator[Entry]:
        with read_sst(file, self.folder) as content:
            yield META_KEY, content.meta
            stamp = STAMP.pack(content.stamp)
            for name, payload in content.entries:
                if stamp >= self._stamps[name[:2]]:
                    yield name, payload

    def _apply(self, name: bytes, payload: bytes | None) -> None:
        group = self._groups.get(name[:2])
        if group is None:
            group = self._groups[name[:2]] = _Group()
        self._memory += group.apply(name, payload)

    def rebase(self, groups: Sequence[KeyGroupRange], base: Path | None) -> None:
        """Put a base in the place of its groups' entries. See `Backend.rebase`."""
        files = [] if base is None else [base]
        self._take(self._contents_of(files), files, replacing=groups)

    def disk_bytes(self) -> int:
        """Return 0, as no disk is occupied for long. See `Backend.disk_bytes`."""
        return 0

    def memory_bytes(self) -> int:
        """Return the size of the entries, each with its overhead. See `Backend.memory_bytes`."""
        return self._memory

    def close(self) -> None:
        """Forget everything. See `Backend.close`."""
        self._groups.clear()
        remove(self.folder)
