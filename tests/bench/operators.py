"""What the columnar operators do alone: running aggregates per record and per batch, and tumbling windows.

Invariant: inside the measure is all from a batch of rows with its keys to the rows that come out; the batches
are made before, and nobody takes what comes out. Figures are rows that go in for a second of CPU time, in one process
with state in RocksDB; W1 and W2 as wholes are measured elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.cut.frames import EARLIEST
from snapshot.host.partition.stage_clock import process_clock
from snapshot.operators.aggregate import RunningAggregate
from snapshot.operators.operator import Input, KeyedOperator, Operator, OperatorContext
from snapshot.operators.rows import Rows
from snapshot.operators.windows.aggregate import WindowAggregate
from snapshot.operators.windows.kinds import Tumbling
from statebackend.ids import Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import canonical_order
from statebackend.operator import Operator as StateOperator
from statebackend.options import Options
from statebackend.stores.local_store import LocalStore
from statebackend.tables.values.aggregations import Count, Sum
from tests.bench.figures import RUNS, Figure, figure, progress

WORKLOAD = "operators"
SCHEMA: Final = pa.schema([("key", pa.int64()), ("value", pa.float64())])
SIZE: Final = 5_000
"""Milliseconds of a window."""

_MEMORY: Final = 6 << 30
"""More than any of these tables needs: what is measured is not the moving of keys to the disk."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    keys: tuple[int, ...]
    windowed_keys: int
    batch: int
    batches: int
    per_window: int


FULL = Sizes((100_000, 1_000_000), 100_000, 32_768, 60, 1_000_000)
SMALL = Sizes((1_000,), 1_000, 1_024, 8, 2_000)


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Rows a second on one core."""
    for keys in sizes.keys:
        batches = [Rows(batch) for batch in _batches(keys, sizes)]
        for per in ("record", "batch"):
            progress(f"operators: running count and sum of {keys} keys, per {per}")
            with tempfile.TemporaryDirectory() as folder, _Measured(_running(per), Path(folder)) as measured:
                measured.fill(keys)
                runs = [measured.cpu_seconds(batches, ()) for _ in range(RUNS)]
            yield _figure(f"running_{_short(keys)}_per_{per}", sizes, runs)
    progress(f"operators: sums of {sizes.windowed_keys} keys in windows of {sizes.per_window} rows")
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder, _Measured(_windowed(), Path(folder)) as measured:
            timed = [
                Rows(batch, (np.arange(sizes.batch) + first * sizes.batch) * SIZE // sizes.per_window)
                for first, batch in enumerate(_batches(sizes.windowed_keys, sizes))
            ]
            watermarks = [int(rows.times[0]) for rows in timed if rows.times is not None]
            runs.append(measured.cpu_seconds(timed, watermarks))
    yield _figure(f"tumbling_{_short(sizes.windowed_keys)}", sizes, runs)
    progress(f"operators: the order of {sizes.windowed_keys} keys")
    hashes = _splitmix64(np.arange(sizes.windowed_keys))
    took = [_order_of(hashes) for _ in range(RUNS)]
    yield figure(WORKLOAD, f"order_of_{_short(sizes.windowed_keys)}_keys", "cpu-ms", took, sum(took) / 1000)


def _figure(name: str, sizes: Sizes, runs: Sequence[float]) -> Figure:
    number = sizes.batch * sizes.batches
    return figure(WORKLOAD, name, "rows/cpu-s", [number / run for run in runs], sum(runs))


def _order_of(hashes: NDArray[np.uint64]) -> float:
    """What it costs to bring the keys of a window into their canonical order, in milliseconds."""
    began = time.process_time()
    canonical_order(hashes, lambda _: [])
    return (time.process_time() - began) * 1000


def _running(per: Literal["record", "batch"]) -> RunningAggregate:
    outputs = {"count": Count(), "sum": Sum("value")}
    return RunningAggregate(outputs, Input(SCHEMA, ("key",), timed=False), per)


def _windowed() -> WindowAggregate:
    outputs = {"sum": Sum("value")}
    return WindowAggregate(Tumbling(f"{SIZE}ms"), outputs, Input(SCHEMA, ("key",), timed=True))


class _Measured:
    """An operator for all key groups."""

    def __init__(self, plan: KeyedOperator, folder: Path) -> None:
        numbers = count()
        declared = StateOperator("measured", plan.inputs[0].key_type, plan.states)
        self._state = KeyedState(
            declared, folder / "state", LocalStore(folder / "store"), lambda: f"shared/{next(numbers)}",
            options=Options(memory=_MEMORY),
        )  # fmt: skip
        self.operator: Operator = plan.open(
            OperatorContext(
                Uid("measured"),
                Partition(0),
                1,
                self._state.key_type,
                self._state,
                _nowhere,
                EARLIEST,
                process_clock().now,
            )
        )

    def __enter__(self) -> _Measured:
        return self

    def __exit__(self, *error: object) -> None:
        self._state.close()

    def fill(self, keys: int) -> None:
        """Have all keys once, so that the measure has none that are new."""
        for first in range(0, keys, 1 << 16):
            some = np.arange(first, min(keys, first + (1 << 16)))
            self.operator.rows(0, Rows(_batch(some, some)))

    def cpu_seconds(self, batches: Sequence[Rows], watermarks: Sequence[int]) -> float:
        """What these batches cost, each with a watermark behind it if there are some."""
        began = time.process_time()
        for at, rows in enumerate(batches):
            self.operator.rows(0, rows)
            if watermarks:
                self.operator.watermark(watermarks[at])
        return time.process_time() - began


def _nowhere(rows: Rows, side: str | None = None) -> None:
    """Takes what comes out."""


def _batches(keys: int, sizes: Sizes) -> Iterator[pa.RecordBatch]:
    """The records of the workloads."""
    for first in range(sizes.batches):
        numbers = np.arange(first * sizes.batch, (first + 1) * sizes.batch)
        yield _batch((_splitmix64(numbers) % np.uint64(keys)).astype(np.int64), numbers)


def _batch(keys: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array((numbers & 1023).astype(np.float64))], schema=SCHEMA)


def _splitmix64(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _short(number: int) -> str:
    return f"{number // 1_000_000}m" if number >= 1_000_000 else f"{number // 1_000}k"
