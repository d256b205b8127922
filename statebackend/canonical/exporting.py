"""State out to its canonical tables, a batch at a time.

Invariant: every entry of the state is in exactly one row, and memory is bounded by a batch, or by what one key
group has in one namespace of a table of aggregates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from statebackend import entries
from statebackend.canonical.arrow_values import Natural
from statebackend.canonical.schema import (
    EXPIRES_AT,
    INDEX,
    KEY,
    KEY_GROUP,
    MAP_KEY,
    NAMESPACE,
    NAMESPACES,
    TIME,
    VALUE,
    encoded_column,
)
from statebackend.canonical.source import OneKey, StateSource
from statebackend.entries import BLOCK, ROW, TIMER, delimited
from statebackend.ids import KeyGroup
from statebackend.keys.columns import KeyColumn, canonical_column, decode_keys
from statebackend.keys.types import BrokenKey
from statebackend.states.map_keys import map_keys_of
from statebackend.states.namespaces import NotAWindow, Window
from statebackend.states.schema import StateKind, StateSpec
from statebackend.states.ttl import EXPIRY, NEVER, expiry_of
from statebackend.tables.format.blocks import Block, DamagedBlock, arrow_keys, combined, decode, hashed, where
from statebackend.tables.format.values_blocks import resolved
from statebackend.tables.values.accumulators import Column
from statebackend.tables.values.spec import EXPIRES

_ROWS: Final = 1 << 14
_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row to be. `part` is a map key's bytes, a place in a list or the time of a timer."""

    group: KeyGroup
    key: bytes | None
    namespace: bytes
    part: bytes | int
    payload: bytes


