"""W2: sums of each key in tumbling windows of five seconds of event time, beside PySpark's own.

Invariant: event time follows from a record's number, so that a window has the same records however fast they
come, and windows fire all the time; sources make the records in the partitions' own processes, and a sink there drops
the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot import Generate, Program, Stream, Tumbling
from tests.bench import spark_peers
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import Drop
from tests.bench.running_job import Steady, running, session
from tests.bench.workload_input import SCHEMA, Records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKLOAD: Final = "W2"
STAGE: Final = "sums"
WINDOW: Final = 5_000
"""Milliseconds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys, records in a window, and how long each measure takes. Without `spark` partitions are processes."""

    keys: int
    per_window: int
    seconds: float
    peer_seconds: float
    rounds: int
    spark: bool


FULL = Sizes(100_000, 1_000_000, 6.0, 20.0, RUNS, spark=True)
SMALL = Sizes(500, 10_000, 0.2, 0.0, 1, spark=False)


@dataclass(frozen=True, slots=True)
class Timed:
    """Records with an event time, of which so many lie in a window."""

    keys: int
    per_window: int

    def __call__(self, indices: NDArray[np.int64]) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
        """The columns of these records."""
        return {**Records(self.keys)(indices), "at": indices * WINDOW // self.per_window}


def program(sizes: Sizes) -> Program:
    """What runs."""
    source = Generate(Timed(sizes.keys, sizes.per_window), SCHEMA.append(pa.field("at", pa.int64())))
    timed = Stream.read(source, uid="records").with_event_time("at").select("key", "value")
    return timed.key_by("key").window(Tumbling(f"{WINDOW}ms")).sum("value", uid=STAGE).write(Drop(), uid="out")


def measure(sizes: Sizes, spark: SparkSession | None) -> Steady:
    """What the job does once some windows have fired."""
    with running(program(sizes), spark) as job:
        job.until_rows(STAGE, 4 * sizes.per_window)
        return job.steady(STAGE, sizes.seconds)


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of the workload."""
    with session() if sizes.spark else nullcontext() as spark:
        runs = []
        for turn in range(sizes.rounds):
            progress(f"W2: {sizes.keys} keys, {sizes.per_window} records in a window, run {turn + 1}")
            runs.append(measure(sizes, spark))
        rates, cpu = [run.rows_per_s for run in runs], sum(run.cpu_s for run in runs)
        yield figure(WORKLOAD, "rows_per_s", "rows/s", rates, cpu)
        per_cpu = [run.rows_per_s * sizes.seconds / run.cpu_s for run in runs]
        yield figure(WORKLOAD, "rows_per_cpu_s", "rows/cpu-s", per_cpu, cpu)
        if spark is not None:
            progress("W2: Spark's own groupBy with windows")
            records = spark_peers.records(spark, sizes.keys, 300_000)
            windows = spark_peers.windowed(records, WINDOW, sizes.per_window)
            peer = spark_peers.throughput(windows, "append", sizes.peer_seconds)
            yield figure(WORKLOAD, "spark_group_by_window", "rows/s", [peer.rows_per_s], peer.cpu_s)
