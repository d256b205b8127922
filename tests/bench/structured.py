"""structured: a million keys behind a streaming DataFrame, beside what PySpark does with the same rows itself; what a
slow store changes; and the state of a query of Spark's becoming ours.

Invariant: the query and the peers read the same rows in the same session; the query runs while the program is measured,
so that what it takes of the processors is in the figures. Latency is from the time that Spark's source gave a row to
the moment in which a sink has its update.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.savepoints import open_tree, read_rows
from snapshot import Generate, KeyedProcess, ProcessContext, Program, SparkSource, Stream
from snapshot.operators.row_class import Row
from snapshot.program.sink import Sink
from snapshot.structured import register
from statebackend import Count, Last, Sum, ValueState
from tests.bench import spark_peers
from tests.bench.figures import Figure, figure, progress
from tests.bench.measured_sinks import SCHEDULED, Drop, Stopwatch, noted
from tests.bench.running_job import running, session
from tests.bench.spark_peers import percentiles, started
from tests.bench.w3 import newest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WORKLOAD: Final = "structured"
STAGE: Final = "totals"
SCHEMA: Final = pa.schema([("key", pa.int64()), ("value", pa.float64()), (SCHEDULED, pa.int64())])
_FILLED: Final = 2
_SETTLED: Final = 3
"""So many epochs are complete before anything is measured."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys, rows of a micro-batch and rows a second, and how long each measure takes.

    `batch` is ours, `peer_batches` are those of `groupBy` and of `transformWithState`: each of about a second.
    """

    keys: int
    batch: int
    peer_batches: tuple[int, int]
    rate: int
    seconds: float


FULL: Final = Sizes(1_000_000, 1_000_000, (300_000, 5_000), 10_000, 20.0)
SMALL: Final = Sizes(1_000, 2_000, (2_000, 200), 500, 1.0)


def program(frame: DataFrame, log: Path, sink: Sink, keys: int = 0) -> Program:
    """Running totals, of so many keys that are loaded first and of the rows of a query."""
    rows = Stream.read(SparkSource(frame, str(log)), uid="rows")
    if keys:
        rows = Stream.read(Generate(_Preloaded(), SCHEMA, count=keys), uid="preloaded").union(rows)
    if keys:
        totals = rows.key_by("key").aggregate(uid=STAGE, count=Count(), sum=Sum("value"), ts=Last(SCHEDULED))
    else:
        totals = rows.key_by("key").aggregate(uid=STAGE, per="batch", count=Count(), sum=Sum("value"))
    return totals.write(sink, uid="out")


class _Preloaded:
    """Each key once, not scheduled."""

    def __call__(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """The columns of these rows."""
        nothing = np.zeros(len(indices))
        return {"key": indices, "value": nothing, SCHEDULED: nothing.astype(np.int64)}


@contextmanager
def feeding(frame: DataFrame, log: Path) -> Iterator[StreamingQuery]:
    """A query that writes the frame to the log."""
    with started(frame, "append", lambda writer: writer.format("epochcut.stream").option("path", str(log))) as query:
        yield query


# --- throughput -------------------------------------------------------------------------------------------------------


def throughput(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Rows per second with all keys known, and how many times those of Spark's own operators they are."""
    with session() as spark, TemporaryDirectory() as scratch:
        register(spark)
        grouped_batch, row_batch = sizes.peer_batches
        progress(f"structured: groupBy and transformWithState of Spark's own, {sizes.keys} keys")
        grouped = spark_peers.grouped(spark_peers.records(spark, sizes.keys, grouped_batch))
        by_spark = spark_peers.throughput(grouped, "update", sizes.seconds)
        by_row = spark_peers.row_by_row(spark_peers.records(spark, sizes.keys, row_batch)).drop("timestamp")
        by_python = spark_peers.throughput(by_row, "update", sizes.seconds)
        progress(f"structured: a query and a program, {sizes.keys} keys")
        frame = spark_peers.records(spark, sizes.keys, sizes.batch).select("key", "value")
        log = Path(scratch) / "log"
        with feeding(frame, log), running(program(frame, log, Drop()), None) as job:
            job.until_rows(STAGE, _FILLED * sizes.keys)
            ours = job.steady(STAGE, sizes.seconds)
    yield figure(WORKLOAD, "program", "rows/s", [ours.rows_per_s], ours.cpu_s)
    for name, peer in (("group_by", by_spark), ("transform_with_state", by_python)):
        yield figure(WORKLOAD, f"spark_{name}", "rows/s", [peer.rows_per_s], peer.cpu_s)
        if peer.rows_per_s:
            yield figure(WORKLOAD, f"times_{name}", "x", [ours.rows_per_s / peer.rows_per_s], 0.0)


