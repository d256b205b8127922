"""The persistent form of a table: blocks, each an Arrow stream about many keys of one key group and namespace.

Invariant: a block says in itself how it is to be read, and of several blocks of a group and namespace, the
newest that speaks of a key is right. A row says what a key's accumulators are, or that the key is gone; a key has one
row in a block, but that it may be called gone before, in others. A *whole* block says all there is: what older blocks
say does not count any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from statebackend import entries
from statebackend.errors import StoreError
from statebackend.keys.columns import KeyColumn
from statebackend.keys.hashing import hash_column
from statebackend.keys.types import KeyType
from statebackend.tables.values.accumulators import Column, from_arrow, to_arrow

KEY: Final = "key"
_DELETED: Final = "deleted"
FORMAT: Final = b"epochcut.block"
WHOLE: Final = b"epochcut.whole"
_VERSION: Final = 1
_MERGED_ROWS: Final = 1 << 13
"""So many rows a block has at most that several were merged into."""

_BEGINNING: Final = Struct("<Ii")
_CONTINUED: Final = 0xFFFFFFFF
_END: Final = _BEGINNING.pack(_CONTINUED, 0)
"""The last bytes of an Arrow stream. Its messages begin with the same mark, and with the size of their description."""

IN_THIS_THREAD: Final = ipc.IpcReadOptions(use_threads=False)
"""A block is small: to wake other threads for it takes longer than to read it."""


class BlockError(StoreError):
    """A block that cannot be used; the message says of which state, key group and epoch."""


class DamagedBlock(BlockError):
    """A block that is not what was written, or that does not fit to its table."""


class NewerBlock(BlockError):
    """A block in a format that only a newer version reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Keys and their accumulators, row by row, as Arrow and numpy arrays of one length.

    `keys` are canonical bytes, of type large_binary or, if all are equally long, fixed-size binary. Only the key of a
    `deleted` row counts. Only a whole block may have no rows: it clears.
    """

    keys: pa.Array
    columns: Mapping[str, Column] = field(default_factory=dict)
    deleted: NDArray[np.bool_] | None = None
    whole: bool = False


CLEAR: Final = Block(pa.array([], pa.large_binary()), whole=True)
"""Says that a group has no key of a namespace any more."""


def where(state: str, name: bytes) -> str:
    """Return how messages name the block with this name."""
    namespace, epoch_number = entries.parse_block(name)
    window = f" namespace {namespace.hex()}," if namespace else ""
    return f"state {state!r}, key group {entries.group_of(name)},{window} epoch {epoch_number}"


class Streams:
    """Makes Arrow streams of parts of these rows, with such metadata: the description, which all begin with, is made
    once, as it takes longer than a block of some hundred rows.
    """

    def __init__(self, rows: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> None:
        self._rows = rows
        self._schema: pa.Buffer = rows.schema.with_metadata(metadata).serialize()

    def of(self, start: int, end: int) -> bytes:
        """Return a stream of the rows from `start` up to, not including, `end`."""
        return b"".join((self._schema, self._rows.slice(start, end - start).serialize(), _END))


class Encoder:
    """Makes blocks of parts of many rows: what all parts have in common is made once."""

    def __init__(self, rows: Block) -> None:
        names = [KEY, *rows.columns]
        arrays = [rows.keys, *map(to_arrow, rows.columns.values())]
        self._deleted = rows.deleted
        self._batches = {False: pa.record_batch(arrays, names=names)}
        if rows.deleted is not None:
            self._batches[True] = pa.record_batch([*arrays, pa.array(rows.deleted)], names=[*names, _DELETED])
        self._streams: dict[tuple[bool, bool], Streams] = {}

    def encode(self, start: int, end: int, whole: bool) -> bytes:
        """Return the rows from `start` up to, not including, `end` as they are stored.

        They are not compressed, as the file is that they lie in.
        """
        some_deleted = self._deleted is not None and bool(self._deleted[start:end].any())
        streams = self._streams.get((some_deleted, whole))
        if streams is None:
            metadata = {FORMAT: b"%d" % _VERSION} | ({WHOLE: b"1"} if whole else {})
            streams = self._streams[some_deleted, whole] = Streams(self._batches[some_deleted], metadata)
        return streams.of(start, end)


def encode(block: Block) -> bytes:
    """Return the block as it is stored."""
    return Encoder(block).encode(0, len(block.keys), block.whole)


def decode(payload: bytes, place: str) -> Block:
    """Decode a stored block; raise `DamagedBlock` or `NewerBlock`, which name the `place`, see `where`."""
    with damage_named(place):
        with ipc.open_stream(payload, options=IN_THIS_THREAD) as stream:
            metadata = stream.schema.metadata or {}
            check_version(metadata, _VERSION, place)
            table = stream.read_all()
        table.validate(full=True)
        return _block_of(table, whole=WHOLE in metadata)


@contextmanager
def damage_named(place: str) -> Iterator[None]:
    """Turn what Arrow raises about what was stored at this place, and a `KeyError` or `ValueError`, into
    `DamagedBlock`.
    """
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedBlock(f"a block is damaged ({place}): {error}; restore an older epoch") from error


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Several blocks, one after the other: block i has `counts[i]` of the rows. None of it is whole."""

    block: Block
    counts: Sequence[int]


