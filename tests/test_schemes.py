"""Schemes: they place roles, and say what a loss means; the driver does what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recovery.decisions.restarts import Cause
from recovery.events import AttemptFailed, EpochCompleted, PeerRefused, WorkerLost
from recovery.schemes.passive import Passive, PassiveRun
from recovery.schemes.placing import place
from recovery.schemes.scheme import Broken, Masked, Processes, TriggerPlan
from snapshot.cut.pauses import Then
from snapshot.host.protocol.messages import Address, Deploy, Hello, Refusal, TriggerEpoch
from snapshot.ids import Member, Replica
from statebackend.ids import Epoch, Generation, Partition
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.test_driver_runs import SECOND, of_kind, start


def members(parallelism: int, replicas: int = 1) -> list[Member]:
    return [Member(Partition(p), Replica(r)) for p in range(parallelism) for r in range(replicas)]


ZERO, ONE = members(2)


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def there(*slots: int) -> dict[str, Hello]:
    return {f"w{slot}": Hello(f"w{slot}", Address("h", slot), slot, slot) for slot in slots}


def on_executors(**executors: str) -> dict[str, Hello]:
    """Processes in the slots 0, 1 ... on these executors."""
    return {
        worker: Hello(worker, Address("h", slot), slot, slot, executor=executor)
        for slot, (worker, executor) in enumerate(executors.items())
    }


def placed(parallelism: int, processes: Processes) -> list[str] | None:
    found = place(members(parallelism), processes)
    return None if found is None else list(found.values())


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.002)


# --- who gets which role


def test_nobody_is_placed_while_there_are_too_few() -> None:
    assert placed(3, Processes(there(0, 1))) is None


def test_at_first_everybody_gets_the_partition_of_its_slot() -> None:
    assert placed(3, Processes(there(2, 0, 1))) == ["w0", "w1", "w2"]


def test_survivors_keep_their_partitions_and_the_task_in_the_same_slot_gets_the_lost_one() -> None:
    new = there(0, 5) | {"new": Hello("new", Address("h", 9), 9, 1)}
    zero, one, two = members(3)
    assert placed(3, Processes(new, {"w0": two, "gone": zero}, {zero: 1, one: 4, two: 0})) == ["new", "w5", "w0"]


def test_at_a_lower_parallelism_nobody_keeps_a_partition_that_is_gone() -> None:
    assert placed(2, Processes(there(0, 1), {"w1": Member(Partition(4)), "w0": ZERO})) == ["w0", "w1"]


def test_a_lost_partition_goes_to_whoever_has_followed_furthest_whatever_its_slot() -> None:
    before, slots = {"w0": ZERO}, {ZERO: 0, ONE: 1}
    ready = {"w2": epoch(4), "w3": epoch(5)}
    assert placed(2, Processes(there(0, 1, 2, 3), before, slots, ready)) == ["w0", "w3"]
    assert placed(2, Processes(there(0, 1, 2), before, slots, {"w1": epoch(4), "w2": epoch(4)})) == ["w0", "w1"]


def test_a_process_that_follows_another_partition_alone_is_no_nearer_to_a_state() -> None:
    before, ready = {"w0": ZERO}, {"w2": epoch(5)}
    assert placed(2, Processes(there(0, 1, 2), before, {ONE: 1}, ready, {"w2": Partition(0)})) == ["w0", "w1"]


def test_partitions_go_to_as_many_executors_as_there_are() -> None:
    assert placed(2, Processes(on_executors(w0="a", w1="a", w2="b"))) == ["w0", "w2"]
    there = on_executors(w0="a", w1="a", w2="a", w3="b", w4="b", w5="c")
    found = placed(4, Processes(there))
    assert found is not None
    assert sorted(there[worker].executor for worker in found) in (["a", "a", "b", "c"], ["a", "b", "b", "c"])


def test_a_lost_partition_goes_to_an_executor_without_one_if_none_is_nearer_to_its_state() -> None:
    there = on_executors(w0="a", w1="a", w2="b")
    before, slots = {"w0": ZERO}, {ZERO: 0, ONE: 1}
    assert placed(2, Processes(there, before, slots)) == ["w0", "w2"]
    assert placed(2, Processes(there, before, slots, {"w1": epoch(4)})) == ["w0", "w1"]
    assert placed(2, Processes(there, before, slots, {"w1": epoch(4), "w2": epoch(4)})) == ["w0", "w2"]


def test_members_of_one_partition_do_not_die_together_where_there_are_executors_enough() -> None:
    there = on_executors(w0="a", w1="a", w2="b", w3="b")
    found = place(members(2, replicas=2), Processes(there))
    assert found is not None
    for partition in range(2):
        executors = {there[worker].executor for member, worker in found.items() if member.partition == partition}
        assert executors == {"a", "b"}


# --- what the driver asks


@dataclass(frozen=True)
class Odd(Passive):
    """Goes on without the second partition, in the first process, and triggers it alone: no real scheme does that."""

    def begin(self, parallelism: int) -> OddRun:
        return OddRun(parallelism)


class OddRun(PassiveRun):
    def lost(self, member: Member, cause: Cause) -> Any:
        return Masked() if member == ONE else Broken()

    def stands_for(self, member: Member) -> bool:
        return member == ONE

    def place(self, processes: Processes) -> Mapping[Member, str] | None:
        usual = super().place(processes)
        return usual and dict(zip(usual, reversed(list(usual.values())), strict=True))

    def trigger(self) -> TriggerPlan:
        return TriggerPlan((ONE,), then=Then.PAUSE)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


def test_roles_are_where_the_scheme_places_them(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster, scheme=Odd())
    cluster.await_heard(Deploy, 2)
    assert {worker.slot: worker.deploy.member for worker in cluster.workers if worker.deploy} == {0: ONE, 1: ZERO}
    run.cancel()


def test_an_epoch_is_triggered_where_and_how_the_scheme_says(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster, scheme=Odd())
    (trigger,) = cluster.await_heard(TriggerEpoch)
    assert trigger.then is Then.PAUSE
    assert any(isinstance(message, TriggerEpoch) for message in cluster.worker_of(1).received)
    run.cancel()


def test_what_a_member_says_of_an_epoch_counts_if_it_stands_for_its_partition(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=Odd())
    (trigger,) = cluster.await_heard(TriggerEpoch)
    one, other = cluster.worker_of(0), cluster.worker_of(1)
    one.acknowledge(trigger.marker.epoch)
    for worker in (one, other):  # each is heard in the order in which it speaks
        worker.say(Refusal("a stranger", worker.name))
    until(lambda: len(of_kind(run, PeerRefused)) == 2)
    assert not of_kind(run, EpochCompleted), "the first partition has no say"
    run.cancel()


def test_a_loss_that_the_scheme_masks_breaks_no_attempt(tmp_path: Path, cluster: ScriptedCluster) -> None:
    run = start(tmp_path, cluster, scheme=Odd())
    cluster.await_heard(TriggerEpoch)
    masked, broken = cluster.worker_of(1), cluster.worker_of(0)
    masked.die()
    until(lambda: bool(of_kind(run, WorkerLost)))
    broken.die()
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    assert [failed.partition for failed in of_kind(run, AttemptFailed)] == [0]
    run.cancel()


def test_every_loss_breaks_the_attempt_of_a_passive_job() -> None:
    decisions = Passive().begin(2)
    assert {decisions.lost(member, cause) for member in (ZERO, ONE) for cause in Cause} == {Broken()}
    assert decisions.trigger() == TriggerPlan((ZERO, ONE), Then.READ_ON)
    assert Passive(standbys=3).processes(2) == 5
