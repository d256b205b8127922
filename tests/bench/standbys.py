"""What a standby costs while nothing fails, by what it has ready: CPU, memory and bytes, with W3's job.

Invariant: the kinds are measured in turns in one run, as processes on this machine, so nothing of Spark is in
the figures; CPU is that of all processes of the job, and memory that of the standby alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.events import WorkerJoined
from snapshot.host.protocol.options import Following
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import Stopwatch
from tests.bench.w4 import SMALL as SMALL_JOB
from tests.bench.w4 import Sizes as JobSizes
from tests.bench.w4 import job, until

WORKLOAD: Final = "standbys"
_LOOK: Final = 0.1
_MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """The job, and how many seconds of it count in each run."""

    job: JobSizes
    seconds: float
    runs: int


FULL = Sizes(JobSizes(1_000_000, 10_000, 0, 0.0, "1s", spark=False), 10.0, RUNS)
SMALL = Sizes(SMALL_JOB, 0.5, 1)
_KINDS: Final[Mapping[str, Following | None]] = {"none": None, **{kind.value: kind for kind in Following}}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one second of the job, all processes together; and of the standby itself."""

    cpu_s: float
    standby_mb: float
    downloaded_mb: float


def measured(sizes: Sizes, kind: Following | None) -> Cost:
    """Run the job with a standby of this kind, and measure it in its steady state."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "seen").mkdir()
        standbys = 0 if kind is None else 1
        with job(
            sizes.job, Stopwatch(str(folder / "seen")), None, folder, standbys, following=kind or Following.WARM
        ) as run:
            until(run, lambda: len(run.status().workers) == 2 + standbys, "the standby has not come")
            if kind in (Following.FILES, Following.OPEN):
                until(run, lambda: any(said.has for said in run.status().standbys.values()), "it does not follow")
            before = _downloaded(run)
            cpu, began = cpu_seconds_of_all(), time.monotonic()
            while time.monotonic() - began < sizes.seconds:
                time.sleep(_LOOK)
            cpu, length = cpu_seconds_of_all() - cpu, time.monotonic() - began
            return Cost(cpu / length, _memory(run), (_downloaded(run) - before) / length / _MEGABYTE)


def _memory(run: recovery.Run) -> float:
    """What the standby alone has, without what it shares with the process that it was forked from."""
    free = [worker for worker, at in run.status().workers.items() if at is None]
    pids = [event.pid for event in run.events if isinstance(event, WorkerJoined) and event.worker in free]
    return sum(map(_private_bytes, pids)) / _MEGABYTE


def _private_bytes(pid: int) -> int:
    lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def _downloaded(run: recovery.Run) -> int:
    return sum(said.downloaded_bytes for said in run.status().standbys.values())


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures."""
    costs: dict[str, list[Cost]] = {name: [] for name in _KINDS}
    cpu = cpu_seconds_of_all()
    for number in range(sizes.runs):
        for name, kind in _KINDS.items():
            progress(f"standbys: {name}, run {number + 1} of {sizes.runs}")
            costs[name].append(measured(sizes, kind))
    cpu = cpu_seconds_of_all() - cpu
    for name, found in costs.items():
        yield figure(WORKLOAD, f"{name}_cpu_per_s", "CPU-s", [cost.cpu_s for cost in found], cpu)
        if name != "none":
            yield figure(WORKLOAD, f"{name}_memory_mb", "MB", [cost.standby_mb for cost in found], cpu)
            yield figure(WORKLOAD, f"{name}_downloaded_mb_per_s", "MB/s", [cost.downloaded_mb for cost in found], cpu)