def decode_together(payloads: Sequence[bytes], place_of: Callable[[int], str]) -> Iterator[Stretch]:
    """Yield the blocks that were stored, in as few stretches as what they have in common allows.

    Most of what decoding a block of some hundred rows takes is per call. Raises what `decode` does for one of them.
    """
    for alike, some in groupby(enumerate(payloads), lambda one: _alike(one[1])):
        chosen = list(some)
        stretch = _decode_alike([payload for _, payload in chosen]) if alike is not None and len(chosen) > 1 else None
        if stretch is None:
            for number, payload in chosen:
                block = decode(payload, place_of(number))
                yield Stretch(Block(block.keys, block.columns, block.deleted), [len(block.keys)])
        else:
            yield stretch


def _decode_alike(payloads: Sequence[bytes]) -> Stretch | None:
    """Decode blocks of one schema as one Arrow stream; None if one of them is not as it should be."""
    first = memoryview(payloads[0])
    batches = [memoryview(payload)[_length_of_schema(payload) : -len(_END)] for payload in payloads]
    stream = b"".join((first[: _length_of_schema(payloads[0])], *batches, _END))
    try:
        with ipc.open_stream(stream, options=IN_THIS_THREAD) as reader:
            table = reader.read_all()
        table.validate(full=True)
        counts = [len(chunk) for chunk in table.column(KEY).chunks]
        if len(counts) != len(payloads):
            return None
        return Stretch(_block_of(table.combine_chunks(), whole=False), counts)
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


def _alike(payload: bytes) -> str | None:
    """Return what blocks have in common that can be decoded together; None if this one cannot."""
    if not payload.endswith(_END) or _length_of_schema(payload) > len(payload) - len(_END):
        return None
    return _kind(payload[: _length_of_schema(payload)]).columns


def is_whole(payload: bytes) -> bool:
    """True if the stored block is a whole one, as far as it can be read; much quicker than decoding it."""
    return _kind(payload[: _length_of_schema(payload)]).whole


@dataclass(frozen=True, slots=True)
class _Kind:
    """The schema of a block: its `columns`, as a text, or None if this version cannot read it."""

    whole: bool
    columns: str | None


def _length_of_schema(payload: bytes) -> int:
    """Return how many bytes at the beginning describe the block, as it says there; all if that cannot be true."""
    if len(payload) < _BEGINNING.size:
        return len(payload)
    mark, length = _BEGINNING.unpack_from(payload)
    return _BEGINNING.size + length if mark == _CONTINUED and length > 0 else len(payload)


