"""The end of event time: what follows from it is done once, and what comes when a job is started again is not late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from snapshot import EOF, PAUSE, BatchProcess, Collection, Stream, ToDriver, Tumbling
from snapshot.connectors.memory.collection import Item
from snapshot.cut.frames import EARLIEST, LATEST, Data, End, Frame, Marker, MarkerMode, Watermark
from snapshot.host.partition.opening import open_state
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.partition.state_cache import StateCache
from snapshot.host.protocol.messages import Drain, Role
from snapshot.ids import Copy
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.process_batch import BatchContext
from snapshot.operators.rows import Rows
from snapshot.program.plan import Edge, EventTime, Exchange, Stage, Step, ToEdge
from statebackend.columns import schema_of
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Uid
from statebackend.keygroups import range_of
from statebackend.states.aggregates import AggregateTable
from statebackend.tables.values.aggregations import Sum
from tests.driven_worker import DrivenWorker
from tests.planned_operator import Planned
from tests.test_stage_run import FAR, PARTS, Reports, Wire
from tests.test_stage_times import IN, NUMBERS, OUT, OWN, placement_of

STAGE = Uid("stage")
CONTROL = Edge(Uid("control"), STAGE, 1, 1, Exchange.BROADCAST, NUMBERS, False)
THE_END = (Watermark(LATEST), End())


def marker(number: int) -> Marker:
    return Marker(Epoch(Generation(1), number), MarkerMode.ALIGNED)


def row(n: int, at: int | None = None) -> Data:
    times = None if at is None else np.array([at], dtype=np.int64)
    return Data(Rows(pa.record_batch([pa.array([n])], schema=NUMBERS), times), 8)


class Noting(Operator):
    """An operator that notes in which order it is told what, from the event time at which it is opened on."""

    def __init__(self, context: OperatorContext, told: list[object]) -> None:
        self._told = told
        told.append(context.watermark)

    def rows(self, input: int, rows: Rows) -> None:
        self._told.append(rows.batch.column(0).to_pylist())

    def watermark(self, timestamp: int) -> None:
        self._told.append(timestamp)


class Stood:
    """A stage with this operator, which has one sender and one receiver, restored at this event time."""

    def __init__(
        self, folder: Path, restored: Watermark | None, edges: Sequence[Edge], *, time_goes_on: bool = False
    ) -> None:
        self.told: list[object] = []
        inputs = tuple(Input(NUMBERS, edge.keys, edge.timed) for edge in edges)
        operator = Planned(lambda context: Noting(context, self.told), inputs, NUMBERS)
        placement = placement_of(STAGE, folder)
        role = Role(FileSet(range_of(OWN, 1, 128)), watermark=restored)
        placement = replace(placement, role=role, time_goes_on=time_goes_on)
        self.state = open_state(operator, placement, None, StateCache(), lambda: None).state
        stage = Stage(STAGE, tuple(edges), {None: (ToEdge(OUT),)}, operator=operator)
        self._wire, self.reports = Wire(OUT.channel(OWN, OWN)), Reports()
        sending = {self._wire.id: self._wire}
        self.run = StageRun(stage, placement, None, sending, {}, self.reports, lambda: None, Attempt(1), PARTS)
        self.run.begin()
        self.run.open(self.state)

    def hears(self, *frames: Frame, of: Edge = IN) -> list[object]:
        """Give it these; what it has sent then."""
        for frame in frames:
            self.run.arrived(Copy(of.channel(OWN, OWN)), frame)
        while self.run.work(FAR):
            pass
        self.run.outputs.flush()
        return self._wire.taken()

    def cut(self, number: int) -> Watermark | None:
        """The event time in its cut, before which it hears of no more than it has."""
        self.run.triggered(marker(number))
        if not self.run.ended:
            self.hears(marker(number))
        return self.reports.cuts[-1].watermark


@contextmanager
def stood(folder: Path, restored: Watermark | None, *edges: Edge, time_goes_on: bool = False) -> Iterator[Stood]:
    stage = Stood(folder, restored, edges, time_goes_on=time_goes_on)
    try:
        yield stage
    finally:
        stage.run.close()
        stage.state.close()


both = pytest.mark.parametrize("timed", [True, False], ids=["timed", "untimed"])


@both
def test_what_follows_from_the_end_is_not_done_again_when_it_was_done_in_the_epoch(tmp_path: Path, timed: bool) -> None:
    with stood(tmp_path, Watermark(LATEST), replace(IN, timed=timed)) as stage:
        assert stage.cut(1) == Watermark(LATEST)
        stage.hears(Watermark(EARLIEST, idle=True))
        assert stage.cut(2) == Watermark(LATEST)
        assert stage.hears(*THE_END)[-2:] == list(THE_END)
        assert stage.cut(3) == Watermark(LATEST)
        assert stage.told == [EARLIEST]


@both
def test_rows_that_come_behind_the_end_of_the_epoch_begin_event_time_anew(tmp_path: Path, timed: bool) -> None:
    with stood(tmp_path, Watermark(LATEST), replace(IN, timed=timed)) as stage:
        assert stage.hears(row(1, 700 if timed else None)) == [Watermark(EARLIEST)]
        told = [Watermark(800)] if timed else []
        assert stage.hears(Watermark(800)) == told
        assert stage.cut(1) != Watermark(LATEST)
        assert stage.hears(*THE_END) == [*THE_END]
        assert stage.told == [EARLIEST, [1], *(word.timestamp for word in told), LATEST]


@both
def test_a_partition_that_gets_none_of_the_rows_behind_the_end_hears_that_time_goes_on(
    tmp_path: Path, timed: bool
) -> None:
    with stood(tmp_path, Watermark(LATEST), replace(IN, timed=timed)) as stage:
        assert stage.hears(Watermark(EARLIEST))[0] == Watermark(EARLIEST)
        stage.hears(*THE_END)
        assert stage.told == [EARLIEST, LATEST]


@both
@pytest.mark.parametrize("hears_of_the_epoch", ["before", "behind"])
def test_the_end_is_in_the_epoch_in_every_partition_whichever_it_hears_of_first(
    tmp_path: Path, timed: bool, hears_of_the_epoch: str
) -> None:
    with stood(tmp_path, None, replace(IN, timed=timed)) as stage:
        if hears_of_the_epoch == "before":
            stage.run.triggered(marker(1))
        assert stage.hears(row(1, 700 if timed else None), *THE_END) == [*THE_END]
        if hears_of_the_epoch == "behind":
            stage.run.triggered(marker(1))
        assert stage.told == [EARLIEST, [1], LATEST]
        assert [cut.watermark for cut in stage.reports.cuts] == [Watermark(LATEST)]


def test_an_operator_whose_control_stream_goes_on_is_told_that_event_time_is_at_its_end(tmp_path: Path) -> None:
    timed = replace(IN, timed=True)
    with stood(tmp_path, Watermark(LATEST), timed, CONTROL) as stage:
        stage.hears(row(1), of=CONTROL)
        assert stage.hears(*THE_END) == [Watermark(LATEST)]
        assert stage.hears(row(2), *THE_END, of=CONTROL) == [End()]
        assert stage.told == [EARLIEST, [1], LATEST, [2]]


def source_run(
    folder: Path, rows: Sequence[Item], role: Role, *, time_goes_on: bool = False
) -> tuple[StageRun, Wire, Reports]:
    edge = Edge(Uid("source"), Uid("next"), 0, 0, Exchange.FORWARD, NUMBERS, True)
    step = Step(None, EventTime("n"), (ToEdge(edge),))
    stage = Stage(Uid("source"), (), {None: (step,)}, source=Collection(rows, NUMBERS))
    wire, reports = Wire(edge.channel(OWN, OWN)), Reports()
    placement = replace(placement_of(stage.uid, folder), role=role, time_goes_on=time_goes_on)
    run = StageRun(stage, placement, None, {wire.id: wire}, {}, reports, lambda: None, Attempt(1), PARTS)
    run.begin()
    assert run.source is not None
    run.source.assign([] if role.positions else ["0"], last=True)
    while run.work(FAR):
        pass
    run.outputs.flush()
    return run, wire, reports


def test_a_source_that_was_drained_gives_the_rows_behind_that_their_own_event_time(tmp_path: Path) -> None:
    rows: list[Item] = [(100,), EOF(), (50,)]
    first, wire, reports = source_run(tmp_path, rows, Role())
    assert first.source is not None
    first.source.drain()
    first.work(FAR)
    first.triggered(marker(1))
    first.close()
    assert wire.taken() == [100, Watermark(100), *THE_END]
    (cut,) = reports.cuts
    role = Role(positions={at.split: at.position for at in cut.positions}, watermark=cut.watermark)
    again, wire, _ = source_run(tmp_path, rows, role)
    again.close()
    assert wire.taken() == [Watermark(EARLIEST), 50, Watermark(50), *THE_END]


def test_where_event_time_goes_on_after_the_run_it_is_said_how_far_it_has_come_and_not_that_it_ends(
    tmp_path: Path,
) -> None:
    rows: list[Item] = [(100,), PAUSE(0), (50_000,)]  # the second is read before a watermark is due again
    _, wire, _ = source_run(tmp_path, rows, Role(), time_goes_on=True)
    assert wire.taken() == [100, Watermark(100), 50_000, Watermark(50_000), End()]
    with stood(tmp_path, None, replace(IN, timed=True), time_goes_on=True) as stage:
        said = stage.hears(row(1, 700), Watermark(800), End())
        assert said == [Watermark(800), Watermark(800, idle=True), End()]
        assert stage.cut(1) == Watermark(800, idle=True)
        assert LATEST not in stage.told


# --- in a whole partition

VISITS = schema_of({"at": int, "user": str})


def test_a_job_that_was_drained_and_is_started_again_counts_what_comes_in_its_windows(tmp_path: Path) -> None:
    rows: list[Item] = [(1_000, "a"), (2_000, "a"), EOF(), (3_000, "a"), (20_000, "a")]
    program = (
        Stream.read(Collection(rows, VISITS), uid="visits")
        .with_event_time("at")
        .key_by("user")
        .window(Tumbling("5s"))
        .count(uid="count")
        .write(ToDriver(), uid="out")
    )
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.until_read(2)
        worker.tell(Drain(worker.incarnation))
        worker.finish()
        drained = [row["count"] for row in worker.rows("out")]
        worker.deploy()
        worker.finish()
        counts = [row["count"] for row in worker.rows("out")]
    assert (drained, counts) == ([2], [2, 1, 1])


class Totals(BatchProcess):
    """The sum of each key, with each watermark."""

    totals = AggregateTable({"at": int}, total=Sum("at"))

    def on_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> None:
        self.totals.update(ctx.keys, {"at": batch.column("at")})

    def on_watermark(self, timestamp: int, ctx: BatchContext) -> None:
        found = self.totals.keys_and_results()
        columns = [found.results.column("total"), *ctx.key_columns(found.keys)]
        ctx.emit(pa.RecordBatch.from_arrays(columns, schema=VISITS))


def test_totals_that_were_given_at_the_end_are_not_given_again_after_a_restore_behind_it(tmp_path: Path) -> None:
    visits = Stream.read(Collection([(1, "a"), (2, "b"), (3, "a")], VISITS), uid="visits").key_by("user")
    program = visits.process_batch(Totals, schema=VISITS, uid="totals").write(ToDriver(), uid="out")
    with DrivenWorker(tmp_path, program) as worker:
        for _ in range(3):
            worker.deploy()
            worker.finish()
        totals = sorted((row["user"], row["at"]) for row in worker.rows("out"))
    assert totals == [("a", 4), ("b", 2)]
