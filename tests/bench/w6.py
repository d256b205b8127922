"""W6: W3's job is stopped with a savepoint and started with twice, and then with three quarters of its partitions.

Invariant: the time is from the wish to stop until the first row that the restarted job gives, in one session;
at the end every key's count is compared with the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.driver.tree.manifests import states_in
from recovery.offline.job_tree import open_tree
from snapshot.host.partition.source_run import read_to
from snapshot.program.plan import Plan
from snapshot.tree.layout import SHARED, SharedFile, parse
from snapshot.tree.manifest import Manifest
from statebackend.ids import Epoch, Uid
from statebackend.state_reader import StateReader
from tests.bench import w3
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.measured_sinks import Stopwatch
from tests.bench.running_job import EVERY_SECOND, STATE_MEMORY, Failed, session
from tests.bench.workload_input import Records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKLOAD: Final = "W6"
_STEPS: Final = (2, 4, 3)
_CORES: Final = 5
_LOOK: Final = 0.002
_PATIENCE: Final = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys and records a second, and how often all is done."""

    keys: int
    rate: int
    runs: int
    every: str
    spark: bool


FULL = Sizes(1_000_000, 10_000, RUNS, EVERY_SECOND, spark=True)
SMALL = Sizes(1_000, 1_000, 1, "100ms", spark=False)


@dataclass(frozen=True, slots=True)
class Step:
    """From one parallelism to the next: seconds, of which so many until the savepoint was there, and bytes."""

    parallelism: int
    stop_to_output_s: float
    stopped_s: float
    read: int
    rewritten: int


def figures(sizes: Sizes = FULL) -> Iterator[Figure]:
    """Stop to first output, what was read and rewritten for it, and wrong keys, for each step."""
    found: list[Sequence[Step]] = []
    wrong = 0
    cpu = cpu_seconds_of_all()
    with session(f"local[{_CORES},1000000]") if sizes.spark else nullcontext() as spark:
        for number in range(sizes.runs):
            progress(f"{WORKLOAD}: {' -> '.join(map(str, _STEPS))}, run {number + 1} of {sizes.runs}")
            steps, bad = _run(sizes, spark)
            found.append(steps)
            wrong += bad
    cpu = (cpu_seconds_of_all() - cpu) / sizes.runs
    by_step = list(zip(*found, strict=True))
    for steps in by_step:
        to = steps[0].parallelism
        yield figure(WORKLOAD, f"stop_to_first_output_at_{to}_s", "s", [step.stop_to_output_s for step in steps], cpu)
        yield figure(WORKLOAD, f"stop_at_{to}_s", "s", [step.stopped_s for step in steps], 0.0)
        yield figure(WORKLOAD, f"bytes_read_at_{to}", "bytes", [float(step.read) for step in steps], 0.0)
    slowest = [max(step.stop_to_output_s for step in run) for run in found]
    yield figure(WORKLOAD, "stop_to_first_output_s", "s", slowest, cpu)
    rewritten = [float(sum(step.rewritten for step in run)) for run in found]
    yield figure(WORKLOAD, "bytes_rewritten", "bytes", rewritten, 0.0)
    yield figure(WORKLOAD, "wrong_keys", "keys", [float(wrong)], 0.0)


def _run(sizes: Sizes, spark: SparkSession | None) -> tuple[Sequence[Step], int]:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sink, tree = folder / "seen", folder / "checkpoints"
        sink.mkdir()
        program = w3.program(
            w3.Sizes(sizes.keys, sizes.rate, 0.0, 0.0, 0, sizes.every, sizes.spark), Stopwatch(str(sink))
        )

        def start(parallelism: int) -> recovery.Run:
            return recovery.run(
                program,
                spark,
                checkpoints=tree,
                every=sizes.every,
                parallelism=parallelism,
                local=folder / "local",
                state_memory=STATE_MEMORY,
                progress=False,
            )

        run = start(_STEPS[0])
        try:
            _until(run, lambda: run.status().rows_in.get(Uid(w3.STAGE), 0) >= sizes.keys, "the keys are not there")
            steps = []
            for parallelism in _STEPS[1:]:
                _epochs_more(run, w3.SETTLED)
                before, asked = set(sink.iterdir()), time.monotonic()
                savepoint = run.stop(savepoint=True, timeout=_PATIENCE)
                stopped = time.monotonic()
                run = start(parallelism)
                _until(run, partial(_has_rows, sink, before), "there is no output")
                output = time.monotonic()
                rewritten = _written_by(tree, run)
                read = _read(tree, savepoint, program.plan(), parallelism)
                steps.append(Step(parallelism, output - asked, stopped - asked, read, rewritten))
            _epochs_more(run, w3.SETTLED)
            run.stop(savepoint=True, timeout=_PATIENCE)
        except BaseException:
            run.cancel()
            raise
        return steps, _wrong_keys(sizes, tree)


