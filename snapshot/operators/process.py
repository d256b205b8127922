"""Functions of one row at a time over a keyed stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from snapshot.operators.function_operator import FunctionOperator
from snapshot.operators.keyed_function import FunctionRun, KeyedFunction, ProcessContext
from snapshot.program.operator import OperatorContext
from snapshot.program.row_class import Row
from snapshot.program.rows import Rows


class KeyedProcess(KeyedFunction):
    """A function of rows and timers, with state for each key.

        class CountClicks(KeyedProcess):
            clicks = Value(int, default=0)

            def on_event(self, event, ctx):
                self.clicks.set(self.clicks.get() + 1)
                ctx.emit((event.user, self.clicks.get()))

    The keys of a partition take turns in the order in which their rows come; a key's rows come in the order in which
    each sender has sent them. An exception of a method fails the attempt, and all goes back to the last epoch.
    """

    def on_event(self, event: Row, ctx: ProcessContext, /) -> None:
        """Called for each row: a named tuple of the input's columns."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_event(self, event, ctx)")


@dataclass(frozen=True, slots=True, eq=False)
class Process(FunctionOperator[KeyedProcess]):
    """The operator that calls a `KeyedProcess`."""

    kind: ClassVar[str] = "process"
    base: ClassVar[type[KeyedFunction]] = KeyedProcess
    handlers: ClassVar[tuple[str, ...]] = ("on_event",)

    def open(self, context: OperatorContext) -> ProcessRun:
        """Open it in a partition."""
        return ProcessRun(FunctionRun(self.function, context, self.outputs), self.inputs[0].keys)


class ProcessRun:
    """A `KeyedProcess` at work in one partition."""

    def __init__(self, run: FunctionRun, keys: tuple[str, ...]) -> None:
        assert isinstance(run.function, KeyedProcess)
        self._run, self._keys, self._on_event = run, keys, run.function.on_event
        self.watermark, self.wakes_at, self.wake = run.watermark, run.wakes_at, run.wake
        self.close = run.function.close

    def rows(self, _input: int, rows: Rows) -> int:
        """Call `on_event` for each row until it is time."""
        return self._run.feed(self._on_event, self._keys, rows)

    def broadcast(self) -> bytes | None:
        """It has none."""
        return None
