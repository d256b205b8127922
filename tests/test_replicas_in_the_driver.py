"""A driver whose partitions have two members, that only speak: when a loss is masked, and when all roll back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import recovery
from recovery.events import AnyEvent, NotJoined, PeerRefused, ReplicaLost, Trouble
from snapshot import Stream, ToDriver
from snapshot.cut.pauses import Then
from snapshot.host.protocol.messages import (
    AssignSplits,
    Deploy,
    EpochIsOver,
    Failed,
    FailureKind,
    Join,
    Reached,
    Refusal,
    StandBy,
    StandDown,
    StandsAt,
    Suspects,
    TriggerEpoch,
    WantsSplit,
)
from snapshot.ids import ONLY, Replica
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition
from tests.program_parts import Nothing
from tests.scripted_workers import OUT, PATIENCE, SOURCE, ScriptedCluster, ScriptedWorker
from tests.test_driver_runs import NUMBERS, completed, start

FIRST = Incarnation(Generation(1), Attempt(1))
HERE, OTHER = Partition(0), Replica(1)
IN_REPLICAS = recovery.Active(replicas=2)


class ThreeSplits(Nothing):
    """A source of no rows that has splits."""

    def discover(self, parallelism: int) -> Sequence[str]:
        return ["a", "b", "c"]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster(output=False)
    yield cluster
    cluster.stop(0)


def member(cluster: ScriptedCluster, replica: Replica) -> ScriptedWorker:
    """Return the process of the first partition's replica."""

    def found() -> ScriptedWorker | None:
        for worker in cluster.workers:
            role = worker.deploy
            if worker.there and role is not None and role.partition == HERE and role.member.replica == replica:
                return worker
        return None

    return cluster.wait_for(found)


def await_event(run: recovery.Run, kind: type[AnyEvent], count: int = 1) -> None:
    told = threading.Event()

    def heard(_: AnyEvent | None = None) -> None:
        if sum(isinstance(event, kind) for event in run.events) >= count:
            told.set()

    run.listen(heard)
    heard()
    assert told.wait(PATIENCE)


def await_attempt(cluster: ScriptedCluster, attempt: int) -> None:
    cluster.await_heard(Deploy, where=lambda role: role.incarnation.attempt == attempt)


OF_OTHER = Suspects(FIRST, HERE, 1, by=ONLY, of=OTHER, reason="the connection broke")


def test_what_a_dropped_member_says_of_its_own_failure_breaks_nothing(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster, scheme=IN_REPLICAS, parallelism=1)
    completed(cluster)
    dropped = member(cluster, OTHER)
    member(cluster, ONLY).say(OF_OTHER)
    cluster.wait_for(lambda: any(isinstance(said, StandDown) for said in dropped.received) or None)
    dropped.say(Failed(FIRST, HERE, FailureKind.CHANNEL, "a channel broke"))
    dropped.say(Refusal("a stranger", "this word is behind that of the failure"))
    await_event(run, PeerRefused)
    newest = max(said.epoch.number for said in cluster.heard(EpochIsOver))
    cluster.await_heard(EpochIsOver, where=lambda said: said.complete and said.epoch.number > newest + 2)
    assert {role.incarnation for role in cluster.heard(Deploy)} == {FIRST}
    run.cancel()


