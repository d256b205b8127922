"""What a base says: of all live entries of some key groups, those that are still worth keeping, blocks joined.

What always holds: whoever reads state at the base's epoch sees the same in the base as in the entries that it was made
of; what had expired at that epoch is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from statebackend import entries
from statebackend.entries import BLOCK, ROW, StateId
from statebackend.states.ttl import alive
from statebackend.tables.blocks import merge, where


def base_entries(
    live: Iterable[tuple[bytes, bytes]], epoch_number: int, tables: Mapping[StateId, str], times: Mapping[StateId, int]
) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a base of this epoch, sorted as the live ones are.

    `tables` are the names of the states that have blocks; `times` says, for each state with a time to live, what time
    it was at the epoch. What is neither is kept as it is, also of states that are declared no longer.
    """
    run: list[tuple[bytes, bytes]] = []
    for name, payload in live:
        _, state, form = entries.parse_head(name)
        if run and (form != BLOCK or not _same_place(run[-1][0], name)):
            yield from _joined(run, epoch_number, tables)
            run = []
        if form == BLOCK and state in tables:
            run.append((name, payload))
        elif form != ROW or state not in times or alive(payload, times[state]):
            yield name, payload
    if run:
        yield from _joined(run, epoch_number, tables)


def _same_place(name: bytes, other: bytes) -> bool:
    """Whether two blocks are of the same group, state and namespace: all but the epoch at the end."""
    return other.startswith(entries.block_place(name))


def _joined(
    run: list[tuple[bytes, bytes]], epoch_number: int, tables: Mapping[StateId, str]
) -> Iterator[tuple[bytes, bytes]]:
    newest = run[-1][0]
    group, state, _ = entries.parse_head(newest)
    namespace, _ = entries.parse_block(newest)
    merged = merge([payload for _, payload in run], where(tables[state], newest))
    for part, payload in enumerate(merged):
        if part:
            yield entries.base_part(group, state, namespace, epoch_number, part), payload
        else:
            yield entries.block(group, state, namespace, epoch_number, of_base=True), payload