@lru_cache(maxsize=64)
def _kind(schema: bytes) -> _Kind:
    """Read what a schema says; remembered, as there are few kinds of blocks, and of each very many."""
    try:
        found = ipc.read_schema(pa.py_buffer(schema))
        metadata = found.metadata or {}
        readable = int(metadata.get(FORMAT, _VERSION + 1)) <= _VERSION
        return _Kind(WHOLE in metadata, found.to_string(show_schema_metadata=False) if readable else None)
    except (pa.ArrowException, OSError, ValueError):
        return _Kind(False, None)


def merge(payloads: Sequence[bytes], place: str) -> Iterator[bytes]:
    """Yield blocks that say what these say, given from the oldest to the newest; none if no key is left.

    No two of them speak of one key, and none is large. They say nothing about deleted keys: they may only stand where
    nothing older is.
    """
    merged = combined([decode(payload, place) for payload in payloads], place)
    encoder = Encoder(merged)
    for start in range(0, len(merged.keys), _MERGED_ROWS):
        yield encoder.encode(start, min(start + _MERGED_ROWS, len(merged.keys)), False)


def combined(blocks: Sequence[Block], place: str) -> Block:
    """Combine what these blocks say, given from the oldest to the newest: each key at most once, none deleted."""
    whole = max((which for which, block in enumerate(blocks) if block.whole), default=0)
    blocks = [block for block in blocks[whole:] if len(block.keys)]
    if not blocks:
        return Block(CLEAR.keys)
    if len(blocks) == 1 and blocks[0].deleted is None:
        return Block(blocks[0].keys, blocks[0].columns)
    return _newest(blocks, place)


def arrow_keys(keys: KeyColumn) -> pa.Array:
    """Return the canonical bytes of keys as a block has them; shares their memory."""
    valid = None if keys.null is None else pa.array(~keys.null).buffers()[1]
    if keys.width:
        data = keys.data[keys.offsets[0] : keys.offsets[-1]]
        return pa.Array.from_buffers(pa.binary(keys.width), len(keys), [valid, _buffer(data)])
    return pa.Array.from_buffers(pa.large_binary(), len(keys), [valid, _buffer(keys.offsets), _buffer(keys.data)])


def hashed(keys: pa.Array, key_type: KeyType) -> KeyColumn:
    """Return the keys of a block with their hashes. Shares their memory."""
    return _column(keys, lambda data, offsets, width, null: hash_column(key_type.tag, data, offsets, width, null))


def with_hashes(keys: pa.Array, hashes: NDArray[np.uint64]) -> KeyColumn:
    """Return the keys of a block with their hashes, which are known. Shares their memory."""
    return _column(keys, lambda *_: hashes)


def _column(keys: pa.Array, hashes: Callable[..., NDArray[np.uint64]]) -> KeyColumn:
    null = keys.is_null().to_numpy(zero_copy_only=False) if keys.null_count else None
    if pa.types.is_fixed_size_binary(keys.type):
        width = keys.type.byte_width
        data = _bytes(keys.buffers()[1])[keys.offset * width : (keys.offset + len(keys)) * width]
        offsets = np.arange(len(keys) + 1, dtype=np.int64) * width
        if null is not None:
            data = np.where(np.repeat(null, width), np.uint8(0), data)
    else:
        width, data = None, _bytes(keys.buffers()[2])
        offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys) + 1]
    return KeyColumn(data, offsets, hashes(data, offsets, width, null), width, null)


def chosen(block: Block, rows: NDArray[np.int64]) -> Block:
    """Return these rows of the block, in this order; not as a whole one."""
    columns = {name: column[rows] for name, column in block.columns.items()}
    deleted = None if block.deleted is None else block.deleted[rows]
    return Block(block.keys.take(pa.array(rows)), columns, deleted)


