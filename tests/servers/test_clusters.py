"""Jobs on Spark clusters, an executor of which is killed, and on hosts between which the network is cut."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.servers.cluster_job import Jobs
from tests.servers.cluster_story import Story, story_of
from tests.servers.network import Network, no_namespaces, running_network
from tests.servers.spark_cluster import Place, executor_of, running_cluster

pytestmark = [pytest.mark.servers, pytest.mark.timeout(480)]

HERE = Place()
CUT = 10.0
"""Seconds for which a network is cut."""


def kill_an_executor(story: Story) -> int:
    """The one with the newest of the processes that are there."""
    executor = executor_of(list(story.workers().values())[-1])
    os.kill(executor, signal.SIGKILL)
    return executor


def test_a_job_is_exact_on_a_standalone_cluster_though_an_executor_is_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 6, HERE, (HERE, HERE)) as cluster:
        jobs = Jobs(cluster.master, str(tmp_path), parallelisms=(8,))
        with story_of(jobs, HERE) as story:
            story.wait_for("Running")
            story.wait_for_epochs(3)
            assert len(story.workers()) == 8
            kill_an_executor(story)
            story.wait_for("Running")
            story.check_exact()


@pytest.mark.skipif(bool(no_namespaces()), reason=no_namespaces())
def test_a_job_of_two_hosts_goes_on_when_the_network_between_them_is_cut_and_healed(tmp_path: Path) -> None:
    with running_network(hosts=2) as network, running_cluster(tmp_path, 3, network.centre, network.hosts) as cluster:
        jobs = Jobs(cluster.master, str(tmp_path), host=network.centre.address, parallelisms=(4,), rows=400)
        with story_of(jobs, network.centre) as story:
            story.wait_for("Running")
            story.wait_for_epochs(3)
            assert len(addresses(story)) == 2, "partitions are on both hosts"
            cut_and_heal(network, story)
            story.check_exact()


def addresses(story: Story) -> set[str]:
    joined = [event for event in story.events if event["event"] == "WorkerJoined"]
    return {str(event["address"]).partition(":")[0] for event in joined}


def cut_and_heal(network: Network, story: Story) -> None:
    """For ten seconds nothing gets through, and nobody is told; who is behind the cut goes on, and is refused then."""
    network.cut(1)
    healing = threading.Timer(CUT, network.heal, [1])
    healing.start()
    story.wait_for("WorkerLost")
    healing.join()
    story.wait_for("Running")
