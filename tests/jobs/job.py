"""What a job for tests is: a program over a source, and a judge of its output.

Invariant: the source's rows and the verdict follow from the number of rows alone, so that whoever reads the
output, in whichever process, can judge it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from snapshot import Generate, Program, ToDriver, ToFiles
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.program.sink import Sink
from snapshot.program.stream import Stream
from statebackend.columns import schema_of
from tests.jobs.comparison import Comparison
from tests.jobs.steady import Steady

SPLITS = 4
OUT = "out"

SinkKind = Literal["jsonl", "parquet", "driver", "plain", "given"]
"""The driver is given the rows of an epoch when it is complete, or in `plain` as they come."""

Judge = Callable[[Sequence[Mapping[str, object]], int], Comparison]


@dataclass(frozen=True, slots=True)
class Scale:
    """How many rows, how fast they come while the file `gate` is not there."""

    rows: int
    rate: float
    """In rows per second, of all splits together."""
    gate: str

    def steady(self, function: Callable[[Indices], Columns], schema: Mapping[str, object], rows: int = 0) -> Steady:
        """A generator in four splits. While the gate is shut, it keeps the last tenth of its rows back."""
        count = rows or self.rows
        source = Generate(function, schema_of(schema), count=count, splits=SPLITS)
        return Steady(source, self.rate / SPLITS * count / self.rows, count * 9 // 10 // SPLITS, self.gate)


@dataclass(frozen=True, slots=True)
class Job:
    """`stream` makes the output, and `judge` compares all of its rows with the truth for so many rows of input."""

    name: str
    stream: Callable[[Scale], Stream]
    judge: Judge
    judge_repeats: Judge | None = None
    """The same where rows may come twice, and counts may have them twice; None if nothing can be said then."""

    def program(self, scale: Scale, sink: Sink) -> Program:
        return self.stream(scale).write(sink, uid=OUT)


def sink_of(kind: SinkKind, folder: str) -> Sink:
    match kind:
        case "driver":
            return ToDriver()
        case "plain":
            return ToDriver(at_commit=False)
        case "given":
            raise ValueError("a sink that is given is not made here")
        case _:
            return ToFiles(folder, kind)


def values(i: Indices) -> Indices:
    """A value for each row, with no pattern that a key could share."""
    return np.asarray((i * 7919 + 13) % 1009, dtype=np.int64)
