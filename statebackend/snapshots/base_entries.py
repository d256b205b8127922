"""What a base says: of all live entries of some key groups, those that are still worth keeping, blocks joined.

What always holds: whoever reads state at the base's epoch sees the same in the base as in the entries that it was made
of; what had expired at that epoch is not in it. Keys to which accumulators of later epochs may refer are kept as they
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter

from statebackend import entries
from statebackend.backends.scratch_file import NewFile
from statebackend.entries import BLOCK, ROW, StateId
from statebackend.keys.types import KeyType
from statebackend.states.ttl import alive
from statebackend.tables.blocks import where
from statebackend.tables.divided_merge import merge_divided
from statebackend.tables.values_blocks import resolved, settled


def base_entries(
    live: Iterable[tuple[bytes, bytes]],
    epoch_number: int,
    tables: Mapping[StateId, str],
    times: Mapping[StateId, int],
    key_type: KeyType,
    new_file: NewFile,
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a base of this epoch, sorted as the live ones are.

    `tables` are the names of the states that have blocks; `times` says, for each state with a time to live, what time
    it was at the epoch. What is neither is kept as it is, also of states that are declared no longer. All keys are of
    one type; what memory has no room for is in new files meanwhile.
    """

    def place_of(entry: tuple[bytes, bytes]) -> bytes | None:
        """For a block, what all blocks of its group, state and namespace have in common."""
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
