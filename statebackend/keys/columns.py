"""A batch of keys in their canonical bytes, with their stable hashes: what every vectorised look-up starts from.

Invariant: two keys of one declared type are equal exactly if their canonical bytes are, or if both are null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.keys.arrow import packed, unpacked
from statebackend.keys.hashing import hash_column
from statebackend.keys.packing import Packed, of_lengths, of_width
from statebackend.keys.types import BrokenKey, KeyType


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumn:
    """The keys of a batch, one after the other.

    The canonical bytes of key i are `data[offsets[i]:offsets[i + 1]]`; `offsets` has one more entry than there are
    keys and need not begin at 0. `width` is set if all keys have that many bytes, which lie without gaps. Where
    `null` is true the key is null and its bytes are empty (or, with a `width`, zeros that mean nothing).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    width: int | None = None
    null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.hashes)

    def groups(self, max_parallelism: int) -> NDArray[np.uint16]:
        """Return the key group of each key: `key_group_of` of its hash."""
        high, low = self.hashes >> np.uint64(32), self.hashes & np.uint64(0xFFFFFFFF)
        scale = np.uint64(max_parallelism)
        return ((high * scale + ((low * scale) >> np.uint64(32))) >> np.uint64(32)).astype(np.uint16)

    def key(self, index: int) -> bytes | None:
        """Return the canonical bytes of one key, None if it is null."""
        if self.null is not None and self.null[index]:
            return None
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def keys(self) -> list[bytes | None]:
        """Return the canonical bytes of all keys, None for the null key."""
        return [self.key(index) for index in range(len(self))]


def key_column(array: pa.Array | pa.ChunkedArray, key_type: KeyType) -> KeyColumn:
    """Return the keys in a column of Arrow, each as `key_type.encode` and `key_type.hash` have it.

    The bytes are those in Arrow's memory, which stays alive with them, where they lie there as they should.
    `WrongKeyType` if the column's type may hold keys that the declared one does not, or holds such a key.
    """
    return _hashed(packed(array, key_type), key_type)


def canonical_column(keys: Sequence[bytes | None], key_type: KeyType) -> KeyColumn:
    """Return the keys with these canonical bytes; `BrokenKey` if one has not as many as each key of the type has."""
    null = np.fromiter((key is None for key in keys), dtype=np.bool_, count=len(keys))
    lengths = np.fromiter((0 if key is None else len(key) for key in keys), dtype=np.int64, count=len(keys))
    nulls = null if null.any() else None
    width = key_type.width
    if width is not None:
        if np.any(lengths[~null] != width):
            raise BrokenKey(f"not every key of type {key_type.name} has {width} bytes")
        filler = bytes(width)
        data = b"".join([filler if key is None else key for key in keys])
        return _hashed(of_width(np.frombuffer(data, dtype=np.uint8), width, nulls), key_type)
    offsets = np.zeros(len(keys) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    data = b"".join([key for key in keys if key is not None])
    return _hashed(of_lengths(np.frombuffer(data, dtype=np.uint8), offsets, nulls), key_type)


def canonical_order(
    hashes: NDArray[np.uint64], bytes_at: Callable[[NDArray[np.int64]], Sequence[bytes | None]]
) -> NDArray[np.int64]:
    """Return the places of different keys by their hashes and, where these are equal, by their bytes; null comes first.

    `bytes_at` gives the canonical bytes at places. The order follows from the keys alone, not from how they came here.
    """
    # numpy sorts 16 bits by counting: twice that is quicker than comparing all 64.
    order = np.argsort((hashes >> np.uint64(32)).astype(np.uint16), kind="stable")
    order = order[np.argsort((hashes >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
    tied = _tied(hashes[order] >> np.uint64(32))
    if len(tied):
        some = order[tied]
        order[tied] = some[np.argsort(hashes[some])]
        tied = tied[_tied(hashes[order[tied]])]
    if len(tied):
        some = order[tied]
        keys = zip(hashes[some].tolist(), bytes_at(some), strict=True)
        ranks = [(of, key is not None, key or b"") for of, key in keys]
        order[tied] = some[sorted(range(len(some)), key=ranks.__getitem__)]
    return order


def _tied(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the places of ascending values that are equal to one beside them."""
    same = values[1:] == values[:-1]
    tied = np.zeros(len(values), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    return np.flatnonzero(tied)


def decode_keys(keys: KeyColumn, key_type: KeyType) -> pa.Array:
    """Return these keys as a column of Arrow, of type `key_type.arrow`; `BrokenKey` if they are of another type."""
    return unpacked(Packed(keys.data, keys.offsets, keys.width, keys.null), key_type)


def _hashed(keys: Packed, key_type: KeyType) -> KeyColumn:
    hashes = hash_column(key_type.tag, keys.data, keys.offsets, keys.width, keys.null)
    return KeyColumn(keys.data, keys.offsets, hashes, keys.width, keys.null)
