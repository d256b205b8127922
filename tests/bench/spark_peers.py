"""What PySpark does with the same workloads itself: `groupBy`, windows, and `transformWithState` row by row in Python.

Invariant: the records are those of the workloads, made by Spark's own source of numbers; state is in RocksDB;
nobody takes what comes out, but where latency is measured. The first micro-batches do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from recovery.comparison.machine import cpu_seconds_of_all

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

WARM_UP: Final = 2
"""So many micro-batches do not count."""
PATIENCE: Final = 120.0
MILLISECONDS: Final = 1_000
_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


@dataclass(frozen=True, slots=True)
class Measured:
    """What a query did in its steady state."""

    rows_per_s: float
    cpu_s: float
    batches: int


def records(spark: SparkSession, keys: int, rows_per_batch: int) -> DataFrame:
    """An endless stream of the workloads' records, with the number `i` of each."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    return with_keys(source.option("numPartitions", 2).load().withColumnRenamed("value", "i"), keys)


def with_keys(numbers: DataFrame, keys: int) -> DataFrame:
    """Key and value by the column `i`. Numbers of 64 bits have a sign here, which the remainder must not see."""
    mixed = numbers.selectExpr("*", f"i + ({_GOLDEN}L) AS m0")
    mixed = mixed.selectExpr("*", f"(m0 ^ shiftrightunsigned(m0, 30)) * ({_FIRST}L) AS m1")
    mixed = mixed.selectExpr("*", f"(m1 ^ shiftrightunsigned(m1, 27)) * ({_SECOND}L) AS m2")
    mixed = mixed.selectExpr("*", "m2 ^ shiftrightunsigned(m2, 31) AS m")
    key = f"((shiftrightunsigned(m, 1) % {keys}) * 2 + (m & 1)) % {keys}"
    return mixed.selectExpr("i", "timestamp", f"{key} AS key", "CAST(i & 1023 AS DOUBLE) AS value")


def grouped(stream: DataFrame) -> DataFrame:
    """The running count and sum of each key."""
    return stream.groupBy("key").agg({"*": "count", "value": "sum"})


def windowed(stream: DataFrame, size_ms: int, per_window: int) -> DataFrame:
    """The sums of each key in windows that have so many records of all keys."""
    from pyspark.sql import functions as f

    timed = stream.selectExpr("key", "value", f"timestamp_millis(i * {size_ms} DIV {per_window}) AS at")
    window = f.window("at", f"{size_ms} milliseconds")
    return timed.withWatermark("at", "0 seconds").groupBy(window, "key").agg(f.sum("value"))


def row_by_row(stream: DataFrame) -> DataFrame:
    """The same as `grouped`, by a function in Python that is called for the rows of each key."""
    fields = "key long, count long, sum double, timestamp timestamp"
    return stream.groupBy("key").transformWithState(_processor(), fields, "update", "none")


def _processor() -> StatefulProcessor:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.totals = handle.getValueState("totals", "count long, sum double")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803
            count, total = self.totals.get() or (0, 0.0)
            for row in rows:
                count, total = count + 1, total + row.value
                yield Row(key=key[0], count=count, sum=total, timestamp=row.timestamp)
            self.totals.update((count, total))

        def close(self) -> None:
            pass

    return Totals()


def throughput(stream: DataFrame, mode: str, seconds: float) -> Measured:
    """Run a query for so long after its first micro-batches, and forget what comes out."""
    with started(stream, mode, lambda writer: writer.format("noop")) as query:
        first = _until_batch(query, WARM_UP - 1)
        cpu, began = cpu_seconds_of_all(), time.monotonic()
        while time.monotonic() - began < seconds and query.isActive:
            time.sleep(0.02)
        cpu, length = cpu_seconds_of_all() - cpu, time.monotonic() - began
        counted = [progress for progress in _progress(query) if progress["batchId"] > first]
    if not counted:  # one batch takes longer than all the time there is
        return Measured(0.0, cpu, 0)
    took = sum(progress["durationMs"]["triggerExecution"] for progress in counted)
    rows = sum(progress["numInputRows"] for progress in counted)
    return Measured(rows * MILLISECONDS / took, cpu * seconds / length, len(counted))


def latencies(stream: DataFrame, mode: str, seconds: float) -> tuple[list[float], float]:
    """Milliseconds from the time in the column `timestamp` to a sink in the driver, and the CPU time that it took."""
    found: list[float] = []

    def take(batch: DataFrame, number: int) -> None:
        made = batch.select("timestamp").toArrow().column(0).cast("timestamp[us]").cast("int64").to_numpy()
        if number >= 2 * WARM_UP:
            found.extend((time.time_ns() // 1_000 - made) / 1_000)

    with started(stream, mode, lambda writer: writer.foreachBatch(take)) as query:
        _until_batch(query, 2 * WARM_UP - 1)
        cpu, began = cpu_seconds_of_all(), time.monotonic()
        while time.monotonic() - began < seconds and query.isActive:
            time.sleep(0.02)
        cpu = cpu_seconds_of_all() - cpu
    return found, cpu


def percentiles(latencies_ms: Any) -> dict[str, float]:
    """The three that are reported, in the form of a figure's name."""
    wanted = {"p50_ms": 50, "p99_ms": 99, "p999_ms": 99.9}
    return {name: float(np.percentile(latencies_ms, at)) for name, at in wanted.items()}


@contextmanager
def started(stream: DataFrame, mode: str, to: Callable[[Any], Any]) -> Iterator[StreamingQuery]:
    """A query that runs, with a checkpoint of its own."""
    with TemporaryDirectory() as scratch:
        writer = to(stream.writeStream.outputMode(mode)).option("checkpointLocation", str(Path(scratch) / "query"))
        query = writer.start()
        try:
            yield query
        finally:
            query.stop()


def _progress(query: StreamingQuery) -> list[Any]:
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def _until_batch(query: StreamingQuery, number: int) -> int:
    """Wait until a micro-batch is done; the number of the last one that is."""
    deadline = time.monotonic() + PATIENCE
    while True:
        done = max((progress["batchId"] for progress in _progress(query)), default=-1)
        error = query.exception()
        if error is not None:
            raise error
        if done >= number or time.monotonic() > deadline:
            return done
        time.sleep(0.02)
