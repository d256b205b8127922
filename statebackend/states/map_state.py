"""A map per key and namespace, one row per entry, so that a change costs what it changes.

Invariant: iterating gives the entries that were there when it began, sorted by the bytes of their map keys
(numbers, texts, bytes and days as one expects), whatever the caller changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from statebackend.entries import parse_row
from statebackend.states.codecs import NotEncodable
from statebackend.states.map_keys import MapKeys
from statebackend.states.part_rows import PartRows, PartState
from statebackend.states.row_form import RowEntry, WrongValueType
from statebackend.states.write_back import ABSENT

K = TypeVar("K")
V = TypeVar("V")


class MapHandle(PartState[V], Generic[K, V]):
    """The map of the current key and namespace."""

    __slots__ = ("_keys",)

    methods = "get, put, remove, in, items, keys and clear"

    def __init__(self, rows: PartRows[V], keys: MapKeys[K]) -> None:
        super().__init__(rows)
        self._keys = keys

    def get(self, key: K) -> V | None:
        """Return the value under a map key, None if there is none."""
        value = self._rows.read(self._rest(key))
        return None if value is ABSENT else value

    def put(self, key: K, value: V) -> None:
        """Set the value under a map key; `WrongValueType` if one of them is not of the declared type."""
        self._rows.write(self._rest(key), value)

    def remove(self, key: K) -> None:
        """Remove a map key, which need not be there."""
        self._rows.remove(self._rest(key))

    def __contains__(self, key: K) -> bool:
        return self._rows.has(self._rest(key))

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield map keys and their values."""
        decode = self._keys.decode
        return ((decode(rest), value) for rest, value in self._rows.parts())

    def keys(self) -> Iterator[K]:
        """Yield the map keys. Does not count as reading the values."""
        return map(self._keys.decode, self._rows.rests())

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def decode_entry(self, name: bytes, payload: bytes) -> RowEntry:
        """Decode a row into key, namespace, map key and value."""
        return self._rows.form.entry(name, payload, cast("None", self._keys.decode(parse_row(name)[2])))

    def encode_entry(self, entry: RowEntry) -> tuple[bytes, bytes]:
        """Encode an entry as a row: the inverse of `decode_entry`."""
        return self._rows.form.row(entry, self._rows.context.max_parallelism, self._rest(entry.part))

    def _rest(self, key: object) -> bytes:
        try:
            return self._keys.encode(key)
        except NotEncodable as error:
            form = self._rows.form
            raise WrongValueType(form.uid, form.name, f"a map of {self._keys.name}", str(error)) from error
