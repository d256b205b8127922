"""What it costs to look up one key in an epoch of many: the files of its key group are read, and no others.

Invariant: every key that is looked up is found, with the values that it was given.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from recovery.driver.tree.identity import new_birth
from recovery.offline.job_tree import open_tree
from recovery.offline.new_tree import KeptEpoch, begin
from recovery.offline.reading import read_epoch
from recovery.savepoints.inspecting import Wanted, rows_of
from snapshot.tree.manifest import Manifest, ManifestKind, OperatorSnapshot, SubtaskSnapshot
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Partition, Uid
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import range_of
from statebackend.options import Options
from tests.bench.figures import Figure, figure, progress
from tests.bench.state_inputs import AMPLE, BATCH, OPERATOR, keys_of_80, record_values

WORKLOAD = "savepoint"
FULL, SMALL = 10_000_000, 5_000
_LOOKED_UP = 9
_PARTITIONS = 2
_EPOCH = Epoch(Generation(1), 1)


def figures(number: int) -> Iterator[Figure]:
    """Of single keys in so many: seconds from nothing to their rows, bytes and files read for them."""
    keys = keys_of_80(number)
    with TemporaryDirectory() as scratch:
        uri = f"{scratch}/tree"
        progress(f"{WORKLOAD}: {number:,} keys are brought into a savepoint of {_PARTITIONS} partitions")
        size = _make(Path(scratch), uri, keys)
        seconds, read, opened = [], [], []
        begun = time.process_time()
        for place in np.random.default_rng(1).integers(0, number, _LOOKED_UP).tolist():
            key, start = keys[place].as_py(), time.perf_counter()
            with read_epoch(open_tree(uri), "newest", pin=False) as reading:
                (row,) = (row for rows in rows_of(reading, "totals", None, Wanted(json.dumps(key)))
                          for row in rows.in_json())  # fmt: skip
                seconds.append(time.perf_counter() - start)
                read.append(float(reading.read.bytes))
                opened.append(float(reading.read.files))
            assert (row["key"], row["count.count"]) == (key, 1)
            assert row["sum.value"] == place & 1023
        cpu = time.process_time() - begun
        yield figure(WORKLOAD, "inspect_key_s", "s", seconds, cpu)
        yield figure(WORKLOAD, "inspect_key_bytes_read", "bytes", read, cpu)
        yield figure(WORKLOAD, "inspect_key_files_read", "files", opened, cpu)
        yield figure(WORKLOAD, "inspect_key_state_bytes", "bytes", [float(size)], cpu)


def _make(scratch: Path, uri: str, keys: pa.Array) -> int:
    """A savepoint of these keys, one record each; the size of its files."""
    most = OPERATOR.max_parallelism
    birth = new_birth("bench", most)
    tree = begin(uri, birth, _EPOCH.generation, "bench")
    parts: list[FileSet] = []
    for index in range(_PARTITIONS):
        groups = range_of(Partition(index), _PARTITIONS, most)
        names, folder = tree.names(Partition(index)), scratch / f"state-{index}"
        with KeyedState(OPERATOR, folder, tree.store, names, FileSet(groups), Options(memory=AMPLE)) as state:
            for start in range(0, len(keys), BATCH):
                batch = keys.slice(start, BATCH)
                own = np.flatnonzero(state.keys(batch).groups(most).astype(np.int64) * _PARTITIONS // most == index)
                values = record_values(start, len(batch)).take(pa.array(own))
                state["totals"].update(state.keys(batch.take(pa.array(own))), {"value": values})
            parts.append(state.snapshot(_EPOCH))
    subtasks = tuple(SubtaskSnapshot(Partition(index), files) for index, files in enumerate(parts))
    operators = (OperatorSnapshot(Uid("totals"), _PARTITIONS, subtasks, key_type=OPERATOR.schema().key_type.name),)
    manifest = Manifest(birth.job, _EPOCH, Attempt(0), ManifestKind.SAVEPOINT, most, 1, operators)
    tree.finish(KeptEpoch(manifest))
    return _size(parts)


def _size(files: Sequence[FileSet]) -> int:
    return sum({file.path: file.size for part in files for file in part.files}.values())
