"""W3: the latency of running totals under a steady load, with a million keys in the state and an epoch every second.

Invariant: latency is from the time for which a record was scheduled to the moment in which a sink has its
update, so what holds records up is in it; it is counted for the records that were scheduled in the measured time. With
a sink that is exactly once, rows are there when they are committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recovery.schemes.scheme import Scheme
from snapshot import Generate, Program, Stream, ToDriver, ToFiles
from snapshot.program.sink import Sink
from statebackend import Count, Last, Sum
from tests.bench import spark_peers
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import SCHEDULED, Stopwatch, noted
from tests.bench.running_job import EVERY_SECOND, Watched, running, session
from tests.bench.spark_peers import percentiles
from tests.bench.state_inputs import KEY_SIZE, LETTERS, splitmix
from tests.bench.workload_input import Records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKLOAD: Final = "W3"
STAGE: Final = "totals"
SCHEMA: Final = pa.schema([("key", pa.large_string()), ("value", pa.float64()), (SCHEDULED, pa.int64())])
_WORDS: Final = KEY_SIZE // 8
SETTLED: Final = 3
"""So many epochs are completed after all keys are there, before anything is measured."""

Latencies = NDArray[np.int64]
"""When rows were scheduled, and when they came; microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys and records a second, and how long each run is. Without `spark` partitions are processes."""

    keys: int
    rate: int
    seconds: float
    peer_seconds: float
    runs: int
    every: str
    spark: bool


FULL = Sizes(1_000_000, 10_000, 10.0, 20.0, RUNS, EVERY_SECOND, spark=True)
SMALL = Sizes(1_000, 1_000, 1.0, 0.0, 1, "100ms", spark=False)


def names_of(numbers: NDArray[np.int64]) -> pa.Array:
    """The keys with these numbers: 80 characters each that do not compress.

    They follow from the number alone: a process that takes another's place has no table of keys to make first.
    """
    words = np.add.outer(numbers.view(np.uint64) * np.uint64(_WORDS), np.arange(_WORDS, dtype=np.uint64))
    letters = LETTERS[splitmix(words).view(np.uint8) % np.uint8(len(LETTERS))]
    offsets = np.arange(len(numbers) + 1, dtype=np.int64) * KEY_SIZE
    return pa.LargeStringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(letters))


@dataclass(frozen=True, slots=True)
class Preloaded:
    """Each key once, not scheduled."""

    keys: int

    def __call__(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """The columns of these records."""
        nothing = np.zeros(len(indices))
        return {"key": names_of(indices), "value": nothing, SCHEDULED: nothing.astype(np.int64)}


@dataclass(frozen=True, slots=True)
class Named:
    """The records of the workload; a key is 80 characters."""

    keys: int

    def __call__(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """The columns of these records."""
        columns = Records(self.keys)(indices)
        return {"key": names_of(columns["key"].astype(np.int64)), "value": columns["value"]}


def program(sizes: Sizes, sink: Sink, count: int | None = None) -> Program:
    """Running totals of the keys that are loaded first and of the scheduled records, of which there are so many."""
    preloaded = Stream.read(Generate(Preloaded(sizes.keys), SCHEMA, count=sizes.keys), uid="preloaded")
    paced = Generate(Named(sizes.keys), SCHEMA, count, rate=sizes.rate, scheduled=SCHEDULED)
    keyed = preloaded.union(Stream.read(paced, uid="records")).key_by("key")
    totals = keyed.aggregate(
        uid=STAGE,
        count=Count(),
        sum=Sum("value"),
        ts=Last(SCHEDULED),
    )
    return totals.write(sink, uid="out")


@dataclass(frozen=True, slots=True)
class Run:
    """The latencies of a measured time, and the CPU time that was used in it."""

    latencies_ms: NDArray[np.float64]
    cpu_s: float
    longest_gap_ms: float


@dataclass(frozen=True, slots=True)
class _Span:
    began: int
    ended: int
    cpu_s: float
    longest_gap_ms: float


def measured(
    sizes: Sizes,
    sink: Sink,
    spark: SparkSession | None,
    collect: Collect,
    scheme: Scheme | None = None,
    **options: Any,
) -> list[Run]:
    """The runs of one job, one after the other."""
    spans = []
    with running(program(sizes, sink), spark, sizes.every, scheme, **options) as job, collect(job) as collected:
        job.until_rows(STAGE, sizes.keys)
        job.until_epochs(SETTLED)
        for _ in range(sizes.runs):
            began = time.time_ns() // 1_000
            steady = job.steady(STAGE, sizes.seconds)
            spans.append(_Span(began, time.time_ns() // 1_000, steady.cpu_s, steady.longest_gap_ms))
        job.until_epochs(2)
    scheduled, came = collected()
    runs = []
    for span in spans:
        chosen = (scheduled >= span.began) & (scheduled < span.ended)
        runs.append(Run((came[chosen] - scheduled[chosen]) / 1_000, span.cpu_s, span.longest_gap_ms))
    return runs


# --- how it is known when rows came -----------------------------------------------------------------------------------

Collect = Callable[[Watched], Any]
"""Given a job, a context whose value gives the latencies once the job is over."""


@contextmanager
def by_stopwatch(folder: Path, _job: Watched) -> Iterator[Callable[[], Latencies]]:
    """The sink has noted it."""
    yield lambda: noted(folder)


@contextmanager
def by_driver(job: Watched) -> Iterator[Callable[[], Latencies]]:
    """Rows came when the driver's program got them."""
    found: list[Latencies] = [np.zeros((2, 0), np.int64)]

    def take() -> None:
        for batch in job.run.batches("out"):
            found.append(_came(batch.column(SCHEDULED), time.time_ns() // 1_000))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()

    def taken() -> Latencies:
        thread.join()
        return _scheduled(found)

    yield taken


@contextmanager
def by_files(folder: Path, _job: Watched) -> Iterator[Callable[[], Latencies]]:
    """Rows came when their file was renamed, which the file system notes."""

    def read() -> Latencies:
        files = folder.glob("part-*.parquet")
        return _scheduled(
            [
                np.zeros((2, 0), np.int64),
                *(_came(pq.read_table(file)[SCHEDULED], file.stat().st_ctime_ns // 1_000) for file in files),
            ]
        )

    yield read


def _came(scheduled: pa.Array | pa.ChunkedArray, at: int) -> Latencies:
    rows = scheduled.to_numpy()
    return np.stack([rows, np.full(len(rows), at)])


def _scheduled(found: Sequence[Latencies]) -> Latencies:
    both = np.concatenate(found, axis=1)
    return both[:, both[0] > 0]


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of the workload."""
    with session() if sizes.spark else nullcontext() as spark, TemporaryDirectory() as scratch:
        plain, files = Path(scratch) / "plain", Path(scratch) / "files"
        plain.mkdir()
        files.mkdir()
        progress(f"W3: {sizes.keys} keys, {sizes.rate} records a second, plain sink")
        yield from _figures("", measured(sizes, Stopwatch(str(plain)), spark, lambda job: by_stopwatch(plain, job)))
        progress("W3: exactly once, to files")
        to_files = measured(sizes, ToFiles(str(files)), spark, lambda job: by_files(files, job))
        yield from _figures("to_files_", to_files)
        progress("W3: exactly once, to the driver")
        yield from _figures("to_driver_", measured(sizes, ToDriver(), spark, by_driver))
        if spark is not None:
            yield from _peers(spark, sizes)


def _figures(prefix: str, runs: Sequence[Run]) -> Iterator[Figure]:
    cpu = sum(run.cpu_s for run in runs)
    found = [percentiles(run.latencies_ms) for run in runs]
    for name in found[0]:
        yield figure(WORKLOAD, prefix + name, "ms", [each[name] for each in found], cpu)
    yield figure(WORKLOAD, f"{prefix}event_loop_gap_ms", "ms", [run.longest_gap_ms for run in runs], cpu)


def _peers(spark: SparkSession, sizes: Sizes) -> Iterator[Figure]:
    """Spark's own; nothing is loaded first, and row by row there is a fifth of the load, as it follows no more."""
    for name, rate, totals in (
        ("spark_group_by", sizes.rate, newest),
        ("spark_transform_with_state", sizes.rate // 5, spark_peers.row_by_row),
    ):
        progress(f"W3: {name} at {rate} records a second")
        source = spark.readStream.format("rate").option("rowsPerSecond", rate).option("numPartitions", 2).load()
        stream = spark_peers.with_keys(source.withColumnRenamed("value", "i"), sizes.keys)
        latencies, cpu = spark_peers.latencies(totals(stream), "update", sizes.peer_seconds)
        for percentile, value in percentiles(latencies).items():
            yield figure(WORKLOAD, f"{name}_{percentile}", "ms", [value], cpu)


def newest(stream: DataFrame) -> DataFrame:
    """With the time of the newest record of each key: older ones of a micro-batch are not seen on their own."""
    from pyspark.sql import functions as f

    return stream.groupBy("key").agg(f.count("*"), f.sum("value"), f.max("timestamp").alias("timestamp"))
