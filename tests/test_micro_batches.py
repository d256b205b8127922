"""The scheme MicroBatches: what it takes and refuses, which rows are in a batch, and when they are shown.

Jobs are killed in the middle of a batch, and a tree goes to this scheme and back, with output that waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recovery
from recovery import Active, EpochCompleted, EpochTriggered, MicroBatches, Passive, Synchronous
from recovery.schemes.scheme import Scheme
from snapshot import EOF, Collection, Generate, Program, Stream, ToDriver, ToSpark, fail_points
from snapshot.connectors.staging.batched_rows import AfterBatches, open_keeping
from snapshot.connectors.staging.direct_rows import DirectRows
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.host.faults.crash_points import VARIABLE
from snapshot.host.protocol.wiring import InBatches
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter, UnwritableRow
from snapshot.testing.sinks import SinkBench, SinkTrial, some, write
from statebackend.durations import NotADuration
from statebackend.ids import Uid
from tests.fault_report import Kind
from tests.job_kills import Trial, carry_out
from tests.jobs.driver import Settings
from tests.jobs.running_job import RunningJob
from tests.shop_job import SALES, sale, start, totals
from tests.test_job_kills import await_crashes, crashes_at

PATIENCE = 20.0
NUMBERS = pa.schema([("n", pa.int64())])


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.002)


@dataclass(frozen=True)
class Numbered:
    def __call__(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
        return {"n": indices}


def a_program() -> Program:
    return Program.of(Stream.read(Collection([(1,)], {"n": int}), uid="numbers").write(ToDriver(), uid="out"))


# --- what it takes


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"every": "1s", "scheme": MicroBatches(every="2s")}, "every is given twice: as '1s' for the run, and as '2s'"),
        ({"mode": "unaligned"}, "mode is unaligned, and the scheme is MicroBatches"),
        ({"mode": "at-least-once"}, "mode is at-least-once, and the scheme is MicroBatches"),
        ({"alignment_timeout": "1s"}, "alignment_timeout is set, and the scheme is MicroBatches"),
        ({"advanced": {"max_in_flight": 3}}, "max_in_flight is 3, and the scheme takes one epoch after the other"),
        ({"every": "60s"}, "a batch may be read for as long as every says, 60000 ms, .* let timeout be longer"),
        ({"advanced": {"min_pause": "1s"}}, "min_pause is 1000 ms, and the scheme is MicroBatches"),
    ],
)
def test_options_that_contradict_it_are_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    chosen = {"scheme": MicroBatches(), **options}
    with pytest.raises(ContradictingOptions, match=complaint):
        recovery.run(a_program(), checkpoints=tmp_path / "tree", job="refused", **chosen)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_is_read_for_as_long_as_the_interval_and_has_as_many_rows_as_it_says() -> None:
    assert MicroBatches(at_most=100).wiring(250) == InBatches(100, 250)
    with pytest.raises(NotADuration, match="every"):
        MicroBatches(every="soon")
    with pytest.raises(ValueError, match="at_most is 0"):
        MicroBatches(at_most=0)


# --- which rows are in a batch


def batches_of(run: recovery.Run, uid: str) -> list[int]:
    """The numbers of rows that came together."""
    return [len(batch) for batch in run.batches(uid)]


def test_a_batch_has_at_most_so_many_rows_of_each_partition_and_the_epochs_are_the_batches(tmp_path: Path) -> None:
    numbers = Stream.read(Generate(Numbered(), NUMBERS, count=100, splits=2), uid="numbers")
    program = Program.of(numbers.write(ToDriver(), uid="out"))
    with start(tmp_path, program, scheme=MicroBatches(at_most=20), every="20ms", batch_rows=7) as run:
        sizes = batches_of(run, "out")
        run.wait(PATIENCE)
    assert sum(sizes) == 100
    assert max(sizes) <= 20
    assert len(sizes) == 6, "each of two partitions has 50 rows, in batches of 20, 20 and 10"


def test_a_source_that_never_runs_dry_is_cut_after_the_interval(tmp_path: Path) -> None:
    numbers = Stream.read(Generate(Numbered(), NUMBERS), uid="numbers")
    none = numbers.map_batches(lambda batch: batch.slice(0, 0))
    with start(tmp_path, Program.of(none.write(ToDriver(), uid="out")), scheme=MicroBatches(), every="100ms") as run:
        until(lambda: sum(isinstance(event, EpochCompleted) for event in run.events) >= 4)


def test_the_next_batch_begins_when_the_one_before_is_complete(tmp_path: Path) -> None:
    """With an interval of a millisecond, no batch is skipped, and none is under way beside another."""
    numbers = Stream.read(Generate(Numbered(), NUMBERS, count=4_000, rate=1_000), uid="numbers")
    program = numbers.key_by("n").count(uid="count").write(ToDriver(), uid="out")
    with start(tmp_path, program, scheme=MicroBatches(), every="1ms") as run:
        rows = [row["n"] for row in run.rows("out")]
        run.wait(PATIENCE)
        marks = [event for event in run.events if isinstance(event, EpochTriggered | EpochCompleted)]
    assert sorted(rows) == list(range(4_000))
    assert run.status().skipped == 0
    last = max(mark.epoch for mark in marks)  # it is asked for when all input has ended, whatever is under way
    kinds = [type(mark).__name__ for mark in marks if mark.epoch < last]
    assert kinds == ["EpochTriggered", "EpochCompleted"] * (len(kinds) // 2)
    assert len(kinds) >= 6


# --- plain sinks


@dataclass(frozen=True, slots=True)
class Noted(ToDriver):
    """Shows rows at once, and notes in a folder what it shows, and when."""

    folder: str = ""
    hold: str = ""

    def open(self, context: SinkContext) -> SinkWriter:
        return NotedWriter(Path(self.folder), f"{context.partition}", Path(self.hold) if self.hold else None)


class NotedWriter:
    def __init__(self, folder: Path, name: str, hold: Path | None) -> None:
        self._file = folder / f"rows-{name}-{time.monotonic_ns()}"
        self._hold = hold

    def begin(self, transaction: str) -> None:
        pass

    def write(self, rows: Rows) -> None:
        if self._hold is not None and self._hold.exists():
            raise SinkError("it takes nothing now")
        with self._file.open("a") as file:
            file.writelines(f"{time.time()} {n}\n" for n in rows.batch.column("n").to_pylist())

    def seal(self) -> Sealed:
        return NothingPrepared()

    def commit(self, transaction: str, payload: object) -> Any:
        raise AssertionError("nothing was prepared by this sink")

    def close(self) -> None:
        pass


class NothingPrepared:
    def prepare(self) -> None:
        return None


def noted(folder: Path) -> list[tuple[float, int]]:
    lines = [line.split() for file in folder.glob("rows-*") for line in file.read_text().splitlines()]
    return sorted((float(at), int(n)) for at, n in lines)


def test_rows_of_a_plain_sink_leave_when_their_batch_is_complete_and_not_before(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    numbers = Stream.read(Generate(Numbered(), NUMBERS, count=300, splits=2), uid="numbers")
    program = Program.of(numbers.write(Noted(at_commit=False, folder=str(shown)), uid="out"))
    with start(tmp_path, program, scheme=MicroBatches(at_most=30), every="150ms") as run:
        run.wait(PATIENCE)
        completed = [event.at for event in run.events if isinstance(event, EpochCompleted)]
    rows = noted(shown)
    assert sorted(n for _, n in rows) == list(range(300))
    assert rows[0][0] >= completed[0] - 0.005, "the driver notes that an epoch is complete before sinks hear of it"
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(rows)]
    assert sum(gap > 0.05 for gap in gaps) >= 2, "rows leave batch by batch, not as they come"


@dataclass(frozen=True, slots=True)
class Refusing(ToDriver):
    """Keeps rows for a sink whose thread finds out which of them it cannot take."""

    def open(self, context: SinkContext) -> SinkWriter:
        return open_keeping(Picky(at_commit=False), context, [])


@dataclass(frozen=True, slots=True)
class Picky(ToDriver):
    def open(self, context: SinkContext) -> SinkWriter:
        def put(rows: pa.Table) -> None:
            if "never" in rows.column("row").to_pylist():
                raise UnwritableRow("it cannot be written")
            for batch in rows.to_batches():
                context.deliver(None, batch)

        return DirectRows(context.uid, put, lambda *_: CommitAnswer(CommitOutcome.FAILED, "not ours"), lambda: None)


def test_a_row_that_can_never_be_written_is_refused_once_and_holds_no_other_batch_up() -> None:
    bench = SinkBench(SinkTrial(Refusing(), lambda environment: environment.delivered))
    writer, given = bench.writer(), []
    for rows in (["never"], ["fine"]):
        writer.begin(transaction := bench.name())
        write(writer, rows)
        given.append((transaction, some(writer.seal().prepare(), transaction)))
    assert writer.commit(*given[0]) == CommitAnswer(CommitOutcome.FAILED, "it cannot be written")
    assert writer.commit(*given[1]) == CommitAnswer(CommitOutcome.COMMITTED)
    writer.close()
    assert bench.environment.delivered == ["fine"]


@dataclass(frozen=True, slots=True)
class Successor(ToSpark):
    """The sink of a job that has kept rows for another one."""

    def open(self, context: SinkContext) -> SinkWriter:
        sink = ToSpark(self.log)
        return AfterBatches(sink.open(context), sink, context)


def test_rows_that_were_kept_for_a_plain_sink_are_refused_for_good_by_one_that_needs_their_epochs(
    tmp_path: Path,
) -> None:
    former = SinkBench(SinkTrial(Refusing(), lambda environment: environment.delivered))
    transaction, payload, _ = former.prepared()
    present = SinkBench(SinkTrial(Successor(str(tmp_path)), lambda _: []))
    present.job, present.environment = former.job, former.environment
    answer = present.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "Start the job with the former sink and drain it" in answer.reason


@pytest.mark.parametrize("then", [Passive(), Synchronous(), MicroBatches(), Active()])
def test_a_batch_that_is_complete_and_was_not_shown_is_shown_by_the_next_start_under_any_scheme(
    tmp_path: Path, then: Scheme
) -> None:
    shown, hold = tmp_path / "shown", tmp_path / "hold"
    shown.mkdir()
    hold.touch()
    numbers = Stream.read(Generate(Numbered(), NUMBERS, count=200, splits=2), uid="numbers")
    program = Program.of(numbers.write(Noted(at_commit=False, folder=str(shown), hold=str(hold)), uid="out"))
    run = start(tmp_path, program, scheme=MicroBatches(at_most=30), every="20ms")
    until(lambda: sum(isinstance(event, EpochCompleted) for event in run.events) >= 3)
    run.cancel()
    assert noted(shown) == [], "the target took nothing"
    hold.unlink()
    with start(tmp_path, program, scheme=then) as run:
        run.wait(PATIENCE)
    assert sorted(n for _, n in noted(shown)) == list(range(200))


def test_a_target_that_takes_nothing_for_a_while_holds_no_batch_up_and_gets_all_of_them(tmp_path: Path) -> None:
    shown, hold = tmp_path / "shown", tmp_path / "hold"
    shown.mkdir()
    hold.touch()
    numbers = Stream.read(Generate(Numbered(), NUMBERS, count=200), uid="numbers")
    program = Program.of(numbers.write(Noted(at_commit=False, folder=str(shown), hold=str(hold)), uid="out"))
    with start(tmp_path, program, scheme=MicroBatches(at_most=30), every="20ms") as run:
        until(lambda: sum(isinstance(event, EpochCompleted) for event in run.events) >= 3)
        hold.unlink()
        run.wait(PATIENCE)
    assert sorted(n for _, n in noted(shown)) == list(range(200))


# --- real jobs


def test_a_tree_goes_from_one_scheme_to_the_other_and_back_at_any_parallelism(tmp_path: Path) -> None:
    """Each start goes on from the savepoint of the one before, to the next end."""
    starts: list[tuple[Scheme, int]] = [
        (Passive(), 2),
        (MicroBatches(standbys=1), 2),
        (Active(), 2),
        (MicroBatches(at_most=7), 3),
        (Synchronous(), 1),
        (MicroBatches(), 2),
        (Passive(), 2),
    ]
    some, sales = 60, [sale(number) for number in range(60 * len(starts))]
    items: list[Any] = []
    for at in range(0, len(sales), some):
        items += [*sales[at : at + some], EOF()]
    table = Stream.read(Collection(items, SALES), uid="sales")
    program = table.key_by("item").sum("cents", uid="totals").write(ToDriver(), uid="sums")
    rows: list[dict[str, Any]] = []
    for scheme, parallelism in starts:
        run = start(tmp_path, program, scheme=scheme, parallelism=parallelism, every="50ms")
        found = run.rows("sums")
        rows += [next(found) for _ in range(some)]
        run.stop(savepoint=True, timeout=60)
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["item"]] = max(newest.get(row["item"], 0), row["cents"])
    assert newest == totals(len(sales))
    assert len(rows) == len(sales)


def test_a_job_is_drained_in_the_middle_of_its_batches(tmp_path: Path) -> None:
    numbers = Stream.read(Generate(Numbered(), NUMBERS, rate=5_000), uid="numbers")
    program = numbers.key_by("n").count(uid="count").write(ToDriver(), uid="out")
    run = start(tmp_path, program, scheme=MicroBatches(), every="30ms")
    until(lambda: run.status().rows_in.get(Uid("count"), 0) > 500)
    run.drain(PATIENCE)
    rows = sorted(row["n"] for row in run.rows("out"))
    for split in range(2):
        of_split = [n for n in rows if n % 2 == split]
        assert of_split == list(range(split, 2 * len(of_split), 2))


@pytest.mark.timeout(600)
def test_a_partition_that_is_killed_in_the_middle_of_a_batch_costs_no_row(tmp_path: Path) -> None:
    points = (
        fail_points.TRIGGER_HEARD,
        fail_points.STATE_CUT,
        fail_points.BEFORE_ACKNOWLEDGE,
        fail_points.BEFORE_COMMIT,
    )
    asked, proofs = crashes_at(tmp_path, points, 3)
    settings = Settings(
        folder=str(tmp_path / "job"), job="tumbling", scheme="batches", every="100ms", rows=20_000, standbys=1
    )
    with RunningJob(settings, {VARIABLE: asked}) as job:
        job.start()
        await_crashes(job, proofs)
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
def test_a_job_that_has_faults_at_random_moments_gives_every_row_once(tmp_path: Path) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"), job="sequences", scheme="batches", every="100ms", standbys=1, lost_after="1s"
    )
    kinds = (Kind.WORKER, Kind.DRIVER, Kind.HUNG, Kind.CUT_OFF)
    report = carry_out(Trial(settings, kills=4, seed=4, driver_too=True, kinds=kinds, longest=2_000))
    assert report.killed >= 4
    assert report.compared.rows > 1000
    assert report.compared.exact, report.compared.examples
