"""A job as a benchmark runs it: as Spark tasks or processes, watched until it has been measured, then stopped.

Invariant: rates are taken between two reports of each partition, so that neither its start nor its end counts;
the CPU time beside a rate is that of all processes in the same time, Spark's own included.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.schemes.scheme import Scheme
from snapshot.host.protocol.messages import Figures
from snapshot.program.program import Program
from statebackend.ids import Partition, Uid

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PARALLELISM: Final = 2
_NO_LATE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
LOCAL: Final = "local[4,1000000]"
EVERY_SECOND: Final = "1s"
NO_EPOCHS: Final = "1d"
STATE_MEMORY: Final = 64 << 30
"""A bound that none of these states comes near: what is measured is not the moving of keys to the disk."""

_LOOK: Final = 0.005
_PATIENCE: Final = 120.0


class Failed(Exception):
    """A job failed, or has not come as far as it should in two minutes; nothing can be said of it."""


@contextmanager
def session(master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Spark, with state in RocksDB for what it runs itself; its JVM is gone afterwards."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("bench")
    for name, value in _settings(settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with _ending(spark.sparkContext):
        yield spark


@contextmanager
def context(master: str = LOCAL) -> Iterator[SparkContext]:
    """Spark as it starts soonest: without its SQL, which a job does not need, with classes from a file, and without the
    compiler for code that runs for long.
    """
    from pyspark import SparkConf, SparkContext

    quickly = _settings(recovery.quick_java(_NO_LATE_COMPILER))
    conf = SparkConf().setMaster(master).setAppName("bench").setAll(list(quickly.items()))
    with _ending(SparkContext(conf=conf)) as spark:
        yield spark


def _settings(more: Mapping[str, str] | None) -> Mapping[str, str]:
    """Those of all benchmarks, also of the processes that Spark starts."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    return {
        **recovery.spark_settings(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(PARALLELISM),
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        **(more or {}),
    }


@contextmanager
def _ending(spark: SparkContext) -> Iterator[SparkContext]:
    """Stop it and its JVM at the end."""
    from pyspark import SparkContext

    jvm = spark._gateway.proc
    try:
        yield spark
    finally:
        spark.stop()
        jvm.stdin.close()  # at which it ends
        jvm.wait()
        SparkContext._gateway = SparkContext._jvm = None  # or the next session would look for this JVM


@dataclass(frozen=True, slots=True)
class Steady:
    """What a job did in its steady state."""

    rows_per_s: float
    cpu_s: float
    longest_gap_ms: float
    """Of the event loops of all partitions."""


@dataclass(slots=True)
class _Seen:
    """The last reports of the partitions, and when they came."""

    reports: dict[Partition, tuple[float, Figures]] = field(default_factory=dict)
    longest_gap_ms: float = 0.0


@contextmanager
def running(
    program: Program,
    spark: SparkSession | None,
    every: str = EVERY_SECOND,
    scheme: Scheme | None = None,
    **options: Any,
) -> Iterator[Watched]:
    """A job in folders of its own; stopped at the end."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = recovery.run(
            program,
            spark,
            checkpoints=folder / "checkpoints",
            every=every,
            parallelism=PARALLELISM,
            scheme=scheme,
            local=folder / "local",
            state_memory=STATE_MEMORY,
            progress=False,
            **options,
        )
        try:
            yield Watched(run)
        except BaseException:
            run.cancel()
            raise
        run.stop(timeout=_PATIENCE)


class Watched:
    """A job that runs."""

    def __init__(self, run: recovery.Run) -> None:
        self.run = run
        self._seen = _Seen()

    def until_rows(self, uid: str, rows: int) -> None:
        """Wait until a stage has taken so many rows."""
        self.until(lambda: self.run.status().rows_in.get(Uid(uid), 0) >= rows, f"{uid} has not taken {rows} rows")

    def until_epochs(self, more: int) -> None:
        """Wait until so many more epochs are complete."""
        last = self._complete() + more
        self.until(lambda: self._complete() >= last, f"there are no {more} more epochs")

    def steady(self, uid: str, seconds: float) -> Steady:
        """Measure a stage for so long."""
        self.until(lambda: len(self._seen.reports) == PARALLELISM, "there are no reports")
        before = self._next_reports()
        cpu, self._seen.longest_gap_ms = cpu_seconds_of_all(), 0.0
        began = time.monotonic()
        self.until(lambda: time.monotonic() - began >= seconds, "time does not pass")
        cpu, length = cpu_seconds_of_all() - cpu, time.monotonic() - began
        rate = 0.0
        for partition, (at, figures) in self._next_reports().items():
            then, earlier = before[partition]
            rate += (figures.stages[Uid(uid)].rows_in - earlier.stages[Uid(uid)].rows_in) / (at - then)
        return Steady(rate, cpu * seconds / length, self._seen.longest_gap_ms)

    def until(self, done: Callable[[], bool], otherwise: str) -> None:
        """Wait for something, and take the partitions' reports as they come."""
        deadline = time.monotonic() + _PATIENCE
        while not done():
            status = self.run.status()
            if status.state.over or status.restarts:
                raise Failed(f"the job {status.job} failed: {status.failure}")
            if time.monotonic() > deadline:
                raise Failed(f"{otherwise}, for {_PATIENCE} seconds")
            self._look(status.figures)
            time.sleep(_LOOK)

    def _look(self, reports: Mapping[Partition, Figures]) -> None:
        seen = self._seen
        for partition, report in reports.items():
            known = seen.reports.get(partition)
            if known is None or known[1] is not report:
                seen.reports[partition] = time.monotonic(), report
                seen.longest_gap_ms = max(seen.longest_gap_ms, report.longest_gap_ms)

    def _next_reports(self) -> dict[Partition, tuple[float, Figures]]:
        """The next report of each partition, and when it came."""
        known = {partition: at for partition, (at, _) in self._seen.reports.items()}
        self.until(
            lambda: all(self._seen.reports[partition][0] > at for partition, at in known.items()), "no reports come"
        )
        return dict(self._seen.reports)

    def _complete(self) -> int:
        complete = self.run.status().complete
        return 0 if complete is None else complete.number
