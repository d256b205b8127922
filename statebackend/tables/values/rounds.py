"""In which rounds the rows of a batch are folded in, if what their keys come to is wanted after each row.

Invariant: in a round no slot comes twice, a slot's rows keep their order over the rounds, and every row is in
one round, or in the run of its slot. So folding round by round is the same as folding row by row.

Rows of keys that come often would need as many rounds: these are folded key by key, as runs, where that costs less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.tables.values.aggregations import Accumulators, Aggregation, Slots

Rows = NDArray[np.int64]

_ROUND_PER_RUN: Final = 3
"""The cost of a round, in runs: each is some calls of numpy and Arrow, but a round has to gather its rows."""

_PLACES_PER_ROW: Final = 4


@runtime_checkable
class Running(Protocol):
    """An aggregation that can fold in many values of one key at once, where what it comes to after each is wanted."""

    def running(self, accumulators: Accumulators, slot: int, values: pa.Array | None, count: int) -> pa.Array:
        """Fold in the `count` values of this slot, as `update` does, and return the result after each of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Rounds:
    """The rows of one batch. `rounds` come first, in order."""

    slots: Slots
    rounds: tuple[Rows, ...]
    runs: tuple[Rows, ...]
    order: Rows | None
    """The place of each row of the batch if the rounds and the runs are put one after the other; None if each row keeps
    its place."""

    @classmethod
    def of(cls, slots: Slots) -> Self:
        """Divide a batch whose rows have these slots into rounds and runs."""
        alone, rest = _first_and_rest(slots)
        if not len(rest):
            return cls(slots, (alone,), (), None)
        rounds, runs = _divided(slots, rest)
        together = np.concatenate((alone, *rounds, *runs))
        order = np.empty(len(slots), dtype=np.int64)
        order[together] = np.arange(len(slots))
        return cls(slots, (alone, *rounds), runs, order)

    def folded(self, aggregation: Aggregation, accumulators: Accumulators, values: pa.Array | None) -> pa.Array:
        """Fold the values in, and return for each row the result of its key right after that row."""
        if self.order is None:
            aggregation.update(accumulators, self.slots, values)
            return aggregation.result(accumulators, self.slots)
        results = [_round(aggregation, accumulators, self.slots[rows], _some(values, rows)) for rows in self.rounds]
        for rows in self.runs:
            results += _run(aggregation, accumulators, self.slots[rows], _some(values, rows))
        return pa.concat_arrays(results).take(pa.array(self.order))


def last_rows(slots: Slots) -> Rows:
    """Return for each slot the last row that has it; these rows ascending."""
    places, rows = _places(slots), np.arange(len(slots), dtype=np.int32)
    last = np.empty(_size(len(slots)), dtype=np.int32)
    last[places] = rows
    winners = last[places]
    is_last = winners == rows
    collided = np.flatnonzero(slots[winners] != slots)
    if len(collided):
        _, back = np.unique(slots[collided][::-1], return_index=True)
        is_last[collided[len(collided) - 1 - back]] = True
    return np.flatnonzero(is_last)


def _size(rows: int) -> int:
    return 1 << (_PLACES_PER_ROW * max(rows, 1) - 1).bit_length()


def _places(slots: Slots) -> NDArray[np.int64]:
    """Return places for slots in a small array: mostly different ones for different slots."""
    return slots & (_size(len(slots)) - 1)


def _first_and_rest(slots: Slots) -> tuple[Rows, Rows]:
    """Return rows that are the first of their slot; and all others, a few of which may be the first as well."""
    places, rows = _places(slots), np.arange(len(slots), dtype=np.int32)
    first = np.empty(_size(len(slots)), dtype=np.int32)
    first[places[::-1]] = rows[::-1]
    is_first = first[places] == rows
    return np.flatnonzero(is_first), np.flatnonzero(~is_first)


def _divided(slots: Slots, rest: Rows) -> tuple[list[Rows], tuple[Rows, ...]]:
    """Divide these rows into rounds and runs, as it costs least."""
    by_slot = rest[np.argsort(slots[rest], kind="stable")]
    ordered = slots[by_slot]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(starts, len(ordered)))
    longest = np.argsort(-lengths, kind="stable")
    rounds_needed = np.append(lengths[longest], 0)
    runs = int(np.argmin(rounds_needed * _ROUND_PER_RUN + np.arange(len(rounds_needed))))
    often = longest[:runs]
    ranks = np.arange(len(ordered)) - np.repeat(starts, lengths)
    in_run = np.zeros(len(starts), dtype=np.bool_)
    in_run[often] = True
    seldom = ~np.repeat(in_run, lengths)
    ranks, by_round = ranks[seldom], by_slot[seldom]
    counts = np.bincount(ranks)
    rounds = by_round[np.argsort(ranks, kind="stable")]
    return (
        [np.sort(rows) for rows in np.split(rounds, np.cumsum(counts)[:-1])] if len(counts) else [],
        tuple(by_slot[starts[one] : starts[one] + lengths[one]] for one in often.tolist()),
    )


def _some(values: pa.Array | None, rows: Rows) -> pa.Array | None:
    return None if values is None else values.take(pa.array(rows))


def _round(aggregation: Aggregation, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> pa.Array:
    aggregation.update(accumulators, slots, values)
    return aggregation.result(accumulators, slots)


def _run(aggregation: Aggregation, accumulators: Accumulators, slots: Slots, values: pa.Array | None) -> list[pa.Array]:
    if isinstance(aggregation, Running):
        return [aggregation.running(accumulators, int(slots[0]), values, len(slots))]
    one = slots[:1]
    return [
        _round(aggregation, accumulators, one, None if values is None else values.slice(at, 1))
        for at in range(len(slots))
    ]
