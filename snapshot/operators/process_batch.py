"""Functions of whole Arrow batches over a keyed stream, with tables and other states.

Invariant: a batch has the rows of many keys, each in the order in which its senders sent them; no promise says how rows
come together in batches, so a function's results should not depend on it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST
from snapshot.operators.aggregated import key_arrays
from snapshot.operators.function_operator import FunctionOperator
from snapshot.operators.keyed_function import KeyedFunction, OpenContext, UnknownSide, has_timers
from snapshot.operators.operator import Operator, OperatorContext
from snapshot.operators.row_class import column_problems
from snapshot.operators.rows import Rows, Times, keys_in
from statebackend.errors import ProgramError
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import KeyColumn

TimesLike: TypeAlias = "NDArray[np.integer[Any]] | np.integer[Any] | int | None"
"""Event times of rows: one for each, one for all, or those of the batch that the function was called with."""


class WrongBatch(ProgramError, TypeError):
    """A function emitted a batch that has not the schema declared for this output, or has no event times."""


class BatchContext:
    """The facts about a function's call, and the actions it can take. The same object in every call: do not keep it."""

    keys: KeyColumn
    """The keys of the batch's rows, as tables take them. None at all in `on_watermark`."""
    timestamps: Times | None
    """The event times of the batch's rows in milliseconds. None in a stream without, and in `on_watermark`."""
    watermark: int
    """The event time up to which everything has been seen; rows with an earlier one are late."""
    processing_time: int
    """Milliseconds since 1970, as they were when this batch came."""

    def __init__(self, plan: ProcessBatches, context: OperatorContext) -> None:
        self._plan, self._state, self._emit = plan, context.state, context.emit
        self.no_keys: Final = context.state.keys(pa.array([], context.key_type.arrow))
        self.keys, self.timestamps = self.no_keys, None
        self.watermark, self.processing_time = EARLIEST, 0

    @property
    def state(self) -> KeyedState:
        """Return the keyed state, for states that are not tables; `state.set_key(key)` chooses their key."""
        return self._state

    def key_columns(self, keys: KeyColumn) -> list[pa.Array]:
        """Return these keys, such as a table gives them, as columns of the types that they have in the input."""
        return key_arrays(keys, self._state.key_type, self._plan.inputs[0])

    def emit(self, batch: pa.RecordBatch, times: TimesLike = None) -> None:
        """Give rows to the main output; `WrongBatch` if they are not of its schema.

        In a stream with event times, rows need some: by default row i of as many rows as came in has that of row i.
        """
        self._emit(self._rows(batch, self._plan.output, times, "the output"))

    def emit_to(self, side: str, batch: pa.RecordBatch, times: TimesLike = None) -> None:
        """Give rows to a side output; `UnknownSide` if it is not declared."""
        sides = self._plan.sides
        if side not in sides:
            declared = ", ".join(sides) or "there is none"
            raise UnknownSide(f"{self._plan.label}: side output {side!r} is not declared (declared: {declared})")
        self._emit(self._rows(batch, sides[side], times, f"side output {side!r}"), side)

    def _rows(self, batch: pa.RecordBatch, schema: pa.Schema, times: TimesLike, which: str) -> Rows:
        label = self._plan.label
        if not isinstance(batch, pa.RecordBatch):
            raise WrongBatch(f"{label}: {which} takes record batches of Arrow, not a {type(batch).__name__}")
        if not batch.schema.equals(schema):
            raise WrongBatch(f"{label}: {which} is declared as ({_shown(schema)}), and given ({_shown(batch.schema)})")
        if not self._plan.timed:
            return Rows(batch)
        given = self.timestamps if times is None else times
        found = None if given is None else np.asarray(given)
        if found is None or (found.ndim and len(found) != batch.num_rows):
            number = "no" if found is None else f"{len(found)}"
            raise WrongBatch(
                f"{label}: {batch.num_rows} rows for {which} have {number} event times; give `times`, one for each "
                f"row, or one for all"
            )
        if found.size and not np.can_cast(found.dtype, np.int64):
            raise WrongBatch(
                f"{label}: the event times of rows for {which} are {found.dtype}; give whole milliseconds since 1970"
            )
        return Rows(
            batch, found.astype(np.int64, copy=False) if found.ndim else np.full(batch.num_rows, found, dtype=np.int64)
        )


