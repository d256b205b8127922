"""A running job is spoken to from outside: it tells how it stands and what happens, and has faults brought about."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import recovery
from recovery.attached import Answer
from recovery.command.exits import Exit
from recovery.driver.remote.command_messages import Command
from recovery.driver.tree import address as reach
from recovery.events import (
    AnyEvent,
    EpochCommitted,
    EpochCompleted,
    FaultInjected,
    Finished,
    Recovered,
    Running,
    Stopped,
    WorkerJoined,
    WorkerLost,
)
from recovery.inject.targets import ExecutorOf, Kind, LinkBetween, Order, StandbyAt, WorkerOf
from recovery.offline.stopped_job import JobRuns, refuse_if_it_runs
from snapshot.host.protocol.messages import Address
from snapshot.ids import JobId
from statebackend.ids import Partition
from statebackend.stores.fsspec_store import same_place
from statebackend.stores.store import StoreUnavailable
from tests.command_line import run_command
from tests.endless_job import PATIENCE, start, wait_for, wait_until_all_run

ONE = WorkerOf(Partition(1))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[recovery.Run]:
    run = start(tmp_path)
    try:
        yield run
    finally:
        run.cancel()


@pytest.fixture
def attached(job: recovery.Run, tmp_path: Path) -> Iterator[recovery.Attached]:
    with recovery.attach(job_folder=tmp_path / "local") as attached:
        wait_until_all_run(attached)
        yield attached


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.timeout(180)
def test_each_kind_of_fault_happens_and_the_job_goes_on(attached: recovery.Attached) -> None:
    killed = attached.inject(Order(Kind.KILL, ONE))
    assert killed.partition == 1
    assert killed.complete is not None
    assert killed.since_complete_ms is not None
    lost = wait_for(attached, WorkerLost)
    assert isinstance(lost, WorkerLost)
    assert lost.worker == killed.worker
    wait_for(attached, Recovered)

    while None not in attached.status().workers.values():
        wait_for(attached, WorkerJoined)
    assert attached.inject(Order(Kind.KILL, StandbyAt(0))).partition is None

    stopped = attached.inject(Order(Kind.STOP, ONE, lasting=300))
    while state_of(stopped.pid) != "T":
        attached.next_event(0.01)
    while state_of(stopped.pid) == "T":
        attached.next_event(0.01)
    wait_for(attached, EpochCompleted)

    attached.inject(Order(Kind.DELAY, LinkBetween(Partition(0), Partition(1)), lasting=500, by=40))
    wait_for(attached, EpochCompleted)

    attached.inject(Order(Kind.CUT, LinkBetween(Partition(0), Partition(1)), lasting=400))
    wait_for(attached, EpochCommitted)

    attached.inject(Order(Kind.BREAK, LinkBetween(Partition(0), Partition(1))))
    recovered = wait_for(attached, Recovered)
    assert isinstance(recovered, Recovered)
    assert recovered.marks.first_output is not None
    wait_for(attached, EpochCompleted)


@pytest.mark.timeout(120)
def test_a_worker_that_is_cut_off_is_lost_and_the_job_goes_on_without_it(tmp_path: Path) -> None:
    run = start(tmp_path, lost_after="1s")
    try:
        with recovery.attach(tmp_path / "tree", job_folder=tmp_path / "local") as attached:
            wait_until_all_run(attached)
            cut = attached.inject(Order(Kind.CUT, ONE, lasting=2500))
            lost = wait_for(attached, WorkerLost)
            assert isinstance(lost, WorkerLost)
            assert lost.worker == cut.worker
            assert "no sign of life" in lost.reason
            wait_for(attached, Running)
            assert cut.worker not in attached.status().workers
            wait_for(attached, EpochCommitted)
    finally:
        run.cancel()


@pytest.mark.timeout(120)
def test_what_cannot_happen_is_declined_with_the_reason(attached: recovery.Attached) -> None:
    for order, reason in (
        (Order(Kind.KILL, WorkerOf(Partition(7))), "there is no partition 7; the job has partitions 0 to 1"),
        (Order(Kind.KILL, StandbyAt(3)), "there is no standby 3: 1 stand by"),
        (Order(Kind.KILL, ExecutorOf(Partition(0))), "not in a Spark executor of its own"),
        (Order(Kind.CUT, LinkBetween(Partition(0), Partition(5)), lasting=5), "there is no partition 5"),
    ):
        with pytest.raises(recovery.CommandDeclined, match=reason):
            attached.inject(order)
    assert attached.status().restarts == 0


@pytest.mark.timeout(120)
def test_a_run_tells_its_listeners_until_they_have_enough(
    job: recovery.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []
    broken: list[str] = []

    def break_at_once(event: object) -> None:
        broken.append(type(event).__name__)
        raise ValueError("a listener's own mistake")

    job.listen(break_at_once)
    enough = job.listen(lambda event: heard.append(type(event).__name__))
    with recovery.attach(job_folder=Path(job.events_file).parent) as attached:
        wait_for(attached, EpochCompleted)
        enough()
        count = len(heard)
        wait_for(attached, EpochCompleted)
    assert "EpochTriggered" in heard
    assert len(heard) in (count, count + 1)
    assert len(broken) == 1
    assert "a listener's own mistake" in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_events_end_when_the_job_does_and_its_file_is_gone(tmp_path: Path) -> None:
    run = start(tmp_path, standbys=0)
    file = tmp_path / "local" / reach.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with recovery.attach(job_folder=tmp_path / "local") as attached:
        wait_for(attached, EpochCompleted)
        attached.inject(Order(Kind.STOP, ONE, lasting=50))
        run.cancel()
        events = list(attached.follow())
        assert attached.events[-len(events) :] == tuple(events), "and those before that the test has waited for"
    assert isinstance(events[-1], Stopped)
    assert events[-1].cancelled
    assert any(isinstance(event, FaultInjected) for event in events)
    assert not file.exists()
    with pytest.raises(recovery.JobNotRunning, match="does not run on this host: no driver has left"):
        recovery.attach(job_folder=tmp_path / "local")


# --- without a job


NOWHERE = Address("127.0.0.1", 1)


def left(folder: Path, address: Address = NOWHERE, pid: int = 0) -> Path:
    reach.leave(folder, reach.Reach(JobId("job-1"), "/data/tree", address, pid or os.getpid(), b"s" * 32))
    return folder / reach.FILE


def test_what_was_left_is_read_and_only_its_own_driver_takes_it_away(tmp_path: Path) -> None:
    left(tmp_path)
    mine = reach.read(tmp_path)
    assert mine == reach.Reach(JobId("job-1"), "/data/tree", NOWHERE, os.getpid(), b"s" * 32)
    assert "sss" not in repr(mine)
    reach.take_away(tmp_path, replace(mine, secret=b"t" * 32))
    assert reach.read(tmp_path) == mine
    reach.take_away(tmp_path, mine)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_others_could_have_written_or_read_is_not_believed(tmp_path: Path) -> None:
    file = left(tmp_path)
    file.chmod(0o640)
    with pytest.raises(recovery.NotAllowed, match="not ours alone"):
        reach.read(tmp_path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(recovery.NotAllowed, match="cannot be read"):
        reach.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "epochcut.driver", "version": 1}', "\x00"])
def test_a_damaged_file_is_no_running_job(tmp_path: Path, text: str) -> None:
    left(tmp_path).write_text(text)
    with pytest.raises(recovery.JobNotRunning, match="damaged"):
        reach.read(tmp_path)


def test_a_file_of_another_version_says_so(tmp_path: Path) -> None:
    file = left(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 2}))
    with pytest.raises(recovery.JobNotRunning, match="of version 2"):
        reach.read(tmp_path)


def test_a_driver_that_was_killed_is_found_to_be_gone(tmp_path: Path) -> None:
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    left(tmp_path, pid=dead)
    with pytest.raises(recovery.JobNotRunning, match="there is no such process any more"):
        recovery.attach(job_folder=tmp_path)


def test_a_process_that_has_the_pid_of_a_dead_driver_is_not_taken_for_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    left(tmp_path, Address(host, port))
    with pytest.raises(recovery.JobNotRunning, match="Connection refused"):
        recovery.attach(job_folder=tmp_path, timeout=0.3)


def test_a_driver_that_is_paused_is_told_from_one_that_is_gone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # its kernel accepts, and nobody says a word
        host, port = server.getsockname()
        left(tmp_path, Address(host, port))
        with pytest.raises(reach.DriverSilent, match=rf"\(process {os.getpid()}\) is there and does not answer"):
            recovery.attach(job_folder=tmp_path, timeout=0.3)


class Over(recovery.Attached):
    """A job that is over, in this way, when it hears of a wish."""

    def __init__(self, over: AnyEvent) -> None:
        self.job = JobId("clicks-1")
        self._over = over

    def follow(self) -> Iterator[AnyEvent]:
        return iter(())

    def ask(self, command: Command[Answer], timeout: float | None = 0.0) -> Answer:
        return None  # type: ignore[return-value]  # as the wishes to end are answered

    def _wait_for_end(self, timeout: float | None) -> None:
        pass


@pytest.mark.parametrize(
    ("over", "how"),
    [(Finished(at=1.0), "had finished"), (Stopped(at=1.0, savepoint=None), "was stopped by another caller")],
)
def test_a_stop_that_finds_the_job_over_without_its_savepoint_says_so(over: AnyEvent, how: str) -> None:
    with pytest.raises(recovery.ConnectionLost, match=f"job clicks-1 {how} before a savepoint was taken"):
        Over(over).stop(savepoint=True)
    assert Over(over).stop() is None


def test_a_job_that_another_caller_ends_in_another_way_was_not_stopped_or_drained() -> None:
    Over(Finished(at=1.0)).drain()
    stopped, cancelled = (Over(Stopped(at=1.0, savepoint=None, cancelled=how)) for how in (False, True))
    with pytest.raises(recovery.ConnectionLost, match="stopped by another caller before it was drained"):
        stopped.drain()
    for end, before in (
        (cancelled.stop, "it had stopped"),
        (partial(cancelled.stop, savepoint=True), "it had stopped"),
        (cancelled.drain, "it was drained"),
    ):
        with pytest.raises(recovery.ConnectionLost, match=f"cancelled by another caller before {before}"):
            end()
    cancelled.cancel()


@pytest.mark.timeout(120)
def test_events_come_though_asking_for_them_was_interrupted_at_first(
    job: recovery.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with recovery.attach(job_folder=Path(job.events_file).parent) as attached:
        with monkeypatch.context() as ctrl_c:
            ctrl_c.setattr(attached._connection, "send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                attached.follow()
        assert attached.next_event(PATIENCE) is not None


@pytest.mark.timeout(120)
def test_a_wrong_secret_does_not_get_in(job: recovery.Run) -> None:
    folder = Path(job.events_file).parent
    right = reach.read(folder)
    try:
        left(folder, right.address)
        with pytest.raises(recovery.NotAllowed, match="secret"):
            recovery.attach(job_folder=folder)
    finally:
        reach.leave(folder, right)
    with recovery.attach(job_folder=folder, timeout=PATIENCE) as attached:
        assert attached.status().job == right.job


@pytest.mark.timeout(120)
def test_a_copy_of_a_job_does_not_stand_for_the_job_that_runs(
    job: recovery.Run,
    attached: recovery.Attached,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    reach.home_of(JobId(job.job)).parent.mkdir(0o700, parents=True)
    reach.home_of(JobId(job.job)).symlink_to(tmp_path / "local")
    tree, archive = tmp_path / "tree", tmp_path / "archive"
    recovery.copy(recovery.open_tree(str(tree)), "newest", str(archive))
    (tmp_path / "by-link").symlink_to(tree)

    for verb in ("stop", "cancel", "savepoint", "status"):
        said = run_command(capsys, verb, "--checkpoints", archive)
        assert said.code == Exit.NOT_RUNNING
        assert f"the job of {archive} does not run on this host" in said.err
        assert f"has another tree, {tree}; name that one if its job is meant" in said.err
    assert [one["pid"] for one in run_command(capsys, "list", archive, "--json").json] == [None]
    refuse_if_it_runs(recovery.open_tree(str(archive)))

    for name in (tree, tmp_path / "by-link", f"file://{tree}", os.path.relpath(tree)):
        with recovery.attach(name) as found:
            assert found.job == job.job
        with pytest.raises(JobRuns):
            refuse_if_it_runs(recovery.open_tree(str(name)))
    assert [one["pid"] for one in run_command(capsys, "list", tree, "--json").json] == [os.getpid()]
    with pytest.raises(recovery.JobNotRunning, match="another tree"):
        recovery.attach(archive, job_folder=tmp_path / "local")
    assert attached.status().state is recovery.RunState.RUNNING


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("s3://bucket/clicks", "s3a://bucket/clicks/", True),
        ("s3://bucket/clicks", "s3://bucket/clicks-2", False),
        ("s3://bucket/clicks", "/bucket/clicks", False),
        ("memory://clicks", "memory:///clicks", True),
        ("/no/such/clicks", "/no/such/./clicks/", True),
        ("/no/such/clicks", "file:///no/such/clicks", True),
        ("/no/such/clicks", "/no/such/other", False),
        ("/usr", "/no/such/usr", False),
    ],
)
def test_two_uris_name_the_same_place_or_not(one: str, other: str, same: bool) -> None:
    assert same_place(one, other) is same_place(other, one) is same


def test_without_checkpoints_there_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(recovery.WrongJob, match="there is no job at"):
        recovery.attach(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreUnavailable, match="there is no such folder"):
        recovery.attach(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    with pytest.raises(ValueError, match="which job"):
        recovery.attach()
