"""The form of one state's values in its rows: an expiry if it has a time to live, the codec's version, the value.

Invariant: every payload says which version of the codec wrote it, so files of several versions of a program
can be read together; and every error says of which operator and state it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from statebackend import entries
from statebackend.entries import StateId
from statebackend.errors import ProgramError
from statebackend.ids import Uid
from statebackend.keygroups import key_group_of
from statebackend.keys.types import KeyType
from statebackend.states.codecs import LARGEST_VERSION, Codec, NotEncodable
from statebackend.states.ttl import EXPIRY, Ttl, alive, expiry_of

T = TypeVar("T")


class WrongValueType(ProgramError, TypeError):
    """A value that is not of the type which the state was declared with."""

    def __init__(self, uid: Uid, state: str, declared: str, reason: str) -> None:
        super().__init__(f"{uid}: state {state!r} is declared as {declared}: {reason}")
        self.uid, self.state, self.declared = uid, state, declared


class UnreadableValue(ProgramError, ValueError):
    """A value in a file that the declared codec cannot read."""


class UnknownCodecVersion(UnreadableValue):
    """A value that another version of the codec wrote: a newer one, or one older than it migrates."""


@dataclass(frozen=True, slots=True)
class RowEntry:
    """One row of a state, for people and for other backends.

    `part` is the map key, or the number by which the elements of a list are in order; None for a single value.
    """

    key: object
    namespace: bytes
    part: Hashable
    value: object
    expires: int | None


class RowForm(Generic[T]):
    """The payloads of one state's rows."""

    __slots__ = ("_expiry_size", "_version", "codec", "id", "key_type", "name", "ttl", "uid")

    def __init__(
        self, uid: Uid, name: str, state: StateId, key_type: KeyType, codec: Codec[T], ttl: Ttl | None = None
    ) -> None:
        if not 1 <= codec.oldest <= codec.version <= LARGEST_VERSION:
            raise ValueError(
                f"{uid}: state {name!r}: the codec {codec.name} is at version {codec.version} and reads from version "
                f"{codec.oldest}: expected 1 <= oldest <= version <= {LARGEST_VERSION}"
            )
        self.uid, self.name, self.id, self.key_type, self.codec, self.ttl = uid, name, state, key_type, codec, ttl
        self._version: Final = bytes((codec.version,))
        self._expiry_size = 0 if ttl is None else EXPIRY.size

    def accept(self, value: object) -> T:
        """Return the value to keep for this one; raise `WrongValueType` if it is not of the declared type."""
        try:
            return self.codec.accept(value)
        except NotEncodable as error:
            raise WrongValueType(self.uid, self.name, self.codec.name, str(error)) from error

    def data(self, value: T) -> bytes:
        """Encode a value, after the version of the codec: a payload without the expiry."""
        return self._version + self.codec.encode(value)

    def value(self, data: bytes) -> T:
        """Decode what `data` wrote, now or in an older version; raise `UnreadableValue` if that cannot be read."""
        version = data[:1]
        try:
            if version == self._version:
                return self.codec.decode(data[1:])
            if version and self.codec.oldest <= version[0] < self.codec.version:
                return self.codec.migrate(data[1:], version[0])
        except Exception as error:
            raise UnreadableValue(
                f"{self.uid}: state {self.name!r}: {len(data)} bytes are no value of {self.codec.name} version "
                f"{version[0]} ({error}): the codec was changed without a new version, or the file is damaged"
            ) from error
        raise UnknownCodecVersion(
            f"{self.uid}: state {self.name!r}: a value was written by version {version[0] if version else 'none'} of "
            f"{self.codec.name}; this program reads versions {self.codec.oldest} to {self.codec.version}"
        )

    def payload(self, value: T, expires: int | None) -> bytes:
        """Return the payload of a row. An expiry is given exactly if the state has a time to live."""
        data = self.data(value)
        return data if expires is None else EXPIRY.pack(expires) + data

    def value_in(self, payload: bytes) -> T:
        """Decode the value in a payload."""
        return self.value(payload[self._expiry_size :])

    def data_of_many(self, values: Sequence[T]) -> list[bytes]:
        """Do as `data` for each value, faster."""
        packed = self.codec.packed
        if packed is not None:
            try:
                return self._packed(np.array(values, dtype=f"<{packed}"))
            except OverflowError:
                pass
        version, encode = self._version, self.codec.encode
        return [version + encode(value) for value in values]

    def values_of_many(self, data: Sequence[bytes]) -> list[T]:
        """Do as `value` for each item, faster."""
        packed = self.codec.packed
        if packed is not None and data:
            dtype = np.dtype(f"<{packed}")
            size = 1 + dtype.itemsize
            if set(map(len, data)) == {size}:
                rows = np.frombuffer(b"".join(data), dtype=np.uint8).reshape(len(data), size)
                if np.all(rows[:, 0] == self._version[0]):
                    values: list[T] = np.ascontiguousarray(rows[:, 1:]).view(dtype).reshape(-1).tolist()
                    return values
        return [self.value(item) for item in data]

    def _packed(self, values: NDArray[np.generic]) -> list[bytes]:
        size = 1 + values.dtype.itemsize
        rows = np.empty((len(values), size), dtype=np.uint8)
        rows[:, 0] = self._version[0]
        rows[:, 1:] = values.view(np.uint8).reshape(len(values), size - 1)
        data = rows.tobytes()
        return [data[at : at + size] for at in range(0, len(data), size)]

    def renewed(self, payload: bytes, expires: int) -> bytes:
        """Return the payload of a state with a time to live, with another expiry."""
        return EXPIRY.pack(expires) + payload[EXPIRY.size :]

    def alive(self, payload: bytes, now: int) -> bool:
        """True if a row is still visible at a time (of the kind that its time to live counts in)."""
        return self.ttl is None or alive(payload, now)

    def entry(self, name: bytes, payload: bytes, part: Hashable = None) -> RowEntry:
        """Decode a row into key, namespace and value."""
        key, namespace, _ = entries.parse_row(name)
        expires = None if self.ttl is None else expiry_of(payload)
        return RowEntry(self.key_type.decode(key), namespace, part, self.value_in(payload), expires)

    def row(self, entry: RowEntry, max_parallelism: int, rest: bytes = b"") -> tuple[bytes, bytes]:
        """Encode an entry as a row: the inverse of `entry`."""
        if (entry.expires is None) != (self.ttl is None):
            raise WrongValueType(
                self.uid, self.name, self.codec.name, f"an entry {'lacks' if self.ttl else 'has'} an expiry"
            )
        canonical = self.key_type.encode(entry.key)
        group = key_group_of(self.key_type.hash_of(canonical), max_parallelism)
        name = entries.row(group, self.id, canonical, entry.namespace, rest)
        return name, self.payload(self.accept(entry.value), entry.expires)
