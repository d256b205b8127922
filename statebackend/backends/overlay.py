"""Rows that wait for their cut to become a file, on the local disk: those that memory has no room for.

Invariant: a layer of rows lies under a number of its own, so forgetting it is one note in the database; and
all of it is scratch, which is not read after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Final

from rocksdict import Cache, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from statebackend.backends.rocksdb_tables import iterate, named_errors, quiet, table_options
from statebackend.backends.scratch_file import make_fresh, remove

_NUMBER: Final = Struct(">Q")
_SIZE: Final = _NUMBER.size
_ROW: Final = b"+"
_DELETED: Final = b"-"
_SMALLEST: Final = 1 << 20
_OPEN_FILES: Final = 64


class Answer(Enum):
    """The answer of a layer about a name that it does not know."""

    UNKNOWN = "nothing is said about this name"


UNKNOWN: Final = Answer.UNKNOWN


class OverlayLayer:
    """The rows of one layer that were moved to the disk. May be read by any thread."""

    def __init__(self, database: Rdict, number: int, writing: WriteOptions) -> None:
        self._database = database
        self._prefix, self._end = _NUMBER.pack(number), _NUMBER.pack(number + 1)
        self._writing = writing

    def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set rows, or mark them deleted. If the disk refuses, raise an error with a name and set none of them."""
        batch, prefix = WriteBatch(raw_mode=True), self._prefix
        for name, payload in rows:
            batch.put(prefix + name, _DELETED if payload is None else _ROW + payload)
        with named_errors("move rows to the local disk, as memory has no room for them"):
            self._database.write(batch, self._writing)

    def get_many(self, names: Sequence[bytes]) -> list[bytes | Answer | None]:
        """Return the rows, None for deleted ones."""
        prefix = self._prefix
        with named_errors("read rows that were moved to the local disk"):
            values: list[bytes | None] = self._database.get([prefix + name for name in names]) or []
        return [UNKNOWN if value is None else _payload(value) for value in values]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Return names and rows from `start` up to, not including, `end`, None for deleted ones, as they are now."""
        prefix, action = self._prefix, "read rows that were moved to the local disk"
        stored = iterate(self._database, prefix + start, prefix + end, action)
        return ((name[_SIZE:], _payload(value)) for name, value in stored)

    def all(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Return all names and rows, as they are now."""
        stored = iterate(self._database, self._prefix, self._end, "read rows that were moved to the local disk")
        return ((name[_SIZE:], _payload(value)) for name, value in stored)

    def forget(self) -> None:
        """Give the rows up; iterations that are under way may go on."""
        with named_errors("give up rows that were moved to the local disk"):
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(self._prefix, self._end)
            self._database.write(batch, self._writing)


def _payload(value: bytes) -> bytes | None:
    return None if value == _DELETED else value[1:]


class Overlay:
    """Layers of rows on the local disk; the database is made when the first is begun, as most states never need it."""

    def __init__(self, folder: Path, memory: int) -> None:
        """Begin without layers.

        `folder` is made for it, and must be empty or absent. `memory` is about what it takes once it is used.
        """
        self._folder = folder
        self._memory = max(memory, _SMALLEST)
        self._database: Rdict | None = None
        self._writing = WriteOptions()
        self._writing.disable_wal = True  # type: ignore[method-assign, assignment]  # it is no method
        self._layers = 0

    def begin(self) -> OverlayLayer:
        """Begin a new layer without rows. Making the database takes tens of milliseconds, once."""
        if self._database is None:
            make_fresh(self._folder)
            with named_errors(f"open a database in {self._folder}"):
                self._database = Rdict(str(self._folder / "database"), self._options())
        self._layers += 1
        return OverlayLayer(self._database, self._layers, self._writing)

    def _options(self) -> Options:
        # Half of it for two buffers of what was written last, half for what is read.
        options = quiet(table_options(DBCompressionType.lz4(), Cache(self._memory // 2)))
        options.create_if_missing(True)
        options.set_write_buffer_size(self._memory // 4)
        options.set_max_open_files(_OPEN_FILES)
        return options

    def memory_bytes(self) -> int:
        """Return how much memory it occupies, at most."""
        return 0 if self._database is None else self._memory

    def close(self) -> None:
        """Delete everything."""
        if self._database is not None:
            self._database.close()
            self._database = None
            remove(self._folder)
