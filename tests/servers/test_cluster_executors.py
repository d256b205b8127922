"""Executors of a Spark cluster: partitions spread over those that come, and each has a process ready to be forked."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.servers.cluster_job import Jobs
from tests.servers.cluster_story import story_of
from tests.servers.spark_cluster import Place, descendants, running_cluster

pytestmark = pytest.mark.timeout(480)

HERE = Place()
MANY = 20_000
"""Rows, of a job that has more than enough of them."""


def test_partitions_move_apart_when_another_executor_comes_and_a_kill_then_costs_one_of_them(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3, HERE, (HERE,)) as cluster:
        jobs = Jobs(cluster.master, str(tmp_path), rows=MANY)
        with story_of(jobs, HERE) as story:
            story.wait_for("Running")
            assert len(set(story.executors())) == 1
            cluster.start_worker(HERE, "worker-1")
            moved = story.wait_for("Moved")
            assert len(set(story.executors())) == 2
            story.wait_for("EpochCompleted")
            os.kill(pid_in(str(moved["executor"])), signal.SIGKILL)
            restored = [story.wait_for("PartitionRestored") for _ in range(2)]
            assert sorted((one["partition"], one["in_place"]) for one in restored) == [(0, True), (1, False)]
            assert set(story.executors()) == {moved["left"]}
            story.wait_for("Recovered")
            story.wait_for_epochs(2)
            story.interrupt()
            story.check_exact()


def pid_in(executor: str) -> int:
    return int(executor.rpartition(":")[2])


def test_executors_that_have_no_partition_have_a_python_ready_to_be_forked(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2, HERE, (HERE, HERE)) as cluster:
        jobs = Jobs(cluster.master, str(tmp_path), parallelisms=(1,), rows=400)
        with story_of(jobs, HERE) as story:
            story.wait_for("Running")
            while not all(has_python(executor) for executor in cluster.executors):
                story.wait_for("EpochCompleted")
            assert len(cluster.executors) == 2


def has_python(executor: int) -> bool:
    return any(b"spark_daemon" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(executor))
