"""The schemes that pause sources beside `Passive`, in one run: throughput, latency, a killed worker, and the pause.

Invariant: runs of the schemes alternate, each is compared with that of `Passive` before it, and all have the same
program, interval and sink. Rows of a plain sink come out of `MicroBatches` when their batch is complete.

The pause is the time from the trigger of a synchronous epoch to its completion, in which sources read nothing. W1 at
full speed changes nearly all of its keys in an interval.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import recovery
from recovery.events import EpochCompleted
from recovery.schemes.scheme import Scheme
from tests.bench import spark_peers, w1, w3, w4
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import Stopwatch
from tests.bench.running_job import EVERY_SECOND, running, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKLOAD: Final = "pausing"
_OFTEN: Final = "100ms"
"""The interval of micro-batches whose latency is compared with Spark's, which begins one batch after the other."""
_EPOCHS: Final = 5
_PEER_ROWS: Final = 300_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The keys of W1 and of the pauses, and how long runs are. Without `spark` partitions are processes."""

    keys: int
    states: tuple[int, ...]
    seconds: float
    peer_seconds: float
    runs: int
    latency: w3.Sizes
    kills: w4.Sizes


FULL = Sizes(
    1_000_000,
    (1, 100_000, 1_000_000, 5_000_000),
    6.0,
    20.0,
    RUNS,
    replace(w3.FULL, runs=1),
    replace(w4.FULL, kills=5),
)
SMALL = Sizes(1_000, (1, 1_000), 0.5, 0.0, 1, w3.SMALL, w4.SMALL)


def schemes() -> Mapping[str, Scheme]:
    """The schemes that are compared."""
    restarts = recovery.FailureRate(failures=1000)
    return {
        "passive": recovery.Passive(restarts=restarts),
        "synchronous": recovery.Synchronous(restarts=restarts),
        "batches": recovery.MicroBatches(restarts=restarts),
    }


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of the workload."""
    with session() if sizes.latency.spark else nullcontext() as spark:
        rates = yield from _throughput(sizes, spark)
        yield from _pauses(sizes, spark)
        yield from _latency(sizes, spark)
        yield from _kills(sizes, spark)
        if spark is not None:
            yield from _peers(sizes, spark, rates)


def _throughput(sizes: Sizes, spark: SparkSession | None) -> Generator[Figure, None, float]:
    """W1; returns the rows per second of micro-batches."""
    measure = w1.Measure(w1.PER_RECORD, sizes.keys)
    rates: dict[str, list[float]] = {name: [] for name in schemes()}
    cpus: dict[str, list[float]] = {name: [] for name in schemes()}
    for _ in range(sizes.runs):
        for name, scheme in schemes().items():
            progress(f"W1, {name}")
            with running(measure.program, spark, EVERY_SECOND, scheme) as job:
                job.until_rows(w1.STAGE, 2 * sizes.keys)
                steady = job.steady(w1.STAGE, sizes.seconds)
            rates[name].append(steady.rows_per_s)
            cpus[name].append(steady.cpu_s)
    for name, found in rates.items():
        cpu = sum(cpus[name])
        yield figure(WORKLOAD, f"{name}_w1_rows_per_s", "rows/s", found, cpu)
        per_million = [1e6 * used / (rate * sizes.seconds) for rate, used in zip(found, cpus[name], strict=True)]
        yield figure(WORKLOAD, f"{name}_w1_cpu_s_per_million", "cpu-s", per_million, cpu)
        if name != "passive":
            ratios = [here / passive for passive, here in zip(rates["passive"], found, strict=True)]
            yield figure(WORKLOAD, f"{name}_w1_ratio", "", ratios, cpu)
    return median(rates["batches"])


