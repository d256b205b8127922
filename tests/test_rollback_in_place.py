"""A process that survives a failure goes on from the last epoch in place, with the state that it has open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from snapshot import Collection, Generate, KeyedProcess, ProcessContext, Stream, ToDriver, fail_points
from snapshot.cut.frames import MarkerMode
from snapshot.fail_points import POINTS
from snapshot.host.faults.crash_points import VARIABLE
from snapshot.host.partition.failures import is_of_state
from snapshot.host.partition.stage_run import StageRun
from snapshot.host.protocol.messages import Failed, FailureKind, FirstOutput, Restored
from snapshot.host.protocol.options import Following, HostOptions
from snapshot.operators.row_class import Row
from snapshot.program.program import Program
from statebackend import ValueState
from statebackend import fail_points as of_state
from statebackend.columns import schema_of
from statebackend.fail_points import at
from statebackend.followed_files import FollowedFiles
from statebackend.keyed_state import KeyedState
from statebackend.stores.local_store import LocalStore
from tests.driven_worker import PATIENCE, DrivenWorker
from tests.jobs.catalogue import JOBS
from tests.jobs.driver import Settings
from tests.jobs.job import OUT, Scale
from tests.jobs.running_job import Event, RunningJob
from tests.jobs.steady import Steady

ROWS = 12_000
RATE = 4_000.0

# --- one process, whose driver is the test

PROGRAMS = ("sequences", "tumbling", "sessions", "merges", "controlled", "running")
MODES = (MarkerMode.ALIGNED, MarkerMode.UNALIGNED)


def job_of(folder: Path, name: str) -> tuple[Program, Path]:
    gate = folder / "gate"
    return JOBS[name].program(Scale(ROWS, RATE, str(gate)), ToDriver()), gate


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[] if number % 2 == turn else pytest.mark.thorough)
        for number, name in enumerate(PROGRAMS)
        for turn, mode in enumerate(MODES)
    ],
)
def test_a_survivor_rewinds_its_state_again_and_again_and_its_output_is_exact(
    tmp_path: Path, name: str, mode: MarkerMode
) -> None:
    program, gate = job_of(tmp_path, name)
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        assert not worker.restored().in_place
        in_place = []
        for _ in range(4):
            worker.until_read(200)
            worker.complete(worker.cut(mode))
            worker.until_read(400)
            worker.complete(worker.cut(mode))
            worker.until_read(600)
            worker.cut(mode)  # durable here, and never complete: the next attempt goes back behind it
            worker.deploy()
            in_place.append(worker.restored().in_place)
        gate.touch()
        worker.finish()
        compared = JOBS[name].judge(worker.rows(OUT), ROWS)
    assert in_place == [True] * 4
    assert compared.rows > 100
    assert compared.exact, compared.examples


def test_a_survivor_that_rolls_back_twice_in_a_row_rewinds_to_the_same_epoch(tmp_path: Path) -> None:
    program, gate = job_of(tmp_path, "sequences")
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.until_read(200)
        worker.complete(worker.cut())
        for _ in range(3):  # nobody waits until it is there
            worker.deploy()
        first = worker.restored()
        worker.deploy()
        second = worker.restored()
        gate.touch()
        worker.finish()
        compared = JOBS["sequences"].judge(worker.rows(OUT), ROWS)
    assert (first.in_place, second.in_place) == (True, True)
    assert compared.exact, compared.examples


def test_state_that_was_opened_from_files_rewinds_to_the_epoch_that_it_was_opened_with(tmp_path: Path) -> None:
    program, gate = job_of(tmp_path, "sequences")
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.until_read(200)
        worker.complete(worker.cut())
        worker.stand_down()  # somebody else is to have the role, so nothing is kept
        worker.deploy()
        opened = worker.restored()
        worker.until_read(200)
        worker.deploy()
        rewound = worker.restored()
        gate.touch()
        worker.finish()
        compared = JOBS["sequences"].judge(worker.rows(OUT), ROWS)
    assert (opened.in_place, rewound.in_place) == (False, True)
    assert compared.exact, compared.examples


def test_before_the_first_epoch_there_is_nothing_to_rewind_to(tmp_path: Path) -> None:
    program, gate = job_of(tmp_path, "sequences")
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.until_read(200)
        worker.deploy()
        again = worker.restored()
        gate.touch()
        worker.finish()
        compared = JOBS["sequences"].judge(worker.rows(OUT), ROWS)
    assert not again.in_place
    assert compared.exact, compared.examples


# --- what goes wrong in it

NUMBERS = schema_of({"k": int, "n": int})


class Fails(KeyedProcess):
    """Sums up. Where a file says so, fails once at its 40th row: by itself, or in what state is made of."""

    total = ValueState(int, default=0)

    def __init__(self, trap: str, in_state: bool) -> None:
        self.trap, self.in_state = trap, in_state

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.total.set(self.total.get() + event.n)
        if event.n == 40 and Path(self.trap).exists():
            Path(self.trap).unlink()
            if not self.in_state:
                raise ZeroDivisionError("as it was told to")
            ValueState(int).spec("")
        ctx.emit((ctx.key, self.total.get()))


def failing(trap: Path, gate: Path, *, in_state: bool) -> Program:
    """Before the gate opens there are 30 rows."""
    rows = Steady(Collection([(n % 7, n) for n in range(100)], NUMBERS), 1e9, 30, str(gate))
    keyed = Stream.read(rows, uid="rows").key_by("k")
    return keyed.process(Fails(str(trap), in_state), uid="sums", schema={"k": int, "total": int}).write(
        ToDriver(), uid=OUT
    )


def sums() -> list[tuple[int, int]]:
    totals: dict[int, int] = {}
    rows = []
    for n in range(100):
        totals[n % 7] = totals.get(n % 7, 0) + n
        rows.append((n % 7, totals[n % 7]))
    return sorted(rows)


@pytest.mark.parametrize("in_state", [False, True])
def test_state_outlives_what_a_function_of_the_user_raises_but_no_error_of_its_own(
    tmp_path: Path, in_state: bool
) -> None:
    trap, gate = tmp_path / "trap", tmp_path / "gate"
    with DrivenWorker(tmp_path, failing(trap, gate, in_state=in_state)) as worker:
        worker.deploy()
        worker.restored()
        worker.complete(worker.cut())
        worker.deploy()
        assert worker.restored().in_place
        trap.touch()
        gate.touch()
        failed = worker.until(Failed)
        worker.deploy()
        restored = worker.restored()
        worker.finish()
        rows = sorted((row["k"], row["total"]) for row in worker.rows(OUT))
    assert failed.kind is not FailureKind.UNUSABLE
    assert restored.in_place is not in_state
    assert rows == sums()


def test_state_is_kept_when_what_was_in_flight_to_it_cannot_be_processed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = StageRun.open

    def fail(run: StageRun, state: KeyedState) -> None:
        usual(run, state)
        raise ZeroDivisionError("at a row that was in flight")

    program, gate = job_of(tmp_path, "sequences")
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.restored()
        worker.complete(worker.cut())
        monkeypatch.setattr(StageRun, "open", fail)
        worker.deploy()
        failed = worker.until(Failed)
        monkeypatch.undo()
        worker.deploy()
        restored = worker.restored()
        gate.touch()
        worker.finish()
        compared = JOBS["sequences"].judge(worker.rows(OUT), ROWS)
    assert "in flight" in failed.reason
    assert restored.in_place
    assert compared.exact, compared.examples


def test_an_error_is_of_the_state_also_if_a_function_of_the_user_has_made_another_of_it() -> None:
    def raised(inner: bool) -> Exception:
        try:
            try:
                if inner:
                    ValueState(int).spec("")
                else:
                    raise KeyError("a")
            except Exception as error:
                raise RuntimeError("wrapped") from error
        except RuntimeError as error:
            return error
        raise AssertionError("nothing was raised")

    assert [is_of_state(raised(inner)) for inner in (False, True)] == [False, True]


# --- beginning before the state is open


@contextmanager
def held_at(point: str, then: Exception | None = None) -> Iterator[threading.Event]:
    """Whoever comes to the point for the first time waits there for the event, and then raises this."""
    release, came = threading.Event(), threading.Event()

    def wait() -> None:
        if not came.is_set():
            came.set()
            assert release.wait(60)
            if then is not None:
                raise then

    with at(point, wait, POINTS):
        try:
            yield release
        finally:
            release.set()


def opening_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("opening state")]


def test_what_needs_no_state_runs_while_state_is_being_opened(tmp_path: Path) -> None:
    with held_at(of_state.RESTORE_OPENED) as release, DrivenWorker(tmp_path, both_branches()) as worker:
        worker.deploy()
        worker.until(FirstOutput)
        told = worker.heard(Restored)
        release.set()
        worker.restored()
        worker.finish()
        plain, keyed = worker.rows("plain"), worker.rows("keyed")
    assert told == []
    assert {row["n"] for row in plain} == set(range(1000))
    assert len(plain) == 1000
    assert len(keyed) == 1000


def test_a_process_that_cannot_reach_its_store_listens_and_does_what_needs_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, release = LocalStore.__init__, threading.Event()

    def hang(store: LocalStore, root: Path) -> None:
        assert release.wait(PATIENCE)
        usual(store, root)

    monkeypatch.setattr(LocalStore, "__init__", hang)
    with DrivenWorker(tmp_path, both_branches()) as worker:
        worker.deploy()
        worker.until(FirstOutput)
        release.set()
        worker.finish()
        keyed = worker.rows("keyed")
    assert len(keyed) == 1000


def both_branches() -> Program:
    rows = Stream.read(Collection([(n % 7, n) for n in range(1000)], NUMBERS), uid="rows")
    keyed = rows.key_by("k").sum("n", uid="sums").write(ToDriver(), uid="keyed")
    return keyed + rows.write(ToDriver(), uid="plain")


ASKED: list[float] = []


def noting_when(numbers: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
    ASKED.append(time.monotonic())
    return {"k": numbers % 7, "n": numbers}


def test_a_source_that_gives_few_rows_at_a_time_leaves_the_process_to_whoever_opens_state(tmp_path: Path) -> None:
    ASKED.clear()
    rows = Stream.read(Generate(noting_when, NUMBERS, count=600, rate=1000), uid="rows")
    keyed = rows.key_by("k").sum("n", uid="sums").write(ToDriver(), uid="keyed")
    program = keyed + rows.write(ToDriver(), uid="plain")
    options = HostOptions(status_interval=20)
    with held_at(of_state.RESTORE_OPENED) as release, DrivenWorker(tmp_path, program, options) as worker:
        worker.deploy()
        worker.until_read(200)
        asked = ASKED[:]
        release.set()
        worker.restored()
        worker.finish()
        plain, keyed_rows = worker.rows("plain"), worker.rows("keyed")
    assert len(asked) <= 2 + (asked[-1] - asked[0]) / 0.02
    assert [len(rows) for rows in (plain, keyed_rows)] == [600, 600]


def test_state_that_cannot_be_opened_ends_an_attempt_that_has_begun(tmp_path: Path) -> None:
    with DrivenWorker(tmp_path, both_branches()) as worker:
        with held_at(of_state.RESTORE_OPENED, then=OSError("the disk is gone")) as release:
            worker.deploy()
            worker.until(FirstOutput)
            release.set()
            failed = worker.until(Failed)
        worker.deploy()
        worker.restored()
        worker.finish()
        rows = worker.rows("keyed")
    assert (failed.kind, failed.uid) == (FailureKind.RESOURCE, "sums")
    assert "the disk is gone" in failed.reason
    assert len(rows) == 1000


def test_state_that_is_being_opened_when_an_attempt_ends_is_that_of_the_next(tmp_path: Path) -> None:
    program, gate = job_of(tmp_path, "sequences")
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.until_read(200)
        worker.complete(worker.cut())
        worker.stand_down()
        with held_at(of_state.RESTORE_OPENED) as release:
            worker.deploy()
            worker.until_read(200)
            worker.deploy()
            worker.until_read(200)
            release.set()
            restored = worker.restored()
        gate.touch()
        worker.finish()
        compared = JOBS["sequences"].judge(worker.rows(OUT), ROWS)
    assert restored.in_place, "it was opened for the attempt before, and rewound for this one"
    assert compared.exact, compared.examples


@pytest.mark.parametrize("leave", [False, True])
def test_a_process_that_loses_its_role_while_it_opens_state_keeps_nothing(tmp_path: Path, leave: bool) -> None:
    with DrivenWorker(tmp_path, both_branches()) as worker:
        with held_at(of_state.RESTORE_OPENED) as release:
            worker.deploy()
            worker.until(FirstOutput)
            if leave:
                worker.leave()
                release.set()
                for thread in opening_threads():
                    thread.join(PATIENCE)
                    assert not thread.is_alive()
                return
            worker.stand_down()
            worker.deploy()
            worker.until(FirstOutput)
            release.set()
            restored = worker.restored()
        worker.finish()
        rows = worker.rows("keyed")
    assert not restored.in_place
    assert len(rows) == 1000


def test_a_role_that_is_lost_after_a_second_deployment_leaves_nothing_of_the_first_one_at_hand(tmp_path: Path) -> None:
    program, gate = job_of(tmp_path, "sequences")
    with DrivenWorker(tmp_path, program) as worker:
        worker.deploy()
        worker.until_read(200)
        worker.complete(worker.cut())
        worker.stand_down()
        with held_at(of_state.RESTORE_OPENED) as release:
            for _ in range(2):
                worker.deploy()
                worker.until_read(200)
            worker.stand_down()
            worker.until_heard()
            release.set()
            for thread in opening_threads():
                thread.join(PATIENCE)
            worker.deploy()
            restored = worker.restored()
        gate.touch()
        worker.finish()
        compared = JOBS["sequences"].judge(worker.rows(OUT), ROWS)
    assert not restored.in_place
    assert compared.exact, compared.examples


def test_a_process_that_leaves_after_a_second_deployment_closes_what_is_opened_for_the_first(tmp_path: Path) -> None:
    with held_at(of_state.RESTORE_OPENED) as release:
        with DrivenWorker(tmp_path, both_branches()) as worker:
            for _ in range(2):
                worker.deploy()
                worker.until(FirstOutput)
            opening = opening_threads()
            worker.leave()
        release.set()
        for thread in opening:
            thread.join(PATIENCE)
    assert opening
    assert not any(thread.is_alive() for thread in opening)
    folder = tmp_path / "local" / "sums"
    FollowedFiles(folder / "0", folder).close()  # which nobody could open while the state is


def test_state_that_was_followed_for_a_move_is_closed_when_the_move_is_given_up(tmp_path: Path) -> None:
    with DrivenWorker(tmp_path, both_branches()) as worker:
        worker.deploy()
        worker.complete(worker.cut())
        worker.stand_down()
        worker.follow(Following.OPEN)
        worker.stand_by(Following.WARM)
        worker.until_heard()
        for thread in threading.enumerate():
            if thread.name == "closing state":
                thread.join(PATIENCE)
        places = list((tmp_path / "local" / "sums").glob("0*"))
        assert places
        for place in places:
            FollowedFiles(place, place.parent).close()  # which nobody could open while the state is


# --- whole jobs


def settings(folder: Path, job: str, parallelism: int, standbys: int = 0) -> Settings:
    return Settings(
        folder=str(folder / "job"),
        job=job,
        sink="parquet",
        mode="unaligned",
        parallelism=parallelism,
        standbys=standbys,
        every="100ms",
        rows=30_000,
    )


def restores(job: RunningJob) -> list[Event]:
    return [event for event in job.events if event["event"] == "PartitionRestored"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("job", "parallelism", "standbys"), [("tumbling", 2, 0), ("sequences", 3, 1)])
def test_whoever_survives_a_kill_keeps_process_and_state(
    tmp_path: Path, job: str, parallelism: int, standbys: int
) -> None:
    with RunningJob(settings(tmp_path, job, parallelism, standbys)) as running:
        running.start()
        running.wait_for_kind("Running")
        for _ in range(3):
            for _ in range(3):
                running.wait_for_kind("EpochCompleted")
            survivors = sorted(running.course.placed)[1:]
            pids = {worker: running.course.workers[worker] for worker in survivors}
            seen = len(restores(running))
            running.kill_worker(min(running.course.placed))
            running.wait_for_kind("Running")
            assert {worker: running.course.workers.get(worker) for worker in survivors} == pids
            in_place = [event["in_place"] for event in restores(running)[seen:]]
            assert len(in_place) == parallelism
            assert sum(bool(one) for one in in_place) >= parallelism - 1
        compared = running.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("job", "parallelism"), [("sessions", 2), ("merges", 3)])
@pytest.mark.parametrize("point", [fail_points.BEFORE_REWIND, fail_points.REWOUND])
def test_a_survivor_that_is_killed_while_it_rewinds_costs_no_row(
    tmp_path: Path, job: str, parallelism: int, point: str
) -> None:
    proof = tmp_path / "crashed"
    with RunningJob(settings(tmp_path, job, parallelism), {VARIABLE: f"{point}:1:{proof}"}) as running:
        running.start()
        running.wait_for_kind("EpochCommitted")
        running.kill_worker(min(running.course.placed))
        while not proof.exists():
            running.wait_for_kind("WorkerLost")
        running.wait_for_kind("Running")
        compared = running.finish()
    assert compared.exact, compared.examples
