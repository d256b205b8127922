"""A whole simulated job: the real driver and the real partition hosts come to the end, whatever befalls them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from recovery.testing.simulated_job import run, run_job
from recovery.testing.whole.adversary import Act
from snapshot.host.partition.sink_run import SinkRun
from snapshot.testing.schedule import Schedule
from snapshot.testing.search import check, search
from snapshot.testing.simulation import EXPLORED

SIZE = 110
SEEDS, HISTORIES = 8, 260
"""Searches, and histories of each."""
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


def test_processes_that_crash_leave_no_file_open_when_the_history_is_over() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    crashes = sum(run_job(Schedule(drawn(seed))).met[Act.CRASH_AT.value] for seed in range(12))
    assert crashes > 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


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


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_keeps_its_promises_whatever_befalls_it(seed: int, search_factor: int) -> None:
    steps, distinct, met = EXPLORED.steps, EXPLORED.distinct, EXPLORED.met.copy()
    check(run, histories=HISTORIES * search_factor, size=SIZE, seed=seed)
    steps, distinct = EXPLORED.steps - steps, EXPLORED.distinct - distinct
    acts = EXPLORED.met - met
    print(
        f"{steps} turns of threads in {distinct} distinct histories of the whole job, with {acts.total()} acts: {acts}"
    )
    assert distinct >= HISTORIES * search_factor * 9 // 10
    assert acts.keys() == {act.value for act in Act}


def test_a_broken_promise_is_shrunk_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkRun, "completed", lambda *_: None)
    found = search(run, histories=3, size=10)
    assert found is not None
    assert "never committed" in str(found) or "does not come to its end" in str(found)
    assert f"replay(run, '{found.schedule.hex()}')" in str(found)
    assert "worker1 sent Hello to driver1" in found.text()
    assert len(found.schedule) <= 10
