"""W4: how long the output of W3's job stops when something is killed, and how long until all is as it was.

Invariant: what is killed gets SIGKILL at a random moment of an epoch, and nothing else is killed until the job
has been normal again for a while; only rows that nobody had seen before count as output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.comparison.outages import Outage, Sightings, outage
from recovery.driver.report.status import RunState
from recovery.events import AttemptFailed, Marks, Recovered, WorkerJoined
from recovery.schemes.scheme import Scheme
from snapshot import Program, ToFiles
from snapshot.host.protocol.options import Following
from snapshot.program.sink import Sink
from statebackend.ids import Uid
from tests.bench import spark_peers, w3
from tests.bench.figures import Figure, figure, progress
from tests.bench.measured_sinks import SCHEDULED, Stopwatch, noted
from tests.bench.running_job import EVERY_SECOND, PARALLELISM, STATE_MEMORY, Failed, session
from tests.servers.spark_cluster import Place, SparkCluster, executor_of, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKLOAD: Final = "W4"
_LOOK: Final = 0.005
_PATIENCE: Final = 120.0
_SEED: Final = 4
_CORES: Final = 4
_UNTIL_WARM: Final = 12.0
"""Seconds until an executor that replaces another one runs and has run Python."""
_PEER_KILLS: Final = 3
_MICRO: Final = 1_000_000
_START: Final = 10.0
"""Seconds until a job certainly has been through its first epochs."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys and records a second, how often each kind is killed, and how many seconds are between two kills."""

    keys: int
    rate: int
    kills: int
    pause: float
    every: str
    spark: bool


FULL = Sizes(1_000_000, 10_000, 10, 5.0, EVERY_SECOND, spark=True)
SMALL = Sizes(1_000, 1_000, 1, 2.0, "100ms", spark=False)


# --- the job ----------------------------------------------------------------------------------------------------------


def program(sizes: Sizes, sink: Sink, count: int | None = None) -> Program:
    """W3's, with so many records."""
    return w3.program(w3.Sizes(sizes.keys, sizes.rate, 0.0, 0.0, 0, sizes.every, sizes.spark), sink, count)


@contextmanager
def job(
    sizes: Sizes,
    sink: Sink,
    spark: SparkSession | None,
    folder: Path,
    standbys: int = 0,
    count: int | None = None,
    following: Following = Following.OPEN,
    scheme: Scheme | None = None,
) -> Iterator[recovery.Run]:
    """The job, with all keys in its state and some epochs behind it; stopped at the end, unless it has ended."""
    usual = recovery.Passive(standbys=standbys, following=following, restarts=recovery.FailureRate(failures=1000))
    run = recovery.run(
        program(sizes, sink, count),
        spark,
        checkpoints=folder / "checkpoints",
        every=sizes.every,
        parallelism=PARALLELISM,
        scheme=scheme or usual,
        local=folder / "local",
        state_memory=STATE_MEMORY,
        progress=False,
    )
    try:
        until(run, lambda: run.status().rows_in.get(Uid(w3.STAGE), 0) >= sizes.keys, "the keys are not there")
        epochs_more(run, w3.SETTLED)
        yield run
    except BaseException:
        run.cancel()
        raise
    if not run.status().state.over:
        run.stop(timeout=_PATIENCE)


