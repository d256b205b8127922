"""Functions of two keyed streams that share the state of each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from snapshot.operators.function_operator import FunctionOperator, key_problems
from snapshot.operators.keyed_function import FunctionRun, KeyedFunction, ProcessContext
from snapshot.operators.operator import OperatorContext
from snapshot.operators.row_class import Row
from snapshot.operators.rows import Rows


class KeyedCoProcess(KeyedFunction):
    """A function of the rows of two streams, and of timers, with state for each key that both streams share.

        class Enrich(KeyedCoProcess):
            name = ValueState(str)

            def on_first(self, order, ctx):
                ctx.emit((order.user, self.name.get(), order.amount))

            def on_second(self, user, ctx):
                self.name.set(user.name)

    Nothing says in which order rows of different streams come.
    """

    def on_first(self, event: Row, ctx: ProcessContext, /) -> None:
        """Handle each row of the first stream."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_first(self, event, ctx)")

    def on_second(self, event: Row, ctx: ProcessContext, /) -> None:
        """Handle each row of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_second(self, event, ctx)")


@dataclass(frozen=True, slots=True, eq=False)
class ConnectedProcess(FunctionOperator[KeyedCoProcess]):
    """The operator that calls a `KeyedCoProcess`."""

    kind: ClassVar[str] = "connected"
    base: ClassVar[type[KeyedFunction]] = KeyedCoProcess
    handlers: ClassVar[tuple[str, ...]] = ("on_first", "on_second")

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        problems = FunctionOperator.check(self)
        first, second = self.inputs
        if first.timed != second.timed:
            problems.append("one of its inputs has event times, and the other has none")
        if not second.keys:
            problems.append("the second input has no key")
        elif not key_problems(first) and not key_problems(second):
            types = [taken.key_type for taken in self.inputs]
            if types[0] != types[1]:
                problems.append(
                    f"the keys of its inputs are of different types, {types[0].name} ({', '.join(first.keys)}) and "
                    f"{types[1].name} ({', '.join(second.keys)}): cast one of them"
                )
        return problems

    def open(self, context: OperatorContext) -> ConnectedRun:
        """Open it in a partition."""
        return ConnectedRun(FunctionRun(self.function, context, self.outputs), [taken.keys for taken in self.inputs])


class ConnectedRun:
    """A `KeyedCoProcess` at work in one partition."""

    def __init__(self, run: FunctionRun, keys: list[tuple[str, ...]]) -> None:
        function = run.function
        assert isinstance(function, KeyedCoProcess)
        self._run, self._inputs = run, list(zip((function.on_first, function.on_second), keys, strict=True))
        self.watermark, self.wakes_at, self.wake = run.watermark, run.wakes_at, run.wake
        self.close = function.close

    def rows(self, input: int, rows: Rows) -> int:
        """Call `on_first` or `on_second` for each row until `overdue`; return for how many."""
        handler, keys = self._inputs[input]
        return self._run.feed(handler, keys, rows)

    def broadcast(self) -> bytes | None:
        """Return None: there is no broadcast state."""
        return None