# --- latency, and a slow store ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """A measured time, in microseconds since 1970, with what the micro-batches and epochs in it took."""

    began: int
    ended: int
    cpu_s: float
    batches_ms: Sequence[float]
    epochs: int


def latency(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Latency and length of micro-batches, then the same with a slow store; and the latency of Spark's own."""
    with session() as spark, TemporaryDirectory() as scratch:
        register(spark)
        folder = Path(scratch)
        (folder / "came").mkdir()
        frame = _timed(spark, sizes, sizes.rate).selectExpr("key", "value", f"unix_micros(timestamp) AS {SCHEDULED}")
        progress(f"structured: latency with {sizes.keys} keys, {sizes.rate} rows a second, then with a slow store")
        sink = Stopwatch(str(folder / "came"))
        with (
            _can_be_slow(folder / "slow") as flag,
            feeding(frame, folder / "log") as query,
            running(program(frame, folder / "log", sink, sizes.keys), None) as job,
        ):
            job.until_rows(STAGE, sizes.keys + sizes.rate)
            job.until_epochs(_SETTLED)
            usual = _measured(job, query, sizes.seconds)
            flag.touch()
            slow = _measured(job, query, sizes.seconds)
            flag.unlink()
            job.until_epochs(1)
        scheduled, came = noted(folder / "came")
        for name, span in (("", usual), ("slow_store_", slow)):
            chosen = (scheduled >= span.began) & (scheduled < span.ended)
            for percentile, value in percentiles((came[chosen] - scheduled[chosen]) / 1_000).items():
                yield figure(WORKLOAD, f"{name}{percentile}", "ms", [value], span.cpu_s)
            yield figure(WORKLOAD, f"{name}micro_batch_ms", "ms", span.batches_ms, span.cpu_s)
            yield figure(WORKLOAD, f"{name}epochs", "epochs", [span.epochs], span.cpu_s)
        for name, rate, totals in (
            ("group_by", sizes.rate, newest),
            ("transform_with_state", sizes.rate // 5, spark_peers.row_by_row),
        ):
            progress(f"structured: latency of Spark's own {name} at {rate} rows a second")
            found, cpu = spark_peers.latencies(totals(_timed(spark, sizes, rate)), "update", sizes.seconds)
            for percentile, value in percentiles(found).items() if found else ():
                yield figure(WORKLOAD, f"spark_{name}_{percentile}", "ms", [value], cpu)


def _timed(spark: SparkSession, sizes: Sizes, rate: int) -> DataFrame:
    """The rows with the time at which Spark's source gave them."""
    source = spark.readStream.format("rate").option("rowsPerSecond", rate).option("numPartitions", 2).load()
    return spark_peers.with_keys(source.withColumnRenamed("value", "i"), sizes.keys)


def _measured(job: Any, query: StreamingQuery, seconds: float) -> _Span:
    before, complete = query.lastProgress["batchId"], job.run.status().complete
    began, cpu, until = time.time_ns() // 1_000, cpu_seconds_of_all(), time.monotonic() + seconds
    job.until(lambda: time.monotonic() >= until, "time does not pass")
    cpu = cpu_seconds_of_all() - cpu
    took = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["batchId"] > before]
    epochs = job.run.status().complete.number - complete.number
    return _Span(began, time.time_ns() // 1_000, cpu, took or [float("inf")], epochs)


@contextmanager
def _can_be_slow(flag: Path) -> Iterator[Path]:
    """Let the stores of checkpoints, in all processes that are started now, be slow while the flag is there."""
    from tests.bench.slow_store import sitecustomize  # which changes this process, too

    place = str(Path(sitecustomize.__file__).parent)
    sys.path.insert(0, place)
    os.environ[sitecustomize.FLAG] = str(flag)
    try:
        yield flag
    finally:
        del os.environ[sitecustomize.FLAG]
        sys.path.remove(place)


# --- the state of a query of Spark's ----------------------------------------------------------------------------------


class Counted(KeyedProcess):
    """The program that takes over the state."""

    output: ClassVar = {"key": int, "count": int}
    totals = ValueState(pa.struct([("count", pa.int64()), ("sum", pa.float64())]))

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        """One update for each row."""
        before = self.totals.get() or {"count": 0, "sum": 0.0}
        self.totals.set({"count": before["count"] + 1, "sum": before["sum"] + event.value})
        ctx.emit((ctx.key, before["count"] + 1))


def taken_over(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Time, bytes and errors of the import of a value for each key of `transformWithState`."""
    with session() as spark, TemporaryDirectory() as scratch:
        folder = Path(scratch)
        progress(f"structured: transformWithState makes a state of {sizes.keys} keys, which takes minutes")
        began = time.monotonic()
        source = spark.range(0, sizes.keys, 1, 8).selectExpr("id AS key", "CAST(id & 1023 AS DOUBLE) AS value")
        source.selectExpr("*", "timestamp_micros(0) AS timestamp").write.parquet(str(folder / "rows"))
        rows = spark.readStream.schema("key long, value double, timestamp timestamp").parquet(str(folder / "rows"))
        writer = spark_peers.row_by_row(rows).writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(folder / "query")).trigger(availableNow=True).start()
        query.awaitTermination()
        yield figure(WORKLOAD, "import_made_by_spark_s", "s", [time.monotonic() - began], 0.0)
        progress("structured: its import")
        cpu, began = cpu_seconds_of_all(), time.monotonic()
        state = recovery.from_spark(spark, str(folder / "query"), STAGE, "totals", "totals")
        done = recovery.bootstrap(_taking_over(), str(folder / "tree"), [state])
        took, cpu = time.monotonic() - began, cpu_seconds_of_all() - cpu
        yield figure(WORKLOAD, "import_s", "s", [took], cpu)
        yield figure(WORKLOAD, "import_bytes", "bytes", [done.bytes], cpu)
        yield figure(WORKLOAD, "import_wrong_keys", "keys", [_wrong(str(folder / "tree"), sizes.keys)], 0.0)


def _taking_over() -> Program:
    rows = Stream.read(Generate(_Preloaded(), SCHEMA, count=1), uid="rows")
    return rows.key_by("key").process(Counted, uid=STAGE).write(Drop(), uid="out")


def _wrong(tree: str, keys: int) -> int:
    """How many keys are missing, there twice, or have another value than Spark has counted."""
    times, wrong = np.zeros(keys, np.int64), 0
    for some in read_rows(open_tree(tree), "newest", STAGE, "totals"):
        found = some.rows.column("key").to_numpy()
        np.add.at(times, found, 1)
        for key, value in zip(found.tolist(), some.rows.column("value").to_pylist(), strict=True):
            wrong += tuple(value.values()) != (1, float(key & 1023))
    return int(np.count_nonzero(times != 1)) + wrong


PARTS: Final = {"throughput": throughput, "latency": latency, "import": taken_over}
