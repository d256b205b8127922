"""What exactly-once output costs: each sink against the same target written at-least-once, and how long a commit takes.

Invariant: the two ways take turns in one run, with the same rows, from a source that is much faster than any
target; a run counts from the first row until all rows are to be seen by readers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.events import EpochCommitted, EpochCompleted, Finished, Running
from snapshot import Generate, Program, Stream
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.program.sink import Sink
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.running_job import EVERY_SECOND, PARALLELISM, Failed
from tests.jobs.numbered import SCHEMA
from tests.targets import TARGETS

WORKLOAD: Final = "sinks"
_PATIENCE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows each target is given, and how often."""

    rows: Mapping[str, int]
    runs: int


FULL = Sizes(
    {
        "files": 20_000_000,
        "s3": 10_000_000,
        "hdfs": 10_000_000,
        "delta": 10_000_000,
        "delta-s3": 10_000_000,
        "kafka": 1_000_000,
        "pravega": 1_000_000,
        "postgres": 1_000_000,
        "postgres-staged": 1_000_000,
        "sqlite": 1_000_000,
        "rocksdb": 1_000_000,
    },
    RUNS,
)
SMALL = Sizes({"files": 10_000}, 1)


@dataclass(frozen=True, slots=True)
class Written:
    """One run."""

    rows_per_s: float
    commit_ms: tuple[float, ...]
    """From each complete epoch until it was committed."""
    cpu_s: float


def _rows(i: Indices) -> Columns:
    return {"k": i % 1000, "n": np.ones(len(i), np.int64), "i": i}


def program(sink: Sink, rows: int) -> Program:
    """As many rows, straight to the sink."""
    return Stream.read(Generate(_rows, SCHEMA, count=rows), uid="rows").write(sink, uid="out")


def written(sink: Sink, rows: int, folder: Path) -> Written:
    """Run the job to its end."""
    cpu = cpu_seconds_of_all()
    run = recovery.run(
        program(sink, rows),
        checkpoints=folder / "checkpoints",
        every=EVERY_SECOND,
        parallelism=PARALLELISM,
        local=folder / "local",
        progress=False,
    )
    run.wait(_PATIENCE)
    cpu = cpu_seconds_of_all() - cpu
    began = next((event.at for event in run.events if isinstance(event, Running)), None)
    committed = {event.epoch: event.at for event in run.events if isinstance(event, EpochCommitted)}
    ended = next((event.at for event in run.events if isinstance(event, Finished)), None)
    if began is None or ended is None:
        raise Failed(f"a job of {rows} rows has not come to its end")
    took = [
        (committed[event.epoch] - event.at) * 1e3
        for event in run.events
        if isinstance(event, EpochCompleted) and event.epoch in committed
    ]
    return Written(rows / (ended - began), tuple(took), cpu)


def parts(sizes: Sizes) -> dict[str, Sizes]:
    """Each target alone, by the name under which it can be asked for."""
    return {f"{WORKLOAD}/{name}": Sizes({name: rows}, sizes.runs) for name, rows in sizes.rows.items()}


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Of every target that there are rows for."""
    for name, rows in sizes.rows.items():
        once: list[Written] = []
        plain: list[Written] = []
        for number in range(sizes.runs):
            with TemporaryDirectory() as scratch:
                folder = Path(scratch)
                for place, runs in (("once", once), ("plain", plain)):
                    progress(f"sinks: {name}, {place}, run {number + 1} of {sizes.runs}")
                    at = folder / place
                    at.mkdir()
                    with TARGETS[name](at) as target:
                        sink = target.sink if place == "once" else target.plain
                        if target.environment is not None:
                            from s3fs import S3FileSystem

                            os.environ.update(target.environment)  # of the job's processes
                            S3FileSystem.clear_instance_cache()  # each run has a server of its own
                        if sink is not None:
                            runs.append(written(sink, rows, at / "job"))
        yield figure(WORKLOAD, f"{name}_rows_per_s", "rows/s", [run.rows_per_s for run in once], _cpu(once))
        if plain:
            yield figure(WORKLOAD, f"{name}_plain_rows_per_s", "rows/s", [r.rows_per_s for r in plain], _cpu(plain))
        yield figure(WORKLOAD, f"{name}_commit_ms", "ms", [median(run.commit_ms) for run in once], 0.0)
        yield figure(WORKLOAD, f"{name}_commit_worst_ms", "ms", [max(run.commit_ms) for run in once], 0.0)


def _cpu(runs: list[Written]) -> float:
    return sum(run.cpu_s for run in runs)
