"""The names of the rows of many keys at once, hashed and put together by columns.

What always holds: each name is the one that `entries.row` gives for the key's canonical bytes, its group and its
namespace.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from statebackend import entries
from statebackend.entries import StateId, delimited
from statebackend.keygroups import key_group_of
from statebackend.keys.columns import KeyColumn, canonical_column, key_column
from statebackend.keys.types import BinaryKey, IntegerKey, KeyType, StringKey

_FEW: Final = 12
"""So few names are made faster one by one."""

_SHORT: Final = tuple(delimited(bytes(size))[:1] for size in range(100))
"""What stands before a short part that is delimited, by its size."""


def row_names(
    key_type: KeyType, max_parallelism: int, state: StateId, keys: Sequence[object], namespaces: Sequence[bytes]
) -> list[bytes]:
    """The names of these keys' rows in their namespaces: one for each key, or one for all.

    The keys are Python objects of the types that `arrow_ready` names, or else canonical bytes.
    """
    if len(keys) < _FEW:
        shared = namespaces[0] if len(namespaces) == 1 else None
        return [
            _name(key_type, max_parallelism, state, key, namespaces[at] if shared is None else shared)
            for at, key in enumerate(keys)
        ]
    if arrow_ready(key_type) is not None:
        column = key_column(_array(keys, key_type), key_type)
    else:
        column = canonical_column([_canonical(key) for key in keys], key_type)
    tails = [delimited(namespace) for namespace in namespaces]
    if column.width is not None and column.null is None and len(tails) == 1:
        return _equally_long(column, max_parallelism, state, column.width, tails[0])
    return _one_by_one(column, max_parallelism, state, tails)


def arrow_ready(key_type: KeyType) -> type | None:
    """The plain Python type whose values Arrow takes for such keys, and which are equal exactly if the keys are."""
    match key_type:
        case IntegerKey():
            return int
        case StringKey():
            return str
        case BinaryKey(size=None):
            return bytes
        case _:
            return None


def _array(keys: Sequence[object], key_type: KeyType) -> pa.Array:
    if arrow_ready(key_type) is int and None not in keys:
        return pa.array(np.array(keys, dtype=key_type.arrow.to_pandas_dtype()))
    return pa.array(keys, type=key_type.arrow)


def _canonical(key: object) -> bytes | None:
    assert key is None or isinstance(key, bytes)
    return key


def _name(key_type: KeyType, max_parallelism: int, state: StateId, key: object, namespace: bytes) -> bytes:
    canonical = _canonical(key) if arrow_ready(key_type) is None else key_type.encode(key)
    group = key_group_of(key_type.hash_of(canonical), max_parallelism)
    return entries.row(group, state, canonical, namespace)


def _heads(groups: np.ndarray[tuple[int], np.dtype[np.uint16]], state: StateId) -> dict[int, bytes]:
    return {group: entries.head(group, state, entries.ROW) for group in np.unique(groups).tolist()}


def _equally_long(column: KeyColumn, max_parallelism: int, state: StateId, width: int, tail: bytes) -> list[bytes]:
    """All names as the rows of one matrix, cut apart."""
    count = len(column)
    length = delimited(bytes(width))[: -width or None]
    start, size = entries.HEAD_SIZE, entries.HEAD_SIZE + len(length) + width + len(tail)
    names = np.empty((count, size), dtype=np.uint8)
    names[:] = np.frombuffer(entries.head(0, state, entries.ROW) + length + bytes(width) + tail, dtype=np.uint8)
    names[:, :2] = column.groups(max_parallelism).astype(">u2").view(np.uint8).reshape(count, 2)
    first = int(column.offsets[0])
    at = start + len(length)
    names[:, at : at + width] = column.data[first : first + count * width].reshape(count, width)
    data = names.tobytes()
    return [data[at : at + size] for at in range(0, len(data), size)]


def _one_by_one(column: KeyColumn, max_parallelism: int, state: StateId, tails: Sequence[bytes]) -> list[bytes]:
    groups = column.groups(max_parallelism)
    heads = _heads(groups, state)
    offsets = column.offsets.tolist()
    first = offsets[0]
    data = column.data[first : offsets[-1]].tobytes()
    if column.null is None and int(np.diff(column.offsets).max(initial=0)) < len(_SHORT):
        parts = [_SHORT[end - start] + data[start - first : end - first] for start, end in pairwise(offsets)]
    else:
        parts = [delimited(column.key(at)) for at in range(len(column))]
    if len(tails) == 1:
        tail = tails[0]
        return [heads[group] + part + tail for group, part in zip(groups.tolist(), parts, strict=True)]
    return [heads[group] + part + tail for group, part, tail in zip(groups.tolist(), parts, tails, strict=True)]
