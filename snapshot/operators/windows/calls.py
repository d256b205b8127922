"""Functions of the rows of a window, and how they are called.

Invariant: while a function is called, its declared states are about the key that it is called for, and as old
as the clock says; what it emits stands at the last moment of its window.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from snapshot.operators.keyed_function import Collected, KeyedFunction, OpenContext, ProcessContext
from snapshot.operators.operator import OperatorContext
from snapshot.operators.row_class import Row, batch_of, shown
from snapshot.operators.rows import Rows
from statebackend.states.namespaces import NO_NAMESPACE, Window

_AT_ONCE: Final = 2048
"""The number of calls whose rows go on together."""


class WindowFunction(KeyedFunction):
    """A function of all rows that a key has in a window.

        class Spread(WindowFunction):
            output = {"user": "string", "spread": "float64"}

            def on_window(self, key, window, rows, ctx):
                amounts = [row.amount for row in rows]
                ctx.emit((key, max(amounts) - min(amounts)))

    States that it declares are kept for each key, over all windows. An exception fails the attempt, and all goes back
    to the last epoch.
    """

    def on_window(self, key: Any, window: Window, rows: Sequence[Row], ctx: ProcessContext, /) -> None:
        """Handle a window that is over, with its rows in the order in which they came.

        Called again, with all rows, when a row came that was late but not too late. `key` is `ctx.key`, and `window`
        has `start` and `end` in milliseconds.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method on_window(self, key, window, rows, ctx)")


class WindowCalls:
    """A `WindowFunction` at work in one partition."""

    def __init__(
        self,
        function: WindowFunction,
        main: pa.Schema,
        sides: Mapping[str, pa.Schema],
        label: str,
        timed: bool,
        context: OperatorContext,
    ) -> None:
        """Open a copy of the function."""
        self.function: Final = copy.copy(function)
        self._state, self._emit, self._clock = context.state, context.emit, context.clock
        self._note = context.note
        self._timed, self._label = timed, label
        self._main = Collected(main)
        self._sides = {name: Collected(schema) for name, schema in sides.items()}
        states: dict[str, object] = {name: context.state[name] for name in function.states()}
        self._ctx = ProcessContext(label, self._sides, self._take, states)
        self._ctx.watermark = context.watermark
        self._calls = 0
        for name, state in states.items():
            object.__setattr__(self.function, name, state)
        self.function.open(OpenContext(context.uid, context.partition, context.parallelism))
        self.close = self.function.close

    def call(self, key: object, window: Window, rows: Sequence[Row]) -> None:
        """Call it for a key and a window. What it emits may go on before `flush` is called."""
        state, ctx = self._state, self._ctx
        state.set_namespace(NO_NAMESPACE)
        state.set_key(key)
        self._look_at_the_clock()
        ctx.key, ctx.timestamp = key, window.end - 1 if self._timed else None
        if (note := self._note()) is not None:
            note(f"the window [{window.start}, {window.end}) of the key {shown(key)} with {len(rows)} rows")
        try:
            self.function.on_window(key, window, rows, ctx)
        except BaseException as error:
            error.add_note(
                f"in {self._label}, for the key {shown(key)} in the window [{window.start}, {window.end}) with "
                f"{len(rows)} rows"
            )
            raise
        self._calls += 1
        if self._calls >= _AT_ONCE:
            self.flush()

    def at(self, watermark: int) -> None:
        """Move event time to this watermark for the calls that follow."""
        self._ctx.watermark = max(self._ctx.watermark, watermark)

    def _look_at_the_clock(self) -> None:
        now = self._clock()
        if now > self._ctx.processing_time:
            self._ctx.processing_time = now
            self._state.advance(processing_time=now)

    def flush(self) -> None:
        """Emit what was collected."""
        self._calls = 0
        self._flush(self._main, None)
        for name, collected in self._sides.items():
            self._flush(collected, name)

    def _take(self, row: Any) -> None:
        self._main.rows.append(row)
        self._main.times.append(self._ctx.timestamp)

    def _flush(self, collected: Collected, side: str | None) -> None:
        if collected.rows:
            label = self._label if side is None else f"{self._label}, side output {side!r}"
            batch = batch_of(collected.rows, collected.schema, label)
            times = np.array(collected.times, dtype=np.int64) if self._timed else None
            collected.rows.clear()
            collected.times.clear()
            self._emit(Rows(batch, times), side)
