"""How many records one process takes in, by the batch and row by row, and what its snapshots cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from statebackend.operator import Operator
from statebackend.states.declarations import ValueState
from tests.bench.figures import RUNS, Figure, figure, progress
from tests.bench.state_inputs import AMPLE, BATCH, WORKLOAD, Bench, keys_of_80, opened, record_keys, record_values

ROWS = Operator("totals", key=str, states={"total": ValueState(int, default=0)})


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: keys in the state, seconds from one snapshot to the next, how many of these in a segment,
    and how often in each run there is a segment with snapshots and one without.
    """

    keys: int
    every: float
    intervals: int
    pairs: int


_ROWS = 4_096
"""How many rows come at a time."""

_HIT_BYTES = 570
"""With so many bytes of memory per key, the cache holds one of ten."""

FULL, SMALL = Size(1_000_000, 1, 3, 3), Size(5_000, 0.05, 2, 1)


def figures(size: Size) -> Iterator[Figure]:
    """Records per second, with a snapshot each second and without, and the share that the snapshots cost."""
    yield from by_the_batch(size)
    yield from row_by_row(size)


@dataclass(frozen=True, slots=True)
class _Segment:
    """What was taken in without a break, and what that took."""

    rows: int
    seconds: float
    cpu: float
    cpu_of_rows: float
    """Of that, what this thread used to take the rows in."""

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


def by_the_batch(size: Size) -> Iterator[Figure]:
    """Count and sum over Arrow batches of 80-byte keys.

    Segments with and without snapshots take turns, in one order and then in the other, and what is compared are two
    that follow on each other: the machine's own speed may change by more in a minute than snapshots cost.
    """
    keys = keys_of_80(size.keys)
    some = record_keys(0, size.keys // 100, size.keys)
    everywhere = [keys.take(pa.array(record_keys(at * BATCH, BATCH, size.keys))) for at in range(64)]
    within = [keys.take(pa.array(some[np.arange(at, at + BATCH) % len(some)])) for at in range(0, 64 * 997, 997)]
    with opened() as bench:
        progress(f"{WORKLOAD}: {size.keys:,} keys are loaded")
        bench.load(keys)
        for name, batches in (("builtin", everywhere), ("builtin_1_pct_dirty", within)):
            feed = _Feed(bench, batches)
            runs = [[_pair(feed, size, number) for number in range(size.pairs)] for _ in range(RUNS)]
            yield from _compared(name, size, runs)


class _Feed:
    """Batches of records for a state, round and round."""

    def __init__(self, bench: Bench, batches: list[pa.Array]) -> None:
        self.bench = bench
        self.rows = 0
        self._batches = batches
        self._values = record_values(0, BATCH)

    def one(self) -> None:
        """Have one batch taken in."""
        batch = self._batches[self.rows // BATCH % len(self._batches)]
        self.bench.update(self.bench.state.keys(batch), self._values)
        self.rows += BATCH
        self.bench.poll()

    def until(self, end: float) -> None:
        """Have batches taken in up to that time."""
        while time.perf_counter() < end:
            self.one()


def _pair(feed: _Feed, size: Size, number: int) -> tuple[_Segment, _Segment]:
    """A segment with snapshots and one without."""
    found = {snapshots: _segment(feed, size, snapshots) for snapshots in ((True, False), (False, True))[number % 2]}
    with_, without = found[True], found[False]
    progress(f"{WORKLOAD}: {with_.rate:,.0f}/s with snapshots, {without.rate:,.0f}/s without")
    return with_, without


def _segment(feed: _Feed, size: Size, snapshots: bool) -> _Segment:
    """Some intervals, if so with a snapshot at the beginning of each; it ends when the last one is in the store and in
    the backend. What the first one has to say was changed in an interval that does not count.
    """
    feed.bench.complete()
    feed.until(time.perf_counter() + size.every)
    rows, cpu, own, start = feed.rows, cpu_seconds(), time.thread_time(), time.perf_counter()
    for interval in range(1, size.intervals + 1):
        if snapshots:
            before = time.thread_time()
            feed.bench.cut()
            own += time.thread_time() - before
        feed.until(start + interval * size.every)
    while feed.bench.state.statistics().background.epochs_pending:
        feed.one()
    seconds, own = time.perf_counter() - start, time.thread_time() - own
    return _Segment(feed.rows - rows, seconds, cpu_seconds() - cpu, own)


def _compared(name: str, size: Size, runs: list[list[tuple[_Segment, _Segment]]]) -> Iterator[Figure]:
    """The figures of some runs, in each of which the median counts.

    A snapshot's CPU time is that of all threads and processes but this one's, and of the cut itself: it is known to
    the millisecond on a busy machine as well, where the share of the throughput is not.
    """
    for at, which in enumerate(("rows_per_s", "rows_per_s_no_snapshots")):
        rates = [median(pair[at].rate for pair in run) for run in runs]
        yield figure(WORKLOAD, f"{name}_{which}", "rows/s", rates, sum(pair[at].cpu for run in runs for pair in run))
    costs = [median(100 * (1 - with_.rate / without.rate) for with_, without in run) for run in runs]
    cpu = sum(with_.cpu for run in runs for with_, _ in run)
    yield figure(WORKLOAD, f"{name}_snapshot_cost_pct", "%", costs, cpu)
    used = [median(1e3 * (with_.cpu - with_.cpu_of_rows) / size.intervals for with_, _ in run) for run in runs]
    yield figure(WORKLOAD, f"{name}_snapshot_cpu_ms", "ms", used, cpu)


def row_by_row(size: Size) -> Iterator[Figure]:
    """`ValueState.get` and `set` for one record after the other, in Python, with a snapshot each second."""
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