def test_a_member_that_cannot_reach_another_one_while_all_are_restored_breaks_the_attempt(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    cluster.habits.restore = False
    run = start(tmp_path, cluster, scheme=IN_REPLICAS, parallelism=1)
    await_attempt(cluster, 1)
    cluster.habits.restore = True
    member(cluster, ONLY).say(OF_OTHER)
    await_attempt(cluster, 2)
    completed(cluster)
    run.cancel()


def test_the_loss_of_a_primary_while_output_of_other_partitions_is_committed_rolls_back(tmp_path: Path) -> None:
    first = ScriptedCluster(commit=False)
    run = start(tmp_path, first)
    completed(first)
    run.cancel()
    second = ScriptedCluster(commit=False)
    run = start(tmp_path, second, scheme=IN_REPLICAS, parallelism=3)
    await_event(run, Trouble)
    member(second, ONLY).die()
    await_attempt(second, 2)
    run.cancel()


def test_members_that_read_at_different_speeds_are_given_splits_until_there_are_no_more(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    program = Stream.read(ThreeSplits(NUMBERS, on_demand=True), uid=SOURCE).write(ToDriver(), uid=OUT)
    run = start(tmp_path, cluster, program, scheme=IN_REPLICAS, parallelism=1)
    completed(cluster)
    quick, slow = member(cluster, ONLY), member(cluster, OTHER)
    quick.say(WantsSplit(FIRST, HERE, SOURCE, heard=0))
    cluster.await_heard(AssignSplits, 2)
    slow.say(WantsSplit(FIRST, HERE, SOURCE, heard=0))
    quick.say(WantsSplit(FIRST, HERE, SOURCE, heard=1))
    cluster.await_heard(AssignSplits, 4)
    slow.say(WantsSplit(FIRST, HERE, SOURCE, heard=2))
    cluster.await_heard(AssignSplits, 6)
    for worker in (quick, slow):
        assert [said.splits for said in worker.received if isinstance(said, AssignSplits)] == [("a",), ("b",), ("c",)]
    run.cancel()


def joiner(cluster: ScriptedCluster, but: str = "") -> ScriptedWorker:
    """Return a process that was asked to join, another one than this."""

    def found() -> ScriptedWorker | None:
        asked = (worker for worker in cluster.workers if worker.name != but and worker.deploy is not None)
        return next((worker for worker in asked if worker.deploy is not None and worker.deploy.joins), None)

    return cluster.wait_for(found)


def test_a_process_that_cannot_load_the_program_does_not_join_and_another_one_is_tried_at_once(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    scheme = recovery.Active(replicas=2, fallback=recovery.Passive(standbys=1))
    run = start(tmp_path, cluster, scheme=scheme, parallelism=1)
    completed(cluster)
    member(cluster, OTHER).die()
    unfit = joiner(cluster)
    unfit.say(Failed(FIRST, HERE, FailureKind.UNUSABLE, "no module named words"))
    await_event(run, NotJoined)
    (given_up,) = (event for event in run.events if isinstance(event, NotJoined))
    assert "no module named words" in given_up.reason
    assert joiner(cluster, but=unfit.name).there
    assert {role.incarnation for role in cluster.heard(Deploy)} == {FIRST}, "nothing rolls back"
    run.cancel()


def test_a_member_that_is_connected_while_the_job_stops_asks_for_no_epoch_behind_the_last_one(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=IN_REPLICAS, parallelism=1)
    completed(cluster)
    member(cluster, OTHER).die()
    joins, primary = joiner(cluster), member(cluster, ONLY)
    cluster.habits.acknowledge = False
    stopping = threading.Thread(target=run.stop)
    stopping.start()
    last = cluster.await_heard(TriggerEpoch, where=lambda trigger: trigger.then is Then.STOP)[-1]
    assert joins.deploy is not None
    for worker in (primary, joins):
        worker.say(Reached(FIRST, joins.deploy.member))
    await_event(run, NotJoined)
    primary.acknowledge(last.marker.epoch)
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert [said for said in primary.received if isinstance(said, TriggerEpoch)][-1] == last
    (given_up,) = (event for event in run.events if isinstance(event, NotJoined))
    assert "about to end" in given_up.reason


def test_a_member_that_is_on_its_way_is_not_counted_among_those_that_are_left(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=recovery.Active(replicas=3), parallelism=1)
    completed(cluster)
    cluster.habits.acknowledge = False
    member(cluster, Replica(2)).die()
    joins = joiner(cluster)
    assert joins.deploy is not None
    for worker in (member(cluster, ONLY), member(cluster, OTHER), joins):
        worker.say(Reached(FIRST, joins.deploy.member))
    cluster.await_heard(TriggerEpoch, where=lambda trigger: trigger.marker.admits)
    member(cluster, OTHER).die()
    await_event(run, ReplicaLost, 2)
    assert [event.left for event in run.events if isinstance(event, ReplicaLost)] == [2, 1]
    run.cancel()


def test_a_process_that_was_dropped_or_has_not_joined_stands_by_again(tmp_path: Path, cluster: ScriptedCluster) -> None:
    fallback = recovery.Passive(standbys=1, following="files")
    run = start(tmp_path, cluster, scheme=recovery.Active(replicas=2, fallback=fallback), parallelism=1)
    completed(cluster)
    dropped = member(cluster, OTHER)
    member(cluster, ONLY).say(OF_OTHER)
    unfit = joiner(cluster)
    unfit.say(Failed(FIRST, HERE, FailureKind.UNUSABLE, "no module named words"))
    for worker in (dropped, unfit):
        cluster.wait_for(lambda of=worker: told_to_stand_by(of) or None)  # type: ignore[misc]
    run.cancel()


def told_to_stand_by(worker: ScriptedWorker) -> bool:
    """True if it was told so after it was told to do nothing more."""
    kinds = [type(said) for said in worker.received]
    return StandDown in kinds and StandBy in kinds[kinds.index(StandDown) :]


def test_a_member_goes_on_from_the_epoch_behind_whose_marker_it_was_let_in(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=IN_REPLICAS, parallelism=1)
    completed(cluster)
    cluster.habits.acknowledge = False
    member(cluster, OTHER).die()
    joins, primary = joiner(cluster), member(cluster, ONLY)
    assert joins.deploy is not None
    for worker in (primary, joins):
        worker.say(Reached(FIRST, joins.deploy.member))
    (trigger,) = cluster.await_heard(TriggerEpoch, where=lambda trigger: trigger.marker.admits)
    epoch = trigger.marker.epoch
    before = Epoch(epoch.generation, epoch.number - 1)
    for place, cut in enumerate((epoch, before)):  # the second is of a join that was given up
        primary.say(StandsAt(FIRST, HERE, cut, place, {}))
    primary.acknowledge(epoch)
    (join,) = cluster.await_heard(Join)
    assert (join.epoch, join.place) == (epoch, 0)
    run.cancel()