class BatchProcess(KeyedFunction):
    """A function of batches, with state for each key.

        class Totals(BatchProcess):
            totals = AggregateTable({"amount": int}, total=Sum("amount"))

            def on_batch(self, batch, ctx):
                slots = self.totals.update(ctx.keys, {"amount": batch.column("amount")})
                ctx.emit(pa.RecordBatch.from_arrays([batch.column("user"), *self.totals.results(slots).columns], ...))

    An exception of a method fails the attempt, and all goes back to the last epoch.
    """

    def on_batch(self, batch: pa.RecordBatch, ctx: BatchContext, /) -> None:
        """Handle the rows of a batch, of which there is at least one."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_batch(self, batch, ctx)")

    def on_watermark(self, timestamp: int, ctx: BatchContext, /) -> None:
        """Handle event time that has come to `timestamp`; what is emitted needs `times`."""


@dataclass(frozen=True, slots=True, eq=False)
class ProcessBatches(FunctionOperator[BatchProcess]):
    """The operator that calls a `BatchProcess`."""

    takes_batches: ClassVar[bool] = True

    kind: ClassVar[str] = "process_batch"
    base: ClassVar[type[KeyedFunction]] = BatchProcess
    handlers: ClassVar[tuple[str, ...]] = ("on_batch",)

    def check(self) -> list[str]:
        """Return the problems that can be found without running it; columns may have any names."""
        named = {problem for taken in self.inputs for problem in column_problems(taken.schema)}
        problems = [problem for problem in FunctionOperator.check(self) if problem not in named]
        function: object = self.function
        if isinstance(function, BatchProcess) and has_timers(function):
            name = type(function).__name__
            problems.append(f"{name} has a method on_timer, and functions of batches have on_watermark instead")
        return problems

    def open(self, context: OperatorContext) -> _Batches:
        """Open it in a partition."""
        return _Batches(self, context)


class _Batches(Operator):
    """A `BatchProcess` at work in one partition."""

    def __init__(self, plan: ProcessBatches, context: OperatorContext) -> None:
        """Open a copy of the function."""
        self.function: Final = copy.copy(plan.function)
        self._keys, self._context = plan.inputs[0].keys, context
        self._label = plan.label
        self._ctx = BatchContext(plan, context)
        self._advance(context.watermark)
        for name in plan.function.states():
            object.__setattr__(self.function, name, context.state[name])
        self.function.open(OpenContext(context.uid, context.partition, context.parallelism))

    def rows(self, input: int, rows: Rows) -> None:
        """Call `on_batch`, unless there are no rows."""
        del input
        if not len(rows):
            return
        ctx, state = self._ctx, self._context.state
        self._look_at_the_clock()
        ctx.keys, ctx.timestamps = state.keys(keys_in(rows.batch, self._keys)), rows.times
        try:
            self.function.on_batch(rows.batch, ctx)
        except BaseException as error:
            error.add_note(f"in {self._label}, for a batch of {len(rows)} rows")
            raise

    def close(self) -> None:
        """Close the function."""
        self.function.close()

    def watermark(self, timestamp: int) -> None:
        """Call `on_watermark`."""
        ctx = self._ctx
        self._advance(timestamp)
        self._look_at_the_clock()
        ctx.keys, ctx.timestamps = ctx.no_keys, None
        try:
            self.function.on_watermark(timestamp, ctx)
        except BaseException as error:
            error.add_note(f"in {self._label}, for the watermark {timestamp}")
            raise

    def _advance(self, watermark: int) -> None:
        self._context.state.advance(watermark=watermark)
        self._ctx.watermark = max(self._ctx.watermark, watermark)

    def _look_at_the_clock(self) -> None:
        self._ctx.processing_time = max(self._ctx.processing_time, self._context.clock())
        self._context.state.advance(processing_time=self._ctx.processing_time)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