def _read(tree: Path, savepoint: Epoch | None, plan: Plan, parallelism: int) -> int:
    """How large the files are that all partitions open, those that several open counted for each."""
    manifest = open_tree(str(tree)).find(str(savepoint)).manifest
    states = states_in(manifest, plan, parallelism)
    return sum(file.size for parts in states.values() for part in parts for file in part.files)


def _written_by(tree: Path, run: recovery.Run) -> int:
    """How many bytes of state the restarted job has stored until now, which is before its first epoch."""
    generation, written = run.status().generation, 0
    for info in open_tree(str(tree)).store.list(SHARED):
        match parse(info.path):
            case SharedFile(incarnation=incarnation) if incarnation.generation == generation:
                written += info.size
            case _:
                pass
    return written


def _wrong_keys(sizes: Sizes, tree: Path) -> int:
    """How many keys have another count or sum in the last savepoint than the records give that are behind it."""
    found = open_tree(str(tree)).find("newest-savepoint")
    counts, sums = _truth(sizes, found.manifest)
    names = w3.names_of(np.arange(sizes.keys, dtype=np.int64))
    seen = wrong = 0
    for operator in found.manifest.operators:
        for subtask in operator.subtasks if operator.uid == w3.STAGE else ():
            if subtask.state is None:
                continue
            with (
                TemporaryDirectory() as scratch,
                StateReader(subtask.state, open_tree(str(tree)).store, Path(scratch)) as reader,
            ):
                for spec in reader.states():
                    table = reader.table(spec.name)
                    numbers = pc.index_in(table["key"].cast(pa.large_string()), value_set=names).to_numpy()
                    seen += len(numbers)
                    count_of, sum_of = (table[name].to_numpy() for name in ("count.count", "sum.value"))
                    wrong += int(np.count_nonzero((count_of != counts[numbers] + 1) | (sum_of != sums[numbers])))
    return wrong + sizes.keys - seen


def _truth(sizes: Sizes, manifest: Manifest) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count and sum of each key over the records that the sources have given."""
    counts, sums = np.zeros(sizes.keys, np.int64), np.zeros(sizes.keys)
    [source] = [operator for operator in manifest.operators if operator.uid == "records"]
    for at in (position for subtask in source.subtasks for position in subtask.positions):
        index, splits = (int(word) for word in at.split.split(" from ")[0].split(" of "))
        made = read_to(at.position)
        assert isinstance(made, int)
        columns = Records(sizes.keys)(index + splits * np.arange(made, dtype=np.int64))
        counts += np.bincount(columns["key"], minlength=sizes.keys)
        sums += np.bincount(columns["key"], weights=columns["value"], minlength=sizes.keys)
    return counts, sums


def _has_rows(sink: Path, before: Collection[Path]) -> bool:
    """Whether a file that was not there before has rows."""
    return any(file.stat().st_size for file in set(sink.iterdir()).difference(before))


def _epochs_more(run: recovery.Run, more: int) -> None:
    def complete() -> int:
        epoch = run.status().complete
        return 0 if epoch is None else epoch.number

    last = complete() + more
    _until(run, lambda: complete() >= last, f"there are no {more} more epochs")


def _until(run: recovery.Run, done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        status = run.status()
        if status.state.over:
            raise Failed(f"the job is over: {status.failure or status.state.value}")
        if time.monotonic() > deadline:
            raise Failed(f"{otherwise}, for {_PATIENCE} seconds; the job is {status.state.value}: {status.failure}")
        time.sleep(_LOOK)
