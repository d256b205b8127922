"""The settings with which RocksDB writes and reads files here: one format, errors with names.

Invariant: blocks are checked against their checksums whenever they come from the disk, and an iteration that
a damaged block breaks off ends with an error, never just early.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
)

from statebackend import means
from statebackend.backends.backend import BackendError, DamagedFile, LocalDiskError, LocalDiskFull

_FORMAT: Final = 6
"""The version of RocksDB's table format, pinned: files outlive the version of the library that wrote them."""

_BLOOM_BITS: Final = 10
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def table_options(compression: DBCompressionType, cache: Cache | None = None) -> Options:
    """Return options of a database or of a file's writer: raw bytes, our format of tables."""
    tables = BlockBasedOptions()
    tables.set_format_version(_FORMAT)
    tables.set_checksum_type(ChecksumType.xxh3())
    tables.set_bloom_filter(_BLOOM_BITS, False)
    if cache is not None:
        tables.set_block_cache(cache)
        tables.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(compression)
    return options


def quiet(options: Options) -> Options:
    """Tune the options for a database that writes little but tables (no statistics, one short log); return them."""
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_manifest_preallocation_size(64 << 10)
    return options


def by_moving() -> IngestExternalFileOptions:
    """Return options that take files by linking them into the database; the given links are gone afterwards."""
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    return options


def iterate(
    database: Rdict, start: bytes, end: bytes, action: str, *, fill_cache: bool = True
) -> Iterator[tuple[bytes, bytes]]:
    """Return entries from `start` up to, not including, `end`, as they are when this is called.

    `action` says in errors what could not be done. Without `fill_cache`, what is read here drives nothing out of the
    cache.
    """
    iterator, options = _iterator(database, start, end, fill_cache=fill_cache)
    return _steps(iterator, options, action)


def iterate_names(database: Rdict, start: bytes, end: bytes, action: str) -> Iterator[bytes]:
    """Return the names of `iterate` alone: large values are not copied, and do not drive others out of the cache."""
    iterator, options = _iterator(database, start, end, fill_cache=False)
    return _name_steps(iterator, options, action)


def _iterator(database: Rdict, start: bytes, end: bytes, *, fill_cache: bool) -> tuple[RdictIter, ReadOptions]:
    options = ReadOptions()
    options.fill_cache(fill_cache)  # type: ignore[call-arg]  # its type stub leaves the argument out
    options.set_iterate_upper_bound(end)
    options.set_verify_checksums(True)
    options.set_total_order_seek(True)
    iterator = database.iter(options)
    iterator.seek(start)
    return iterator, options


def _steps(iterator: RdictIter, options: ReadOptions, action: str) -> Iterator[tuple[bytes, bytes]]:
    valid, key, value, proceed = iterator.valid, iterator.key, iterator.value, iterator.next
    while valid():
        yield key(), value()
        proceed()
    _end(iterator, options, action)


def _name_steps(iterator: RdictIter, options: ReadOptions, action: str) -> Iterator[bytes]:
    valid, key, proceed = iterator.valid, iterator.key, iterator.next
    while valid():
        yield key()
        proceed()
    _end(iterator, options, action)


def _end(iterator: RdictIter, options: ReadOptions, action: str) -> None:
    # The iterators of rocksdict that are Python iterators end without an error at a damaged block.
    with named_errors(action):
        iterator.status()
    # The iterator points at the bound in its options without keeping them: they must live as long as it does.
    del options


@contextmanager
def named_errors(action: str) -> Iterator[None]:
    """Turn errors of rocksdict and of the disk inside into errors with names; others pass through."""
    try:
        means.use_disk(action)
        yield
    except OSError as error:
        raise _named(action, error, full=error.errno in _FULL) from error
    except Exception as error:
        if type(error) is not Exception:  # rocksdict raises nothing more special, and others do
            raise
        raise _named(action, error, full="No space left" in str(error)) from error


def _named(action: str, error: Exception, *, full: bool) -> BackendError:
    if full:
        return LocalDiskFull(
            f"could not {action}: the local disk is full ({error}). Make room, or put the working folder on a larger "
            f"disk; no state is lost, it is in the snapshots"
        )
    if str(error).startswith(("Corruption", "Not implemented", "Not supported")):
        return DamagedFile(
            f"could not {action}: the content is not as it was written ({error}). Delete the local files of this "
            f"state; they will be fetched again from the store of the snapshots"
        )
    if isinstance(error, OSError) or str(error).startswith("IO error"):
        return LocalDiskError(
            f"could not {action} on the local disk: {error}. Check the disk, its rights and its quota"
        )
    return BackendError(f"could not {action}: {error}")
