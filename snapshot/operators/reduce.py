"""The rows of a key, two by two made into one: for each row what the function has come to.

Invariant: the row that was given last for a key is the row in its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

import pyarrow as pa

from snapshot.operators.aggregated import key_problems
from snapshot.operators.keyed_function import keys_of
from snapshot.operators.operator import Input, Operator, OperatorContext, name_of
from snapshot.operators.row_class import Row, RowLike, accepted, batch_of, row_codec, row_problems, rows_of, shown
from snapshot.operators.rows import Rows
from statebackend.states.codecs import Codec
from statebackend.states.declarations import Declaration, ValueState
from statebackend.states.value_state import ValueHandle

ReduceRows: TypeAlias = Callable[[Row, Row], RowLike]
"""Takes what rows have come to, and the next one; both are named tuples."""

_ROW: Final = "row"

_AT_ONCE: Final = 4096
"""The state of so many rows is read at once."""

_UNASKED: Final = 32
"""After so many rows at most it is asked whether it is time to stop; first after one, then after twice as many."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """A fold of all rows of a key so far by a function, given after each row, with that row's event time.

    The first row of a key is taken as it is. The function gives rows with the columns of its input.
    """

    function: ReduceRows
    input: Input

    @property
    def label(self) -> str:
        """Return a label with the name of the function."""
        return f"reduce({name_of(self.function)})"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return its one keyed input."""
        return (self.input,)

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Declare one row for each key."""
        return {_ROW: ValueState(row_codec(self.input.schema))}

    @property
    def output(self) -> pa.Schema:
        """Return the schema of its input."""
        return self.input.schema

    @property
    def timed(self) -> bool:
        """True if its input has event times."""
        return self.input.timed

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """Return no side outputs."""
        return {}

    def check(self) -> Sequence[str]:
        """Return the problems of the key and the columns."""
        return [*key_problems(self.input), *row_problems(self.input.schema)]

    def open(self, context: OperatorContext) -> _Reducing:
        """Open it in a partition."""
        return _Reducing(self, context)


class _Reducing(Operator):
    """The rows of a partition's keys."""

    def __init__(self, plan: Reduce, context: OperatorContext) -> None:
        self._plan = plan
        self._state, self._emit = context.state, context.emit
        self._row: ValueHandle[Row | None] = context.state[_ROW]
        self._fold = Fold(plan.function, self._row.form.codec, plan.label)
        self._overdue = context.overdue

    def rows(self, input: int, rows: Rows) -> int:
        """Emit for each row the reduced row of its key, until `overdue`; return how many rows were taken."""
        del input
        keys = keys_of(rows.batch, self._plan.input.keys, self._state.key_type)
        results: list[RowLike] = []
        row, set_key, fold = self._row, self._state.set_key, self._fold
        calls, unasked = zip(keys, rows_of(rows.batch), strict=True), 1
        while len(results) < len(keys):
            if len(results) % _AT_ONCE == 0:
                row.prefetch(keys[len(results) : len(results) + _AT_ONCE])
            for key, event in islice(calls, min(unasked, _AT_ONCE - len(results) % _AT_ONCE)):
                set_key(key)
                reduced = fold(row.get(), event)
                row.set(reduced)
                results.append(reduced)
            if self._overdue():
                break
            unasked = min(2 * unasked, _UNASKED)
        if results:
            times = None if rows.times is None else rows.times[: len(results)]
            self._emit(Rows(batch_of(results, self._plan.output, self._plan.label), times))
        return len(results)

    def watermark(self, timestamp: int) -> None:
        """Advance the state's event time; no result waits for it."""
        self._state.advance(watermark=timestamp)


class Fold:
    """A user's function of two rows, whose results are rows of the schema or errors that say where they come from."""

    def __init__(self, function: ReduceRows, codec: Codec[Row], label: str) -> None:
        self._function, self._codec, self._label = function, codec, label

    def __call__(self, before: Row | None, row: Row) -> Row:
        """Return the reduced row of a key after this row; the first row of a key is taken as it is."""
        try:
            return accepted(self._codec, row if before is None else self._function(before, row), self._label)
        except BaseException as error:
            error.add_note(f"in {self._label}, for the row {shown(row)} after {shown(before)}")
            raise
