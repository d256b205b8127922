"""Whole jobs around which something dies or hangs that need not end them: they go on by themselves, output exact."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery import events as log
from recovery.driver.settings.options import in_their_places
from recovery.events import AnyEvent
from recovery.inject.targets import Kind as Fault
from recovery.inject.targets import LinkBetween, Order
from statebackend.ids import Partition
from tests.jobs.catalogue import JOBS
from tests.jobs.driver import Settings
from tests.jobs.job import Scale, sink_of
from tests.jobs.running_job import RunningJob
from tests.jobs.trouble import TroubledFiles, install

PATIENCE = 120.0
ROWS = 10_000
RATE = 500.0
"""Rows for twenty seconds: longer than any trouble here, so that some are always under way."""


class Job:
    """A running job, whose storage is as the file `switch` says, and what happens in it."""

    def __init__(self, folder: Path, name: str = "running", **options: Any) -> None:
        self.folder = folder
        self.switch = folder / "trouble"
        self.name = name
        self.happened = threading.Condition()
        self.launcher: recovery.LocalProcesses = options.pop("launcher", None) or recovery.LocalProcesses()
        chosen: dict[str, Any] = {"every": "200ms", "progress": False, "lost_after": "3s", **options}
        scale = Scale(ROWS, RATE, str(folder / "gate"))
        self.run = recovery.run(
            JOBS[name].program(scale, TroubledFiles(str(folder / "output"), "jsonl", switch=str(self.switch))),
            checkpoints=folder / "tree",
            launcher=self.launcher,
            local=chosen.pop("local", folder / "local"),
            **in_their_places(chosen),
        )
        self.run._driver.events.listen(self._hear)

    def _hear(self, _: AnyEvent) -> None:
        with self.happened:
            self.happened.notify_all()

    def await_events(self, kind: type[AnyEvent], count: int = 1) -> Any:
        """Wait until so many more of them have come; the last one."""
        return self.expect(kind, count=count)()

    def expect(
        self, kind: type[AnyEvent], where: Callable[[Any], bool] = lambda _: True, count: int = 1
    ) -> Callable[[], Any]:
        """Call what this returns to wait until so many more of them have come."""
        before = len(self.run.events)

        def found() -> list[AnyEvent]:
            return [one for one in self.run.events[before:] if isinstance(one, kind) and where(one)]

        def wait() -> Any:
            with self.happened:
                assert self.happened.wait_for(lambda: len(found()) >= count, PATIENCE), f"no {kind.__name__} came"
            return found()[-1]

        return wait

    def has(self, kind: type[AnyEvent], where: Callable[[Any], bool] = lambda _: True) -> bool:
        return any(isinstance(one, kind) and where(one) for one in self.run.events)

    def trouble(self, what: str, seconds: float) -> None:
        """Have storage in trouble for so long."""
        self.switch.write_text(what)
        with self.happened:
            self.happened.wait_for(self.run._driver.over.is_set, seconds)
        assert not self.run._driver.over.is_set(), self.run.status().failure
        self.switch.unlink()

    def finish(self) -> None:
        """Let it come to its end, and compare."""
        (self.folder / "gate").touch()
        end = self.run.wait(PATIENCE)
        assert end is not None
        rows: list[Mapping[str, object]] = []
        for file in sorted((self.folder / "output").glob("part-*")):
            rows += [json.loads(line) for line in file.read_text().splitlines()]
        found = JOBS[self.name].judge(rows, ROWS)
        assert found.exact, found

    def stop(self) -> None:
        self.switch.unlink(missing_ok=True)
        if not self.run._driver.over.is_set():
            self.run.cancel()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []
    take_back = install(tmp_path / "trouble")

    def start(**options: Any) -> Job:
        jobs.append(Job(tmp_path, **options))
        jobs[-1].await_events(log.EpochCommitted, 2)
        return jobs[-1]

    yield start
    for job in jobs:
        job.stop()
    take_back()


# --- the store


def test_a_store_that_is_down_for_ten_seconds_costs_epochs_and_nothing_else(start: Callable[..., Job]) -> None:
    job = start()
    answer = []
    asked = threading.Thread(target=lambda: answer.append(job.run.savepoint(PATIENCE)))
    job.switch.write_text("fail create")  # of an entry in the journal it is not known then whether it is there
    asked.start()
    read = job.run.status().rows_in
    job.trouble("fail create", 10.0)
    assert job.has(log.Trouble, lambda one: one.what == "the store" and "asked again for" in one.reason)
    job.trouble("fail", 1.0)
    assert job.run.status().restarts == 0, "processing did not stop"
    assert sum(job.run.status().rows_in.values()) > sum(read.values()), "nor did it wait"
    asked.join(PATIENCE)
    assert answer, "the savepoint was asked for again"
    job.await_events(log.EpochCommitted, 2)
    assert job.has(log.Trouble, lambda one: "does what it is asked again" in one.reason)
    job.finish()


def test_a_process_that_dies_while_the_store_is_down_is_replaced_when_it_works_again(start: Callable[..., Job]) -> None:
    job = start(scheme=recovery.Passive(restarts=recovery.ExponentialDelay(initial_backoff="100ms", max_backoff="1s")))
    job.switch.write_text("fail")
    os.kill(job.launcher.pids[1], signal.SIGKILL)
    job.await_events(log.AttemptFailed)
    job.trouble("fail", 5.0)
    job.await_events(log.EpochCommitted, 2)
    job.finish()


def test_a_store_that_hangs_holds_up_neither_the_job_nor_its_recovery(start: Callable[..., Job]) -> None:
    job = start(
        store_timeout="500ms",
        timeout="2s",
        scheme=recovery.Passive(restarts=recovery.ExponentialDelay(initial_backoff="100ms", max_backoff="1s")),
    )
    job.trouble("hang", 3.0)
    job.await_events(log.EpochCommitted, 1)
    assert job.run.status().restarts == 0
    job.switch.write_text("hang")
    os.kill(job.launcher.pids[0], signal.SIGKILL)
    job.await_events(log.AttemptFailed)
    job.trouble("hang", 2.0)
    job.await_events(log.EpochCommitted, 1)
    job.trouble("slow", 2.0)
    job.finish()


# --- processes and connections


class Lenient(recovery.LocalProcesses):
    """Leaves a process alone that gives no sign of life, as where it cannot be reached."""

    def lost(self, worker: str, *, silent: bool) -> None:
        if not silent:
            super().lost(worker, silent=silent)


def test_a_process_that_hangs_is_replaced_and_what_it_says_when_it_wakes_up_is_refused(
    start: Callable[..., Job],
) -> None:
    job = start(lost_after="1s", scheme=recovery.Passive(standbys=1), launcher=Lenient())
    hung = next(worker for worker, partition in job.run.status().workers.items() if partition == 1)
    pid = next(one.pid for one in job.run.events if isinstance(one, log.WorkerJoined) and one.worker == hung)
    os.kill(pid, signal.SIGSTOP)
    try:
        lost = job.await_events(log.WorkerLost)
        assert lost.worker == hung
        assert "no sign of life" in lost.reason
        job.await_events(log.EpochCommitted, 2)
    finally:
        waking = job.expect(log.PeerRefused, lambda one: "taken for lost" in one.reason)
        os.kill(pid, signal.SIGCONT)
    refused = waking()
    job.await_events(log.EpochCommitted, 2)
    assert "taken for lost" in refused.reason
    assert job.run.status().restarts == 1, "it changed nothing when it woke up"
    job.finish()


def test_a_process_that_the_driver_cannot_reach_for_ten_seconds_is_replaced_and_changes_nothing_afterwards(
    start: Callable[..., Job],
) -> None:
    job = start(lost_after="1s", scheme=recovery.Passive(standbys=1), launcher=Lenient())
    cut = next(worker for worker, partition in job.run.status().workers.items() if partition == 1)
    pid = next(one.pid for one in job.run.events if isinstance(one, log.WorkerJoined) and one.worker == cut)
    lost = job.expect(log.WorkerLost)
    with recovery.attach(job_folder=job.folder / "local") as attached:
        attached.inject(Order(Fault.CUT, LinkBetween(Partition(1), None), 10_000))
    assert lost().worker == cut
    job.await_events(log.EpochCommitted, 2)

    def ended_or_refused() -> bool:
        refused = job.has(log.PeerRefused, lambda one: "taken for lost" in one.reason)
        command = Path(f"/proc/{pid}/cmdline")
        return refused or not command.exists() or not command.read_bytes()

    with job.happened:
        assert job.happened.wait_for(ended_or_refused, PATIENCE)
    job.await_events(log.EpochCommitted, 2)
    assert job.run.status().restarts == 1
    job.finish()


def test_a_driver_that_hangs_is_followed_by_another_and_fenced_when_it_wakes_up(tmp_path: Path) -> None:
    settings = Settings(folder=str(tmp_path), job="running", rows=ROWS, rate=RATE)
    with RunningJob(settings) as job:
        job.start()
        job.wait_for_kind("EpochCommitted")
        assert job._process is not None
        hung = job._process.pid
        os.kill(hung, signal.SIGSTOP)
        try:
            run = recovery.run(
                JOBS["running"].program(
                    Scale(ROWS, RATE, str(settings.gate)), sink_of(settings.sink, str(settings.output))
                ),
                checkpoints=tmp_path / "tree",
                local=tmp_path / "local of the second",
                every="200ms",
                launcher=recovery.LocalProcesses(),
                progress=False,
            )
            committed = threading.Event()
            run._driver.events.listen(lambda event: committed.set() if isinstance(event, log.EpochCommitted) else None)
            assert committed.wait(PATIENCE)
        finally:
            os.kill(hung, signal.SIGCONT)
        gave_up = job.wait_for_kind("GaveUp")
        assert "generation 2 has claimed the job" in str(gave_up["reason"])
        assert job.await_end() != 0
        settings.gate.touch()
        assert run.wait(PATIENCE) is not None
        assert run.status().restarts == 0
        assert job.compare().exact


def test_connections_that_carry_nothing_while_all_processes_live_are_noticed(start: Callable[..., Job]) -> None:
    job = start(channel_timeout="2s")
    job.switch.write_text("deaf")
    failed = job.await_events(log.AttemptFailed)
    job.switch.unlink()
    assert "timed out" in failed.reason
    job.await_events(log.EpochCommitted, 2)
    assert not job.has(log.WorkerLost)
    job.finish()


# --- the local disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no room."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return filler


def test_a_full_local_disk_costs_epochs_and_when_there_is_room_all_goes_on(
    start: Callable[..., Job], small_disk: Path
) -> None:
    trace = small_disk / "trace.jsonl"
    job = start(local=small_disk / "local", name="many_keys", trace=trace, compact_after=20)
    filler = fill(small_disk)
    abandoned = job.await_events(log.EpochAbandoned)
    assert "disk is full" in abandoned.detail or "No space left" in abandoned.detail
    job.await_events(log.EpochAbandoned, 3)
    filler.unlink()
    job.await_events(log.EpochCommitted, 2)
    job.finish()
    said = [one for one in job.run.events if isinstance(one, log.Trouble) and one.what.startswith("the file of")]
    assert {one.what for one in said} == {"the file of events", "the file of the trace"}
    names = [json.loads(line)["event"] for line in (small_disk / "local" / "events.jsonl").read_text().splitlines()]
    assert names == [type(one).__name__ for one in job.run.events][: len(names)]
    assert names[-1] == "Finished"
