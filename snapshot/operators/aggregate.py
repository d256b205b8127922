"""Aggregates of each key: what its rows have come to so far, said for each row, for each batch, or when input ends.

Invariant: what was said last of a key is what its state says, but for rows since then that wait for the end of
input; nothing is said of a key without a new row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa

from snapshot.operators.aggregated import (
    declared,
    key_arrays,
    key_fields,
    key_problems,
    output_problems,
    read_columns,
    result_fields,
)
from snapshot.operators.operator import Input, Operator, OperatorContext, Per
from snapshot.operators.rows import Rows, Times, keys_in
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import Declaration
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Aggregation, Count, Slots
from statebackend.tables.values.rounds import last_rows

_TOTALS: Final = "totals"
_UNSAID: Final = "unsaid"

_AT_ONCE: Final = 1 << 16
"""So many results are emitted together at most."""


@dataclass(frozen=True, slots=True, eq=False)
class RunningAggregate:
    """Aggregates of all rows of a key so far.

    Per record there is a row for each row that comes in, with the values right after it and its event time. Per batch
    there is one for each key that the batch has rows of, with the values after the batch and the latest of these rows'
    event times: fewer rows, but which ones depends on how rows came together in batches.

    At the end there is one for each key that had rows since results were given last, when all input of the run has
    ended: the final results of finished input. They have no event time. What was said by then is in the state, so a
    key is said once, also over a restart; if more input comes in a later run, its keys are said again.
    """

    outputs: Mapping[str, Aggregation]
    input: Input
    per: Per = "record"

    @property
    def label(self) -> str:
        """Return a label with the names of its outputs, and when it gives results."""
        when = "when its input ends" if self.per == "end" else f"per {self.per}"
        return f"aggregate({', '.join(self.outputs)}) {when}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return its one keyed input."""
        return (self.input,)

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Declare the totals, and with `per="end"` the keys whose results are still to be given."""
        totals = {_TOTALS: declared(self.outputs, self.input)}
        return totals | {_UNSAID: AggregateTable(rows=Count())} if self.per == "end" else totals

    @property
    def output(self) -> pa.Schema:
        """Return the key's columns, then a column for each output."""
        return pa.schema([*key_fields(self.input), *result_fields(self.outputs, self.input)])

    @property
    def timed(self) -> bool:
        """True if its input has event times; results at the end have none."""
        return self.input.timed and self.per != "end"

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """Return no side outputs."""
        return {}

    def check(self) -> Sequence[str]:
        """Return the problems of the key, the columns and the names, and of `per`."""
        problems = [*key_problems(self.input), *output_problems(self.outputs, self.input, self.input.keys)]
        if self.per not in get_args(Per):
            problems.append(f"results can be given per 'record', per 'batch' or at the 'end', not per {self.per!r}")
        return problems

    def open(self, context: OperatorContext) -> Operator:
        """Open it in a partition."""
        return _Final(self, context) if self.per == "end" else _Running(self, context)


class _Totals(Operator):
    """The aggregates of a partition."""

    def __init__(self, plan: RunningAggregate, context: OperatorContext) -> None:
        self._plan = plan
        self._state, self._emit = context.state, context.emit
        self._table: Table = context.state[_TOTALS]
        self._schema = plan.output

    def _give(self, keys: Sequence[pa.Array], results: pa.RecordBatch, times: Times | None) -> None:
        self._emit(Rows(pa.RecordBatch.from_arrays([*keys, *results.columns], schema=self._schema), times))

    def watermark(self, timestamp: int) -> None:
        """Advance the state's event time; no result waits for it."""
        self._state.advance(watermark=timestamp)


class _Running(_Totals):
    """They are said as rows come."""

    def rows(self, input: int, rows: Rows) -> None:
        """Fold rows in and emit the new results."""
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
        self._give(named, results, times)


class _Final(_Totals):
    """They are said when all input has ended."""

    def __init__(self, plan: RunningAggregate, context: OperatorContext) -> None:
        super().__init__(plan, context)
        self._unsaid: Table = context.state[_UNSAID]
        self._keys = pa.schema(key_fields(plan.input))

    def rows(self, input: int, rows: Rows) -> None:
        """Fold rows in, and note their keys."""
        del input
        if not len(rows):
            return
        names = self._plan.input.keys
        keys = self._state.keys(keys_in(rows.batch, names))
        slots = self._table.update(keys, read_columns(self._plan.outputs, rows.batch))
        last = last_rows(slots)
        if len(last) < len(rows):
            keys = self._state.keys(keys_in(rows.batch.select(names).take(pa.array(last)), names))
        self._unsaid.update(keys, {})

    def end(self) -> None:
        """Emit the results of the keys that were noted, and forget the notes."""
        found = self._unsaid.keys_and_results().keys
        columns = key_arrays(found, self._state.key_type, self._plan.input)
        unsaid = pa.RecordBatch.from_arrays(columns, schema=self._keys)
        for first in range(0, len(found), _AT_ONCE):
            some = unsaid.slice(first, _AT_ONCE)
            results = self._table.read(self._state.keys(keys_in(some, self._plan.input.keys)))
            self._give(some.columns, results, None)
        self._unsaid.drop()


def _latest(times: Times, slots: Slots, last: Slots) -> Times:
    """Return the latest time of each slot's rows, slot for slot as in `slots[last]`."""
    if bool(np.all(times[1:] >= times[:-1])):
        return times[last]
    by_slot = np.argsort(slots, kind="stable")
    ordered = slots[by_slot]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    latest: Times = np.maximum.reduceat(times[by_slot], starts)
    return latest[np.searchsorted(ordered[starts], slots[last])]
