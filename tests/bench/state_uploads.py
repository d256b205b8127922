"""W5: one percent of the keys changes per epoch. What is uploaded, what is wasted, what a restore reads; together.

Invariant: at the end every file of the beginning has been replaced, so a full cycle of consolidation is in the
figures; and what is restored is compared with what was written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.files import FileKind, FileSet
from statebackend.keyed_state import KeyedState
from statebackend.options import Options
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.state_inputs import AMPLE, OPERATOR, WORKLOAD, Bench, keys_of_80, opened, record_values


@dataclass(frozen=True, slots=True)
class Case:
    """How many keys there are and change per epoch, and the fewest epochs."""

    name: str
    keys: int
    changed: int
    epochs: int


FULL = (Case("upload", 1_000_000, 10_000, 600), Case("upload_10m", 10_000_000, 10_000, 600))
SMALL = (Case("upload", 5_000, 50, 6),)
_MOST_EPOCHS = 8_000


def figures(cases: tuple[Case, ...]) -> Iterator[Figure]:
    """Of each case: bytes per epoch, amplification, files, pauses, background time, restore."""
    for case in cases:
        progress(f"{WORKLOAD}: {case.name}, {case.keys:,} keys are loaded")
        keys = keys_of_80(case.keys)
        with opened() as bench:
            bench.load(keys)
            yield from _figures(bench, keys, case)


def _figures(bench: Bench, keys: pa.Array, case: Case) -> Iterator[Figure]:
    first = {file.path for file in bench.files.files}
    order = np.random.default_rng(1).permutation(case.keys)
    counts = np.ones(case.keys, dtype=np.int64)
    uploads: list[float] = []
    pauses: list[float] = []
    behind: list[float] = []
    amplification: list[float] = []
    number: list[float] = []
    before, begun = bench.state.statistics().background.uploaded_bytes, time.process_time()
    live = 0.0
    while len(uploads) < case.epochs or first & {file.path for file in bench.files.files}:
        at = len(uploads) * case.changed
        chosen = np.take(order, np.arange(at, at + case.changed), mode="wrap")
        counts[chosen] += 1
        bench.update(bench.state.keys(keys.take(pa.array(chosen))), record_values(0, case.changed))
        pauses.append(bench.cut())
        start = time.perf_counter()
        bench.settle()
        behind.append((time.perf_counter() - start) * 1e3)
        now = bench.state.statistics().background.uploaded_bytes
        uploads.append((now - before) / 1e6)
        before = now
        live = _live(bench.files) or live
        amplification.append(sum(file.size for file in bench.files.files) / live if live else 0.0)
        number.append(len(bench.files.files))
        if len(uploads) % 100 == 0:
            progress(
                f"{WORKLOAD}: {case.name}, epoch {len(uploads)}: {mean(uploads[-100:]):.3f} MB per epoch, "
                f"{number[-1]} files, amplification {amplification[-1]:.2f}"
            )
        if len(uploads) >= _MOST_EPOCHS:
            progress(f"{WORKLOAD}: {case.name}: not all first files are replaced after {len(uploads)} epochs")
            break
    cpu = time.process_time() - begun
    settled = amplification[len(amplification) // 2 :]
    yield figure(WORKLOAD, f"{case.name}_mean_mb", "MB", [mean(uploads)], cpu)
    yield figure(WORKLOAD, f"{case.name}_epochs", "epochs", [len(uploads)], cpu)
    yield figure(WORKLOAD, f"{case.name}_largest_mb", "MB", [max(uploads)], cpu)
    yield figure(WORKLOAD, f"{case.name}_amplification_mean", "ratio", [mean(settled)], cpu)
    yield figure(WORKLOAD, f"{case.name}_amplification_max", "ratio", [max(settled)], cpu)
    yield figure(WORKLOAD, f"{case.name}_files_max", "files", [max(number)], cpu)
    yield figure(WORKLOAD, f"{case.name}_sync_pause_p99_ms", "ms", [float(np.percentile(pauses, 99))], cpu)
    yield figure(WORKLOAD, f"{case.name}_async_ms", "ms", [float(np.median(behind))], cpu)
    yield from _restores(bench, keys, counts, case)


def _live(files: FileSet) -> float:
    """What the state takes when each key is written once, as bases have it; 0 until all are bases of their own size."""
    bases = [file for file in files.files if file.kind is FileKind.BASE]
    groups = sum(len(part) for file in bases for part in file.ranges)
    return sum(file.size for file in bases) if groups == len(files.range) else 0.0


def _restores(bench: Bench, keys: pa.Array, counts: NDArray[np.int64], case: Case) -> Iterator[Figure]:
    """From the store and from local links; beside it, copying and hashing the same files."""
    copied: list[float] = []
    restored: list[float] = []
    linked: list[float] = []
    ratios: list[float] = []
    begun = time.process_time()
    one = keys.slice(3, 1)
    for run in range(RUNS):
        copied.append(_copy_and_hash(bench, bench.folder / f"copied{run}"))
        folder = bench.folder / f"restored{run}"
        for times in (restored, linked):
            start = time.perf_counter()
            with KeyedState(OPERATOR, folder, bench.store, bench.names, bench.files, Options(memory=AMPLE)) as state:
                state["totals"].read(state.keys(one))
                times.append(time.perf_counter() - start)
                if run == RUNS - 1 and times is linked:
                    start = time.perf_counter()
                    found = state["totals"].read(state.keys(keys)).column("count").to_numpy()
                    everything = time.perf_counter() - start
                    assert np.array_equal(found, counts), "the restored counts are not those that were written"
        ratios.append(restored[-1] / copied[-1])
        figures_of_run = f"restored in {restored[-1]:.3f} s, copied in {copied[-1]:.3f} s, linked in {linked[-1]:.3f} s"
        progress(f"{WORKLOAD}: {case.name}: {figures_of_run}")
    cpu = time.process_time() - begun
    name = case.name.replace("upload", "restore")
    yield figure(WORKLOAD, f"{name}_s", "s", restored, cpu)
    yield figure(WORKLOAD, f"{name}_vs_copy", "ratio", ratios, cpu)
    yield figure(WORKLOAD, f"{name}_from_links_ms", "ms", [1e3 * one for one in linked], cpu)
    yield figure(WORKLOAD, f"{name}_all_keys_read_s", "s", [everything], cpu)


def _copy_and_hash(bench: Bench, folder: Path) -> float:
    """One file after the other: the time that nobody could be below without doing several at once."""
    folder.mkdir()
    start = time.perf_counter()
    for place, file in enumerate(bench.files.files):
        target = folder / str(place)
        bench.store.download(file.path, target)
        with target.open("rb") as opened_file:
            assert f"sha256:{hashlib.file_digest(opened_file, 'sha256').hexdigest()}" == file.checksum
    taken = time.perf_counter() - start
    for target in folder.iterdir():
        target.unlink()
    return taken