def until(run: recovery.Run, done: Callable[[], bool], otherwise: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + _PATIENCE
    while not done():
        status = run.status()
        if status.state is RunState.FAILED:
            raise Failed(f"the job failed: {status.failure}")
        if time.monotonic() > deadline:
            raise Failed(f"{otherwise}, for {_PATIENCE} seconds; the job is {status.state.value}: {status.failure}")
        time.sleep(_LOOK)


def epochs_more(run: recovery.Run, more: int) -> None:
    """Wait until so many more epochs are complete."""

    def complete() -> int:
        epoch = run.status().complete
        return 0 if epoch is None else epoch.number

    last = complete() + more
    until(run, lambda: complete() >= last, f"there are no {more} more epochs")


def pid_of(run: recovery.Run, partition: int) -> int:
    """The process that has a partition."""
    placed = run.status().workers
    worker = next(worker for worker, at in placed.items() if at == partition)
    return next(event.pid for event in run.events if isinstance(event, WorkerJoined) and event.worker == worker)


# --- killing ----------------------------------------------------------------------------------------------------------


def kill_worker(run: recovery.Run, random: Random) -> None:
    """SIGKILL to the process of a partition."""
    os.kill(pid_of(run, random.randrange(PARALLELISM)), signal.SIGKILL)


def kill_executor(run: recovery.Run, random: Random) -> None:
    """SIGKILL to the executor in which a partition runs."""
    os.kill(executor_of(pid_of(run, random.randrange(PARALLELISM))), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Kills:
    """What came of the kills of one job."""

    outages: list[Outage]
    recovered: list[Recovered]
    noticed_ms: list[float]
    """From each kill to the moment in which the driver knew."""


def _always(_run: recovery.Run) -> bool:
    return True


def _apart(run: recovery.Run) -> bool:
    """Whether every partition has an executor of its own."""
    status = run.status()
    return len({status.executors.get(worker) for worker, at in status.workers.items() if at is not None}) == PARALLELISM


def killed(
    sizes: Sizes,
    spark: SparkSession | None,
    standbys: int,
    kill: Callable[[recovery.Run, Random], None],
    ready: Callable[[recovery.Run], bool] = _always,
    scheme: Scheme | None = None,
) -> Kills:
    """Run the job with a plain sink, and kill again and again, when it is ready for that."""
    random, at, recovered = Random(_SEED), [], 0
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sink = folder / "seen"
        sink.mkdir()
        with job(sizes, Stopwatch(str(sink)), spark, folder, standbys, scheme=scheme) as run:
            for _ in range(sizes.kills):
                until(run, lambda: ready(run), "the job is not ready for the next kill")
                time.sleep(sizes.pause + random.random())
                at.append(time.time_ns() // 1_000)
                kill(run, random)
                recovered += 1
                _until_recovered(run, recovered, standbys)
            time.sleep(sizes.pause)
            ended = time.time_ns() // 1_000
        seen = Sightings.of(*noted(sink))
        lost = [event.at for event in run.events if isinstance(event, AttemptFailed)]
        events = [event for event in run.events if isinstance(event, Recovered)]
    noticed = [min(when - began / _MICRO for when in lost if when >= began / _MICRO) * 1e3 for began in at]
    return Kills(_outages(seen, at, ended), events, noticed)


def _outages(seen: Sightings, at: Sequence[int], ended: int) -> list[Outage]:
    """What each of the faults did until the next one, or the end."""
    return [outage(seen, began, until) for began, until in zip(at, [*at[1:], ended], strict=True)]


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[SparkSession, SparkCluster]]:
    """A standalone cluster of two workers with free slots, and a session with an executor on each."""
    folder.mkdir()
    with running_cluster(folder, _CORES, Place(), [Place(), Place()]) as running:
        settings = {"spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1", **recovery.quick_java()}
        with session(running.master, settings) as spark:
            yield spark, running


def _until_recovered(run: recovery.Run, times: int, standbys: int) -> None:
    """It runs again, and so does everything that can be killed next."""
    until(run, lambda: len(run.status().recoveries) >= times, "the job has not recovered")
    until(run, lambda: len(run.status().workers) == PARALLELISM + standbys, "not all processes are there again")
    epochs_more(run, 2)


# --- the driver -------------------------------------------------------------------------------------------------------


def kills_of_the_driver(sizes: Sizes) -> list[Outage]:
    """Start the job in a process of its own, kill that, and start it again at once, as whoever watches over it does."""
    random, at = Random(_SEED), []
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sink = folder / "seen"
        sink.mkdir()
        driver = _start_driver(sizes, folder)
        try:
            _until_output(driver, sink, folder, set(), sizes.keys)
            for _ in range(sizes.kills):
                time.sleep(sizes.pause + random.random())
                at.append(time.time_ns() // 1_000)
                driver.kill()
                driver.wait()
                before = set(sink.iterdir())
                driver = _start_driver(sizes, folder)
                _until_output(driver, sink, folder, before)
            time.sleep(sizes.pause)
            ended = time.time_ns() // 1_000
        finally:
            driver.send_signal(signal.SIGINT)  # at which the job stops behind an epoch
            driver.wait(_PATIENCE)
        seen = Sightings.of(*noted(sink))
    return _outages(seen, at, ended)


def _start_driver(sizes: Sizes, folder: Path) -> subprocess.Popen[bytes]:
    arguments = [str(getattr(sizes, field.name)) for field in fields(sizes)]
    output = (folder / "driver.txt").open("ab")
    with output:
        return subprocess.Popen([sys.executable, "-m", "tests.bench.w4_driver", str(folder), *arguments], stderr=output)


def _until_output(driver: subprocess.Popen[bytes], sink: Path, folder: Path, before: set[Path], keys: int = 0) -> None:
    """Wait until all keys were loaded, and files that were not there before have rows scheduled in the last second."""
    deadline = time.monotonic() + _PATIENCE
    while _rows(sink) < keys or _newest(set(sink.iterdir()) - before) < time.time_ns() // 1_000 - _MICRO:
        if driver.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"the driver gives no output: {(folder / 'driver.txt').read_text()[-2000:]}")
        time.sleep(0.1)


def _rows(sink: Path) -> int:
    return sum(file.stat().st_size for file in sink.iterdir()) // 16


def _newest(files: Collection[Path]) -> int:
    """When the last row of any of the files was scheduled."""
    newest = 0
    for file in files:
        size = file.stat().st_size // 16
        if size:
            with file.open("rb") as data:
                data.seek((size - 1) * 16)
                newest = max(newest, int.from_bytes(data.read(8), "little"))
    return newest


# --- Spark's own ------------------------------------------------------------------------------------------------------


def kills_under_spark(sizes: Sizes, spark: SparkSession, running: SparkCluster) -> list[float]:
    """For how many seconds Spark's `groupBy` gives nothing new when an executor is killed: the time between batches."""
    random, silent = Random(_SEED), []
    source = spark.readStream.format("rate").option("rowsPerSecond", sizes.rate).option("numPartitions", 2).load()
    totals = w3.newest(spark_peers.with_keys(source.withColumnRenamed("value", "i"), sizes.keys))
    came: list[float] = []

    def take(batch: DataFrame, _number: int) -> None:
        if batch.count():
            came.append(time.time())

    with spark_peers.started(totals, "update", lambda writer: writer.foreachBatch(take)):
        for _ in range(min(sizes.kills, _PEER_KILLS)):
            _batches_more(came, 5)
            time.sleep(random.random())
            killed_at = time.time()
            os.kill(random.choice(running.executors), signal.SIGKILL)
            _batches_more(came, 5)
            moments = [max(moment for moment in came if moment < killed_at), *(m for m in came if m >= killed_at)]
            silent.append(max(later - earlier for earlier, later in pairwise(moments)))
    return silent


def _batches_more(came: list[float], more: int) -> None:
    deadline, wanted = time.monotonic() + _PATIENCE, len(came) + more
    while len(came) < wanted:
        if time.monotonic() > deadline:
            raise Failed(f"Spark's own query has given no {more} batches in {_PATIENCE} seconds")
        time.sleep(_LOOK)


# --- exactly once -----------------------------------------------------------------------------------------------------


def lost_and_twice(sizes: Sizes, spark: SparkSession | None, standbys: int) -> tuple[int, int]:
    """Run the job to its end with the exactly-once sink for files, kill in it, and count."""
    random = Random(_SEED)
    count = int(sizes.rate * (sizes.kills * (sizes.pause + 1.0) + _START))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = folder / "files"
        with job(sizes, ToFiles(str(files)), spark, folder, standbys, count) as run:
            for _ in range(sizes.kills):
                time.sleep(random.random() * sizes.pause)
                if run.status().state.over:
                    break
                kill_worker(run, random)
                until(run, lambda: run.status().state is not RunState.RECOVERING, "the job has not recovered")
            run.wait(_PATIENCE)
        rows = pa.concat_tables([pq.read_table(file, columns=["key", SCHEDULED]) for file in files.glob("part-*")])
    scheduled = rows[SCHEDULED].to_numpy()
    loaded = rows["key"].filter(pa.array(scheduled == 0))
    distinct = len(np.unique(scheduled[scheduled > 0])) + len(loaded.unique())
    return sizes.keys + count - distinct, len(rows) - distinct


# --- figures ----------------------------------------------------------------------------------------------------------


def worker_figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Kills of the process of a partition, which is started again."""
    yield from _of_workers("worker", 0, sizes)


def standby_figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """The same, where another process has the state open."""
    yield from _of_workers("standby", 1, sizes)


def row_figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """What was lost, and what came twice, from a sink that is exactly once."""
    progress("W4: rows lost and twice with an exactly-once sink")
    cpu = cpu_seconds_of_all()
    with _tasks(sizes) as spark:
        lost, twice = lost_and_twice(sizes, spark, 1)
    cpu = cpu_seconds_of_all() - cpu
    yield figure(WORKLOAD, "rows_lost", "rows", [lost], cpu)
    yield figure(WORKLOAD, "rows_twice", "rows", [twice], cpu)


def executor_figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Kills of an executor where each partition has its own, and beside it Spark's query; nothing without Spark."""
    if not sizes.spark:
        return
    with TemporaryDirectory() as scratch, cluster(Path(scratch) / "cluster") as (spark, running):
        progress(f"W4: {sizes.kills} kills of an executor")
        cpu = cpu_seconds_of_all()
        kills = killed(replace(sizes, pause=_UNTIL_WARM), spark, 0, kill_executor, _apart)
        yield from _figures("executor", kills.outages, cpu_seconds_of_all() - cpu)
        yield from _marks("executor", kills)
        progress("W4: Spark's own groupBy, kills of an executor")
        cpu = cpu_seconds_of_all()
        silent = kills_under_spark(sizes, spark, running)
        yield figure(WORKLOAD, "spark_group_by_executor_no_output_s", "s", silent, cpu_seconds_of_all() - cpu)


def driver_figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Kills of the driver, with all processes of the job."""
    progress(f"W4: {sizes.kills} kills of the driver")
    cpu = cpu_seconds_of_all()
    yield from _figures("driver", kills_of_the_driver(sizes), cpu_seconds_of_all() - cpu)


PARTS: Final = {
    f"{WORKLOAD}/worker": worker_figures,
    f"{WORKLOAD}/standby": standby_figures,
    f"{WORKLOAD}/rows": row_figures,
    f"{WORKLOAD}/executor": executor_figures,
    f"{WORKLOAD}/driver": driver_figures,
}


def _of_workers(name: str, standbys: int, sizes: Sizes) -> Iterator[Figure]:
    progress(f"W4: {sizes.kills} kills of a worker, {standbys} standbys")
    cpu = cpu_seconds_of_all()
    with _tasks(sizes) as spark:
        kills = killed(sizes, spark, standbys, kill_worker)
    yield from _figures(name, kills.outages, cpu_seconds_of_all() - cpu)
    yield from _marks(name, kills)


def _tasks(sizes: Sizes) -> AbstractContextManager[SparkSession | None]:
    """A session for the job's processes, if they are to be tasks of Spark."""
    return session() if sizes.spark else nullcontext()


def _figures(name: str, outages: Sequence[Outage], cpu: float) -> Iterator[Figure]:
    silent = [found.no_output_s for found in outages]
    normal = [found.to_normal_s for found in outages]
    yield figure(WORKLOAD, f"{name}_no_output_s", "s", silent, cpu)
    yield figure(WORKLOAD, f"{name}_no_output_worst_s", "s", [max(silent)], cpu)
    yield figure(WORKLOAD, f"{name}_peak_latency_ms", "ms", [found.peak_latency_ms for found in outages], cpu)
    yield figure(WORKLOAD, f"{name}_to_normal_s", "s", normal, cpu)
    yield figure(WORKLOAD, f"{name}_to_normal_worst_s", "s", [max(normal)], cpu)


def _marks(name: str, kills: Kills) -> Iterator[Figure]:
    """When the driver knew, and when each mark was reached from then on, in milliseconds."""
    recovered = kills.recovered
    yield figure(WORKLOAD, f"{name}_noticed_ms", "ms", kills.noticed_ms, 0.0)
    for mark in fields(Marks)[1:]:
        reached = [at for event in recovered if (at := getattr(event.marks, mark.name)) is not None]
        if reached:
            yield figure(WORKLOAD, f"{name}_{mark.name}_ms", "ms", reached, 0.0)
    ages = [event.epoch_age_ms for event in recovered if event.epoch_age_ms is not None]
    if ages:
        yield figure(WORKLOAD, f"{name}_distance_to_epoch_ms", "ms", [median(ages)], 0.0)
