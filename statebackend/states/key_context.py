"""The key, the namespace and the times that state is read and written at right now.

Invariant: whatever a state does, it does for the key and namespace that were set last; a key of the wrong type
is refused when it is set, and a key of another partition before anything is read or written under it.

The names of the rows of many keys are made at once, by columns; each is the one that `entries.row` gives.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import ClassVar, Final, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa

from statebackend import entries
from statebackend.entries import StateId, delimited
from statebackend.errors import ProgramError
from statebackend.ids import KeyGroup, Uid
from statebackend.keygroups import KeyGroupRange, key_group_of
from statebackend.keys.columns import KeyColumn, canonical_column, key_column
from statebackend.keys.types import BinaryKey, IntegerKey, KeyType, StringKey
from statebackend.states.namespaces import NO_NAMESPACE

_FEW: Final = 12
"""So few names are made faster one by one."""

_SHORT: Final = tuple(delimited(bytes(size))[:1] for size in range(100))
"""The bytes before a short part that is delimited, by its size."""


def row_names(
    key_type: KeyType, max_parallelism: int, state: StateId, keys: Sequence[object], namespaces: Sequence[bytes]
) -> list[bytes]:
    """Return the names of these keys' rows; `namespaces` has one for each key, or one for all.

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
    """Return the Python type whose values Arrow takes for such keys, equal exactly if the keys are; None if none is."""
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
    """Make all names as the rows of one matrix, and cut it apart."""
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


Address: TypeAlias = Hashable
"""A key with its namespace, for a dict: two are equal exactly if both parts are.

That is the key itself if it is a str, bytes or an int, else its canonical bytes (Python says that 1 and 1.0 are
equal, NaN and NaN are not, and the like); and a pair with the namespace if there is one.
"""

NO_WATERMARK: Final = -(1 << 63)
"""The event time before the first watermark."""

_REMEMBERED: Final = 1 << 14


class HasMethods(Protocol):
    """A state that says in words which methods it has."""

    methods: ClassVar[str]


def no_such_method(state: HasMethods, name: str) -> AttributeError:
    """Return the error for a method that a state does not have."""
    return AttributeError(f"a {type(state).__name__.removeprefix('Encoded')} has no {name!r}; it has {state.methods}")


class ForeignKey(ProgramError, LookupError):
    """A key whose key group another partition owns: it was routed wrongly, or by another maximum parallelism."""


class NoKey(ProgramError, LookupError):
    """State was used before a key was set."""


class _Unset:
    def __repr__(self) -> str:
        return "no key"


_UNSET: Final = _Unset()


