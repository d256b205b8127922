"""Jobs on Spark clusters, an executor of which is killed, and on hosts between which the network is slow and is cut."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.servers.cluster_job import Jobs
from tests.servers.cluster_story import Event, Story, story_of
from tests.servers.network import Network, no_namespaces, running_network
from tests.servers.spark_cluster import Place, executor_of, running_cluster

pytestmark = pytest.mark.timeout(480)

HERE = Place()
CUT = 10.0
"""Seconds for which a network is cut."""
MANY = 20_000
"""Rows, of a job that has more than enough of them."""


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
def test_a_job_of_two_hosts_with_slow_links_loses_nobody_to_delay_and_recovers_from_a_kill_and_from_a_cut(
    tmp_path: Path,
) -> None:
    with running_network(hosts=2) as network, running_cluster(tmp_path, 2, network.centre, network.hosts) as cluster:
        for host in range(2):
            network.delay(host, "40ms")
            assert network.round_trip(host) >= 0.08
        jobs = Jobs(cluster.master, str(tmp_path), host=network.centre.address, parallelisms=(4,), rows=MANY)
        with story_of(jobs, network.centre) as story:
            story.wait_for("Running")
            story.wait_for_epochs(3)
            assert len(addresses(story)) == 2, "partitions are on both hosts"
            network.delay(1, "150ms", jitter="50ms")
            assert network.round_trip(1) >= 0.3
            story.wait_for_epochs(5)
            network.delay(1, "20ms")
            story.wait_for_epochs(5)
            assert failures(story) == [], "a link that is slow, or becomes slower or quicker, is none"
            os.kill(list(story.workers().values())[-1], signal.SIGKILL)
            story.wait_for("WorkerLost")
            story.wait_for("Running")
            story.wait_for_epochs(1)
            cut_and_heal(network, story)
            story.wait_for_epochs(2)
            story.interrupt()
            story.check_exact()


def failures(story: Story) -> list[Event]:
    """What the job has taken for one; a sign of life that cannot get through shows as a peer that hung up."""
    kinds = ("WorkerLost", "AttemptFailed", "EpochAbandoned", "PeerRefused")
    return [event for event in story.events if event["event"] in kinds]


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
