"""W6's heart: state that goes from two partitions to four and from four to three, without rewriting any of it.

Invariant: after each step every key is read, and is what it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from statebackend.files import FileSet, rescaled
from statebackend.ids import Attempt, Epoch, Generation, Partition
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import range_of
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.stores.fsspec_store import open_store
from tests.bench.figures import Figure, figure, progress
from tests.bench.state_inputs import AMPLE, BATCH, OPERATOR, WORKLOAD, keys_of_80, record_values

FULL, SMALL = 10_000_000, 5_000
_STEPS = (4, 3)
_LARGEST = OPERATOR.max_parallelism


class Partitions:
    """All partitions of the operator at one parallelism, in this process, with the same store."""

    def __init__(self, root: Path, parallelism: int, parents: Sequence[FileSet]) -> None:
        self.parallelism = parallelism
        names = SnapshotFolder.names(Generation(parallelism), Partition(0), Attempt(0))
        store = open_store((root / "store").as_uri())
        begun = time.perf_counter()
        self.states = []
        for partition in range(parallelism):
            groups = range_of(Partition(partition), parallelism, _LARGEST)
            files = rescaled(parents, groups) if parents else FileSet(groups)
            folder = root / f"{parallelism}-{partition}"
            state = KeyedState(OPERATOR, folder, store, names, files, Options(memory=AMPLE))
            self.states.append(state)
        self.opened_s = time.perf_counter() - begun

    def owners(self, keys: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Which partition has each key."""
        groups = self.states[0].keys(keys).groups(_LARGEST).astype(np.int64)
        return groups * self.parallelism // _LARGEST

    def update(self, keys: pa.Array, first: int) -> None:
        """One record for each key."""
        owners = self.owners(keys)
        for partition, state in enumerate(self.states):
            own = np.flatnonzero(owners == partition)
            values = record_values(first, len(keys)).take(pa.array(own))
            state["totals"].update(state.keys(keys.take(pa.array(own))), {"value": values})

    def check(self, keys: pa.Array, counts: int) -> None:
        """Every key has been counted so often, and its values summed."""
        for start in range(0, len(keys), 1 << 20):
            batch = keys.slice(start, 1 << 20)
            owners, expected = self.owners(batch), record_values(start, len(batch)).to_numpy() * counts
            for partition, state in enumerate(self.states):
                own = np.flatnonzero(owners == partition)
                found = state["totals"].read(state.keys(batch.take(pa.array(own))))
                assert np.all(found.column("count").to_numpy() == counts)
                assert np.array_equal(found.column("sum").to_numpy(), expected[own])

    def close(self, epoch: Epoch) -> tuple[list[FileSet], int]:
        """Snapshot what has changed; the file sets, and how many bytes were written."""
        files = [state.snapshot(epoch) for state in self.states]
        written = sum(state.statistics().background.uploaded_bytes for state in self.states)
        for state in self.states:
            state.close()
        return files, written


def figures(number: int) -> Iterator[Figure]:
    """Of each step: seconds until all partitions can be read, bytes read, bytes of state rewritten."""
    keys = keys_of_80(number)
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        progress(f"{WORKLOAD}: rescale, {number:,} keys are loaded into two partitions")
        partitions = Partitions(root, 2, [])
        for start in range(0, number, BATCH):
            partitions.update(keys.slice(start, BATCH), start)
        files, _ = partitions.close(Epoch(Generation(1), 1))
        for generation, parallelism in enumerate(_STEPS, start=2):
            begun = time.process_time()
            partitions = Partitions(root, parallelism, files)
            fetched = [state.statistics().restored for state in partitions.states]
            read = sum(report.downloaded_bytes + report.linked_bytes for report in fetched)
            cpu = time.process_time() - begun
            progress(f"{WORKLOAD}: rescale to {parallelism}: opened in {partitions.opened_s:.2f} s, every key is read")
            partitions.check(keys, 1)
            files, written = partitions.close(Epoch(Generation(generation), generation))
            yield figure(WORKLOAD, f"rescale_to_{parallelism}_s", "s", [partitions.opened_s], cpu)
            yield figure(WORKLOAD, f"rescale_to_{parallelism}_bytes_read", "bytes", [read], cpu)
            yield figure(WORKLOAD, f"rescale_to_{parallelism}_bytes_rewritten", "bytes", [written], cpu)
            yield figure(WORKLOAD, f"rescale_to_{parallelism}_state_bytes", "bytes", [_size(files)], cpu)


def _size(files: Sequence[FileSet]) -> int:
    return sum({file.path: file.size for part in files for file in part.files}.values())
