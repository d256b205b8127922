"""An operator of a test as it stands in a plan: without state, without side outputs, and never wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snapshot.operators.operator import Input, Operator, OperatorContext
from statebackend.states.declarations import Declaration


@dataclass(frozen=True)
class Planned:
    """What is opened is whatever `opened` makes of the context."""

    opened: Callable[[OperatorContext], Operator]
    inputs: tuple[Input, ...]
    output: pa.Schema
    label: str = "planned"
    timed: bool = False

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        return {}

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        return {}

    def check(self) -> Sequence[str]:
        return ()

    def open(self, context: OperatorContext) -> Operator:
        return self.opened(context)
