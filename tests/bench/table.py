"""What a table of aggregates costs: a batch of count and sum, and the pause of a cut, by how many keys have changed.

Invariant: inside the measure of a batch is all from the Arrow column of keys to the accumulators: canonical
bytes, hashes, slots and both aggregations. Inside that of a cut is what happens while no record flows; making blocks
of it is the background's work, in CPU time per changed key. All keys have 80 bytes that do not compress.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.ids import KeyGroup
from statebackend.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange
from statebackend.keys.columns import key_column
from statebackend.keys.types import KeyType
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Count, Sum
from statebackend.tables.values.spec import TableSpec
from tests.bench.figures import RUNS, Figure, figure, progress

WORKLOAD = "table"
KEYS = 1_000_000
BATCH = 32_768
KEY_SIZE = 80
_BATCHES = 32
_KEY = KeyType.of(str)
_SPEC = TableSpec("totals", {"count": Count(), "sum": Sum("value").over(pa.float64())})


class NoEntries:
    """A store in which nothing is, and to which nothing comes while memory is ample."""

    def put(self, name: bytes, payload: bytes) -> None:
        """Never called."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """None is there."""
        return iter(())


class Measured:
    """A table that has so many keys, and ways to change some of them."""

    def __init__(self, keys: int) -> None:
        groups = KeyGroupRange(KeyGroup(0), KeyGroup(DEFAULT_MAX_PARALLELISM))
        self.table = Table(_SPEC, _KEY, groups, DEFAULT_MAX_PARALLELISM, NoEntries(), 2 * keys)
        self.random = np.random.default_rng(1)
        data = self.random.integers(ord("0"), ord("z"), size=(keys, KEY_SIZE), dtype=np.uint8)
        buffers = [None, pa.py_buffer(np.arange(keys + 1, dtype=np.int64) * KEY_SIZE), pa.py_buffer(data)]
        self.keys = pa.Array.from_buffers(pa.large_string(), keys, buffers)
        self.change(np.arange(keys))
        self.table.freeze(0)

    def change(self, which: NDArray[np.int64]) -> float:
        """Fold a record in for each of these keys, and say how many CPU seconds that took."""
        seconds = 0.0
        for first in range(0, len(which), BATCH):
            keys = self.keys.take(pa.array(which[first : first + BATCH]))
            values = pa.array(self.random.random(len(keys)))
            began = time.process_time()
            self.table.update(key_column(keys, _KEY), {"value": values})
            seconds += time.process_time() - began
        return seconds

    def cut(self, changed: int) -> tuple[float, float]:
        """Change so many keys; how many seconds the cut took then, and how much CPU time making blocks of it."""
        self.change(self.random.permutation(len(self.keys))[:changed])
        began = time.perf_counter()
        frozen = self.table.freeze(1)
        pause = time.perf_counter() - began
        began = time.process_time()
        frozen.blocks()
        return pause, time.process_time() - began


def figures(keys: int = KEYS) -> Iterator[Figure]:
    """Records a second on one core, the pauses, and what the background pays."""
    progress(f"table: {keys} keys of {KEY_SIZE} bytes")
    measured = Measured(keys)
    number = BATCH * _BATCHES
    runs = [measured.change(measured.random.integers(keys, size=number)) for _ in range(RUNS)]
    measured.table.freeze(0)
    yield figure(WORKLOAD, "records_per_cpu_second", "rows/s", [number / run for run in runs], sum(runs))
    for name, changed in (("1_percent", keys // 100), ("half", keys // 2), ("all", keys)):
        progress(f"table: cuts with {changed} keys changed")
        cuts = [measured.cut(changed) for _ in range(RUNS)]
        cpu = sum(blocks for _, blocks in cuts)
        yield figure(WORKLOAD, f"freeze_ms_{name}", "ms", [1_000 * pause for pause, _ in cuts], cpu)
        yield figure(WORKLOAD, f"blocks_ns_{name}", "ns/key", [1e9 * blocks / changed for _, blocks in cuts], cpu)
    yield figure(WORKLOAD, "memory_per_key", "bytes", [measured.table.memory_bytes() / keys], 0.0)
