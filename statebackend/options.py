"""The options of keyed state: its backend, its memory, and changes of its declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from statebackend.backends.backend import Backend, Floors
from statebackend.snapshots.consolidation import Policy

_FOR_ANY_STATE: Final = 64 << 20

_FOR_ANY_TABLE: Final = 112 << 20
_FOR_TABLES: Final = 0.34
"""The memory that a table needs besides its keys, mostly to find those on the disk and to merge their blocks; and the
part of the rest that may be tables. With all keys changed in each epoch the process grows by two and a half times as
much: the frozen rows of a cut are there, in the order of the files, until they are in the backend."""

OpenBackend = Callable[[Path, Floors, int], Backend]
"""Makes an empty backend in a new folder, with floors, and so many bytes of memory."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a state: a backend of this package, or your own.

    `memory` bounds by how much the process grows for one partition's state, about: caches, tables and what a cut has
    frozen, what is made of them on the way into files, and what allocators keep. Give it 128 MiB or more, as some
    60 MiB are needed for any state. What one call reads or writes is the caller's. A backend on the heap is not
    bounded, as it is all of the state. With any other, opening tells the C library to have one pool of memory for all
    threads that are started later, unless `MALLOC_ARENA_MAX` says how many: it could not give back what others keep.

    `allow_dropped` and `renamed` say what has changed in the declaration since the state was written: states that are
    declared no longer, and former names with their present ones.
    """

    backend: Literal["rocksdb", "heap"] | OpenBackend = "rocksdb"
    memory: int = 256 << 20
    policy: Policy = field(default_factory=Policy)
    allow_dropped: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Return how many bytes may hold state; the rest is for work on it, and for what allocators keep."""
        return max(self.memory - _FOR_ANY_STATE, self.memory // 4) // 3

    @property
    def in_tables(self) -> int:
        """Return how many bytes of the memory may be tables, if nothing else is declared."""
        return int(max(self.memory - _FOR_ANY_TABLE, self.memory // 8) * _FOR_TABLES)
