"""Whether memory stays under its bound with ten times as much state, row by row and by the batch.

Each case runs in a process of its own. What counts is by how much its memory has grown at most since just before the
state was opened: while it is filled with a snapshot each second, while keys anywhere in it are used again, and while
all of it is restored in a second process and checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Partition
from statebackend.keyed_state import KeyedState
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots.file_set_json import from_json, to_json
from statebackend.states.declarations import ValueState
from statebackend.stores.fsspec_store import open_store
from tests.bench.figures import Figure, figure, progress
from tests.bench.state_inputs import KEY_SIZE, OPERATOR, WORKLOAD, Bench, record_keys, splitmix


@dataclass(frozen=True, slots=True)
class Case:
    """How many bytes the state may take in memory, and how many keys it has."""

    name: str
    bound: int
    keys: int


VALUE_SIZE = 1_000
FULL = (Case("rows", 128 << 20, 1_350_000), Case("table", 128 << 20, 14_000_000))
SMALL = (Case("rows", 32 << 20, 3_000), Case("table", 32 << 20, 5_000))

VALUES = Operator("values", key=int, states={"value": ValueState(bytes)})
_AGAIN = 10
"""One of so many keys is used again after all have come."""

_PERIOD = 1.0
_ON_THEIR_WAY = 3
"""More epochs than that do not wait for the store, as in a job, whose coordinator does not begin them."""

_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8)


def figures(cases: tuple[Case, ...]) -> Iterator[Figure]:
    """Per case the greatest growth as a part of the bound, filled and restored, and the rows per second."""
    for case in cases:
        with TemporaryDirectory() as scratch:
            for phase in ("fill", "restore"):
                progress(f"{WORKLOAD}: memory_{case.name}, {phase}, {case.keys:,} keys, {case.bound >> 20} MiB")
                command = [sys.executable, "-m", __name__, phase, case.name, str(case.bound), str(case.keys), scratch]
                answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                name = f"memory_{case.name}" if phase == "fill" else f"memory_{case.name}_restored"
                yield figure(WORKLOAD, f"{name}_over_bound", "x", [answer["grown"] / case.bound], answer["cpu_s"])
                yield figure(WORKLOAD, f"{name}_per_s", "rows/s", [answer["rows_per_s"]], answer["cpu_s"])
            progress(f"{WORKLOAD}: memory_{case.name}: {answer['stored'] / case.bound:.1f} times the bound is stored")


class _Growth:
    """By how much the memory of this process has grown at most since the beginning."""

    def __init__(self) -> None:
        self._begun = self._most = _resident()
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self.look()

    def look(self) -> None:
        self._most = max(self._most, _resident())

    def end(self) -> int:
        self.look()
        self._over.set()
        self._thread.join()
        return self._most - self._begun


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- in a process of its own ------------------------------------------------------------------------------------------

Numbers = NDArray[np.int64]


class _Rows:
    """Values of one kilobyte that begin with how often the key was used, row by row."""

    operator = VALUES
    batch = 2_048

    def use(self, bench: Bench, keys: Numbers) -> None:
        state, value = bench.state, bench.state["value"]
        value.prefetch(keys.tolist())
        for key, rest in zip(keys.tolist(), _rests(keys), strict=True):
            state.set_key(key)
            before = value.get()
            uses = 1 if before is None else int.from_bytes(before[:8], "big") + 1
            value.set(uses.to_bytes(8, "big") + rest)

    def check(self, bench: Bench, keys: Numbers, uses: Numbers) -> None:
        state, value = bench.state, bench.state["value"]
        value.prefetch(keys.tolist())
        for key, used, rest in zip(keys.tolist(), uses.tolist(), _rests(keys), strict=True):
            state.set_key(key)
            assert value.get() == used.to_bytes(8, "big") + rest, key


class _Table:
    """Count and sum for keys of 80 characters, by the batch."""

    operator = OPERATOR
    batch = 8_192

    def use(self, bench: Bench, keys: Numbers) -> None:
        bench.update(bench.state.keys(_names(keys)), pa.array(_value(keys)))

    def check(self, bench: Bench, keys: Numbers, uses: Numbers) -> None:
        found = bench.state["totals"].read(bench.state.keys(_names(keys)))
        assert np.array_equal(found["count"].to_numpy(), uses)
        assert np.array_equal(found["sum"].to_numpy(), uses * _value(keys))


def _value(keys: Numbers) -> NDArray[np.float64]:
    return (keys & 1023).astype(np.float64)


def _rests(keys: Numbers) -> list[bytes]:
    return [row.tobytes() for row in _noise(keys, VALUE_SIZE - 8)]


def _names(keys: Numbers) -> pa.Array:
    letters = _LETTERS[_noise(keys, KEY_SIZE) & 63]
    offsets = np.arange(len(keys) + 1, dtype=np.int64) * KEY_SIZE
    return pa.LargeStringArray.from_buffers(len(keys), pa.py_buffer(offsets), pa.py_buffer(letters))


def _noise(keys: Numbers, size: int) -> NDArray[np.uint8]:
    """So many bytes for each key that do not compress."""
    words = size // 8
    numbers = keys.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)
    return splitmix(numbers.astype(np.uint64)).view(np.uint8)


_PATHS: dict[str, _Rows | _Table] = {"rows": _Rows(), "table": _Table()}


def _run(phase: str, case: Case, folder: Path) -> dict[str, float]:
    path, saved = _PATHS[case.name], folder / "files.json"
    again = record_keys(0, case.keys // _AGAIN, case.keys)
    uses = np.ones(case.keys, dtype=np.int64)
    np.add.at(uses, again, 1)
    filling = phase == "fill"
    chosen = np.concatenate((np.arange(case.keys), again)) if filling else record_keys(case.keys, len(again), case.keys)
    files = None if filling else from_json(saved.read_text())
    _noise(chosen[: path.batch], VALUE_SIZE)  # the inputs' own memory is not the state's
    growth, begun = _Growth(), time.perf_counter()
    with _opened(path.operator, folder, files, case.bound) as bench:
        due = time.perf_counter() + _PERIOD
        for at in range(0, len(chosen), path.batch):
            keys = chosen[at : at + path.batch]
            if filling:
                path.use(bench, keys)
            else:
                path.check(bench, keys, uses[keys])
            bench.poll()
            if (
                filling
                and time.perf_counter() > due
                and bench.state.statistics().background.epochs_pending < _ON_THEIR_WAY
            ):
                bench.cut()
                due = time.perf_counter() + _PERIOD
        if filling:
            bench.complete()
            saved.write_text(to_json(bench.files))
        rate = len(chosen) / (time.perf_counter() - begun)
        stored = sum(file.size for file in bench.files.files)
        grown = growth.end()
    return {"grown": grown, "rows_per_s": rate, "stored": stored, "cpu_s": time.process_time()}


@contextmanager
def _opened(operator: Operator, folder: Path, files: FileSet | None, memory: int) -> Iterator[Bench]:
    store = open_store((folder / "store").as_uri())
    names = SnapshotFolder.names(Generation(1), Partition(0), Attempt(0))
    local = folder / ("local" if files is None else "restored")
    with KeyedState(operator, local, store, names, files, Options(memory=memory)) as state:
        files = files or FileSet(operator.all_groups)
        yield Bench(state, store, folder, names, Epoch(Generation(1), 0), files)


if __name__ == "__main__":
    phase, name, bound, keys, folder = sys.argv[1:]
    print(json.dumps(_run(phase, Case(name, int(bound), int(keys)), Path(folder))))
