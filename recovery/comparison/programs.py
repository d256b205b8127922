"""A program to compare schemes with: running totals of many keys, as W3 of the benchmarks has them.

Invariant: its output follows from the rows of its source alone, so runs can be compared row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.connectors.memory.driver_sink import ToDriver
from snapshot.connectors.memory.generate import Generate
from snapshot.program.program import Program
from snapshot.program.stream import Stream
from statebackend.tables.values.aggregations import Count, Last

RATE = 2_000.0
KEYS = 10_000
MADE = "made"
"""The column with the time for which a row is scheduled."""
_SCHEMA = pa.schema([("key", pa.int64()), (MADE, pa.int64())])


@dataclass(frozen=True, slots=True)
class Scattered:
    """Rows of so many keys, in an order that looks like chance."""

    keys: int

    def __call__(self, numbers: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return the columns of these rows."""
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return {"key": ((mixed >> np.uint64(20)) % np.uint64(self.keys)).astype(np.int64)}


def totals(keys: int = KEYS, *, at_commit: bool = False) -> Program:
    """Return a running count of each key, a row for each row: shown at once, or when its epoch is committed."""
    rows = Stream.read(Generate(Scattered(keys), _SCHEMA, rate=RATE, scheduled=MADE), uid="rows")
    counted = rows.key_by("key").aggregate(uid="totals", rows=Count(), made=Last(MADE))
    return counted.write(ToDriver(at_commit=at_commit), uid="out")


def committed() -> Program:
    """Return the same, exactly once: rows are shown when their epoch is committed."""
    return totals(at_commit=True)
