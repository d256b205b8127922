"""In rounds, what a job makes of its sources' rounds is the same to the batch, whatever the machine does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import ClassVar

import pyarrow as pa
import pytest

from snapshot import Count, EventTime, KeyedProcess, ProcessContext, Program, Stream, Sum, Tumbling
from snapshot.cut.frames import Marker
from snapshot.host.flow.gathering import AtOnce, RowGatherer
from snapshot.host.flow.inlets import Instruction, Said
from snapshot.host.flow.round_inlet import RoundInlet
from snapshot.host.partition.parts import StageParts
from snapshot.host.partition.stage_clock import StageClock
from snapshot.operators.row_class import Row
from statebackend import ValueState
from statebackend.errors import JobError
from tests.program_parts import Nowhere
from tests.stages_in_rounds import START, TICK, Due, played

SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64()), ("at", pa.int64())])
UNTIL = 100
MARKS = (15, 40, 60)


def due(seed: int, splits: int = 3, rows: int = 160) -> Due:
    random = Random(seed)
    times = sorted(random.randrange(UNTIL - 30) for _ in range(rows))
    made = tuple((at, (random.randrange(12), n, START + at + random.randrange(-9, 9))) for n, at in enumerate(times))
    return Due(SCHEMA, made, splits)


class Delayed(KeyedProcess):
    """Says each key's sum when some processing time has passed, and the number of rows at each row."""

    output: ClassVar = {"key": int, "total": int, "at": int}
    total = ValueState(int, default=0)

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.amount)
        ctx.emit((ctx.key, self.total.get(), ctx.processing_time))
        ctx.processing_timer(ctx.processing_time + 7)

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        ctx.emit((ctx.key, -self.total.get(), at))


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Say of each row in a batch of how many rows it is: this sees where batches begin and end."""
    return batch.append_column("of", pa.array([len(batch)] * len(batch), pa.int64()))


NUMBERED = {"key": int, "total": int, "at": int, "of": int}


def program() -> Program:
    """Windows, timers in processing time, a rebalance, batches, two sources and their union."""
    first = Stream.read(due(1), uid="first", event_time=EventTime("at", "5ms"))
    second = Stream.read(due(2, splits=2, rows=60), uid="second", event_time=EventTime("at", "20ms"))
    both = first.union(second)
    windows = both.key_by("key").window(Tumbling("20ms")).aggregate(uid="windows", n=Count(), sum=Sum("amount"))
    delayed = first.key_by("key").process(Delayed, uid="delayed").map_batches(numbered, schema=NUMBERED)
    spread = second.rebalance(uid="spread").map_batches(
        lambda batch: batch.append_column("of", pa.array([len(batch)] * len(batch), pa.int64())),
        schema={"key": int, "amount": int, "at": int, "of": int},
    )
    batches = both.key_by("key").aggregate(uid="batches", per="batch", n=Count(), sum=Sum("amount"))
    return (
        windows.write(Nowhere(), uid="windows-out")
        + delayed.write(Nowhere(), uid="delayed-out")
        + spread.key_by("of").count(uid="counted").write(Nowhere(), uid="counted-out")
        + batches.write(Nowhere(), uid="batches-out")
    )


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_the_same_rounds_of_sources_give_the_same_batches_everywhere(tmp_path: Path, partitions: int) -> None:
    """Also where epochs are given up at any time, each stage heard of it or not."""
    outputs = []
    for seed in range(4):
        with played(program(), partitions, seed, tmp_path, UNTIL, MARKS) as job:
            outputs.append(job.output())
    first, *others = outputs
    assert all(first[f"{uid}-out/0"] for uid in ("windows", "delayed", "counted", "batches"))
    for other in others:
        assert other.keys() == first.keys()
        for name, said in other.items():
            assert said == first[name], f"{name} differs"
    markers = [sum(isinstance(frame, Marker) for frame in said) for name, said in first.items() if "->" in name]
    assert max(markers, default=3) == 3


@pytest.mark.parametrize("hops", [1, 4])
def test_a_row_waits_for_the_end_of_its_tick_alone_however_many_hops_it_takes(tmp_path: Path, hops: int) -> None:
    """Time passes only when nothing is left to do; so rows that needed a later boundary would come a tick later."""
    rows = tuple((at, (at % 7, at, at)) for at in range(UNTIL - 10))
    stream = Stream.read(Due(SCHEMA, rows, splits=3), uid="first")
    for hop in range(hops):
        stream = stream.rebalance(uid=f"hop{hop}")
    with played(Program.of(stream.write(Nowhere(), uid="out")), 2, 1, tmp_path, UNTIL) as job:
        came = [row for (uid, _), kept in job.sinks.items() if uid == "out" for row in kept.came]
    assert sorted(row["at"] for _, row in came) == list(range(UNTIL - 10))
    assert {at - (row["at"] // TICK + 1) * TICK for at, row in came} == {0}


class HeedsAbandonment(RoundInlet):
    """Drops the marker of an epoch that was given up, as a stage does that takes things as they come."""

    def told(self, said: Said) -> Sequence[Instruction]:
        return self._aligner.handle(said)


def at_once(parts: StageParts) -> StageParts:
    return replace(parts, batches=AtOnce)


def gathered(parts: StageParts) -> StageParts:
    return replace(parts, gatherer=RowGatherer)


def dropping_markers(parts: StageParts) -> StageParts:
    return replace(parts, inlet=HeedsAbandonment)


def on_time(parts: StageParts) -> StageParts:
    """Let processing time go on by itself."""

    def clock() -> StageClock:
        made = parts.clock()
        return replace(made, now=lambda: START + int(made.monotonic() * 10))

    return replace(parts, clock=clock)


@pytest.mark.parametrize("wrong", [at_once, gathered, dropping_markers, on_time])
def test_a_part_of_a_stage_that_depends_on_the_machine_is_found(
    tmp_path: Path, wrong: Callable[[StageParts], StageParts]
) -> None:
    expected: dict[str, list[object]] | None = None
    for seed in range(10):
        try:
            with played(program(), 2, seed, tmp_path, UNTIL, MARKS, wrong) as job:
                output = job.output()
        except (AssertionError, JobError):
            return
        if expected is not None and output != expected:
            return
        expected = output
    raise AssertionError("ten runs were the same")
