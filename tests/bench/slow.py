"""slow: how long epochs take while a function of the user is slow: for rows of one key, or for timers or windows due.

Invariant: all options are the defaults but for the time between epochs; the function sleeps, so that it takes
no processor from others; every epoch that completes in the measured time counts. The value of a figure is the median
epoch, or the longest one; of timers and windows, the time from one complete epoch to the next while they fire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, Literal

import numpy as np

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.events import EpochCompleted
from snapshot import Generate, KeyedProcess, ProcessContext, Program, Stream, Tumbling, WindowFunction
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.operators.row_class import Row
from statebackend import ValueState
from statebackend.columns import schema_of
from tests.bench.figures import Figure, figure, progress
from tests.bench.measured_sinks import Drop
from tests.bench.running_job import PARALLELISM, Watched

Mode = Literal["aligned", "unaligned"]

WORKLOAD: Final = "slow"
STAGE: Final = "slow"
HOT: Final = 0
KEYS: Final = 1_000
MODES: Final[tuple[Mode, ...]] = ("aligned", "unaligned")
_EVERY: Final = "300ms"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long it is measured, how long a call takes, and how many timers come due at once."""

    seconds: float
    row: float
    timer: float
    timers: int


FULL = Sizes(20.0, 0.0012, 0.02, 1_500)
SMALL = Sizes(1.0, 0.0001, 0.001, 100)


class SlowRows(KeyedProcess):
    """Counts, and takes its time for one of the keys."""

    output: ClassVar = {"k": int, "n": int}
    n = ValueState(int, default=0)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        """Slow for every fifth row."""
        if event.k == HOT:
            time.sleep(self._seconds)
        self.n.set(self.n.get() + 1)
        ctx.emit((event.k, self.n.get()))


class SlowTimers(KeyedProcess):
    """Sets timers for the first rows, which all come due with the next one."""

    output: ClassVar = {"k": int, "n": int}
    n = ValueState(int, default=0)

    def __init__(self, timers: int, seconds: float) -> None:
        self._timers, self._seconds = timers, seconds

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        """Quick."""
        self.n.set(self.n.get() + 1)
        if event.i < self._timers:
            ctx.timer(_DUE)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        """Slow."""
        time.sleep(self._seconds)
        ctx.emit((ctx.key, at))


class SlowWindows(WindowFunction):
    """Takes its time for each key of a window."""

    output: ClassVar = {"k": int, "n": int}

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_window(self, key: Any, window: Any, rows: Sequence[Row], ctx: ProcessContext) -> None:
        """Slow."""
        time.sleep(self._seconds)
        ctx.emit((key, len(rows)))


_DUE: Final = 1_000


def _hot(i: Indices) -> Columns:
    return {"k": np.where(i % 5 == 0, HOT, 1 + i % KEYS), "i": i}


@dataclass(frozen=True, slots=True)
class _Due:
    """So many rows of as many keys, then rows whose event time is long past them."""

    timers: int
    ended: int
    """When they are."""

    def __call__(self, i: Indices) -> Columns:
        return {"k": i % (2 * self.timers), "i": i, "t": np.where(i < self.timers, 0, self.ended + i)}


def hot_key(sizes: Sizes) -> Program:
    """As fast as it can come."""
    rows = Stream.read(Generate(_hot, schema_of({"k": int, "i": int})), uid="rows")
    return rows.key_by("k").process(SlowRows(sizes.row), uid=STAGE).write(Drop(), uid="out")


def due_timers(sizes: Sizes) -> Program:
    """Rows go on coming while the timers fire."""
    slow = SlowTimers(sizes.timers, sizes.timer)
    return _rows_due(sizes, 10 * _DUE).key_by("k").process(slow, uid=STAGE).write(Drop(), uid="out")


def due_windows(sizes: Sizes) -> Program:
    """Rows go on coming while the keys of the first window have their results given."""
    windows = _rows_due(sizes, 10**9).key_by("k").window(Tumbling("1000000s"))
    return windows.process(SlowWindows(sizes.timer), uid=STAGE).write(Drop(), uid="out")


def _rows_due(sizes: Sizes, ended: int) -> Stream:
    source = Generate(_Due(sizes.timers, ended), schema_of({"k": int, "i": int, "t": int}), rate=2_000.0)
    return Stream.read(source, uid="rows").with_event_time("t")


def figures(part: str, sizes: Sizes = FULL) -> Iterator[Figure]:
    """All figures of one part."""
    kind, _, mode = part.partition("/")
    progress(f"slow: {kind}, {mode}")
    cpu = cpu_seconds_of_all()
    if kind == "hot_key":
        events = epochs_of(hot_key(sizes), mode, sizes.seconds, 100)
        took = [event.since_trigger_ms / 1000 for event in events]
        name = f"hot_key_{mode}_epoch"
    else:
        firing = sizes.timers * sizes.timer / PARALLELISM
        program, rows = (due_timers(sizes), sizes.timers + 1_000) if kind == "timers" else (due_windows(sizes), 0)
        events = epochs_of(program, mode, min(sizes.seconds, firing * 0.7), rows)
        took = [after.at - before.at for before, after in pairwise(events)]
        name = f"{kind}_{mode}_from_epoch_to_epoch"
    took = took or [float("inf")]
    cpu = cpu_seconds_of_all() - cpu
    yield figure(WORKLOAD, f"{name}_s", "s", took, cpu)
    yield figure(WORKLOAD, f"{name}_longest_s", "s", [max(took)], cpu)


def parts() -> Sequence[str]:
    """All that can be asked for."""
    return [f"{kind}/{mode}" for kind in ("hot_key", "timers", "windows") for mode in MODES]


def epochs_of(program: Program, mode: str, seconds: float, rows: int) -> list[EpochCompleted]:
    """The epochs that complete within so many seconds after the stage has taken so many rows."""
    with TemporaryDirectory() as scratch:
        options: Mapping[str, Any] = {"mode": mode, "every": _EVERY, "parallelism": PARALLELISM}
        folder = Path(scratch)
        run = recovery.run(program, checkpoints=folder / "tree", local=folder / "local", progress=False, **options)
        try:
            job = Watched(run)
            job.until_rows(STAGE, rows)
            began = time.time()
            job.until(lambda: time.time() - began >= seconds, "time does not pass")
            return [event for event in run.events if isinstance(event, EpochCompleted) and event.at >= began]
        finally:
            run.cancel()
