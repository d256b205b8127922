"""Clicks are counted per page and second on Spark; a worker is killed in the middle; no click is lost or counted twice.

The counts go to files, exactly once; each click is also shown at once, which tells how long it took. At the end the
files are compared with the truth, and the picture of the latency around the kill is saved.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, floor, log10
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import recovery
from recovery import AttemptFailed, Marks, WorkerJoined
from snapshot import (
    Generate,
    KeyedProcess,
    ProcessContext,
    Program,
    Row,
    Stream,
    ToDriver,
    ToFiles,
    Tumbling,
    ValueState,
)
from snapshot.testing.line_plot import Line, Moment, Panel, Scale, as_svg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = 50
PARTITIONS, STANDBYS = 2, 1
SLOTS = PARTITIONS + STANDBYS
EPOCHS = 2
"""So many are complete before a worker is killed."""
BUCKET, BEFORE, AFTER = 0.25, 4.0, 10.0
"""Seconds: of the clicks that make a point of the picture, and how many it shows before and after the kill."""
CLICK = pa.schema([("click", pa.int64()), ("page", pa.string()), ("at", pa.timestamp("ms")), ("made", pa.int64())])
OPENED = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""The event time of the first click. It follows from a click's number alone, and so does the truth."""


def page_of(click: int) -> str:
    return f"/page/{click * click % 9973 % PAGES}"


