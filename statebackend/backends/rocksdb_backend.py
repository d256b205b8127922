"""State in RocksDB: for what does not fit into memory, and for restores that open files without reading them.

Invariant: the database only takes files, nothing is put into it; and its folder is scratch, made for it and
deleted with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from rocksdict import Cache, DBCompressionType, Options, Rdict, SstFileWriter

from statebackend.backends.backend import Floors, FloorStamps
from statebackend.backends.rocksdb_tables import by_moving, iterate, iterate_names, named_errors, quiet, table_options
from statebackend.backends.scratch_file import make_fresh, remove
from statebackend.entries import STAMP, bounds, is_of_blocks
from statebackend.keygroups import KeyGroupRange

_BACKGROUND_JOBS: Final = 2
_OPEN_FILES: Final = 512
_LEVEL_0_FILES: Final = 24
"""The number of files that wait for compaction, which rewrites everything if the changes are spread over all keys: the
more, the rarer. Going from 8 to 32 files made it three and a half times rarer, and look-ups about a fifth slower."""

_UNLIMITED: Final = 1 << 20

_READ_AHEAD: Final = (64 << 10, 2 << 20)
"""A compaction reads from each of its files so many bytes ahead, at least and at most; all together take no more memory
than the cache, unless that is very small. By default it is the most for each file, whatever the memory."""


class RocksDBBackend:
    """A `Backend` on the local disk; its memory is about `memory` bytes of cache, indexes and filters included."""

    def __init__(self, folder: Path, floors: Floors, *, memory: int) -> None:
        """Open a new, empty database. `folder` is made for it; `BackendError` if it has anything in it."""
        make_fresh(folder)
        self.folder = folder
        self._stamps = FloorStamps(floors)
        self._cache = Cache(memory)
        self._has_entries = False
        try:
            with named_errors(f"open a database in {folder}"):
                self._database = Rdict(str(folder / "database"), _database_options(self._cache, memory))
        except BaseException:
            remove(folder)
            raise

    def __repr__(self) -> str:
        return f"RocksDBBackend({str(self.folder)!r})"

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values by name. See `Backend.get_many`."""
        if not self._has_entries:
            return [None] * len(names)
        stamps = self._stamps
        with named_errors(f"read entries of {self}"):
            values: list[bytes | None] = self._database.get(list(names)) or []
        return [
            None if value is None or value < stamps[name[:2]] else value[STAMP.size :]
            for name, value in zip(names, values, strict=True)
        ]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries in order. See `Backend.scan`.

        Blocks of tables do not go through the cache: their reader has them in memory from then on.
        """
        if not self._has_entries:
            return iter(())
        action, once = f"read entries of {self}", is_of_blocks(start)
        return _visible(iterate(self._database, start, end, action, fill_cache=not once), self._stamps)

    def ingest(self, files: Sequence[Path]) -> None:
        """Take files. See `Backend.ingest`."""
        if not files:
            return
        # The error itself names the file that is at fault; a restore takes hundreds.
        what = str(files[0]) if len(files) == 1 else f"{len(files)} files of {files[0].parent}"
        with named_errors(f"take {what} into {self}"):
            self._database.ingest_external_file([str(file) for file in files], by_moving())
        self._has_entries = True

    def rebase(self, groups: Sequence[KeyGroupRange], base: Path | None) -> None:
        """Put a base in the place of its groups' entries. See `Backend.rebase`.

        A file that deletes all there is, and the base on top of it, are taken as one.
        """
        files = [self._deletion_of(groups), base] if self._has_entries else [base]
        self.ingest([file for file in files if file is not None])

    def _deletion_of(self, groups: Sequence[KeyGroupRange]) -> Path | None:
        """Write a file that deletes all entries of these groups; None if there are none.

        It is only ever read here, so it is neither sealed nor does it list what it deletes.
        """
        ranges = [bounds(group) for group in sorted(groups)]
        action = f"read entries of {self}"
        names = (name for start, end in ranges for name in iterate_names(self._database, start, end, action))
        first = next(names, None)
        if first is None:
            return None
        path = self.folder / "deletion.sst"
        try:
            with named_errors(f"write {path}"):
                writer = SstFileWriter(table_options(DBCompressionType.lz4()))
                writer.open(str(path))
                for name in chain((first,), names):
                    del writer[name]
                writer.finish()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def disk_bytes(self) -> int:
        """Return the size of the files. See `Backend.disk_bytes`."""
        return self._database.property_int_value("rocksdb.total-sst-files-size") or 0

    def memory_bytes(self) -> int:
        """Return how full the cache is. See `Backend.memory_bytes`."""
        return self._cache.get_usage()

    def close(self) -> None:
        """Delete the database. See `Backend.close`."""
        self._database.close()
        remove(self.folder)


def _database_options(cache: Cache, memory: int) -> Options:
    options = quiet(table_options(DBCompressionType.lz4(), cache))
    options.create_if_missing(True)
    options.set_max_open_files(_OPEN_FILES)
    options.set_max_background_jobs(_BACKGROUND_JOBS)
    options.set_level_zero_file_num_compaction_trigger(_LEVEL_0_FILES)
    # Files are taken in any case; there are no writes that could be slowed down.
    options.set_level_zero_slowdown_writes_trigger(_UNLIMITED)
    options.set_level_zero_stop_writes_trigger(_UNLIMITED)
    options.set_write_buffer_size(64 << 10)
    least, most = _READ_AHEAD
    options.set_compaction_readahead_size(min(max(memory // _LEVEL_0_FILES, least), most))
    return options


def _visible(stored: Iterator[tuple[bytes, bytes]], stamps: FloorStamps) -> Iterator[tuple[bytes, bytes]]:
    for name, value in stored:
        if value >= stamps[name[:2]]:
            yield name, value[STAMP.size :]
