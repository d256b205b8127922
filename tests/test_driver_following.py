"""What a driver tells processes that stand by, one epoch at a time, and what it makes of their answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recovery
from recovery import Passive
from recovery.driver.attempts.standbys import Standbys
from recovery.events import Trouble
from snapshot.host.protocol.messages import Follow, Followed, StandBy
from snapshot.host.protocol.options import Following
from statebackend.ids import Partition, Uid
from tests.scripted_workers import PATIENCE, ScriptedCluster, ScriptedWorker
from tests.test_driver_runs import completed, start

COUNT = Uid("count")


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


def followed(cluster: ScriptedCluster, count: int = 1) -> list[Follow]:
    return cluster.await_heard(Follow, count)


def standby(cluster: ScriptedCluster) -> ScriptedWorker:
    """Who was told to stand by last and is there."""
    return cluster.wait_for(
        lambda: next(
            (
                worker
                for worker in reversed(cluster.workers)
                if worker.there and any(isinstance(message, StandBy) for message in worker.received)
            ),
            None,
        )
    )


def answer(cluster: ScriptedCluster, follow: Follow, problem: str = "") -> None:
    standby(cluster).say(Followed(follow.epoch, None if problem else follow.epoch, problem))


def start_with_standby(folder: Path, cluster: ScriptedCluster, following: str = "files") -> recovery.Run:
    return start(folder, cluster, scheme=Passive(standbys=1, following=following))


def test_a_free_process_is_told_of_the_newest_epoch_once_it_has_answered_and_of_no_other_before(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start_with_standby(tmp_path, cluster)
    (first,) = followed(cluster)
    assert [states for uid, states in first.states.items() if uid == COUNT]
    assert all(len(states) == 2 for states in first.states.values())
    (told,) = cluster.heard(StandBy)
    assert told.how is Following.FILES
    assert told.parallelism == 2
    while (complete := run.status().complete) is None or complete.number < first.epoch.number + 5:
        run._driver.over.wait(0.01)
    assert followed(cluster) == [first]
    answer(cluster, first)
    second = followed(cluster, 2)[1]
    assert second.epoch.number >= first.epoch.number + 5
    assert next(iter(run.status().standbys.values())).has == first.epoch
    run.cancel()


def test_what_hinders_a_standby_is_trouble_once_and_the_next_epoch_is_tried(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start_with_standby(tmp_path, cluster)
    for count in (1, 2, 3):
        answer(cluster, followed(cluster, count)[-1], "the disk is full")
    answer(cluster, followed(cluster, 4)[-1])
    answer(cluster, followed(cluster, 5)[-1], "the disk is full again")
    followed(cluster, 6)
    troubles = [event.reason for event in run.events if isinstance(event, Trouble) and "stands by" in event.what]
    assert troubles == ["CannotFollow: the disk is full", "CannotFollow: the disk is full again"]
    assert run.status().restarts == 0
    run.cancel()


def test_the_process_that_comes_after_one_has_taken_over_is_told_to_stand_by(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start_with_standby(tmp_path, cluster)
    answer(cluster, followed(cluster)[-1])
    first = standby(cluster)
    cluster.worker_of(1).die()
    assert cluster.wait_for(lambda: first.deploy).partition == 1
    cluster.await_heard(StandBy, 2)
    second = standby(cluster)
    assert second is not first
    while first.name in run.status().standbys:
        run._driver.over.wait(0.01)
    run.cancel()


def test_a_process_that_is_to_be_warm_alone_is_told_nothing(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start_with_standby(tmp_path, cluster, "warm")
    run.savepoint(PATIENCE)
    run.savepoint(PATIENCE)
    assert cluster.heard(StandBy) == []
    assert cluster.heard(Follow) == []
    run.cancel()


class Ears:
    """Processes that only hear."""

    def __init__(self, *there: str) -> None:
        self.there = list(there)
        self.heard: list[tuple[str, type]] = []

    def send(self, worker: str, message: object) -> None:
        self.heard.append((worker, type(message)))


def test_who_was_to_leave_stands_by_if_another_process_is_let_go_in_its_place() -> None:
    ears: Any = Ears("left", "other")
    settings: Any = SimpleNamespace(
        scheme=Passive(standbys=1),
        job="",
        pickled_plan=b"",
        parallelism=1,
        options=SimpleNamespace(host=None),
        store="",
        local="",
    )
    nothing: Any = None
    standbys = Standbys(settings, ears, nothing, print)
    standbys.leave_out("left")
    standbys.look({})
    assert ears.heard == [("other", StandBy)]
    ears.there.remove("other")
    standbys.dismissed("other", {})
    assert ears.heard == [("other", StandBy), ("left", StandBy)]


@pytest.fixture
def staggered() -> Iterator[ScriptedCluster]:
    """The process in slot 1 is there first."""
    cluster = ScriptedCluster(first=[1])
    yield cluster
    cluster.stop(0)


def test_who_comes_first_when_a_job_starts_opens_its_partition_while_others_are_still_being_started(
    tmp_path: Path, cluster: ScriptedCluster, staggered: ScriptedCluster
) -> None:
    before = start(tmp_path, cluster)
    epoch = before.stop(savepoint=True, timeout=PATIENCE)
    run = start(tmp_path, staggered)
    (follow,) = followed(staggered)
    (told,) = staggered.heard(StandBy)
    assert (told.how, told.only, told.awaited) == (Following.OPEN, Partition(1), True)
    assert follow.epoch == epoch
    staggered._launch(0)
    assert staggered.worker_of(1).slot == 1
    assert staggered.worker_of(0).slot == 0
    assert (len(staggered.heard(StandBy)), len(followed(staggered))) == (1, 1)
    run.cancel()


def test_who_opened_its_partition_early_is_told_of_no_epoch_that_comes_after_even_if_standbys_are_warm_alone(
    tmp_path: Path, cluster: ScriptedCluster, staggered: ScriptedCluster
) -> None:
    start(tmp_path, cluster).stop(savepoint=True, timeout=PATIENCE)
    staggered.habits.follow = True
    run = start(tmp_path, staggered, scheme=Passive(following="warm"))
    (early,) = followed(staggered)
    staggered._launch(0)
    completed(staggered, 1)
    assert staggered.heard(Follow) == [early]
    run.cancel()


def test_if_there_will_be_more_processes_than_partitions_nobody_is_told_which_one_to_open_before_all_are_there(
    tmp_path: Path, cluster: ScriptedCluster, staggered: ScriptedCluster
) -> None:
    before = start(tmp_path, cluster)
    epoch = before.stop(savepoint=True, timeout=PATIENCE)
    assert epoch is not None
    run = start(tmp_path, staggered, scheme=Passive(standbys=1, following="files"))
    while not (run.status().workers and (run.status().generation or 0) > epoch.generation):
        run._driver.over.wait(0.01)
    for slot in (0, 2):
        staggered._launch(slot)
    assert [told.only for told in staggered.await_heard(StandBy)] == [None]
    run.cancel()
