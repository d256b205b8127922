"""Running aggregates of each key: what its rows have come to so far, said for each row or for each batch.

What always holds: what was said last of a key is what its state says; nothing is said of a key without a new row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from snapshot.operators.aggregated import (
    declared,
    key_fields,
    key_problems,
    output_problems,
    read_columns,
    result_fields,
)
from snapshot.program.operator import Input, OperatorContext
from snapshot.program.rows import Rows, Times, keys_in
from statebackend.states.declarations import Declaration
from statebackend.tables.aggregations import Aggregation, Slots
from statebackend.tables.table import Table
from statebackend.tables.turns import last_rows

_TOTALS = "totals"


@dataclass(frozen=True, slots=True, eq=False)
class RunningAggregate:
    """Aggregates of all rows of a key so far.

    Per record there is a row for each row that comes in, with the values right after it and its event time. Per batch
    there is one for each key that the batch has rows of, with the values after the batch and the latest of these rows'
    event times: fewer rows, but which ones depends on how rows came together in batches.
    """

    outputs: Mapping[str, Aggregation]
    input: Input
    per: Literal["record", "batch"] = "record"

    @property
    def label(self) -> str:
        """Its outputs."""
        return f"aggregate({', '.join(self.outputs)}) per {self.per}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """One, keyed."""
        return (self.input,)

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """One table."""
        return {_TOTALS: declared(self.outputs, self.input)}

    @property
    def output(self) -> pa.Schema:
        """The key's columns, then a column for each output."""
        return pa.schema([*key_fields(self.input), *result_fields(self.outputs, self.input)])

    @property
    def timed(self) -> bool:
        """As its input is."""
        return self.input.timed

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """None."""
        return {}

    def check(self) -> Sequence[str]:
        """What is wrong with key, columns and names."""
        problems = [*key_problems(self.input), *output_problems(self.outputs, self.input, self.input.keys)]
        if self.per not in ("record", "batch"):
            problems.append(f"results can be given per 'record' or per 'batch', not per {self.per!r}")
        return problems

    def open(self, context: OperatorContext) -> _Running:
        """Open it in a partition."""
        return _Running(self, context)


class _Running:
    """The aggregates of a partition."""

    def __init__(self, plan: RunningAggregate, context: OperatorContext) -> None:
        self._plan = plan
        self._state, self._emit = context.state, context.emit
        self._table: Table = context.state[_TOTALS]
        self._schema = plan.output

    def rows(self, input: int, rows: Rows) -> None:
        """Fold rows in and say what they come to."""
        del input
        if not len(rows):
            return
        plan, batch = self._plan, rows.batch
        keys = self._state.keys(keys_in(batch, plan.input.keys))
        columns = read_columns(plan.outputs, batch)
        named = [batch.column(name) for name in plan.input.keys]
        times = rows.times
        if plan.per == "record":
            results = self._table.update_each(keys, columns)
        else:
            slots = self._table.update(keys, columns)
            last = last_rows(slots)
            results = self._table.results(slots[last])
            if len(last) < len(rows):
                at = pa.array(last)
                named = [column.take(at) for column in named]
                times = None if times is None else _latest(times, slots, last)
        self._emit(Rows(pa.RecordBatch.from_arrays([*named, *results.columns], schema=self._schema), times))

    def watermark(self, timestamp: int) -> None:
        """Nothing waits for it."""
        self._state.advance(watermark=timestamp)

    def wakes_at(self) -> int | None:
        """Never."""
        return None

    def wake(self, now: int) -> None:
        """Nothing waits for it."""

    def broadcast(self) -> bytes | None:
        """None."""
        return None


def _latest(times: Times, slots: Slots, last: Slots) -> Times:
    """The latest time of each slot's rows, slot for slot as in `slots[last]`."""
    if bool(np.all(times[1:] >= times[:-1])):
        return times[last]
    by_slot = np.argsort(slots, kind="stable")
    ordered = slots[by_slot]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    latest: Times = np.maximum.reduceat(times[by_slot], starts)
    return latest[np.searchsorted(ordered[starts], slots[last])]
