"""Files of sorted entries, in RocksDB's own format: written from what changed, taken by any backend, read back whole.

Invariant: a file is written once, from entries in the order of their names, and is on the disk when
`write_sst` returns; all entries in it have one stamp, the number of the epoch that wrote it; and every block has a
checksum that is verified when it is read.

RocksDB does not show deletions in an iteration. A program that merges files, or takes them into something else than
RocksDB, needs them, so the file lists the names of the deleted once more, compressed, under `DELETED`. That costs 4 to
6 bytes per deletion for keys such as numbers or `user-123` (the deletion itself 7 to 9, a small row 25), and 53 for
keys of 80 random letters (61, 85); a file without deletions pays nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Final

from rocksdict import DBCompressionType, Rdict, SstFileWriter

from statebackend import entries as naming
from statebackend import means
from statebackend.backends.backend import DamagedFile
from statebackend.backends.rocksdb_tables import by_moving, iterate, named_errors, quiet, table_options
from statebackend.entries import META_KEY
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange, joined

Entry = tuple[bytes, bytes | None]
"""A name, and what is under it: None if it was deleted."""

DELETED: Final = b"\xff\xffdeleted"
"""The beginning of the names under which a file lists its deletions, piece by piece. They sort before `META_KEY`."""

_END: Final = b"\xff\xff\xff"
_STAMP_SIZE: Final = naming.STAMP.size
_PIECE: Final = 1 << 20
_LARGEST_PIECE: Final = 64 << 20
"""A piece has names of so many bytes in all, and one more; a larger one was not written by us."""
SMALL: Final = 16 << 20
"""Files up to so many bytes are small."""
_FOREIGN: Final = "is a file of RocksDB's, but none that this library wrote: it does not say whose it is"


class Compression(Enum):
    """The compression of a file's blocks; a reader need not know it."""

    ZSTD = "zstd"
    LZ4 = "lz4"

    @classmethod
    def for_size(cls, size: int) -> Compression:
        """Return the compression that suits a file of about `size` bytes.

        Small files are made every second and travel to the store, so they are made as small as possible; for large
        ones the time that this takes would show.
        """
        return cls.ZSTD if size <= SMALL else cls.LZ4


@dataclass(frozen=True, slots=True)
class SstInfo:
    """The facts about a written file: its key groups with entries, size, number of entries, `sha256:` checksum."""

    groups: tuple[KeyGroupRange, ...]
    size: int
    entries: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SstContent:
    """A file that is open for reading. `entries` are gone through once, in the order of their names."""

    stamp: int
    meta: bytes
    entries: Iterator[Entry]