class StateExport:
    """The canonical table of one state: of all keys or of one, of all entries or of those alive at a time."""

    def __init__(self, source: StateSource, spec: StateSpec, key: OneKey | None = None, now: int | None = None) -> None:
        self._source, self._spec, self._key, self._now = source, spec, key, now
        self._form, self._values = source.form(spec)
        self._expiry_size = 0 if spec.expires is None else EXPIRY.size
        self.schema: Final = self._form.arrow
        """Columns and metadata of every batch."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return all rows, batch by batch. The source must not change meanwhile."""
        if self._spec.kind is StateKind.TABLE:
            return self._of_table()
        found = self._timers() if self._spec.kind is StateKind.TIMERS else self._rows()
        return (self._batch(chunk) for chunk in _chunks(found))

    # --- entries of one key each --------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[_Entry]:
        is_list, place, last = self._spec.kind is StateKind.LIST, 0, b""
        for group, name, payload in self._scan(ROW):
            if self._now is not None and self._expiry_size and expiry_of(payload) <= self._now:
                continue
            key, namespace, rest = entries.parse_row(name)
            part: bytes | int = rest
            if is_list:
                owner = name[: len(name) - len(rest)]
                place = place + 1 if owner == last else 0
                part, last = place, owner
            yield _Entry(group, key, namespace, part, payload)

    def _timers(self) -> Iterator[_Entry]:
        for group, name, payload in self._scan(TIMER):
            time, key, namespace = entries.parse_timer(name)
            if self._key is None or key == self._key.canonical:
                yield _Entry(group, key, namespace, time, payload)

    def _scan(self, form: int) -> Iterator[tuple[KeyGroup, bytes, bytes]]:
        key, scan = self._key, self._source.scans[self._spec.name]
        for group in self._source.groups if key is None else (key.group,):
            start = entries.head(group, self._spec.id, form)
            if key is not None and form == ROW:
                start += delimited(key.canonical)
            for name, payload in scan(start, entries.after(start)):
                yield group, name, payload

    def _batch(self, found: Sequence[_Entry]) -> pa.RecordBatch:
        keys = canonical_column([entry.key for entry in found], self._source.schema.key_type)
        columns: dict[str, pa.Array] = {
            NAMESPACE: pa.array([_namespace(entry.namespace) for entry in found], type=NAMESPACES),
            KEY_GROUP: pa.array([entry.group for entry in found], type=pa.uint16()),
        }
        match self._spec.kind:
            case StateKind.MAP:
                columns |= self._map_keys([_bytes(entry.part) for entry in found])
            case StateKind.LIST:
                columns[INDEX] = pa.array([entry.part for entry in found], type=pa.int64())
            case StateKind.TIMERS:
                columns[TIME] = pa.array([entry.part for entry in found], type=pa.int64())
            case _:
                pass
        if self._spec.codec is not None:
            columns |= self._said([entry.payload[self._expiry_size :] for entry in found])
            columns[EXPIRES_AT] = self._expiries([entry.payload for entry in found])
        return self._record_batch(keys, columns)

    def _map_keys(self, rests: Sequence[bytes]) -> dict[str, pa.Array]:
        natural = self._form.map_key
        if natural is None:
            return {MAP_KEY: pa.array(rests, type=pa.binary())}
        return _columns(MAP_KEY, natural, list(map(map_keys_of(natural.codec).decode, rests)), rests.__getitem__)

    def _said(self, data: Sequence[bytes]) -> dict[str, pa.Array]:
        natural, form = self._form.value, self._values
        if natural is None or form is None:
            return {VALUE: pa.array(data, type=pa.binary())}
        values = form.values_of_many(data)
        return _columns(VALUE, natural, values, lambda at: form.data(values[at]))

    def _expiries(self, payloads: Sequence[bytes]) -> pa.Array:
        if not self._expiry_size:
            return pa.nulls(len(payloads), pa.int64())
        return _times(np.fromiter(map(expiry_of, payloads), dtype=np.int64, count=len(payloads)))

    def _record_batch(self, keys: KeyColumn, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        columns[KEY] = decode_keys(keys, self._source.schema.key_type)
        try:
            columns[KEY].validate(full=True)
        except pa.ArrowInvalid as error:  # such as bytes of a text that are no UTF-8
            raise BrokenKey(
                f"state {self._spec.name!r}: a key is none of {self.schema.field(KEY).type}: {error}"
            ) from error
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    # --- tables of aggregates -----------------------------------------------------------------------------------------

    def _of_table(self) -> Iterator[pa.RecordBatch]:
        table = self._source.tables.get(self._spec.name)
        if table is not None:
            for namespace in table.namespaces():
                accumulated = table.accumulators(namespace)
                yield from self._keys_of(namespace, arrow_keys(accumulated.keys), accumulated.columns)
            return
        run: list[tuple[bytes, Block]] = []
        found = ((name, payload) for _, name, payload in self._scan(BLOCK))
        for name, payload in resolved(found, self._spec.name):
            if run and not name.startswith(entries.block_place(run[-1][0])):
                yield from self._of_blocks(run)
                run = []
            run.append((name, decode(payload, where(self._spec.name, name))))
        if run:
            yield from self._of_blocks(run)

    def _of_blocks(self, run: Sequence[tuple[bytes, Block]]) -> Iterator[pa.RecordBatch]:
        newest = run[-1][0]
        place = where(self._spec.name, newest)
        block = combined([block for _, block in run], place)
        if len(block.keys):
            found = {name: column.dtype for name, column in block.columns.items()}
            declared = {name: one.dtype for name, one in self._form.accumulators.items()}
            if found != declared:
                raise DamagedBlock(f"a block has columns {found} instead of {declared} ({place})")
            yield from self._keys_of(entries.parse_block(newest)[0], block.keys, block.columns)

    def _keys_of(self, namespace: bytes, keys: pa.Array, columns: Mapping[str, Column]) -> Iterator[pa.RecordBatch]:
        chosen = self._chosen(keys, columns)
        for start in range(0, len(chosen), _ROWS):
            rows = chosen[start : start + _ROWS]
            yield self._table_batch(
                namespace, keys.take(pa.array(rows)), {name: column[rows] for name, column in columns.items()}
            )

    def _chosen(self, keys: pa.Array, columns: Mapping[str, Column]) -> NDArray[np.int64]:
        """Return the places of the rows that are asked for."""
        chosen = np.ones(len(keys), dtype=np.bool_)
        if self._now is not None and EXPIRES in columns:
            chosen &= columns[EXPIRES].view(np.int64) > self._now
        if self._key is not None:
            wanted = pa.scalar(self._key.canonical, pa.large_binary())
            same = pc.is_null(keys) if self._key.canonical is None else pc.equal(keys.cast(pa.large_binary()), wanted)
            chosen &= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return np.flatnonzero(chosen)

    def _table_batch(self, namespace: bytes, keys: pa.Array, columns: Mapping[str, Column]) -> pa.RecordBatch:
        hashed_keys, count = hashed(keys, self._source.schema.key_type), len(keys)
        wanted = self._form.accumulators
        found = {name: pa.array(column, wanted[name].arrow) for name, column in columns.items() if name != EXPIRES}
        found[NAMESPACE] = pa.array([_namespace(namespace)] * count, type=NAMESPACES)
        found[KEY_GROUP] = pa.array(hashed_keys.groups(self._source.schema.max_parallelism))
        expires = columns.get(EXPIRES)
        found[EXPIRES_AT] = pa.nulls(count, pa.int64()) if expires is None else _times(expires.view(np.int64))
        return self._record_batch(hashed_keys, found)


def _chunks(found: Iterator[_Entry]) -> Iterator[list[_Entry]]:
    chunk: list[_Entry] = []
    size = 0
    for entry in found:
        chunk.append(entry)
        size += len(entry.payload) + len(entry.key or b"") + (len(entry.part) if isinstance(entry.part, bytes) else 8)
        if len(chunk) >= _ROWS or size >= _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _columns(
    column: str, natural: Natural, values: Sequence[object], encode: Callable[[int], bytes]
) -> dict[str, pa.Array]:
    """Return a column and, where Arrow cannot say all values, the one with the bytes of those."""
    said, left_out = natural.said(values)
    if natural.total:
        return {column: said}
    data: list[bytes | None] = [None] * len(values)
    for at in left_out:
        data[at] = encode(at)
    return {column: said, encoded_column(column): pa.array(data, type=pa.binary())}


@lru_cache(1 << 10)
def _namespace(namespace: bytes) -> tuple[int | None, int | None, bytes | None] | None:
    if not namespace:
        return None
    try:
        window = Window.of(namespace)
    except NotAWindow:
        return None, None, namespace
    return window.start, window.end, None


def _times(expiries: NDArray[np.int64]) -> pa.Array:
    return pa.array(expiries, mask=expiries == NEVER)


def _bytes(part: bytes | int) -> bytes:
    assert isinstance(part, bytes)
    return part
