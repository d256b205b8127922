"""Aggregates of each key and window: built-in or a user's own, in columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snapshot.operators.aggregated import (
    declared,
    key_arrays,
    key_fields,
    output_problems,
    over_columns,
    read_columns,
    result_fields,
)
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.rows import Rows, keys_in
from snapshot.operators.windows.declaration import (
    END,
    SPAN_FIELDS,
    START,
    OverWindows,
    span_arrays,
)
from snapshot.operators.windows.keys import Already, Firing, Key, windows_in
from snapshot.operators.windows.kinds import Session, Window
from snapshot.operators.windows.operator import WindowOperator
from snapshot.operators.windows.session_contents import SessionTotals, totals_codec
from snapshot.operators.windows.session_operator import SessionOperator, session_states
from statebackend.keys.columns import KeyColumn
from statebackend.states.declarations import Declaration
from statebackend.states.namespaces import Window as Span
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Aggregation, Merging
from statebackend.tables.values.rounds import last_rows

_TOTALS: Final = "totals"

_AT_ONCE: Final = 1 << 16
"""So many results are emitted together at most."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowAggregate(OverWindows):
    """Aggregates of the rows of each key in each window.

    `lateness_ms` is for how long a window takes rows after it gave its results; it then gives those of their keys
    again. Rows that come still later go to the side "late" if `late`, else they are dropped and counted.
    """

    window: Window
    outputs: Mapping[str, Aggregation]
    input: Input
    lateness_ms: int = 0
    late: bool = False

    @property
    def label(self) -> str:
        """Return a label with the names of its outputs, and its windows."""
        return f"aggregate({', '.join(self.outputs)}) in {self.window}"

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Declare one table; for sessions their accumulators by key."""
        if isinstance(self.window, Session):
            return session_states(self.window, totals_codec(over_columns(self.outputs, self.input)))
        return {_TOTALS: declared(self.outputs, self.input)}

    @property
    def output(self) -> pa.Schema:
        """Return the key's columns, the window's, then a column for each output."""
        return pa.schema([*key_fields(self.input), *SPAN_FIELDS, *result_fields(self.outputs, self.input)])

    def check(self) -> Sequence[str]:
        """Return the problems of the windows, the key, the columns and the names."""
        return [
            *self._problems(),
            *output_problems(self.outputs, self.input, (*self.input.keys, START, END)),
            *self._merge_problems(),
        ]

    def _merge_problems(self) -> list[str]:
        if not isinstance(self.window, Session):
            return []
        return [
            f"{name}: {one!r} has no method merge(accumulators, into, others), which sessions need"
            for name, one in self.outputs.items()
            if not isinstance(one, Merging)
        ]

    def open(self, context: OperatorContext) -> Operator:
        """Open it in a partition."""
        if isinstance(self.window, Session):
            contents = SessionTotals(
                over_columns(self.outputs, self.input), self.input, self.output, self.timed, context.emit
            )
            return SessionOperator(self.window, self.lateness, contents, self.input, context)
        return WindowOperator(self.window, self.lateness, _Totals(self, context), self.input, context)


class _Totals:
    """The aggregates of all windows: a namespace of the table for each."""

    def __init__(self, plan: WindowAggregate, context: OperatorContext) -> None:
        self._plan, self._emit, self._state = plan, context.emit, context.state
        self.table: Final[Table] = context.state[_TOTALS]
        self._schema, self._timed = plan.output, plan.timed

    def windows(self) -> Iterator[Span]:
        """Return the windows that the table has."""
        return windows_in(self.table)

    def add(self, window: Span, rows: Rows, again: bool) -> KeyColumn:
        """Fold rows in, and give new results of their keys if `again`; return the rows' keys."""
        plan, namespace = self._plan, window.namespace
        keys = self._state.keys(keys_in(rows.batch, plan.input.keys))
        slots = self.table.update(keys, read_columns(plan.outputs, rows.batch), namespace)
        if again:
            last = last_rows(slots)
            some = rows.batch.take(pa.array(last))
            columns = [some.column(name) for name in plan.input.keys]
            self._give(window, columns, self.table.results(slots[last], namespace))
        return keys

    def keys(self, window: Span) -> KeyColumn:
        """Return all keys of a window."""
        return self.table.accumulators(window.namespace).keys

    def fire(self, window: Span, already: Already | None, given: Collection[Key]) -> Firing:
        """Emit the results of all keys at once, which takes no call of the user's."""
        assert not given
        found = self.table.keys_and_results(window.namespace)
        columns, results = key_arrays(found.keys, self._state.key_type, self._plan.input), found.results
        if already is not None:
            new = pa.array(~already(found.keys))
            columns, results = [column.filter(new) for column in columns], results.filter(new)
        self._give(window, columns, results)
        return iter(())

    def drop(self, window: Span) -> None:
        """Forget the window."""
        self.table.drop(window.namespace)

    def advance(self, watermark: int) -> None:
        """Do nothing: event time is not looked at."""

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _give(self, window: Span, keys: Sequence[pa.Array], results: pa.RecordBatch) -> None:
        columns = [*keys, *span_arrays(window, results.num_rows), *results.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        times = np.full(results.num_rows, window.end - 1) if self._timed else None
        given = Rows(batch, times)
        for first in range(0, len(given), _AT_ONCE):
            self._emit(given.slice(first, min(_AT_ONCE, len(given) - first)))
