"""The processes of a job run one Python, and hash texts alike; one that does not is reported, or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import recovery
from recovery.events import PeerRefused, Trouble
from snapshot import Collection, Stream, ToDriver
from snapshot.host.protocol.interpreter import Interpreter, this_interpreter
from snapshot.host.protocol.messages import Deploy, Leave
from statebackend.child_python import environment
from tests.scripted_workers import ScriptedCluster
from tests.test_driver_runs import SECOND, completed, of_kind, start

OTHER_VERSION = replace(this_interpreter(), version="3.9.1")
OTHER_SEED = replace(this_interpreter(), hashed="0" * 16)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


@dataclass(frozen=True, slots=True)
class Agreeing(recovery.Passive):
    """Goes back as that does, and wants processes that compute the same."""

    @property
    def agreeing(self) -> bool:
        return True


def test_interpreters_that_differ_say_how_and_what_to_do() -> None:
    here = this_interpreter()
    assert here.differs_from(this_interpreter()) == ""
    assert OTHER_VERSION.differs_from(here) == (
        f"it runs Python 3.9.1, and other processes of the job run {here.version}: have one version on all hosts"
    )
    assert "set PYTHONHASHSEED=0 for all Python processes" in OTHER_SEED.differs_from(here)


def seen_with(variables: dict[str, str]) -> str:
    code = "from snapshot.host.protocol.interpreter import this_interpreter as one; print(one().hashed)"
    return subprocess.run(
        [sys.executable, "-c", code], env={**environment(), **variables}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_process_with_another_seed_is_told_from_those_that_are_started_with_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert seen_with({}) == seen_with({}) != seen_with({"PYTHONHASHSEED": "7"})


@pytest.mark.parametrize("other", [OTHER_VERSION, OTHER_SEED])
def test_a_process_with_another_python_is_reported_where_processes_need_not_agree(
    tmp_path: Path, cluster: ScriptedCluster, other: Interpreter
) -> None:
    cluster.habits.pythons = {1: other}
    with start(tmp_path, cluster) as run:
        completed(cluster)
    (trouble,) = [event for event in of_kind(run, Trouble) if event.what.startswith("process ")]
    first, second = other, this_interpreter()  # whichever came last is told
    assert trouble.reason in (first.differs_from(second), second.differs_from(first))


def test_a_process_with_another_python_is_refused_where_processes_have_to_agree(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    run = start(tmp_path, cluster, scheme=Agreeing())
    completed(cluster)
    victim = cluster.worker_of(1)
    cluster.habits.pythons = {victim.slot: OTHER_SEED}
    victim.die()
    leave, *_ = cluster.await_heard(Leave)
    assert "hashes texts with another seed" in leave.reason
    cluster.habits.pythons = {}
    cluster.await_heard(Deploy, 2, lambda deploy: deploy.incarnation == SECOND)
    run.stop()
    refused = of_kind(run, PeerRefused)
    assert leave.reason in {event.reason for event in refused}
    odd = [worker for worker in cluster.workers if leave in worker.received]
    assert [message for worker in odd for message in worker.received if isinstance(message, Deploy)] == []


def test_processes_of_this_machine_iterate_over_a_set_in_one_order_whatever_the_driver_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "random")

    def seed(row: object) -> tuple[str]:
        return (f"{os.environ['PYTHONHASHSEED']} {this_interpreter().hashed}",)

    numbers = Stream.read(Collection([(1,), (2,)], {"n": int}, splits=2), uid="numbers")
    program = numbers.map(seed, schema={"seen": str}).write(ToDriver(), uid="out")
    run = recovery.run(program, checkpoints=tmp_path / "tree", local=tmp_path / "local", parallelism=2, progress=False)
    assert {row["seen"] for row in run.rows("out")} == {f"0 {seen_with({'PYTHONHASHSEED': '0'})}"}
    assert [event for event in of_kind(run, Trouble) if event.what.startswith("process ")] == []
