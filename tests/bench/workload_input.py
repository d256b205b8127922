"""The input of the workloads W1 and W2 as a source: record i has the key splitmix64(i) mod K and the value i & 1023.

Invariant: the truth can be computed from the number of records alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.connectors.memory.generate import Generate
from tests.bench.state_inputs import splitmix

SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("value", pa.float64())])
SCHEDULED = SCHEMA.append(pa.field("ts", pa.int64()))
"""With the scheduled creation time in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Records:
    """Keys and values of records, of so many keys."""

    keys: int

    def __call__(self, indices: NDArray[np.int64]) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
        """The columns of these records."""
        keys = splitmix(indices.view(np.uint64))
        keys %= np.uint64(self.keys)
        return {"key": keys.view(np.int64), "value": (indices & 1023).astype(np.float64)}


def records(keys: int, count: int | None = None, rate: float | None = None) -> Generate:
    """The source; with a rate its rows have the column `ts`."""
    if rate is None:
        return Generate(Records(keys), SCHEMA, count=count)
    return Generate(Records(keys), SCHEDULED, count=count, rate=rate, scheduled="ts")


def truth(keys: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count and sum of each key over the first so many records."""
    counts, sums = np.zeros(keys, np.int64), np.zeros(keys)
    made = Records(keys)
    for first in range(0, count, 1 << 20):
        columns = made(np.arange(first, min(count, first + (1 << 20)), dtype=np.int64))
        counts += np.bincount(columns["key"], minlength=keys)
        sums += np.bincount(columns["key"], weights=columns["value"], minlength=keys)
    return counts, sums
