"""A driver moves partitions that are crowded on one executor, without that being a failure of anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import recovery
from recovery import Passive
from recovery.driver.attempts import moves
from recovery.driver.attempts.deployment import Deployment
from recovery.events import Moved, WorkerLost
from snapshot.host.protocol.messages import Deploy, EpochIsOver, Follow, Followed, Leave, StandBy
from snapshot.host.protocol.options import Following
from statebackend.ids import Epoch, Partition
from statebackend.stores.local_store import LocalStore
from tests.scripted_workers import PATIENCE, ScriptedCluster, ScriptedWorker
from tests.test_driver_mishaps import heard
from tests.test_driver_runs import SECOND, of_kind, start

SCOUTS = 100


class Executors(ScriptedCluster):
    """Processes that share the executors "a" and "b": those that the job starts with are on "a", unless `places` says
    of a slot that its next process is not.
    """

    def __init__(self, scouts: str) -> None:
        super().__init__(follow=True)
        self.rooms = scouts
        self.looks = 0
        self.slots: set[int] = set()
        self.kept: dict[int, str] = {}
        self.places: dict[int, str] = {}
        self.recalled = 0

    def scout(self, tasks: int, over: Callable[[], object]) -> None:
        self.looks += 1
        assert tasks == 2
        for room in self.rooms:
            self._launch(SCOUTS + self.looks, SCOUTS + self.looks, room)
        if not self.rooms:
            over()

    def appeared(self, launch: int, worker: str) -> bool:
        return launch not in self.kept

    def is_scout(self, launch: int) -> bool:
        return launch >= SCOUTS and launch not in self.kept

    def keep(self, launch: int, worker: str) -> None:
        self.kept[launch] = worker
        self.slots.add(launch)

    def recall(self) -> None:
        self.recalled += 1

    def retire(self, slot: int) -> None:
        self.slots.discard(slot)

    def gone(self, worker: ScriptedWorker) -> None:
        if worker.slot in self.slots and (worker.slot < SCOUTS or worker.name in self.kept.values()):
            super().gone(worker)

    def _launch(self, slot: int, launch: int = 0, executor: str = "") -> None:
        if slot < SCOUTS:
            self.slots.add(slot)
        super()._launch(slot, launch, executor or self.places.get(slot, "a"))

    def on(self, executor: str, kind: type) -> list[ScriptedWorker]:
        """Who is on an executor and has heard of such a thing."""
        return [
            worker
            for worker in self.workers
            if worker.executor == executor and any(isinstance(message, kind) for message in worker.received)
        ]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "FIRST_CALM", 0.05)
    monkeypatch.setattr(moves, "CALM", 0.05)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Executors]:
    cluster = Executors(getattr(request, "param", "ab"))
    yield cluster
    cluster.stop(0)


def until(run: recovery.Run, so: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE / 0.01)):
        if so():
            return
        run._driver.over.wait(0.01)
    raise AssertionError(run.events[-10:])


def test_a_partition_moves_to_an_executor_with_room_and_nothing_has_failed(tmp_path: Path, cluster: Executors) -> None:
    run = start(tmp_path, cluster)
    until(run, lambda: bool(of_kind(run, Moved)) and len(run.status().workers) == 2)
    (moved,) = of_kind(run, Moved)
    (there,) = cluster.wait_for(lambda: cluster.on("b", Deploy) or None)
    assert (moved.partition, moved.worker, moved.executor, moved.left) == (1, there.name, "b", "a")
    status = run.status()
    assert (status.restarts, status.recoveries, status.failure) == (0, (), "")
    assert sorted(status.executors.values()) == ["a", "b"]
    first, second = (deploy for deploy in cluster.heard(Deploy) if deploy.partition == 1)
    assert (first.epoch, second.epoch) == (None, moved.epoch)
    assert isinstance(moved.epoch, Epoch)
    cluster.await_heard(Leave, 2)
    assert len(cluster.on("a", Leave)) == 2, "a scout that was not needed, and whoever had the partition before"
    assert cluster.slots == {0, SCOUTS + 1}
    assert cluster.looks == 1
    run.cancel()


def test_it_moves_when_the_newest_epoch_is_open_there(tmp_path: Path, cluster: Executors) -> None:
    run = start(tmp_path, cluster)
    until(run, lambda: bool(of_kind(run, Moved)))
    (there,) = cluster.wait_for(lambda: cluster.on("b", Deploy) or None)
    (stand_by,) = [message for message in there.received if isinstance(message, StandBy)]
    assert (stand_by.how, stand_by.only) == (Following.OPEN, Partition(1))
    followed = [message.epoch for message in there.received if isinstance(message, Follow)]
    assert there.deploy is not None
    assert there.deploy.epoch in followed
    run.cancel()


@pytest.mark.parametrize("cluster", ["a", ""], indirect=True)
def test_where_there_is_no_other_executor_nothing_moves(tmp_path: Path, cluster: Executors) -> None:
    run = start(tmp_path, cluster)
    until(run, lambda: cluster.looks == 1)
    run.savepoint(PATIENCE)
    run.savepoint(PATIENCE)
    assert len(cluster.heard(Deploy)) == 2
    assert cluster.heard(StandBy) == []
    assert cluster.slots == {0, 1}
    run.cancel()


def test_who_does_not_want_moves_gets_none(tmp_path: Path, cluster: Executors) -> None:
    run = start(tmp_path, cluster, scheme=Passive(spread=False))
    for _ in range(3):
        run.savepoint(PATIENCE)
    assert cluster.looks == 0
    run.cancel()


@pytest.mark.parametrize("cluster", [""], indirect=True)
def test_a_process_that_stands_by_elsewhere_takes_the_partition_and_whoever_had_it_stands_by(
    tmp_path: Path, cluster: Executors
) -> None:
    run = start(tmp_path, cluster, scheme=Passive(standbys=1, following="files"))
    cluster.await_heard(Follow)
    status = run.status()
    standby = next(worker for worker in cluster.workers if status.workers.get(worker.name, 0) is None)
    cluster.places[standby.slot] = "b"
    standby.die()
    until(run, lambda: bool(of_kind(run, Moved)))
    (there,) = cluster.wait_for(lambda: cluster.on("b", Deploy) or None)
    assert there.slot == standby.slot
    had = next(
        worker for worker in cluster.workers if worker.name in status.workers and status.workers[worker.name] == 1
    )
    (said,) = cluster.wait_for(lambda: [told for told in had.received if isinstance(told, StandBy)] or None)
    assert (said.how, said.only) == (Following.FILES, None)
    assert cluster.slots == {0, 1, 2}
    assert run.status().restarts == 0
    run.cancel()


def test_a_failure_while_a_move_is_prepared_is_one_failure_and_no_process_is_left_over(
    tmp_path: Path, cluster: Executors
) -> None:
    cluster.habits.follow = False
    run = start(tmp_path, cluster)
    until(run, lambda: bool(cluster.on("b", StandBy)))
    cluster.worker_of(0).die()
    until(run, lambda: run.status().restarts == 1 and len(run.status().workers) == 2 and len(cluster.slots) == 2)
    cluster.habits.follow = True
    assert of_kind(run, Moved) == []
    let_go = [event for event in of_kind(run, WorkerLost) if "let go" in event.reason]
    assert len(let_go) == 1
    run.cancel()


def test_a_partition_whose_new_process_dies_on_the_way_has_not_moved(
    tmp_path: Path, cluster: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, begun, answers, handed_over = (threading.Event() for _ in range(4))
    write, hand_over = LocalStore.write, Deployment.hand_over

    def write_slowly(store: LocalStore, path: str, data: bytes) -> None:
        if slow.is_set() and path.startswith("epochs/"):
            begun.set()
            assert answers.wait(PATIENCE)
        write(store, path, data)

    def and_say_so(deployment: Deployment, partition: Partition, worker: str) -> None:
        hand_over(deployment, partition, worker)
        handed_over.set()

    monkeypatch.setattr(LocalStore, "write", write_slowly)
    monkeypatch.setattr(Deployment, "hand_over", and_say_so)
    cluster.habits.follow = False
    run = start(tmp_path, cluster)
    until(run, lambda: bool(cluster.on("b", Follow)))
    (there,) = cluster.on("b", Follow)
    slow.set()
    assert begun.wait(PATIENCE)
    cluster.habits.follow = True
    (told,) = (message for message in there.received if isinstance(message, Follow))
    there.say(Followed(told.epoch, told.epoch))
    assert handed_over.wait(PATIENCE)
    lost = heard(run, lambda event: isinstance(event, WorkerLost) and event.worker == there.name)
    there.die()
    assert lost.wait(PATIENCE)
    answers.set()
    cluster.await_heard(EpochIsOver, 2, lambda over: over.incarnation == SECOND and over.complete)
    assert of_kind(run, Moved) == []
    run.cancel()
