"""What a source that reads with threads of its own tells: what it waits for, and what it has found since it began."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pytest

import recovery
from snapshot import Stream, ToDriver
from snapshot.host.flow.pace import FIRST
from snapshot.host.partition.source_run import NEVER, ReadAhead, SourceRun
from snapshot.program.source import Batch, Exhausted, Later, Reading, SplitContext
from statebackend import means
from statebackend.ids import Attempt, Partition, Uid

SCHEMA = pa.schema([("row", pa.string())])
LIMIT = 20.0


def rows(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=SCHEMA)


@dataclass
class Scripted:
    """A reader that gives what it is told to give, and waits for the next word meanwhile."""

    readings: Queue[Reading] = field(default_factory=Queue)
    closed: threading.Event = field(default_factory=threading.Event)

    def read(self, most: int) -> Reading:
        return self.readings.get(timeout=LIMIT)

    def close(self) -> None:
        self.closed.set()


@dataclass(frozen=True)
class OneSplit:
    reader: Scripted
    schema: pa.Schema = SCHEMA
    bounded: bool = False
    blocking: bool = True
    on_demand: bool = False
    discover_every: float | None = None

    def check(self) -> Sequence[str]:
        return ()

    def discover(self, parallelism: int) -> Sequence[str]:
        return ("one",)

    def open(self, context: SplitContext) -> Scripted:
        return self.reader


def test_what_a_thread_waits_for_is_told_when_it_changes_and_forgotten_when_something_comes() -> None:
    scripted, woken = Scripted(), threading.Semaphore(0)
    ahead = ReadAhead("one", lambda: scripted, 10, woken.release)
    assert ahead.read(10) == Later(NEVER)
    for reading in (Later(0.0, "the brokers"), Later(0.0, "the brokers"), Later(0.0, "others")):
        scripted.readings.put(reading)
    for _ in range(2):
        assert woken.acquire(timeout=LIMIT)
    assert ahead.read(10) == Later(NEVER, "others")
    assert not woken.acquire(blocking=False), "the same twice is told once"
    scripted.readings.put(Batch(rows("a"), 1))
    assert woken.acquire(timeout=LIMIT)
    assert isinstance(ahead.read(10), Batch)
    assert ahead.read(10) == Later(NEVER)
    scripted.readings.put(Exhausted())
    assert scripted.closed.wait(LIMIT)


def test_a_source_says_what_its_splits_wait_for() -> None:
    scripted, woken = Scripted(), threading.Semaphore(0)
    run = SourceRun(Uid("in"), OneSplit(scripted), Partition(0), Attempt(1), {}, 10, woken.release)
    run.assign(["one"], last=True)
    assert run.read(10) is None
    assert run.waits_for == ""
    scripted.readings.put(Later(0.0, "the brokers"))
    assert woken.acquire(timeout=LIMIT)
    run.woken()
    assert run.read(10) is None
    assert run.waits_for == "the brokers (split 'one')"
    scripted.readings.put(Batch(rows(), {"offset": 7}))
    assert woken.acquire(timeout=LIMIT)
    run.woken()
    assert run.read(10) == ("one", rows())
    assert run.waits_for == ""
    [position] = run.positions()
    assert position.position.value() == {"at": {"offset": 7}}, "a batch without rows moves the position"
    scripted.readings.put(Exhausted())


def test_a_clock_of_the_day_that_is_put_back_does_not_keep_a_split_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"wall": 1e9, "steady": 50.0}
    monkeypatch.setattr(means, "wall", lambda: clocks["wall"])
    monkeypatch.setattr(means, "monotonic", lambda: clocks["steady"])
    scripted = Scripted()
    scripted.readings.put(Later(clocks["wall"] + 0.5))
    source = OneSplit(scripted, blocking=False)
    run = SourceRun(Uid("in"), source, Partition(0), Attempt(1), {}, 10, lambda: None)
    run.assign(["one"], last=True)
    assert run.read(10) is None
    clocks["wall"] -= 3600.0
    assert run.next_in == pytest.approx(0.5)
    clocks["steady"] += 0.6
    assert run.next_in == pytest.approx(-0.1)
    assert run.lag == pytest.approx(0.1)


def test_splits_that_are_not_read_any_more_after_a_drain_are_not_overdue() -> None:
    scripted = Scripted()
    scripted.readings.put(Later(time.time() - 60.0))
    source = OneSplit(scripted, blocking=False)
    run = SourceRun(Uid("in"), source, Partition(0), Attempt(1), {}, 10, lambda: None)
    run.assign(["one"], last=True)
    assert run.read(10) is None
    assert run.lag >= 60.0
    run.drain()
    assert run.lag == 0.0


@dataclass(frozen=True)
class Growing:
    """A source with a new split whenever it is looked at, up to three; each look gives names that no other does."""

    schema: pa.Schema = SCHEMA
    bounded: bool = False
    blocking: bool = False
    on_demand: bool = False
    discover_every: float | None = 0.01

    def check(self) -> Sequence[str]:
        return ()

    def discover(self, parallelism: int) -> Sequence[str]:
        return [f"0 of {time.time_ns()}"]

    def discover_new(self, known: Collection[str]) -> Sequence[str]:
        numbers = {name.split()[0] for name in known}
        return [f"{len(numbers)} of {time.time_ns()}"] if len(numbers) < 3 else []

    def open(self, context: SplitContext) -> Once:
        return Once(context)


class Once:
    """The split's number, once."""

    def __init__(self, context: SplitContext) -> None:
        self._row = context.split.split()[0]
        self._done = context.position is not None

    def read(self, most: int) -> Reading:
        if self._done:
            return Later(time.time() + 1)
        self._done = True
        return Batch(rows(self._row), 1)

    def close(self) -> None:
        pass


def test_a_source_that_names_splits_by_what_it_finds_is_told_which_the_job_has(tmp_path: Path) -> None:
    program = Stream.read(Growing(), uid="in").write(ToDriver(), uid="out")
    with recovery.run(program, checkpoints=tmp_path / "tree", local=tmp_path / "local", every="50ms") as run:
        found = run.rows("out")
        seen = [str(next(found)["row"]) for _ in range(3)]
        run.drain()
        seen += [str(row["row"]) for row in found]
    assert sorted(seen) == ["0", "1", "2"]


@dataclass
class Asked(Scripted):
    """Notes how many rows it was asked for each time."""

    asked: Queue[int] = field(default_factory=Queue)

    def read(self, most: int) -> Reading:
        self.asked.put(most)
        return super().read(most)


def test_what_is_read_ahead_is_little_while_it_is_not_known_how_long_rows_take() -> None:
    reader, woken = Asked(), threading.Semaphore(0)
    run = SourceRun(Uid("in"), OneSplit(reader), Partition(0), Attempt(1), {}, 16_384, woken.release)
    run.assign(["one"], last=True)
    for _ in range(2):
        assert reader.asked.get(timeout=LIMIT) == FIRST, "more would be under way before the first rows were worked on"
        reader.readings.put(Batch(rows("a"), 1))
    assert reader.asked.get(timeout=LIMIT) == FIRST
    assert woken.acquire(timeout=LIMIT)
    assert run.read(5_000) is not None
    reader.readings.put(Batch(rows("a"), 1))
    assert reader.asked.get(timeout=LIMIT) == 5_000
    reader.readings.put(Exhausted())
    run.close()
