"""The rows of a key in a window, two by two made into one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snapshot.operators.keyed_function import keys_of
from snapshot.operators.operator import Input, Operator, OperatorContext, name_of
from snapshot.operators.reduce import Fold, ReduceRows
from snapshot.operators.row_class import Row, batch_of, row_codec, row_problems, rows_of
from snapshot.operators.rows import Rows
from snapshot.operators.windows.declaration import OverWindows
from snapshot.operators.windows.keys import KEYS, KEYS_DECLARED, Already, Firing, Key, WindowKeys
from snapshot.operators.windows.kinds import Session, Window
from snapshot.operators.windows.operator import WindowOperator
from snapshot.operators.windows.session_contents import SessionRow
from snapshot.operators.windows.session_operator import SessionOperator, session_states
from statebackend.keys.columns import KeyColumn
from statebackend.states.declarations import Declaration, ValueState
from statebackend.states.namespaces import Window as Span
from statebackend.states.value_state import ValueHandle

_ROWS: Final = "rows of windows"

_AT_ONCE: Final = 4096
"""So many rows are read and given together at most, but for what one batch changes."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowReduce(OverWindows):
    """A fold of the rows of a key in a window by a function, in the order in which they come; see `Reduce`.

    Where a row joins two sessions, the function is called with what each of them has come to.
    Rows that are late are dealt with as in `WindowAggregate`.
    """

    window: Window
    function: ReduceRows
    input: Input
    lateness_ms: int = 0
    late: bool = False

    @property
    def label(self) -> str:
        """Return a label with the function and the windows."""
        return f"reduce({name_of(self.function)}) in {self.window}"

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Declare a row for each key and window."""
        row = row_codec(self.input.schema)
        if isinstance(self.window, Session):
            return session_states(self.window, row)
        return {KEYS: KEYS_DECLARED, _ROWS: ValueState(row)}

    @property
    def output(self) -> pa.Schema:
        """Return the schema of its input."""
        return self.input.schema

    def check(self) -> Sequence[str]:
        """Return the problems of the windows, the key and the columns."""
        return [
            *self._problems(),
            *row_problems(self.input.schema),
        ]

    def open(self, context: OperatorContext) -> Operator:
        """Open it in a partition."""
        if isinstance(self.window, Session):
            fold = Fold(self.function, row_codec(self.input.schema), self.label)
            contents = SessionRow(fold, self.input, self.label, self.timed, context.emit)
            return SessionOperator(self.window, self.lateness, contents, self.input, context)
        return WindowOperator(self.window, self.lateness, _Reduced(self, context), self.input, context)


class _Reduced:
    """The rows of all windows: one in the namespace of the window for each key."""

    def __init__(self, plan: WindowReduce, context: OperatorContext) -> None:
        self._plan, self._emit, self._state = plan, context.emit, context.state
        self._keys = WindowKeys(plan.input, context)
        self._row: ValueHandle[Row | None] = context.state[_ROWS]
        self.table = self._keys.table
        self._fold = Fold(plan.function, self._row.form.codec, plan.label)

    def windows(self) -> Iterator[Span]:
        """Return the windows that have keys."""
        return self._keys.windows()

    def add(self, window: Span, rows: Rows, again: bool) -> KeyColumn:
        """Fold rows in, and give new results of their keys if `again`; return the rows' keys."""
        column, last = self._keys.add(window, rows.batch)
        keys = keys_of(rows.batch, self._plan.input.keys, self._state.key_type)
        row, set_key, fold = self._row, self._state.set_key, self._fold
        self._state.set_namespace(window.namespace)
        row.prefetch(keys)
        for key, event in zip(keys, rows_of(rows.batch), strict=True):
            set_key(key)
            row.set(fold(row.get(), event))
        if again:
            self._give(window, [keys[at] for at in last.tolist()])
        return column

    def keys(self, window: Span) -> KeyColumn:
        """Return all keys of a window."""
        return self._keys.keys(window)

    def fire(self, window: Span, already: Already | None, given: Collection[Key]) -> Firing:
        """Emit the row of each key at once, which takes no call of the user's."""
        assert not given
        self._state.set_namespace(window.namespace)
        keys = self._keys.plain(self.keys(window), already)
        for first in range(0, len(keys), _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            self._row.prefetch(some)
            self._give(window, some)
        return iter(())

    def drop(self, window: Span) -> None:
        """Forget the window."""
        self._state.set_namespace(window.namespace)
        for key in self._keys.plain(self._keys.keys(window)):
            self._state.set_key(key)
            self._row.clear()
        self._keys.drop(window)

    def advance(self, watermark: int) -> None:
        """Do nothing: event time is not looked at."""

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _give(self, window: Span, keys: Sequence[object]) -> None:
        results = []
        for key in keys:
            self._state.set_key(key)
            results.append(self._row.get())
        batch = batch_of([row for row in results if row is not None], self._plan.output, self._plan.label)
        self._emit(Rows(batch, np.full(len(batch), window.end - 1) if self._plan.timed else None))
