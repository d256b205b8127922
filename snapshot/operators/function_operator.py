"""The declarations of operators that are made of a user's class, and the errors in them, found before they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, ClassVar, Generic, TypeVar, cast

import pyarrow as pa

from snapshot.operators.keyed_function import FunctionRun, KeyedFunction, Outputs, ProcessContext, states_of
from snapshot.operators.operator import Input, OperatorContext
from snapshot.operators.row_class import Row, column_problems
from snapshot.operators.rows import Rows
from statebackend.keys.types import UndeclarableKeyType
from statebackend.states.declarations import Declaration

F = TypeVar("F", bound=KeyedFunction)


@dataclass(frozen=True, slots=True, eq=False)
class FunctionOperator(Generic[F]):
    """An operator that calls the methods of a user's instance. `sides` are its side outputs."""

    function: F
    inputs: tuple[Input, ...]
    output: pa.Schema
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)

    kind: ClassVar[str]
    """The kind of the operator, in a word."""
    base: ClassVar[type[KeyedFunction]]
    """The class that the function must be a subclass of."""
    handlers: ClassVar[tuple[str, ...]]
    """The method for the rows of each input."""

    @property
    def label(self) -> str:
        """Return a label such as `process(CountClicks)`."""
        return f"{self.kind}({type(self.function).__name__})"

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Return the states that the class declares, and its timers if it has an `on_timer`."""
        return states_of(self.function)

    @property
    def timed(self) -> bool:
        """True if the rows of its first input, and so those that come out, have event times."""
        return self.inputs[0].timed

    @property
    def outputs(self) -> Outputs:
        """Return the outputs to which the function may emit."""
        return Outputs(self.label, self.output, self.sides, self.timed)

    def check(self) -> list[str]:
        """Return the problems that can be found without running it."""
        function = self.function
        if not isinstance(cast("object", function), self.base):
            return [f"{function!r} is no instance of a subclass of {self.base.__name__}"]
        name = type(function).__name__
        problems = [
            f"{name} has no method {handler}({', '.join(signature(getattr(self.base, handler)).parameters)})"
            for handler in self.handlers
            if getattr(type(function), handler) is getattr(self.base, handler)
        ]
        problems += [
            f"{name} declares a state {state!r}, which is the name of a method: choose another"
            for state in function.states()
            if hasattr(self.base, state)
        ]
        for number, taken in enumerate(self.inputs, 1):
            where = f"input {number}: " if len(self.inputs) > 1 else ""
            problems += [where + problem for problem in column_problems(taken.schema) + key_problems(taken)]
        outputs = {"the output": self.output} | {f"side output {side!r}": schema for side, schema in self.sides.items()}
        problems += [f"{which} has no columns" for which, schema in outputs.items() if not schema.names]
        return problems


def key_problems(taken: Input) -> list[str]:
    """Return why the key columns of an input cannot be a key; nothing for an input without keys."""
    absent = [name for name in taken.keys if name not in taken.schema.names]
    if absent or not taken.keys:
        return [f"there is no key column {name!r}; the columns are {', '.join(taken.schema.names)}" for name in absent]
    try:
        _ = taken.key_type
    except UndeclarableKeyType as error:
        return [f"{', '.join(taken.keys)} cannot be a key: {error}"]
    return []


class KeyedProcess(KeyedFunction):
    """A function of rows and timers, with state for each key.

        class CountClicks(KeyedProcess):
            clicks = ValueState(int, default=0)

            def on_event(self, event, ctx):
                self.clicks.set(self.clicks.get() + 1)
                ctx.emit((event.user, self.clicks.get()))

    A partition handles rows one by one, in the order in which they arrive; the rows of a key arrive in the order in
    which each sender has sent them. An exception in a method fails the attempt: all partitions roll back to the last
    complete epoch.
    """

    def on_event(self, event: Row, ctx: ProcessContext, /) -> None:
        """Handle each row: a named tuple of the input's columns."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_event(self, event, ctx)")


@dataclass(frozen=True, slots=True, eq=False)
class Process(FunctionOperator[KeyedProcess]):
    """The operator that calls a `KeyedProcess`."""

    kind: ClassVar[str] = "process"
    base: ClassVar[type[KeyedFunction]] = KeyedProcess
    handlers: ClassVar[tuple[str, ...]] = ("on_event",)

    def open(self, context: OperatorContext) -> ProcessRun:
        """Open it in a partition."""
        return ProcessRun(self.function, context, self.outputs, self.inputs[0].keys)


class ProcessRun(FunctionRun):
    """A `KeyedProcess` at work in one partition."""

    def __init__(
        self, function: KeyedProcess, context: OperatorContext, outputs: Outputs, keys: tuple[str, ...]
    ) -> None:
        super().__init__(function, context, outputs)
        assert isinstance(self.function, KeyedProcess)
        self._keys, self._on_event = keys, self.function.on_event

    def rows(self, input: int, rows: Rows) -> int:
        """Call `on_event` for each row until `overdue`; return for how many."""
        del input
        return self.feed(self._on_event, self._keys, rows)


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
        return ConnectedRun(self.function, context, self.outputs, [taken.keys for taken in self.inputs])


class ConnectedRun(FunctionRun):
    """A `KeyedCoProcess` at work in one partition."""

    def __init__(
        self, function: KeyedCoProcess, context: OperatorContext, outputs: Outputs, keys: list[tuple[str, ...]]
    ) -> None:
        super().__init__(function, context, outputs)
        assert isinstance(self.function, KeyedCoProcess)
        self._inputs = list(zip((self.function.on_first, self.function.on_second), keys, strict=True))

    def rows(self, input: int, rows: Rows) -> int:
        """Call `on_first` or `on_second` for each row until `overdue`; return for how many."""
        handler, keys = self._inputs[input]
        return self.feed(handler, keys, rows)
