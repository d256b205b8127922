"""Blocks of tables whose keys stay: the keys are stored once, and after that accumulators alone, which refer to them.

Invariant: values say all there is of their group and namespace. Older blocks do not count, except for the kept keys
that they refer to: their rows have these accumulators, all of them, and what other keys there are is in the values
themselves. Kept keys are never written anew, only copied as they are.

For kept keys to be there as long as values refer to them, it is enough that two sides keep a rule, each for itself.
A cut writes values that refer to the keys of an epoch only if none of these has been gone at any cut since. And a base
that is made of entries keeps the newest of their keys if all of them are still there, whichever entries say so: see
`settled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statebackend import entries
from statebackend.tables.format.blocks import (
    FORMAT,
    IN_THIS_THREAD,
    KEY,
    WHOLE,
    Block,
    DamagedBlock,
    Streams,
    as_keys,
    check_version,
    chosen,
    common_columns,
    damage_named,
    decode,
    deleted_in,
    encode,
    is_whole,
    joined,
    last_of_each,
    only_chunk,
    sliced,
)
from statebackend.tables.values.accumulators import Column, from_arrow, to_arrow

_VERSION: Final = 2
"""Versions that know of no values read up to 1."""

_KEYS_OF: Final = b"epochcut.keys_of"
_EPOCH: Final = b"epochcut.epoch"

Entry = tuple[bytes, bytes]

Find = Callable[[bytes, bytes], Iterable[Entry]]
"""Gives the entries from one name up to, not including, another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The accumulators at an epoch of the keys that an earlier one has kept, and other keys with theirs, if any."""

    keys_of: int
    epoch_number: int
    columns: Mapping[str, Column]
    others: Block | None = None


class KeysEncoder:
    """Makes kept keys of parts of many keys, as the cut of this epoch keeps them."""

    def __init__(self, keys: pa.Array, epoch_number: int) -> None:
        metadata = {FORMAT: b"%d" % _VERSION, _KEYS_OF: b"%d" % epoch_number}
        self._streams = Streams(pa.record_batch([keys], names=[KEY]), metadata)

    def encode(self, start: int, end: int) -> bytes:
        """Return the keys from `start` up to, not including, `end` as they are stored."""
        return self._streams.of(start, end)


class ValuesEncoder:
    """Makes values of parts of many accumulators, all of one epoch and of keys that one epoch has kept."""

    def __init__(self, columns: Mapping[str, Column], keys_of: int, epoch_number: int) -> None:
        rows = pa.record_batch(list(map(to_arrow, columns.values())), names=list(columns))
        metadata = {
            FORMAT: b"%d" % _VERSION,
            WHOLE: b"1",
            _KEYS_OF: b"%d" % keys_of,
            _EPOCH: b"%d" % epoch_number,
        }
        self._rows = len(rows)
        self._streams = Streams(rows, metadata)

    def encode(self, start: int, end: int | None, others: bytes = b"") -> bytes:
        """Return the rows from `start` up to, not including, `end` as stored, and after them a block of other keys."""
        return self._streams.of(start, self._rows if end is None else end) + others


def decode_keys(payload: bytes, place: str) -> pa.Array:
    """Decode the keys that were kept; raise `DamagedBlock` or `NewerBlock`, which name the place."""
    with damage_named(place), ipc.open_stream(payload, options=IN_THIS_THREAD) as stream:
        check_version(stream.schema.metadata or {}, _VERSION, place)
        table = stream.read_all()
        table.validate(full=True)
        return as_keys(only_chunk(table.column(KEY)))


def decode_values(payload: bytes, place: str) -> Values:
    """Decode the values that were stored; raise `DamagedBlock` or `NewerBlock`, which name the place."""
    with damage_named(place):
        source = pa.BufferReader(payload)
        with ipc.open_stream(source, options=IN_THIS_THREAD) as stream:
            metadata = stream.schema.metadata or {}
            check_version(metadata, _VERSION, place)
            table = stream.read_all()
            keys_of, epoch_number = int(metadata[_KEYS_OF]), int(metadata[_EPOCH])
            end = source.tell()
        table.validate(full=True)
        columns = {name: from_arrow(only_chunk(table.column(name))) for name in table.column_names}
        return Values(keys_of, epoch_number, columns, decode(payload[end:], place) if end < len(payload) else None)


@dataclass(slots=True)
class _Place:
    """The known part of one group and namespace of a state, whose entries arrive in order."""

    start: bytes
    keys: dict[int, bytes] = field(default_factory=dict)
    """By the epoch that has kept them."""
    newest: bytes = b""
    """The place of the newest values among the blocks; the blocks before it do not count."""
    payload: bytes = b""
    values: Values | None = None
    is_said: bool = False

    @property
    def group(self) -> tuple[int, entries.StateId, bytes]:
        """Return the group, the state and the namespace."""
        group, state, _ = entries.parse_head(self.start)
        return group, state, entries.undelimited(self.start, entries.HEAD_SIZE)[0] or b""

    def take(self, name: bytes, payload: bytes, table: str) -> None:
        """Take kept keys, or values."""
        if entries.are_kept_keys(name):
            self.keys[entries.number_of(name)] = payload
            return
        values = decode_values(payload, self.said(table))
        name = entries.block(*self.group, values.epoch_number, of_base=entries.number_of(name) == 1)
        if name > self.newest:
            self.newest, self.payload, self.values = name, payload, values

    def find_keys(self, find: Find) -> None:
        """Look for the keys that the newest values refer to, if they have not come."""
        if self.values is not None and self.values.keys_of not in self.keys:
            group, state, namespace = self.group
            start = entries.kept_keys(group, state, namespace, self.values.keys_of)
            self.keys.update((self.values.keys_of, payload) for _, payload in find(start, entries.after(start)))

    def block(self, table: str) -> Block:
        """Return the kept keys with the newest values, and the others; raise `DamagedBlock` if they do not fit."""
        values, place = self.values, self.said(table)
        if values is None:
            raise DamagedBlock(f"keys have no accumulators ({place}); restore an older epoch")
        payload = self.keys.get(values.keys_of)
        if payload is None:
            raise DamagedBlock(
                f"accumulators of epoch {values.epoch_number} refer to keys of epoch {values.keys_of}, which are not "
                f"there ({place}); restore an older epoch"
            )
        keys = decode_keys(payload, place)
        if any(len(column) != len(keys) for column in values.columns.values()):
            raise DamagedBlock(
                f"accumulators of epoch {values.epoch_number} are not as many as the {len(keys)} keys of epoch "
                f"{values.keys_of} ({place}); restore an older epoch"
            )
        kept = Block(keys, values.columns, whole=True)
        if values.others is None:
            return kept
        columns = {
            name: np.concatenate((kept.columns[name], values.others.columns[name]))
            for name in common_columns([kept, values.others], place)
        }
        return Block(joined([keys, values.others.keys]), columns, whole=True)

    def said(self, table: str) -> str:
        """Return how messages name them."""
        group, _, namespace = self.group
        window = f" namespace {namespace.hex()}," if namespace else ""
        return f"state {table!r}, key group {group},{window} accumulators of kept keys"


def resolved(found: Iterable[Entry], table: str, find: Find = lambda _start, _end: ()) -> Iterator[Entry]:
    """Yield these entries, which are blocks in order, with blocks that say the same for kept keys and values.

    Keys that are not among them are looked for with `find`. Raises what decoding does; `DamagedBlock` as well if values
    refer to keys that are not there.
    """
    for name, block in joined_up(found, table, find):
        yield name, block if isinstance(block, bytes) else encode(block)


def joined_up(
    found: Iterable[Entry], table: str, find: Find = lambda _start, _end: ()
) -> Iterator[tuple[bytes, bytes | Block]]:
    """Do as `resolved`, but leave the blocks that were made of values decoded; they are whole."""
    place: _Place | None = None
    for name, payload in found:
        if place is not None and not name.startswith(place.start):
            yield from _block_of(place, table, find)
            place = None
        if entries.are_kept_keys(name) or entries.are_values(name):
            place = place or _Place(entries.block_place(name))
            place.take(name, payload, table)
        elif place is None:
            yield name, payload
        elif name > place.newest:
            yield from _block_of(place, table, find)
            yield name, payload
    if place is not None:
        yield from _block_of(place, table, find)


def _block_of(place: _Place, table: str, find: Find) -> Iterator[tuple[bytes, Block]]:
    """Yield the block that the values make, once."""
    if not place.is_said:
        place.is_said = True
        place.find_keys(find)
        yield place.newest, place.block(table)


def settled(run: Sequence[Entry], epoch_number: int, table: str) -> tuple[Entry, Entry] | None:
    """Return the keys and values that a base of this epoch has instead of all live entries of a group and namespace.

    None if there are no kept keys, or not all of them are still there: no values will refer to them. They are there
    also if younger blocks say all there is, and these keys are among that.
    """
    place, blocks = _Place(entries.block_place(run[0][0])), list[Entry]()
    for name, payload in run:
        if entries.are_kept_keys(name) or entries.are_values(name):
            place.take(name, payload, table)
        else:
            blocks.append((name, payload))
    values, said = place.values, place.payload
    if values is None:
        return None
    younger = [payload for name, payload in blocks if name > place.newest]
    before = place.block(table)
    kept = len(before.keys) - _rows(values.others)
    if younger:
        at = f"{place.said(table)}, or blocks after them"
        whole = max((which for which, payload in enumerate(younger) if is_whole(payload)), default=None)
        if whole is not None:
            younger, before = younger[whole:], _gone(sliced(before, 0, kept))
        after = _after(before, kept, [block for block in (decode(one, at) for one in younger) if len(block.keys)], at)
        if after is None:
            return None
        columns, others = after
        encoded = encode(others) if len(others.keys) else b""
        said = ValuesEncoder(columns, values.keys_of, epoch_number).encode(0, None, encoded)
    group, state, namespace = place.group
    keys = entries.kept_keys(group, state, namespace, values.keys_of)
    return (keys, place.keys[values.keys_of]), (entries.values(group, state, namespace, of_base=True), said)


def _rows(block: Block | None) -> int:
    return 0 if block is None else len(block.keys)


def _gone(block: Block) -> Block:
    """Return the same keys, deleted."""
    return Block(block.keys, block.columns, np.ones(len(block.keys), dtype=np.bool_))


def _after(before: Block, kept: int, younger: Sequence[Block], place: str) -> tuple[Mapping[str, Column], Block] | None:
    """Return the accumulators of the kept keys after what younger blocks say, and all other keys with theirs.

    The kept keys are the first ones. None if one of them is gone.
    """
    blocks = [before, *younger]
    names = common_columns(blocks, place)
    keys = joined([block.keys for block in blocks])
    columns = {name: np.concatenate([block.columns[name] for block in blocks]) for name in names}
    deleted = np.concatenate(list(map(deleted_in, blocks)))
    # Keys are numbered in the order in which they first come: the kept ones as they are.
    last = last_of_each(keys)
    if deleted[last[:kept]].any():
        return None
    others = last[kept:][~deleted[last[kept:]]]
    return {name: column[last[:kept]] for name, column in columns.items()}, chosen(Block(keys, columns), others)