def _pauses(sizes: Sizes, spark: SparkSession | None) -> Iterator[Figure]:
    """What an epoch takes from its trigger on, by the number of keys: the time that synchronous ones stand still."""
    chosen = {name: scheme for name, scheme in schemes().items() if name != "batches"}
    for keys in sizes.states:
        for name, scheme in chosen.items():
            progress(f"pauses, {keys} keys, {name}")
            with running(w1.Measure(w1.PER_RECORD, keys).program, spark, EVERY_SECOND, scheme) as job:
                job.until_rows(w1.STAGE, 2 * keys)
                job.until_epochs(2)
                steady = job.steady(w1.STAGE, 0.1)
                job.until_epochs(_EPOCHS)
                events = [event for event in job.run.events if isinstance(event, EpochCompleted)]
            took = [event.since_trigger_ms for event in events[-_EPOCHS:]]
            yield figure(WORKLOAD, f"{name}_{keys}_keys_epoch_ms", "ms", took, steady.cpu_s)


def _latency(sizes: Sizes, spark: SparkSession | None) -> Iterator[Figure]:
    for name, scheme in schemes().items():
        progress(f"W3, {name}")
        yield from _percentiles(name, _measured(sizes, spark, scheme, sizes.latency.every))


def _measured(sizes: Sizes, spark: SparkSession | None, scheme: Scheme, every: str) -> list[w3.Run]:
    with TemporaryDirectory() as folder:
        latency, sink = replace(sizes.latency, every=every), Stopwatch(folder)
        return w3.measured(latency, sink, spark, lambda job: w3.by_stopwatch(Path(folder), job), scheme)


def _percentiles(name: str, runs: list[w3.Run]) -> Iterator[Figure]:
    cpu = sum(run.cpu_s for run in runs)
    found = [spark_peers.percentiles(run.latencies_ms) for run in runs]
    for percentile in ("p50_ms", "p99_ms"):
        yield figure(WORKLOAD, f"{name}_w3_{percentile}", "ms", [each[percentile] for each in found], cpu)
    yield figure(WORKLOAD, f"{name}_w3_cpu_s", "cpu-s", [run.cpu_s for run in runs], cpu)


def _kills(sizes: Sizes, spark: SparkSession | None) -> Iterator[Figure]:
    for name, scheme in schemes().items():
        progress(f"W4, {name}")
        kills = w4.killed(sizes.kills, spark, 0, w4.kill_worker, scheme=scheme)
        yield figure(WORKLOAD, f"{name}_w4_no_output_s", "s", [outage.no_output_s for outage in kills.outages], 0.0)


def _peers(sizes: Sizes, spark: SparkSession, rate: float) -> Iterator[Figure]:
    """Micro-batches against those of Spark's `groupBy`, each as it likes best: as large, or as soon, as it can."""
    progress("Spark's groupBy")
    grouped = spark_peers.grouped(spark_peers.records(spark, sizes.keys, _PEER_ROWS))
    peer = spark_peers.throughput(grouped, "update", sizes.peer_seconds)
    yield figure(WORKLOAD, "spark_group_by_rows_per_s", "rows/s", [peer.rows_per_s], peer.cpu_s)
    if peer.rows_per_s:
        yield figure(WORKLOAD, "batches_over_spark", "", [rate / peer.rows_per_s], peer.cpu_s)
    source = spark.readStream.format("rate").option("rowsPerSecond", sizes.latency.rate).option("numPartitions", 2)
    numbers = source.load().withColumnRenamed("value", "i")
    totals = w3.newest(spark_peers.with_keys(numbers, sizes.keys))
    latencies, cpu = spark_peers.latencies(totals, "update", sizes.peer_seconds)
    theirs = spark_peers.percentiles(latencies)
    runs = _measured(sizes, spark, recovery.MicroBatches(), _OFTEN)
    yield from _percentiles("batches_often", runs)
    ours = spark_peers.percentiles(runs[0].latencies_ms)
    for percentile in ("p50_ms", "p99_ms"):
        yield figure(WORKLOAD, f"spark_group_by_{percentile}", "ms", [theirs[percentile]], cpu)
        ratio = ours[percentile] / theirs[percentile]
        yield figure(WORKLOAD, f"batches_{percentile}_of_spark", "", [ratio], cpu)
