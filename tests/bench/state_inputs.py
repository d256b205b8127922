"""Keys of about 100 bytes with count and sum, and a state that holds them: what all benchmarks of the state begin with.

Invariant: the same number gives the same keys and records everywhere, so that every result can be recomputed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Partition
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.keys.columns import KeyColumn
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots.uploads import Durable
from statebackend.states.aggregates import AggregateTable
from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobStore
from statebackend.tables.values.aggregations import Count, Sum

WORKLOAD = "state"
KEY_SIZE = 80
BATCH = 32_768
AMPLE = 64 << 30
"""More memory than any of these states needs."""

OPERATOR = Operator(
    "totals", key=str, states={"totals": AggregateTable({"value": float}, count=Count(), sum=Sum("value"))}
)
LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8)
_GENERATION = Generation(1)


def keys_of_80(number: int) -> pa.Array:
    """So many different keys of 80 characters that do not compress."""
    letters = np.random.default_rng(7).integers(0, len(LETTERS), size=(number, KEY_SIZE), dtype=np.uint8)
    data = LETTERS[letters]
    offsets = np.arange(number + 1, dtype=np.int64) * KEY_SIZE
    return pa.LargeStringArray.from_buffers(number, pa.py_buffer(offsets), pa.py_buffer(data))


def splitmix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers' splitmix64: which record has which key."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def record_keys(first: int, number: int, keys: int) -> NDArray[np.int64]:
    """The numbers of the keys of these records."""
    return (splitmix(np.arange(first, first + number, dtype=np.uint64)) % np.uint64(keys)).astype(np.int64)


def record_values(first: int, number: int) -> pa.Array:
    """The values of these records."""
    return pa.array((np.arange(first, first + number) & 1023).astype(np.float64))


@dataclass(slots=True)
class Bench:
    """A state with its own store and folders, and the epochs that it has gone through."""

    state: KeyedState
    store: BlobStore
    folder: Path
    names: Callable[[], str]
    epoch: Epoch
    files: FileSet

    def update(self, keys: KeyColumn, values: pa.Array) -> None:
        """Take a batch in."""
        self.state["totals"].update(keys, {"value": values})

    def load(self, keys: pa.Array) -> None:
        """One record for each key, and all of it in a complete epoch."""
        for start in range(0, len(keys), BATCH):
            batch = keys.slice(start, BATCH)
            self.update(self.state.keys(batch), record_values(start, len(batch)))
        self.complete()

    def cut(self) -> float:
        """Cut the next epoch; how long that took, in milliseconds."""
        self.epoch = Epoch(_GENERATION, self.epoch.number + 1)
        start = time.perf_counter()
        self.state.cut(self.epoch)
        return (time.perf_counter() - start) * 1e3

    def poll(self, timeout: float = 0) -> None:
        """Complete whatever has become durable."""
        for news in self.state.poll(timeout):
            assert isinstance(news, Durable), news
            self.files = news.files
            self.state.completed(news.epoch)

    def complete(self) -> float:
        """Cut, and wait until the epoch is complete; the cut's milliseconds."""
        pause = self.cut()
        self.settle()
        return pause

    def settle(self) -> None:
        """Wait until nothing is on its way."""
        while self.state.statistics().background.epochs_pending:
            self.poll(timeout=1)


@contextmanager
def opened(groups: KeyGroupRange | None = None, memory: int = AMPLE, operator: Operator = OPERATOR) -> Iterator[Bench]:
    """An empty state in folders of its own, which are deleted afterwards."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        store = open_store((folder / "store").as_uri())
        names = SnapshotFolder.names(_GENERATION, Partition(0), Attempt(0))
        options = Options(memory=memory)
        with KeyedState(operator, folder / "local", store, names, None, options, groups=groups) as state:
            files = FileSet(groups or operator.all_groups)
            yield Bench(state, store, folder, names, Epoch(_GENERATION, 0), files)
