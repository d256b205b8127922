"""Processes that stand by follow complete epochs, and take over what a killed one had, with what they have ready."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import recovery
from recovery import FailureRate, Following, LocalProcesses, Passive
from recovery.driver.report.status import RunState, RunStatus
from recovery.events import AnyEvent, PartitionRestored, WorkerJoined
from statebackend.snapshots.local_files import LINKS
from tests.jobs.comparison import Comparison
from tests.jobs.job import Scale, sink_of
from tests.jobs.running import MANY_KEYS

PATIENCE = 120.0
ROWS = 75_000


class Watched:
    """A job of two partitions and one process that stands by."""

    def __init__(self, folder: Path, following: str) -> None:
        self.folder = folder
        self._changed = threading.Condition()
        program = MANY_KEYS.program(
            Scale(ROWS, 15_000.0, str(folder / "gate")), sink_of("jsonl", str(folder / "output"))
        )
        self.run = recovery.run(
            program,
            checkpoints=folder / "tree",
            every="100ms",
            scheme=Passive(
                standbys=1,
                following=following,
                restarts=FailureRate(1000, "1s", delay=0),
                poisoned_after=1000,  # a process may be killed at the same row again and again
            ),
            launcher=LocalProcesses(),
            local=folder / "local",
            advanced={"lost_after": "30s"},
            retain=1,
            progress=False,
        )
        self.run._driver.events.listen(self._heard)

    def _heard(self, _: AnyEvent) -> None:
        with self._changed:
            self._changed.notify_all()

    def until(self, reached: Callable[[RunStatus], bool]) -> RunStatus:
        """Wait until this is so, which is looked at whenever something happens; epochs do all the time."""
        with self._changed:
            assert self._changed.wait_for(lambda: reached(self.run.status()), PATIENCE), self.run.events[-10:]
        return self.run.status()

    def until_followed(self, ahead: int = 3) -> RunStatus:
        """Wait until the process that stands by has an epoch that was not complete yet."""
        complete = self.run.status().complete
        number = (0 if complete is None else complete.number) + ahead
        return self.until(
            lambda status: any(said.has is not None and said.has.number >= number for said in status.standbys.values())
        )

    def kill(self, worker: str) -> None:
        pids = {event.worker: event.pid for event in self.run.events if isinstance(event, WorkerJoined)}
        os.kill(pids[worker], signal.SIGKILL)
        self.until(lambda status: worker not in status.workers)

    def restored_last(self, partition: int) -> PartitionRestored:
        events = [event for event in self.run.events if isinstance(event, PartitionRestored)]
        return next(event for event in reversed(events) if event.partition == partition)

    def compared(self) -> Comparison:
        (self.folder / "gate").touch()
        self.run.wait(PATIENCE)
        files = sorted((self.folder / "output").glob("part-*"))
        return MANY_KEYS.judge([json.loads(line) for file in files for line in file.read_text().splitlines()], ROWS)


@contextmanager
def watched(folder: Path, following: str) -> Iterator[Watched]:
    job = Watched(folder, following)
    try:
        yield job
    finally:
        if not job.run._driver.over.is_set():
            job.run.cancel()


def victim(status: RunStatus) -> str:
    return next(worker for worker, partition in status.workers.items() if partition == 1)


def standby(status: RunStatus) -> str:
    return next(worker for worker, partition in status.workers.items() if partition is None)


def back_after(restarts: int, status: RunStatus) -> bool:
    """Whether it runs again after one more failure than so many, or several: what is broken may be told in parts."""
    return running(status) and status.restarts > restarts


def running(status: RunStatus) -> bool:
    return status.state is RunState.RUNNING


@pytest.mark.timeout(300)
@pytest.mark.parametrize("following", [kind.value for kind in Following])
def test_the_process_that_stands_by_takes_over_and_the_one_that_is_started_again_follows(
    tmp_path: Path, following: str
) -> None:
    with watched(tmp_path, following) as job:
        job.until(lambda status: running(status) and len(status.workers) == 3 and status.complete is not None)
        for _ in range(2):
            status = job.run.status() if following == "warm" else job.until_followed()
            ready, lost = standby(status), victim(status)
            job.kill(lost)
            status = job.until(partial(back_after, status.restarts))
            if following == "warm":  # whoever is started again in the lost one's slot may be there as soon
                assert {0, 1} <= set(status.workers.values())
            else:
                assert status.workers[ready] == 1
            assert job.restored_last(1).in_place == (following == "open")
            job.until(lambda status: len(status.workers) == 3)
        assert job.compared().exact
    status = job.run.status()
    if following == "warm":
        assert status.standbys == {}


@pytest.mark.timeout(300)
def test_a_process_that_stands_by_has_the_files_of_the_newest_epoch_and_gives_them_up_when_it_gets_a_role(
    tmp_path: Path,
) -> None:
    with watched(tmp_path, "files") as job:
        status = job.until_followed()
        (said,) = status.standbys.values()
        assert said.downloaded_bytes == 0  # all of it is on this machine
        assert said.linked_bytes > 0
        assert said.problem == ""
        assert said.cpu_ms > 0
        assert said.memory_bytes > 1 << 20
        folder = tmp_path / "local" / "totals"
        followed = folder / "0.1" / LINKS
        assert list(followed.iterdir())
        job.kill(victim(status))
        job.until(partial(back_after, 0))
        job.until_followed()
        assert job.compared().exact
    assert list(folder.glob(f"*.*/{LINKS}/*")) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("following", ["files", pytest.param("open", marks=pytest.mark.thorough)])
def test_when_a_process_that_stands_by_is_killed_nothing_happens_to_the_job_and_the_next_one_follows(
    tmp_path: Path, following: str
) -> None:
    with watched(tmp_path, following) as job:
        first = standby(job.until_followed())
        job.kill(first)
        assert first not in job.run.status().standbys
        second = standby(job.until_followed())
        assert second != first
        assert job.run.status().restarts == 0
        job.kill(victim(job.run.status()))
        job.until(partial(back_after, 0))
        assert job.compared().exact


@pytest.mark.timeout(300)
@pytest.mark.parametrize("following", [pytest.param("files", marks=pytest.mark.thorough), "open"])
def test_a_process_that_is_in_the_middle_of_following_takes_over(tmp_path: Path, following: str) -> None:
    with watched(tmp_path, following) as job:
        for _ in range(4):
            status = job.until(lambda status: running(status) and len(status.workers) == 3 and bool(status.standbys))
            job.kill(victim(status))  # whatever the other one is at
            job.until(partial(back_after, status.restarts))
        assert job.compared().exact
