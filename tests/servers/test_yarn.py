"""Jobs on YARN, an executor of which is killed, or the driver itself, which YARN starts again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import recovery
from tests.servers.cluster_job import Jobs
from tests.servers.cluster_story import story_in, story_of
from tests.servers.spark_cluster import ROOT, executor_of
from tests.servers.submitted_job import lost_and_twice
from tests.servers.yarn import Yarn, running_yarn

pytestmark = pytest.mark.timeout(480)

DRIVER = "org.apache.spark.deploy.yarn.ApplicationMaster"
STARTED_AGAIN = {"spark.yarn.maxAppAttempts": "3", "spark.yarn.am.attemptFailuresValidityInterval": "1h"}
PATIENCE = 60.0


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with running_yarn(tmp_path_factory.mktemp("yarn"), nodes=2) as running:
        yield running


def test_a_job_is_exact_on_yarn_though_an_executor_is_killed_and_its_state_is_where_the_next_one_finds_it(
    yarn: Yarn, tmp_path: Path
) -> None:
    jobs = Jobs("yarn", str(tmp_path), parallelisms=(4,), rows=100, settings=tuple(yarn.spark_settings.items()))
    with story_of(jobs, yarn.place) as story:
        job = str(story.wait_for("Claimed")["job"])
        story.wait_for("Running")
        story.wait_for_epochs(3)
        assert len(set(story.executors())) == 2, "all slots are taken, so that a lost one must be replaced"
        assert yarn.state_folders(job), "they are the application's own, which YARN removes at its end"
        os.kill(executor_of(list(story.workers().values())[-1]), signal.SIGKILL)
        story.wait_for("WorkerLost")
        story.wait_for("Running")
        story.check_exact()


def test_yarn_starts_a_killed_driver_again_and_the_job_goes_on_from_its_last_epoch_to_its_end(
    yarn: Yarn, tmp_path: Path
) -> None:
    settings = {**recovery.spark_settings(), **yarn.spark_settings, **STARTED_AGAIN, "spark.executor.instances": "1"}
    submitted = yarn.submit(ROOT / "tests" / "servers" / "submitted_job.py", str(tmp_path), settings=settings)
    with story_in(tmp_path / "events.jsonl", submitted) as story:
        story.wait_for("Running")
        story.wait_for_epochs(3)
        (driver,) = yarn.running(DRIVER)
        os.kill(driver, signal.SIGKILL)  # its Python is gone half a second later
        again = story.wait_for("Claimed")
        told = [event["epoch"] for event in story.events if event["event"] == "EpochCompleted"]
        assert again["generation"] == 2
        assert number(again["restores"]) >= number(told[-1]), "a kill may come before an epoch is told"
        story.wait_for("Finished")
    assert submitted.wait(PATIENCE) == 0, "YARN says that the application has succeeded"
    assert lost_and_twice(tmp_path) == (0, 0)


def number(epoch: object) -> int:
    """None as -1."""
    return -1 if epoch is None else int(str(epoch).partition("-")[0])
