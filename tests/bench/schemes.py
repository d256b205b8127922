"""Schemes beside each other, in one run: what it costs to take input in rounds.

Invariant: the runs of the schemes alternate, so that what else the machine does comes to all of them alike; each run of
`Active` is compared with that of `Passive` before it.

The throughput is that of W1's running totals, an update per record; the latency that of MB1 (SRDS'21): records at a
steady rate through a chain of maps, each after a rebalance, from the time for which one was scheduled to the sink.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import recovery
from recovery.schemes.scheme import Scheme
from snapshot import Generate, Program, Stream
from tests.bench import w1
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import SCHEDULED, Stopwatch, noted
from tests.bench.running_job import EVERY_SECOND, running, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKLOAD: Final = "schemes"
LAST: Final = "last"
_SCHEMA: Final = pa.schema([("n", pa.int64()), (SCHEDULED, pa.int64())])
_WARM: Final = 2.0
"""Seconds of records before any is measured."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The keys of W1, the rate and lengths of MB1, and how long runs are. Without `spark` partitions are processes."""

    keys: int
    rate: int
    lengths: tuple[int, ...]
    seconds: float
    runs: int
    spark: bool


FULL = Sizes(1_000_000, 5_000, (1, 2, 3, 4), 6.0, RUNS, spark=True)
SMALL = Sizes(1_000, 1_000, (1,), 0.5, 1, spark=False)


def schemes() -> Mapping[str, Scheme]:
    """The schemes that are compared."""
    return {"passive": recovery.Passive(), "order": recovery.Active()}


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of the workload."""
    with session() if sizes.spark else nullcontext() as spark:
        yield from _throughput(sizes, spark)
        yield from _latency(sizes, spark)


# --- throughput -------------------------------------------------------------------------------------------------------


def _throughput(sizes: Sizes, spark: SparkSession | None) -> Iterator[Figure]:
    measure = w1.Measure(w1.PER_RECORD, sizes.keys)
    rates: dict[str, list[float]] = {name: [] for name in schemes()}
    per_cpu: dict[str, list[float]] = {name: [] for name in schemes()}
    cpu = 0.0
    for _ in range(sizes.runs):
        for name, scheme in schemes().items():
            progress(f"W1, {name}")
            with running(measure.program, spark, EVERY_SECOND, scheme) as job:
                job.until_rows(w1.STAGE, 2 * sizes.keys)
                steady = job.steady(w1.STAGE, sizes.seconds)
            rates[name].append(steady.rows_per_s)
            per_cpu[name].append(steady.rows_per_s * sizes.seconds / steady.cpu_s)
            cpu += steady.cpu_s
    for name, found in rates.items():
        yield figure(WORKLOAD, f"{name}_w1_rows_per_s", "rows/s", found, cpu)
    ratios = [order / passive for passive, order in zip(rates["passive"], rates["order"], strict=True)]
    yield figure(WORKLOAD, "order_w1_ratio", "", ratios, cpu)
    costs = [passive / order for passive, order in zip(per_cpu["passive"], per_cpu["order"], strict=True)]
    yield figure(WORKLOAD, "order_w1_cpu_ratio", "", costs, cpu)


# --- latency ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Numbered:
    """The records of MB1: a number each."""

    def __call__(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """The columns of these records."""
        return {"n": indices}


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Do nothing, as MB1's maps."""
    return batch


def chain(rate: int, length: int, folder: str) -> Program:
    """A source, so many maps after a rebalance each, and a sink that notes when rows come."""
    stream = Stream.read(Generate(Numbered(), _SCHEMA, rate=rate, scheduled=SCHEDULED), uid="records")
    for hop in range(length):
        stream = stream.rebalance(uid=f"hop{hop}").map_batches(same)
    return stream.rebalance(uid=LAST).write(Stopwatch(folder), uid="out")


@dataclass(frozen=True, slots=True)
class _Run:
    p50_ms: float
    p99_ms: float
    cpu_s: float


def _through(sizes: Sizes, length: int, scheme: Scheme, spark: SparkSession | None) -> _Run:
    with TemporaryDirectory() as folder:
        with running(chain(sizes.rate, length, folder), spark, EVERY_SECOND, scheme) as job:
            job.until_rows(LAST, int(sizes.rate * _WARM))
            began = time.time_ns() // 1_000
            steady = job.steady(LAST, sizes.seconds)
            ended = time.time_ns() // 1_000
            job.until_epochs(2)
        scheduled, came = noted(Path(folder))
    chosen = (scheduled >= began) & (scheduled < ended)
    p50, p99 = np.percentile((came[chosen] - scheduled[chosen]) / 1_000, (50, 99))
    return _Run(float(p50), float(p99), steady.cpu_s)


def _latency(sizes: Sizes, spark: SparkSession | None) -> Iterator[Figure]:
    over: dict[str, list[list[float]]] = {"p50": [], "p99": []}
    cpu_of_all, cost = 0.0, []
    for length in sizes.lengths:
        runs: dict[str, list[_Run]] = {name: [] for name in schemes()}
        for _ in range(sizes.runs):
            for name, scheme in schemes().items():
                progress(f"MB1 of {length}, {name}")
                runs[name].append(_through(sizes, length, scheme, spark))
        cpu = sum(run.cpu_s for found in runs.values() for run in found)
        for name, found in runs.items():
            yield figure(WORKLOAD, f"{name}_mb1_{length}_p50_ms", "ms", [run.p50_ms for run in found], cpu)
            yield figure(WORKLOAD, f"{name}_mb1_{length}_p99_ms", "ms", [run.p99_ms for run in found], cpu)
        pairs = list(zip(runs["passive"], runs["order"], strict=True))
        over["p50"].append([order.p50_ms - passive.p50_ms for passive, order in pairs])
        over["p99"].append([order.p99_ms - passive.p99_ms for passive, order in pairs])
        cost += [order.cpu_s / passive.cpu_s for passive, order in pairs]
        cpu_of_all += cpu
    for percentile, by_length in over.items():
        largest = max(by_length, key=median)
        yield figure(WORKLOAD, f"order_mb1_{percentile}_over_passive_ms", "ms", largest, cpu_of_all)
    yield figure(WORKLOAD, "order_mb1_cpu_ratio", "", cost, cpu_of_all)