@dataclass(frozen=True, slots=True)
class Clicks:
    """Clicks by their numbers: what the source calls."""

    rate: int

    def __call__(self, numbers: NDArray[np.int64]) -> dict[str, pa.Array]:
        return {
            "click": pa.array(numbers),
            "page": pa.array([page_of(number) for number in numbers.tolist()]),
            "at": pa.array(OPENED + numbers * 1000 // self.rate, pa.timestamp("ms")),
        }


class Seen(KeyedProcess):
    """Shows each click with the number of clicks that its page has had."""

    output: ClassVar = {"click": int, "made": int, "page": str, "so_far": int}
    so_far = ValueState(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.so_far.set(self.so_far.get() + 1)
        ctx.emit((event.click, event.made, event.page, self.so_far.get()))


def program(counts: Path, rate: int, seconds: int) -> Program:
    """Clicks per page and second to files, and every click at once to the driver."""
    source = Generate(Clicks(rate), CLICK, count=rate * seconds, rate=rate, scheduled="made")
    clicks = Stream.read(source, uid="clicks").with_event_time("at").key_by("page")
    counted = clicks.window(Tumbling("1s")).count(uid="per-second")
    return Program.of(
        counted.write(ToFiles(str(counts), "jsonl"), uid="counts"),
        clicks.process(Seen, uid="seen").write(ToDriver(at_commit=False), uid="live"),
    )


def truth(rate: int, seconds: int) -> Counter[str]:
    """The rows that must be in the files, computed from the clicks' numbers."""
    counts = Counter((number * 1000 // rate // 1000, page_of(number)) for number in range(rate * seconds))
    return Counter(
        line(page, OPENED + second * 1000, OPENED + second * 1000 + 1000, count)
        for (second, page), count in counts.items()
    )


def line(page: str, start: int, end: int, count: int) -> str:
    moments = (f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S}.000" for at in (start, end))
    return " ".join((page, *moments, str(count)))


def written(counts: Path) -> Counter[str]:
    """The rows that are in the files."""
    rows = (json.loads(text) for file in counts.glob("part-*.jsonl") for text in file.read_text().splitlines())
    return Counter(f"{row['page']} {row['window_start']} {row['window_end']} {row['count']}" for row in rows)


@dataclass(slots=True)
class Watched:
    """When each click was due and when it was first seen, in seconds since 1970, and when the worker was killed."""

    due: NDArray[np.float64]
    seen: NDArray[np.float64]
    killed_at: float | None = None
    repeated: int = 0

    @property
    def latency_ms(self) -> NDArray[np.float64]:
        return np.maximum((self.seen - self.due) * 1000, 0)


def watch(run: recovery.Run, clicks: int) -> Watched:
    """Take the live clicks until the job has ended; kill a worker when half of them, and some epochs, are behind."""
    watched = Watched(np.full(clicks, np.nan), np.full(clicks, np.nan))
    for batch in run.batches("live"):
        now = time.time()
        numbers = batch.column("click").to_numpy()
        new = numbers[np.isnan(watched.seen[numbers])]
        watched.due[numbers] = batch.column("made").to_numpy() / 1e6
        watched.seen[new] = now
        watched.repeated += len(numbers) - len(new)
        if watched.killed_at is None and numbers.max() >= clicks // 2 and len(run.status().epochs) >= EPOCHS:
            watched.killed_at = now
            kill_a_worker(run)
    return watched


def kill_a_worker(run: recovery.Run) -> None:
    """SIGKILL to the process that has partition 0: it has no chance to say anything."""
    workers = run.status().workers
    worker = next(worker for worker, partition in workers.items() if partition == 0)
    pid = next(event.pid for event in run.events if isinstance(event, WorkerJoined) and event.worker == worker)
    os.kill(pid, signal.SIGKILL)
    say(f"half of the clicks are behind: killed worker {worker} (process {pid}), which had partition 0")


def say(text: str) -> None:
    """On a line of its own, where a line of progress may stand."""
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(text, flush=True)


# --- what is told at the end ------------------------------------------------------------------------------------------

PHASES = {
    "detected": "the driver knows that the worker is gone",
    "decided": "all roll back to the last complete epoch",
    "restarted": "every partition has a process again",
    "downloaded": "the last partition has all its files",
    "opened": "all state can be read",
    "first_output": "a sink is given rows",
    "caught_up": "no source is further behind its schedule than before",
}


def tell_recovery(run: recovery.Run, killed_at: float) -> None:
    """The seven marks."""
    failure = next(event for event in run.events if isinstance(event, AttemptFailed))
    print(f"\nrecovery, in milliseconds; noticed {(failure.at - killed_at) * 1000:.0f} ms after the kill")
    for recovered in run.status().recoveries:
        for name, meaning in PHASES.items():
            print(f"  {name.replace('_', ' '):<13}{shown(recovered.marks, name):>8}  {meaning}")


def shown(marks: Marks, name: str) -> str:
    value = getattr(marks, name)
    return "-" if value is None else f"{value:.0f}"


def percentiles(watched: Watched, killed_at: float) -> dict[int, list[tuple[float, float]]]:
    """By percentile: the latency of the clicks of each quarter of a second, by when they were due after the kill."""
    due, latency = watched.due - killed_at, watched.latency_ms
    bucket = np.floor(due / BUCKET).astype(np.int64)
    shown = np.unique(bucket[(due >= -BEFORE) & (due < AFTER)])
    return {
        percentile: [
            ((each + 0.5) * BUCKET, float(np.percentile(latency[bucket == each], percentile))) for each in shown
        ]
        for percentile in (50, 99)
    }


def picture(points: dict[int, list[tuple[float, float]]]) -> str:
    """The latency around the kill."""
    lines = (
        Line("median", tuple(points[50]), dashed=False, dotted=False),
        Line("99th percentile", tuple(points[99]), dashed=True, dotted=False),
    )
    worst = max(latency for _, latency in points[99])
    scale = Scale("latency, ms", 1, 10 ** max(3, ceil(log10(max(1, worst)))))
    return as_svg(
        "when clicks were due, in seconds after the kill",
        [(scale, [Panel("From when a click was due to when its count was seen", lines)])],
        width=720,
        ticks=range(ceil(points[50][0][0]), floor(points[50][-1][0]) + 1),
        moments=[Moment(0, "a worker is killed")],
    )


def tell_latency(watched: Watched, killed_at: float) -> None:
    """How it was before the kill, and at worst after it."""
    before = watched.latency_ms[(watched.due >= killed_at - BEFORE) & (watched.seen < killed_at)]
    worst = watched.latency_ms[watched.seen >= killed_at].max()
    low, high = np.percentile(before, [50, 99])
    print(f"\nlatency: {low:.0f} ms before the kill (99th percentile {high:.0f} ms), {worst:.0f} ms at worst after it")
    print(f"the live output showed {watched.repeated:,} clicks again after the kill; the files must not")


def compare(counts: Path, rate: int, seconds: int) -> bool:
    """Whether the files hold the truth."""
    expected, found = truth(rate, seconds), written(counts)
    lost, twice = (expected - found).total(), (found - expected).total()
    print(f"\n{expected.total():,} rows expected, {found.total():,} rows in files: {lost} lost, {twice} twice or wrong")
    return not lost and not twice


# --- the command line -------------------------------------------------------------------------------------------------


@contextmanager
def session(with_spark: bool) -> Iterator[SparkSession | None]:
    """Spark on this machine, with a slot for each partition and each standby; or nothing."""
    if not with_spark:
        yield None
        return
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers are whatever python3 is
    builder = SparkSession.builder.master(f"local[{SLOTS}, 1000000]").appName("clicks")
    for name, value in {**recovery.spark_settings(), "spark.ui.enabled": "false"}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.log.level", "FATAL").getOrCreate()  # a killed worker is two pages of stack traces
    try:
        # Spark wakes up with its first job; the clicks would be late if that were ours.
        spark.range(0, SLOTS, 1, SLOTS).mapInArrow(nothing, "id long").collect()
        yield spark
    finally:
        spark.stop()


def nothing(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from ()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.clicks",
        description=__doc__,
        epilog="example: python -m examples.clicks --without-spark --seconds 10",
    )
    parser.add_argument("--without-spark", action="store_true", help="processes of this machine instead of Spark tasks")
    parser.add_argument("--seconds", type=int, default=24, help="for how long clicks come (%(default)s)")
    parser.add_argument("--rate", type=int, default=3000, help="clicks per second (%(default)s)")
    parser.add_argument(
        "--svg",
        type=Path,
        default=Path("build/latency-around-a-kill.svg"),
        metavar="FILE",
        help="where the picture is saved (%(default)s)",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep checkpoints and files here; it must be empty")
    given = parser.parse_args(arguments)
    if given.seconds < 2 or given.rate < 1:
        parser.error("there must be at least 2 seconds, and a click per second")
    if given.keep is not None and given.keep.exists() and any(given.keep.iterdir()):
        parser.error(f"{given.keep} is not empty; choose a new folder")
    try:
        with TemporaryDirectory() as scratch, session(not given.without_spark) as spark:
            exact = demonstrate(given.keep or Path(scratch), spark, given.rate, given.seconds, given.svg)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return 0 if exact else 1


def demonstrate(folder: Path, spark: SparkSession | None, rate: int, seconds: int, svg: Path) -> bool:
    """Run the job, kill a worker, and tell what came of it; whether the output is exact."""
    print(
        f"{rate:,} clicks per second for {seconds} seconds, on {PARTITIONS} partitions and {STANDBYS} standby",
        flush=True,
    )
    scheme = recovery.Passive(standbys=STANDBYS)
    with recovery.run(
        program(folder / "counts", rate, seconds),
        spark,
        checkpoints=folder / "checkpoints",
        job="clicks",
        every="1s",
        parallelism=PARTITIONS,
        scheme=scheme,
        local=folder / "local",
    ) as run:
        watched = watch(run, rate * seconds)
        run.wait()
    if watched.killed_at is None:
        print(
            f"the clicks were over before {EPOCHS} epochs were complete, and no worker was killed: give more --seconds"
        )
        return False
    tell_recovery(run, watched.killed_at)
    tell_latency(watched, watched.killed_at)
    svg.parent.mkdir(parents=True, exist_ok=True)
    svg.write_text(picture(percentiles(watched, watched.killed_at)))
    print(f"The picture of the latency around the kill is {svg}.")
    return compare(folder / "counts", rate, seconds)


if __name__ == "__main__":
    sys.exit(main())