def write_sst(
    path: Path, entries: Iterable[Entry], stamp: int, meta: bytes, *, compression: Compression
) -> SstInfo | None:
    """Write a new file of entries that come sorted by name, each name once. None, and no file, if there are none.

    `meta` says whose file it is; `read_sst` gives it back, and so does every backend, under `META_KEY`. When this
    returns, the content is on the disk (the folder's entry may not be: then a crash of the machine leaves no file).
    After an error there is no file, after a crash inside maybe a part of one. `LocalDiskFull` and `LocalDiskError` if
    the disk refuses; what `entries` raises passes through.
    """
    iterator = iter(entries)
    first = next(iterator, None)
    if first is None:
        return None
    try:
        with named_errors(f"write {path}"):
            groups, count = _fill(path, chain((first,), iterator), naming.STAMP.pack(stamp), meta, compression)
            size, checksum = _sealed(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return SstInfo(groups, size, count, checksum)


def _fill(
    path: Path, entries: Iterable[Entry], stamp: bytes, meta: bytes, compression: Compression
) -> tuple[tuple[KeyGroupRange, ...], int]:
    writer = SstFileWriter(table_options(_of_rocksdb(compression)))
    writer.open(str(path))
    deleted = _DeletedNames()
    groups: list[bytes] = []
    group: bytes | None = None
    count = 0
    for name, payload in entries:
        if payload is None:
            del writer[name]
            deleted.append(name)
        else:
            writer[name] = stamp + payload
        if group is None or not name.startswith(group):
            group = name[:2]
            groups.append(group)
        count += 1
    for place, piece in enumerate(deleted.pieces()):
        writer[DELETED + place.to_bytes(4, "big")] = stamp + piece
    writer[META_KEY] = stamp + meta
    writer.finish()
    return joined(_range_of(group) for group in groups), count


def _range_of(group: bytes) -> KeyGroupRange:
    first = naming.group_of(group)
    return KeyGroupRange(first, KeyGroup(first + 1))


def _of_rocksdb(compression: Compression) -> DBCompressionType:
    return DBCompressionType.zstd() if compression is Compression.ZSTD else DBCompressionType.lz4()


def _sealed(path: Path) -> tuple[int, str]:
    """Bring a file to the disk, and return its size and checksum."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, f"sha256:{digest}"


class _DeletedNames:
    """The list of what a file deletes, compressed in pieces, as there may be millions."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._open: list[bytes] = []
        self._open_size = 0

    def append(self, name: bytes) -> None:
        self._open.append(naming.delimited(name))
        self._open_size += len(name)
        if self._open_size >= _PIECE:
            self._close_piece()

    def pieces(self) -> list[bytes]:
        if self._open:
            self._close_piece()
        return self._pieces

    def _close_piece(self) -> None:
        import pyarrow as pa  # Only here, as a process that does nothing but write files is to be small.

        piece = b"".join(self._open)
        self._pieces.append(len(piece).to_bytes(4, "big") + pa.compress(piece, codec="zstd", asbytes=True))
        self._open.clear()
        self._open_size = 0


def _deleted_in(path: Path, piece: bytes) -> Iterator[bytes]:
    import pyarrow as pa

    size = int.from_bytes(piece[:4], "big")
    try:
        if size > _LARGEST_PIECE:
            raise ValueError(f"it says that {size} bytes are deleted names")
        listed: bytes = pa.decompress(piece[4:], size, codec="zstd", asbytes=True)
        at = 0
        while at < size:
            name, at = naming.undelimited(listed, at)
            yield name or b""
    except (ValueError, OSError) as error:
        raise DamagedFile(f"the list of what {path} deletes is not as it was written: {error}") from error


@contextmanager
def read_sst(path: Path, scratch: Path) -> Iterator[SstContent]:
    """Open a file to read all of it, deletions included; it stays as it is.

    A folder in `scratch`, which is on the same file system, is used meanwhile; a crash leaves it there. `DamagedFile`,
    from here or from the entries, if the file is not just as it was written.
    """
    with _opened([path], scratch, f"read {path}") as database:
        yield _content(path, database)


@contextmanager
def read_newest(paths: Sequence[Path], scratch: Path) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    """Go through the entries of several files, each taken on top of the one before; the files stay as they are.

    Gives names and stamped values, sorted; deleted names are not there, and the newest file's meta stands under
    `META_KEY`. One look at many files costs about as much as `read_sst` of one. Raises and uses `scratch` as that does.
    """
    action = f"read {paths[0]}" if len(paths) == 1 else f"read {len(paths)} files of {paths[0].parent}"
    with _opened(paths, scratch, action) as database:
        if META_KEY not in database:
            raise DamagedFile(f"{paths[-1]} {_FOREIGN}")
        entries = iterate(database, b"", DELETED, action)
        yield chain(entries, iterate(database, META_KEY, _END, action))


@contextmanager
def _opened(paths: Sequence[Path], scratch: Path, action: str) -> Iterator[Rdict]:
    """Open a database of just these files, the later ones on top."""
    folder = scratch / f"reading-{means.token_hex(8)}"
    database: Rdict | None = None
    try:
        with named_errors(action):
            folder.mkdir(parents=True)
            links = [folder / f"{place}-{path.name}" for place, path in enumerate(paths)]
            for path, link in zip(paths, links, strict=True):
                link.hardlink_to(path)
            options = quiet(table_options(DBCompressionType.none()))
            options.set_disable_auto_compactions(True)
            database = Rdict(str(folder / "database"), options)
            database.ingest_external_file([str(link) for link in links], by_moving())
        yield database
    finally:
        if database is not None:
            database.close()
        rmtree(folder, ignore_errors=True)


def _content(path: Path, database: Rdict) -> SstContent:
    own = dict(iterate(database, DELETED, _END, f"read {path}"))
    meta = own.pop(META_KEY, None)
    if meta is None or not all(name.startswith(DELETED) for name in own):
        raise DamagedFile(f"{path} {_FOREIGN}")
    deleted = (name for piece in own.values() for name in _deleted_in(path, piece[_STAMP_SIZE:]))
    stored = iterate(database, b"", DELETED, f"read {path}")
    if len(meta) < _STAMP_SIZE:
        raise DamagedFile(f"{path} {_FOREIGN}")
    return SstContent(int(naming.STAMP.unpack_from(meta)[0]), meta[_STAMP_SIZE:], _merged(stored, deleted))


def _merged(stored: Iterator[tuple[bytes, bytes]], deleted: Iterator[bytes]) -> Iterator[Entry]:
    gone = next(deleted, None)
    for name, value in stored:
        while gone is not None and gone < name:
            yield gone, None
            gone = next(deleted, None)
        yield name, value[_STAMP_SIZE:]
    while gone is not None:
        yield gone, None
        gone = next(deleted, None)
