"""A job that is taken over while it does not run: whoever claimed it last can make epochs, and nobody else."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from recovery.driver.tree import address as reach
from recovery.driver.tree.owned import FencedOff
from recovery.offline import fail_points, stopped_job
from recovery.offline.epoch_choice import choose
from recovery.offline.stopped_job import JobRuns, NotAdmitted, take_over
from recovery.savepoints.rescaling import rescale
from snapshot.host.protocol.messages import Address
from snapshot.journal.entries import Rewound
from snapshot.tree.layout import Content, parse
from statebackend.fail_points import at
from statebackend.ids import Epoch, Generation, Partition
from tests.stopped_trees import Stopped, stop_one


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


def test_it_is_claimed_in_the_name_of_the_verb(stopped: Stopped) -> None:
    before = stopped.tree.state
    job = take_over(stopped.tree, "rescale")
    assert job.generation == before.generation + 1 == stopped.tree.state.generation
    assert stopped.tree.state.driver.startswith("recovery rescale, process ")
    assert job.next_epoch == Epoch(job.generation, before.newest_complete.number + 1)


def test_names_are_of_the_new_generation_and_none_comes_twice(stopped: Stopped) -> None:
    job = take_over(stopped.tree, "edit")
    state = job.names(Partition(0))
    names = [state(), state(), job.names(Partition(1))()]
    assert len(set(names)) == 3
    assert all(name.startswith(f"shared/{job.generation}-") and parse(name) is not None for name in names)
    assert job.names(Partition(0), Content.BROADCAST)().endswith(".broadcast")
    assert not set(names) & {info.path for info in stopped.tree.store.list()}


def test_whoever_was_overtaken_makes_nothing(stopped: Stopped) -> None:
    before = stopped.tree.record().epoch
    first = take_over(stopped.tree, "edit")
    manifest = first.remade(choose(stopped.tree).manifest, "edit")
    second = take_over(stopped.tree, "rescale")
    with pytest.raises(FencedOff, match=f"generation {second.generation} has claimed the job"):
        first.publish(manifest)
    assert stopped.tree.record().epoch == before
    made = second.publish(second.remade(choose(stopped.tree).manifest, "rescale"))
    assert stopped.tree.record().epoch == made
    assert made in stopped.tree.savepoints


def test_a_job_that_is_started_in_the_middle_keeps_what_it_has(stopped: Stopped) -> None:
    def start() -> None:
        take_over(stopped.tree, "test")

    before = stopped.tree.record().epoch
    with at(fail_points.NEW_MANIFEST_WRITTEN, start, fail_points.POINTS), pytest.raises(FencedOff):
        rescale(stopped.tree, "newest", 3)
    assert stopped.tree.record().epoch == before


def test_what_the_journal_does_not_admit_is_refused_with_its_reason(stopped: Stopped) -> None:
    job = take_over(stopped.tree, "test")
    with pytest.raises(NotAdmitted, match="99-9 cannot be had; complete and not removed: "):
        job.propose(Rewound(job.generation, Epoch(Generation(9), 99)))


@pytest.mark.timeout(120)
def test_a_job_that_really_runs_is_refused_and_runs_on(stopped: Stopped) -> None:
    run = stopped.start()
    try:
        with pytest.raises(JobRuns, match=rf"job {stopped.job} runs \(driver process \d+\); stop it first"):
            rescale(stopped.tree, "newest", 3, job_folder=stopped.folder / "local")
        assert not run.status().state.over
    finally:
        run.cancel()
    rescale(stopped.tree, "newest", 3, job_folder=stopped.folder / "local")


def test_a_job_whose_driver_is_paused_is_refused(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopped_job, "_PATIENCE", 0.2)
    folder, number = stopped.folder / "paused", stopped.tree.state.number
    with socket.create_server(("127.0.0.1", 0)) as server:  # its kernel accepts, and nobody says a word
        address = Address(*server.getsockname())
        folder.mkdir()
        reach.leave(folder, reach.Reach(stopped.job, stopped.tree.uri, address, os.getpid(), b"s" * 32))
        with pytest.raises(JobRuns, match=r"is there and does not answer.*end that process first"):
            rescale(stopped.tree, "newest", 3, job_folder=folder)
    assert stopped.tree.state.number == number
    rescale(stopped.tree, "newest", 3, job_folder=folder)