class KeyContext:
    """The context that all keyed states of an operator in a partition share. For one thread.

    `watermark` and `processing_time` are milliseconds, set by the host of the operator; no clock is read here.
    `restored_epoch` is the number of the epoch that the state was restored from, 0 for a new one. What is written
    from here on sorts behind all that was written up to that epoch.
    """

    __slots__ = (
        "_group", "_high", "_key", "_located", "_low", "_places", "_quick", "_tail", "address", "groups", "key",
        "key_type", "max_parallelism", "namespace", "processing_time", "restored_epoch", "uid", "watermark",
    )  # fmt: skip

    def __init__(
        self, uid: Uid, key_type: KeyType, max_parallelism: int, groups: KeyGroupRange, restored_epoch: int = 0
    ) -> None:
        self.uid = uid
        self.key_type = key_type
        self.max_parallelism = max_parallelism
        self.groups = groups
        self.restored_epoch = restored_epoch
        self.begin()
        self._quick = arrow_ready(key_type)
        self._low, self._high = _bounds(key_type)
        self._places: dict[Address, tuple[KeyGroup, bytes]] = {}
        self._located: Address = object()
        self._group = KeyGroup(0)
        self._tail = b""

    def begin(self) -> None:
        """Unset the key and the namespace, and go back to before all times."""
        self.watermark = NO_WATERMARK
        self.processing_time = 0
        self.namespace = NO_NAMESPACE
        self.key: object = _UNSET
        self.address: Address = _UNSET
        self._key: Hashable = _UNSET

    def set_key(self, key: object) -> None:
        """Set the current key; raise `WrongKeyType` if the declared type does not hold it exactly."""
        kind = type(key)
        if kind is not self._quick or (kind is int and not self._low <= key <= self._high):  # type: ignore[operator]
            key = self._normal(key)
        self.key = self._key = key
        self.address = (key, self.namespace) if self.namespace else key

    def set_namespace(self, namespace: bytes) -> None:
        """Set the current namespace, such as a window; `NO_NAMESPACE` for none."""
        self.namespace = namespace
        self.address = (self._key, namespace) if namespace else self._key

    def _normal(self, key: object) -> Hashable:
        """Return the form of a key that stands in addresses; raise `WrongKeyType` as `set_key` does."""
        canonical = self.key_type.encode(key)
        if self._quick is None:
            return canonical
        normal = self.key_type.decode(canonical)
        assert isinstance(normal, Hashable)
        return normal

    @property
    def group(self) -> KeyGroup:
        """Return the key group of the current key; raise `ForeignKey` if it is not ours."""
        self._locate()
        return self._group

    @property
    def canonical(self) -> bytes | None:
        """Return the canonical bytes of the current key, None for the null key; raise `NoKey` if none was set."""
        if self._key is _UNSET:
            raise NoKey(f"{self.uid}: no key was set")
        return self._canonical(self._key)

    def row(self, state: StateId) -> bytes:
        """Return how the names of the current key's rows begin in the current namespace; `ForeignKey` if not ours."""
        if self._located is not self.address:
            self._locate()
        return entries.head(self._group, state, entries.ROW) + self._tail

    def addresses(self, keys: Sequence[object]) -> list[Address]:
        """Return the addresses of these keys in the current namespace, each once; `WrongKeyType` as `set_key` does."""
        namespace = self.namespace
        normal = dict.fromkeys(keys if self._all_quick(keys) else [self._normal(key) for key in keys])
        return [(key, namespace) for key in normal] if namespace else list(normal)

    def _all_quick(self, keys: Sequence[object]) -> bool:
        """True if all keys stand in addresses as they are."""
        if set(map(type, keys)) != {self._quick}:
            return False
        if self._quick is not int:
            return True
        numbers = cast("Sequence[int]", keys)
        return self._low <= min(numbers) and max(numbers) <= self._high

    def rows(self, state: StateId, addresses: Sequence[Address]) -> list[bytes]:
        """Return the names of the rows at these addresses. Changes nothing, and may be called by any thread."""
        if not any(type(address) is tuple for address in addresses):
            return row_names(self.key_type, self.max_parallelism, state, addresses, (NO_NAMESPACE,))
        parts = [address if isinstance(address, tuple) else (address, NO_NAMESPACE) for address in addresses]
        keys, namespaces = [key for key, _ in parts], [namespace for _, namespace in parts]
        return row_names(self.key_type, self.max_parallelism, state, keys, namespaces)

    def check_ours(self, names: Sequence[bytes], addresses: Sequence[Address]) -> None:
        """Refuse, with `ForeignKey`, names whose key group is not ours."""
        first, end = entries.bounds(self.groups)
        if not first <= min(names) <= max(names) < end:
            for name, address in zip(names, addresses, strict=True):
                if not first <= name < end:
                    raise self._foreign(entries.group_of(name), address)

    def _canonical(self, key: Hashable) -> bytes | None:
        if self._quick is not None:
            return self.key_type.encode(key)
        assert key is None or isinstance(key, bytes)
        return key

    def _locate(self) -> None:
        address = self.address
        place = self._places.get(address)
        if place is None:
            canonical = self.canonical
            group = key_group_of(self.key_type.hash_of(canonical), self.max_parallelism)
            if group not in self.groups:
                raise self._foreign(group, address)
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[address] = place = (group, delimited(canonical) + delimited(self.namespace))
        self._group, self._tail = place
        self._located = address

    def _foreign(self, group: KeyGroup, address: Address) -> ForeignKey:
        return ForeignKey(
            f"{self.uid}: the key {address!r} is of key group {group} (of {self.max_parallelism}), but this "
            f"partition has {self.groups}: its record was routed by another parallelism, or by a type that is not "
            f"{self.key_type.name}"
        )


def _bounds(key_type: KeyType) -> tuple[int, int]:
    if not isinstance(key_type, IntegerKey):
        return 0, -1
    bits = key_type.bits
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if key_type.signed else (0, (1 << bits) - 1)
