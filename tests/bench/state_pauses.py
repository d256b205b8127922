"""For how long a cut stops the records, with few and with all keys changed, and the longest gaps of the event loop.

An event loop takes in small batches one after the other and cuts now and then, while the background is still at work
on earlier cuts. What it waits for anything else than its records is a gap. As a loop should that cares for its latency,
it has Python hand over between threads ten times as often as usual: else each hand-over may take 5 ms.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.state_inputs import BATCH, WORKLOAD, Bench, keys_of_80, opened, record_values
from tests.bench.state_throughput import cpu_seconds


@dataclass(frozen=True, slots=True)
class Case:
    """How many keys there are, how many change per epoch, and how many epochs a run has, of how many seconds."""

    name: str
    keys: int
    changed: int
    epochs: int
    period: float


FULL = (
    Case("sync_pause", 1_000_000, 10_000, 100, 0.2),
    Case("sync_pause_all_dirty", 1_000_000, 1_000_000, 20, 1.0),
    Case("sync_pause_10m", 10_000_000, 10_000, 30, 1.0),
)
SMALL = (Case("sync_pause", 5_000, 50, 4, 0.1), Case("sync_pause_all_dirty", 5_000, 5_000, 3, 0.1))

SWITCH = 0.0005
"""Seconds after which Python hands over to another thread."""

_SLICES = 50
"""In how many batches the records of an epoch come."""


def figures(cases: tuple[Case, ...]) -> Iterator[Figure]:
    """Per case the 99th percentile of the pauses, and the longest gap."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield from _figures(cases)
    finally:
        sys.setswitchinterval(usual)


def _figures(cases: tuple[Case, ...]) -> Iterator[Figure]:
    for case in cases:
        progress(f"{WORKLOAD}: {case.name}, {case.keys:,} keys are loaded")
        keys = keys_of_80(case.keys)
        with opened() as bench:
            bench.load(keys)
            bench.complete()
            pauses, gaps, begun = [], [], cpu_seconds()
            for run in range(RUNS):
                cuts, gap = _run(bench, keys, case, run)
                pauses.append(float(np.percentile(cuts, 99)))
                gaps.append(gap)
                progress(f"{WORKLOAD}: {case.name}, run {run}: p99 {pauses[-1]:.2f} ms, longest gap {gap:.1f} ms")
            cpu = cpu_seconds() - begun
        yield figure(WORKLOAD, f"{case.name}_p99_ms", "ms", pauses, cpu)
        yield figure(WORKLOAD, f"{case.name}_longest_gap_ms", "ms", gaps, cpu)


def _run(bench: Bench, keys: pa.Array, case: Case, run: int) -> tuple[list[float], float]:
    """The pause of each cut, and the longest time that passed between two batches that was spent on neither."""
    order = np.random.default_rng(run).permutation(case.keys)
    size = min(-(-case.changed // _SLICES), BATCH)
    pauses, gap = [], 0.0
    for epoch in range(case.epochs):
        due = time.perf_counter() + case.period
        chosen = np.take(order, np.arange(epoch * case.changed, (epoch + 1) * case.changed), mode="wrap")
        batches = [keys.take(pa.array(chosen[at : at + size])) for at in range(0, case.changed, size)]
        pace = case.period / len(batches)
        usual: list[float] = []
        for place, batch in enumerate(batches):
            begun = time.perf_counter()
            bench.update(bench.state.keys(batch), record_values(0, len(batch)))
            bench.poll()
            usual.append((time.perf_counter() - begun) * 1e3)
            wait = due - case.period + (place + 1) * pace - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
        gap = max(gap, max(usual) - float(np.median(usual)))
        pauses.append(bench.cut())
    bench.settle()
    return pauses, gap
