"""What operators that are made of a user's class declare, and what is wrong with them before they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

import pyarrow as pa

from snapshot.operators.keyed_function import KeyedFunction, Outputs, states_of
from snapshot.program.operator import Input
from snapshot.program.row_class import column_problems
from statebackend.keys.types import KeyType, UndeclarableKeyType
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
    """What it does, in a word."""
    base: ClassVar[type[KeyedFunction]]
    """What the function must be a subclass of."""
    handlers: ClassVar[tuple[str, ...]]
    """The method for the rows of each input."""

    @property
    def label(self) -> str:
        """Such as `process(CountClicks)`."""
        return f"{self.kind}({type(self.function).__name__})"

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """What the class declares, and its timers if it has an `on_timer`."""
        return states_of(self.function)

    @property
    def timed(self) -> bool:
        """Rows that come out have event times if those that go in have."""
        return self.inputs[0].timed

    @property
    def outputs(self) -> Outputs:
        """What the function may emit."""
        return Outputs(self.label, self.output, self.sides, self.timed)

    def check(self) -> list[str]:
        """What is wrong with it as far as can be told without running."""
        function = self.function
        if not isinstance(cast("object", function), self.base):
            return [f"{function!r} is no instance of a subclass of {self.base.__name__}"]
        name = type(function).__name__
        problems = [
            f"{name} has no method {handler}(self, event, ctx)"
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
    """Why the key columns of an input cannot be one; nothing for an input without keys."""
    absent = [name for name in taken.keys if name not in taken.schema.names]
    if absent or not taken.keys:
        return [f"there is no key column {name!r}; the columns are {', '.join(taken.schema.names)}" for name in absent]
    try:
        KeyType.of(taken.key_declared)
    except UndeclarableKeyType as error:
        return [f"{', '.join(taken.keys)} cannot be a key: {error}"]
    return []
