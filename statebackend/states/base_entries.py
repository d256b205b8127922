"""The content of a base: all live entries of some key groups that are still worth keeping, blocks joined.

Invariant: a reader of state at the base's epoch sees the same in the base as in the entries that it was made
of; what had expired at that epoch is not in it. Keys to which accumulators of later epochs may refer are kept as they
are.

However large a key group is, about as much is in memory as a few megabytes of blocks need: what is more lies in a file,
divided by the hashes of the keys, so that each part has all that is said of its keys and is merged for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import numpy as np

from statebackend import entries
from statebackend.backends.scratch_file import NewFile
from statebackend.entries import BLOCK, ROW, StateId
from statebackend.keys.types import KeyType
from statebackend.states.ttl import alive
from statebackend.tables.format.blocks import (
    Block,
    Encoder,
    chosen,
    common_columns,
    decode,
    hashed,
    last_of_each,
    merge,
    where,
)
from statebackend.tables.format.stored_blocks import in_one
from statebackend.tables.format.values_blocks import resolved, settled

_TOGETHER: Final = 2 << 20
"""So many bytes of blocks are merged at once."""

_BITS: Final = 4
_PARTS: Final = 1 << _BITS
_DEEPEST: Final = 8
"""The number of divisions after which a part is merged as it is: only blocks about the very same keys can be left."""


def merge_divided(
    payloads: Iterable[bytes], place: str, key_type: KeyType, new_file: NewFile, depth: int = 0
) -> Iterator[bytes]:
    """Yield what `merge` makes of these blocks, given from the oldest to the newest; all are read before the first.

    The keys are of this type. Each time that something was divided before, `depth` is one more.
    """
    waiting: list[bytes] = []
    size = 0
    parts: _Parts | None = None
    for payload in payloads:
        waiting.append(payload)
        size += len(payload)
        if size > _TOGETHER and depth < _DEEPEST:
            parts = parts or _Parts(place, key_type, new_file, depth)
            parts.add(waiting)
            waiting, size = [], 0
    if parts is None:
        yield from merge(waiting, place)
        return
    parts.add(waiting)
    for part in range(_PARTS):
        yield from merge_divided(parts.payloads(part), place, key_type, new_file, depth + 1)


class _Parts:
    """Rows of blocks in a file, divided by some bits of the keys' hashes."""

    def __init__(self, place: str, key_type: KeyType, new_file: NewFile, depth: int) -> None:
        self._place = place
        self._key_type = key_type
        self._file = new_file()
        self._shift = np.uint64(_BITS * depth)
        self._spans: list[list[tuple[int, int]]] = [[] for _ in range(_PARTS)]
        self._end = 0

    def add(self, payloads: Sequence[bytes]) -> None:
        """Take blocks, which are younger than all before."""
        blocks: list[Block] = []
        for payload in payloads:
            block = decode(payload, self._place)
            if block.whole:
                blocks = []
                self._spans = [[] for _ in range(_PARTS)]
            if len(block.keys):
                blocks.append(block)
        if blocks:
            common_columns(blocks, self._place)
            self._add(in_one(blocks))

    def _add(self, said: Block) -> None:
        rows = chosen(said, np.sort(last_of_each(said.keys)))
        hashes = hashed(rows.keys, self._key_type).hashes
        parts = (hashes >> self._shift & np.uint64(_PARTS - 1)).astype(np.uint8)
        order = np.argsort(parts, kind="stable")
        encoder = Encoder(chosen(rows, order))
        ends = np.cumsum(np.bincount(parts, minlength=_PARTS)).tolist()
        for part, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                payload = encoder.encode(start, end, whole=False)
                self._file.append(payload)
                self._spans[part].append((len(payload), self._end))
                self._end += len(payload)

    def payloads(self, part: int) -> Iterator[bytes]:
        """Return blocks with the rows of one part, from the oldest to the newest."""
        return (self._file.read(size, start) for size, start in self._spans[part])


def base_entries(
    live: Iterable[tuple[bytes, bytes]],
    epoch_number: int,
    tables: Mapping[StateId, str],
    times: Mapping[StateId, int],
    key_type: KeyType,
    new_file: NewFile,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a base of this epoch, sorted as the live ones are.

    `tables` are the names of the states that have blocks; `times` says, for each state with a time to live, what time
    it was at the epoch. What is neither is kept as it is, also of states that are declared no longer. All keys are of
    one type; what memory has no room for is in new files meanwhile.
    """

    def place_of(entry: tuple[bytes, bytes]) -> bytes | None:
        """Return what all blocks of a block's group, state and namespace have in common; None for other entries."""
        _, state, form = entries.parse_head(entry[0])
        return entries.block_place(entry[0]) if form == BLOCK and state in tables else None

    for place, run in groupby(live, place_of):
        if place is None:
            yield from _unexpired(run, times)
            continue
        first = next(run)
        group, state, _ = entries.parse_head(first[0])
        table = tables[state]
        blocks: Iterator[tuple[bytes, bytes]] = chain((first,), run)  # noqa: B031  # gone through once
        if entries.are_kept_keys(first[0]):
            listed = list(blocks)
            kept = settled(listed, epoch_number, table)
            if kept is not None:
                yield from kept
                continue
            blocks = resolved(listed, table)
        namespace, _ = entries.parse_block(first[0])
        payloads = map(itemgetter(1), blocks)
        for part, merged in enumerate(merge_divided(payloads, where(table, first[0]), key_type, new_file)):
            if part:
                yield entries.base_part(group, state, namespace, epoch_number, part), merged
            else:
                yield entries.block(group, state, namespace, epoch_number, of_base=True), merged


def _unexpired(run: Iterable[tuple[bytes, bytes]], times: Mapping[StateId, int]) -> Iterator[tuple[bytes, bytes]]:
    if not times:
        yield from run
        return
    for name, payload in run:
        _, state, form = entries.parse_head(name)
        if form != ROW or state not in times or alive(payload, times[state]):
            yield name, payload