def sliced(block: Block, start: int, rows: int) -> Block:
    """Return so many rows of the block from `start` on; shares their memory."""
    columns = {name: column[start : start + rows] for name, column in block.columns.items()}
    deleted = None if block.deleted is None else block.deleted[start : start + rows]
    return Block(block.keys.slice(start, rows), columns, deleted)


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    """Join keys one after the other; at least one part."""
    if len({part.type for part in parts}) > 1:
        parts = [part.cast(pa.large_binary()) for part in parts]
    return pa.concat_arrays(parts)


def common_columns(blocks: Sequence[Block], place: str) -> list[str]:
    """Return the names of the columns that all these blocks have; raise `DamagedBlock` if they differ."""
    names = blocks[-1].columns.keys()
    if any(block.columns.keys() != names for block in blocks):
        raise DamagedBlock(f"blocks of one table have different columns ({place}); restore an older epoch")
    return list(names)


def _newest(blocks: Sequence[Block], place: str) -> Block:
    names = common_columns(blocks, place)
    keys = joined([block.keys for block in blocks])
    deleted = np.concatenate([deleted_in(block) for block in blocks])
    rows = np.sort(last_of_each(keys))
    rows = rows[~deleted[rows]]
    columns = {name: np.concatenate([block.columns[name] for block in blocks])[rows] for name in names}
    return Block(keys.take(pa.array(rows)), columns)


def last_of_each(keys: pa.Array) -> NDArray[np.int64]:
    """Return for each key the last row that has it, in the order in which the keys first come."""
    codes = keys.dictionary_encode(null_encoding="encode")
    last = np.zeros(len(codes.dictionary), dtype=np.int64)
    last[codes.indices.to_numpy()] = np.arange(len(keys))  # numpy keeps the last of several
    return last


def deleted_in(block: Block) -> NDArray[np.bool_]:
    """Return for each row of the block whether it is deleted."""
    return np.zeros(len(block.keys), dtype=np.bool_) if block.deleted is None else block.deleted


def as_keys(keys: pa.Array) -> pa.Array:
    """Return the same keys; raise `ValueError` if they cannot be those of a block."""
    if not (pa.types.is_large_binary(keys.type) or pa.types.is_fixed_size_binary(keys.type)):
        raise ValueError(f"its keys are of type {keys.type}")
    return keys


def _as_flags(deleted: pa.Array) -> NDArray[np.bool_]:
    if not pa.types.is_boolean(deleted.type) or deleted.null_count:
        raise ValueError(f"what says which keys are deleted is of type {deleted.type}")
    flags: NDArray[np.bool_] = deleted.to_numpy(zero_copy_only=False)
    return flags


def _block_of(table: pa.Table, *, whole: bool) -> Block:
    columns = {name: only_chunk(table.column(name)) for name in table.column_names}
    keys = columns.pop(KEY)
    deleted = columns.pop(_DELETED, None)
    return Block(
        as_keys(keys),
        {name: from_arrow(column) for name, column in columns.items()},
        None if deleted is None else _as_flags(deleted),
        whole,
    )


def only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column of a block, which has one record batch; raise `ValueError` if it has not."""
    if column.num_chunks != 1:
        raise ValueError(f"it has {column.num_chunks} record batches instead of one")
    return column.chunk(0)


def _buffer(array: Column) -> pa.Buffer:
    """Return the array's memory; that of a copy, if there are gaps between its items."""
    return pa.py_buffer(np.ascontiguousarray(array))


def _bytes(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def check_version(metadata: Mapping[bytes, bytes], newest: int, place: str) -> None:
    """Raise `NewerBlock` if the block's format is newer than this one, `ValueError` if it does not say its format."""
    version = metadata.get(FORMAT)
    if version is None:
        raise ValueError("it does not say which format it is in")
    if int(version) > newest:
        raise NewerBlock(
            f"a block has format {int(version)}, and this version reads up to {newest} ({place}); use a newer one"
        )
