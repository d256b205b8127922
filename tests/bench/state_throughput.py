"""How many records one process takes in, by the batch and row by row, and what its snapshots cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from statebackend.keyed_state import Operator
from statebackend.states.declarations import Value
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.state_inputs import AMPLE, BATCH, WORKLOAD, Bench, keys_of_80, opened, record_keys, record_values

ROWS = Operator("totals", key=str, states={"total": Value(int, default=0)})


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: keys in the state, and seconds per run."""

    keys: int
    seconds: float


_ROWS = 4_096
"""How many rows come at a time."""

_HIT_BYTES = 570
"""With so many bytes of memory per key, the cache holds one of ten."""

FULL, SMALL = Size(1_000_000, 6), Size(5_000, 0.3)


def figures(size: Size) -> Iterator[Figure]:
    """Records per second without snapshots, and the share that a snapshot each second costs."""
    yield from by_the_batch(size)
    yield from row_by_row(size)


def by_the_batch(size: Size) -> Iterator[Figure]:
    """Count and sum over Arrow batches of 80-byte keys."""
    keys = keys_of_80(size.keys)
    some = record_keys(0, size.keys // 100, size.keys)
    everywhere = [keys.take(pa.array(record_keys(at * BATCH, BATCH, size.keys))) for at in range(64)]
    within = [keys.take(pa.array(some[np.arange(at, at + BATCH) % len(some)])) for at in range(0, 64 * 997, 997)]
    values = record_values(0, BATCH)
    with opened() as bench:
        progress(f"{WORKLOAD}: {size.keys:,} keys are loaded")
        bench.load(keys)
        for name, batches in (("builtin", everywhere), ("builtin_1_pct_dirty", within)):
            rates: dict[float, list[float]] = {0.0: [], 1.0: []}
            cpu: dict[float, float] = {}
            for run in range(RUNS):
                for every in rates:
                    begun = cpu_seconds()
                    rates[every].append(_rate(bench, batches, values, size.seconds, every))
                    cpu[every] = cpu.get(every, 0.0) + cpu_seconds() - begun
                    progress(f"{WORKLOAD}: {name}, run {run}, a snapshot each {every} s: {rates[every][-1]:,.0f}/s")
                    bench.complete()
            yield figure(WORKLOAD, f"{name}_rows_per_s", "rows/s", rates[1.0], cpu[1.0])
            yield figure(WORKLOAD, f"{name}_rows_per_s_no_snapshots", "rows/s", rates[0.0], cpu[0.0])
            costs = [100 * (1 - with_ / without) for with_, without in zip(rates[1.0], rates[0.0], strict=True)]
            yield figure(WORKLOAD, f"{name}_snapshot_cost_pct", "%", costs, cpu[1.0])


def _rate(bench: Bench, batches: list[pa.Array], values: pa.Array, seconds: float, every: float) -> float:
    """Rows per second, with a snapshot so often, 0 for none."""
    start = last = time.perf_counter()
    rows = 0
    while last - start < seconds:
        until = last + (every or seconds)
        while (now := time.perf_counter()) < until:
            batch = batches[rows // BATCH % len(batches)]
            bench.update(bench.state.keys(batch), values)
            rows += BATCH
            bench.poll()
        last = now
        if every:
            bench.cut()
    rate = rows / (time.perf_counter() - start)
    bench.settle()
    return rate


def row_by_row(size: Size) -> Iterator[Figure]:
    """`Value.get` and `set` for one record after the other, in Python, with a snapshot each second."""
    keys = keys_of_80(size.keys).to_pylist()
    hot = [keys[at] for at in record_keys(0, size.keys // 10, size.keys).tolist()]
    cases = {"row_by_row_per_s": (hot, AMPLE), "row_by_row_per_s_10_pct_hits": (keys, size.keys * _HIT_BYTES)}
    for name, (used, memory) in cases.items():
        with opened(memory=memory, operator=ROWS) as bench:
            progress(f"{WORKLOAD}: {name}, {len(keys):,} keys are loaded")
            _count_rows(bench, keys, 1, prefetched=True)
            bench.complete()
            rates, begun = [], cpu_seconds()
            for run in range(RUNS):
                order = [used[at] for at in record_keys(run * size.keys, size.keys, len(used)).tolist()]
                rates.append(_count_rows(bench, order, 1, prefetched=used is keys))
                bench.settle()
                progress(f"{WORKLOAD}: {name}, run {run}: {rates[-1]:,.0f} rows/s")
            yield figure(WORKLOAD, name, "rows/s", rates, cpu_seconds() - begun)


def _count_rows(bench: Bench, order: list[str], every: float, *, prefetched: bool) -> float:
    """Rows per second, of these keys in this order; those of a batch read at once, unless all are in the cache."""
    state, total = bench.state, bench.state["total"]
    set_key, get, set_ = state.set_key, total.get, total.set
    start = last = time.perf_counter()
    for first in range(0, len(order), _ROWS):
        rows = order[first : first + _ROWS]
        if prefetched:
            total.prefetch(rows)
        for key in rows:
            set_key(key)
            set_(get() + 1)
        bench.poll()
        if time.perf_counter() - last > every:
            bench.cut()
            last = time.perf_counter()
    return len(order) / (time.perf_counter() - start)


def cpu_seconds() -> float:
    """The CPU time of this process and of those that it has started."""
    ended = os.times()
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended has no processes
            for child in (task / "children").read_text().split():
                ticks += sum(map(int, Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ended.children_user + ended.children_system + ticks / os.sysconf("SC_CLK_TCK")
