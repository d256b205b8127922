"""For how long a state is busy with going back in place to its last complete epoch, with few and with all keys changed.

Invariant: before each rewind the same keys were changed since a cut that is complete, and an epoch was cut
halfway; what is measured is the call alone, after which records can be taken in.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tests.bench.figures import Figure, figure, progress
from tests.bench.state_inputs import BATCH, WORKLOAD, Bench, keys_of_80, opened, record_values
from tests.bench.state_pauses import SWITCH
from tests.bench.state_throughput import cpu_seconds


@dataclass(frozen=True, slots=True)
class Size:
    """How many keys there are, and how many rewinds are measured."""

    keys: int
    runs: int


FULL, SMALL = Size(1_000_000, 9), Size(5_000, 3)


def figures(size: Size) -> Iterator[Figure]:
    """Milliseconds per rewind, with one of a hundred keys changed and with all."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield from _figures(size)
    finally:
        sys.setswitchinterval(usual)


def _figures(size: Size) -> Iterator[Figure]:
    keys = keys_of_80(size.keys)
    with opened() as bench:
        progress(f"{WORKLOAD}: rewind, {size.keys:,} keys are loaded")
        bench.load(keys)
        for name, changed in (("rewind_1_pct", size.keys // 100), ("rewind_all", size.keys)):
            begun, runs = cpu_seconds(), []
            for run in range(size.runs):
                runs.append(_rewind(bench, keys, np.random.default_rng(run).permutation(size.keys)[:changed]))
                progress(f"{WORKLOAD}: {name}, run {run}: {runs[-1]:.2f} ms")
            yield figure(WORKLOAD, f"{name}_ms", "ms", runs, cpu_seconds() - begun)


def _rewind(bench: Bench, keys: pa.Array, changed: NDArray[np.int64]) -> float:
    bench.complete()
    complete, half = bench.epoch, len(changed) // 2
    _change(bench, keys, changed[:half])
    bench.cut()
    _change(bench, keys, changed[half:])
    begun = time.perf_counter()
    if not bench.state.rewind(complete, bench.files, bench.names):
        raise RuntimeError(f"the state did not go back to epoch {complete}")
    return (time.perf_counter() - begun) * 1e3


def _change(bench: Bench, keys: pa.Array, changed: NDArray[np.int64]) -> None:
    for first in range(0, len(changed), BATCH):
        batch = keys.take(pa.array(changed[first : first + BATCH]))
        bench.update(bench.state.keys(batch), record_values(0, len(batch)))
