"""A whole simulated job: the real driver and the real partition hosts come to the end, whatever befalls them."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import pytest

from recovery.testing.simulated_job import run, run_job
from recovery.testing.whole.adversary import Act
from snapshot.testing.schedule import Schedule
from snapshot.testing.search import search

SIZE = 90
_DIGESTS = """
import sys
from recovery.testing.simulated_job import run_job
from snapshot.testing.schedule import Schedule
for line in sys.argv[1:]:
    job = run_job(Schedule(bytes.fromhex(line)))
    print(job.world.digest, job.world.turns, len(job.history))
"""


def drawn(seed: int) -> bytes:
    random = Random(seed)
    return random.randbytes(random.randrange(SIZE))


def test_a_job_that_nothing_befalls_comes_to_its_end() -> None:
    job = run_job(Schedule(b""))
    assert job.finished
    assert job.observer.met.epochs >= 1
    assert job.observer.met.shown > 0
    assert job.world.now < 1


def test_the_same_schedule_gives_the_same_history_in_this_process_and_in_others() -> None:
    lines = [drawn(seed).hex() for seed in range(4)]

    def here() -> list[str]:
        jobs = [run_job(Schedule(bytes.fromhex(line))) for line in lines]
        return [f"{job.world.digest} {job.world.turns} {len(job.history)}" for job in jobs]

    def elsewhere(hash_seed: str) -> list[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", _DIGESTS, *lines]
        return subprocess.run(command, env=environment, check=True, text=True, capture_output=True).stdout.splitlines()

    first = here()
    assert here() == first
    assert elsewhere("1") == first
    assert elsewhere("2") == first


@pytest.mark.parametrize("seed", range(4))
def test_no_promise_is_broken_in_any_history(seed: int) -> None:
    found = search(run, histories=50, size=SIZE, seed=seed, shrink=False)
    assert found is None, str(found)


def test_all_that_may_befall_a_job_does() -> None:
    met = {act for seed in range(80) for act in run_job(Schedule(drawn(seed))).met}
    assert met == {act.value for act in Act}
