"""The scheme Synchronous: what it takes and refuses, and that sources stand still for as long as an epoch is under way.

Jobs are killed in the middle of a pause, and a target that hangs does not keep sources for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recovery
from recovery import Active, EpochAbandoned, EpochTriggered, Passive, Synchronous
from recovery.schemes.scheme import Scheme
from snapshot import EOF, Collection, Generate, Program, Stream, ToDriver, fail_points
from snapshot.cut.pauses import Then
from snapshot.epochs.coordinator_options import ContradictingOptions
from snapshot.host.faults.crash_points import VARIABLE
from snapshot.host.protocol.messages import EpochIsOver, TriggerEpoch
from snapshot.program.sink import Sealed, SinkContext, SinkWriter
from snapshot.tree.manifest import CommitPayload
from statebackend.durations import NotADuration
from statebackend.ids import Uid
from tests.fault_report import Kind
from tests.job_kills import Trial, carry_out
from tests.jobs.driver import Settings
from tests.jobs.running_job import RunningJob
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.shop_job import SALES, sale, totals
from tests.shop_job import start as start_shop
from tests.test_driver_runs import start
from tests.test_job_kills import await_crashes, crashes_at

NUMBERS = pa.schema([("n", pa.int64())])


def a_program() -> Program:
    return Program.of(Stream.read(Collection([(1,)], {"n": int}), uid="numbers").write(ToDriver(), uid="out"))


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.002)


# --- what it takes


@pytest.mark.parametrize(
    ("scheme", "options", "complaint"),
    [
        (
            Synchronous(every="2s"),
            {"every": "1s"},
            "every is given twice: as '1s' for the run, and as '2s'",
        ),
        (Synchronous(), {"mode": "unaligned"}, "mode is unaligned, and the scheme is Synchronous: sources stand still"),
        (Synchronous(), {"mode": "at-least-once"}, "mode is at-least-once, and the scheme is Synchronous"),
        (Synchronous(), {"alignment_timeout": "1s"}, "alignment_timeout is set, and the scheme is Synchronous"),
        (Synchronous(), {"advanced": {"max_in_flight": 2}}, "max_in_flight is 2, and the scheme takes one epoch after"),
    ],
)
def test_options_that_contradict_it_are_refused_before_anything_starts(
    tmp_path: Path, scheme: Scheme, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ContradictingOptions, match=complaint):
        recovery.run(a_program(), checkpoints=tmp_path / "tree", job="refused", scheme=scheme, **options)
    assert list(tmp_path.iterdir()) == []


def test_an_interval_that_is_none_is_refused() -> None:
    with pytest.raises(NotADuration, match="every"):
        Synchronous(every="soon")


def test_it_has_the_standbys_and_restarts_of_a_passive_job() -> None:
    scheme = Synchronous(2, "open", every="3s", spread=False, poisoned_after=7)
    assert scheme.processes(3) == 5
    assert (scheme.standbys, scheme.ready.value, scheme.spread, scheme.poisoned_after) == (2, "open", False, 7)


# --- what the driver does


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


def test_sources_pause_at_each_trigger_and_stop_for_good_only_at_the_last(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, every=None, scheme=Synchronous(every="20ms"))
    cluster.await_heard(EpochIsOver, 4, lambda one: one.complete)
    run.savepoint(PATIENCE)
    run.stop(timeout=PATIENCE)
    said = {trigger.marker.epoch: trigger.then for trigger in cluster.heard(TriggerEpoch)}
    last = max(said)
    assert said[last] is Then.STOP
    assert len(said) >= 4
    assert {then for epoch, then in said.items() if epoch != last} == {Then.PAUSE}


def test_one_epoch_is_in_flight_at_a_time_and_none_is_skipped(tmp_path: Path, cluster: ScriptedCluster) -> None:
    cluster.habits.acknowledge = False
    run = start(tmp_path, cluster, scheme=Synchronous(), timeout="100ms")
    until(lambda: sum(isinstance(event, EpochAbandoned) for event in run.events) >= 2)
    marks = [event for event in run.events if isinstance(event, EpochTriggered | EpochAbandoned)]
    assert [type(mark) for mark in marks[:4]] == [EpochTriggered, EpochAbandoned] * 2
    assert marks[2].at - marks[1].at >= 0.09, "sources read for as long as they stood still"
    assert run.status().skipped == 0
    run.cancel()


# --- real jobs


@dataclass(frozen=True)
class Numbered:
    def __call__(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
        return {"n": indices}


@dataclass(frozen=True, slots=True)
class Held(ToDriver):
    """Prepares nothing while this file is there: a target, or a store, that hangs."""

    file: str = ""

    def open(self, context: SinkContext) -> SinkWriter:
        return HeldWriter(ToDriver.open(self, context), Path(self.file))


class HeldWriter:
    def __init__(self, writer: SinkWriter, file: Path) -> None:
        self._writer = writer
        self._file = file
        self.begin, self.write, self.commit, self.close = writer.begin, writer.write, writer.commit, writer.close

    def seal(self) -> Sealed:
        return HeldPiece(self._writer.seal(), self._file)


@dataclass
class HeldPiece:
    sealed: Sealed
    file: Path

    def prepare(self) -> CommitPayload | None:
        until(lambda: not self.file.exists())
        return self.sealed.prepare()


def test_while_a_target_hangs_sources_stand_still_and_when_the_epoch_is_given_up_they_go_on(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    numbers = Stream.read(Generate(Numbered(), NUMBERS, rate=2_000), uid="numbers")
    program = numbers.key_by("n").count(uid="count").write(Held(file=str(hold)), uid="out")

    def read() -> int:
        return run.status().rows_in.get(Uid("numbers"), 0)

    with start_shop(
        tmp_path, program, scheme=Synchronous(), every="100ms", timeout="1500ms", status_interval="20ms"
    ) as run:
        until(lambda: run.status().complete is not None)
        hold.touch()
        given_up = sum(isinstance(event, EpochAbandoned) for event in run.events)
        seen = (0.0, -1)

        def stands_still() -> bool:
            nonlocal seen
            if read() != seen[1]:
                seen = (time.monotonic(), read())
            return time.monotonic() - seen[0] > 0.4

        until(stands_still)
        until(lambda: sum(isinstance(event, EpochAbandoned) for event in run.events) > given_up)
        until(lambda: read() > seen[1])
        hold.unlink()
        before = run.status().complete
        until(lambda: run.status().complete != before)


def test_a_tree_goes_from_one_scheme_to_the_other_and_back(tmp_path: Path) -> None:
    """Each start goes on from the savepoint of the one before, to the next end."""
    some, sales = 60, [sale(number) for number in range(300)]
    items: list[Any] = []
    for at in range(0, len(sales), some):
        items += [*sales[at : at + some], EOF()]
    table = Stream.read(Collection(items, SALES), uid="sales")
    program = table.key_by("item").sum("cents", uid="totals").write(ToDriver(), uid="sums")
    rows: list[dict[str, Any]] = []
    for scheme in (Passive(), Synchronous(), Active(), Synchronous(standbys=1), Passive()):
        run = start_shop(tmp_path, program, scheme=scheme)
        found = run.rows("sums")
        rows += [next(found) for _ in range(some)]
        run.stop(savepoint=True, timeout=60)
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["item"]] = max(newest.get(row["item"], 0), row["cents"])
    assert newest == totals(len(sales))
    assert len(rows) == len(sales)


@pytest.mark.timeout(600)
def test_a_partition_that_is_killed_while_sources_stand_still_costs_no_row(tmp_path: Path) -> None:
    points = (
        fail_points.MARKER_SENT,
        fail_points.BEFORE_ACKNOWLEDGE,
        fail_points.AFTER_ACKNOWLEDGE,
        fail_points.COMPLETE_HEARD,
    )
    asked, proofs = crashes_at(tmp_path, points, 3)
    settings = Settings(
        folder=str(tmp_path / "job"), job="tumbling", scheme="synchronous", every="100ms", rows=20_000, standbys=1
    )
    with RunningJob(settings, {VARIABLE: asked}) as job:
        job.start()
        await_crashes(job, proofs)
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_while_sources_stand_still_leaves_none_of_them_waiting(tmp_path: Path) -> None:
    asked, proofs = crashes_at(tmp_path, (fail_points.BEFORE_COMPLETE,), 3)
    settings = Settings(folder=str(tmp_path / "job"), job="merges", scheme="synchronous", every="100ms", rows=12_000)
    with RunningJob(settings) as job:
        job.set_crash(driver=asked)
        job.start()
        job.await_end()
        assert proofs[0].exists()
        job.set_crash()
        job.start()
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
def test_a_job_that_has_faults_at_random_moments_gives_every_row_once(tmp_path: Path) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"), job="merges", scheme="synchronous", every="150ms", standbys=1, lost_after="1s"
    )
    kinds = (Kind.WORKER, Kind.DRIVER, Kind.HUNG, Kind.CUT_OFF)
    report = carry_out(Trial(settings, kills=4, seed=3, driver_too=True, kinds=kinds, longest=2_000))
    assert report.killed >= 4
    assert report.compared.rows > 1000
    assert report.compared.exact, report.compared.examples
