"""What it costs to find and to add the slots of a batch of keys, in CPU time per key.

Invariant: inside the measure is all that `SlotIndex` does with a batch, the comparison of every byte included;
outside is how the batch came to its canonical bytes and hashes. The keys of each batch lie anywhere in the table, which
holds all of them; the figure of adding is that of a bulk load, with room reserved, in batches of the same size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from statebackend.keys.columns import KeyColumn
from statebackend.tables.memory.slot_index import SlotIndex
from tests.bench.figures import RUNS, Figure, figure, progress

WORKLOAD = "slots"
KEYS = 1_000_000
BATCH = 32_768
_BATCHES = 32
_VARIABLE = (40, 120)
"""The least and the most bytes of a key of variable width: 80 on average."""


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well spread hashes of different numbers."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def keys_of(ids: NDArray[np.uint64], least: int, most: int) -> KeyColumn:
    """A key of `least` to `most` bytes for each number: the number, then text that begins alike."""
    widths = np.full(len(ids), least, dtype=np.int64)
    if most > least:
        widths += (_mixed(ids + np.uint64(1)) % np.uint64(most - least + 1)).astype(np.int64)
    rows = np.full((len(ids), most), ord("k"), dtype=np.uint8)
    rows[:, :8] = ids.view(np.uint8).reshape(-1, 8)
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(widths)))
    data = rows[np.arange(most) < widths[:, None]]
    return KeyColumn(data, offsets, _mixed(ids), least if most == least else None)


def _batches(keys: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, keys, BATCH):
        yield np.arange(first, min(first + BATCH, keys), dtype=np.uint64)


def filled(keys: int, least: int, most: int) -> tuple[SlotIndex, float]:
    """An index with so many keys, and the CPU nanoseconds that adding one took."""
    index = SlotIndex()
    index.reserve(keys)
    seconds = 0.0
    for ids in _batches(keys):
        batch = keys_of(ids, least, most)
        seconds += _cpu(partial(index.find_or_add, batch))
    return index, 1e9 * seconds / keys


def find_ns(index: SlotIndex, least: int, most: int, runs: int = RUNS) -> list[float]:
    """The CPU nanoseconds for each key of batches that are found, of several runs."""
    random = np.random.default_rng(1)
    ids = [random.integers(len(index), size=BATCH, dtype=np.uint64) for _ in range(_BATCHES)]
    batches = [keys_of(each, least, most) for each in ids]
    result = []
    for _ in range(runs):
        seconds = sum(_cpu(partial(index.find, batch)) for batch in batches)
        result.append(1e9 * seconds / (BATCH * _BATCHES))
    return result


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def figures(keys: int = KEYS) -> Iterator[Figure]:
    """Finding keys of three kinds, and adding."""
    for name, least, most in (("80b", 80, 80), ("int64", 8, 8), ("varlen", *_VARIABLE)):
        progress(f"slots: {keys} keys of {least} to {most} bytes")
        added = []
        for _ in range(RUNS if name == "80b" else 1):
            index, nanoseconds = filled(keys, least, most)
            added.append(nanoseconds)
        runs = find_ns(index, least, most)
        yield figure(WORKLOAD, f"find_{name}_ns", "ns/key", runs, sum(runs) * BATCH * _BATCHES / 1e9)
        if name == "80b":
            yield figure(WORKLOAD, f"add_{name}_ns", "ns/key", added, sum(added) * keys / 1e9)
