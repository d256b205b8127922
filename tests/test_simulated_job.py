"""No promise is broken in any history that the search finds: of the whole job, and of the journal alone.

How much was explored is printed and asserted; what these searches would find, `test_seeded_errors` shows.
"""

from __future__ import annotations

from collections import Counter

import pytest

from recovery.testing import job, journal_job
from snapshot.testing.schedule import Schedule
from snapshot.testing.search import check
from snapshot.testing.simulation import EXPLORED
from tests.seeded import worlds

HISTORIES, DISTINCT, STEPS = 300, 270, 150_000
"""In CI, where all searches together see many thousand histories; the thorough profile goes 200 times further."""
WAYS_BACK = 120
"""Histories of jobs that go back."""


@pytest.mark.timeout(0)
def test_a_job_keeps_its_promises_whatever_is_delayed_lost_cut_paused_or_killed(sample_factor: int) -> None:
    steps, distinct = EXPLORED.steps, EXPLORED.distinct
    check(job.run, histories=HISTORIES * sample_factor, size=400, seed=1)
    steps, distinct = EXPLORED.steps - steps, EXPLORED.distinct - distinct
    print(f"{steps} steps in {distinct} distinct histories of the whole job")
    assert steps >= STEPS * sample_factor
    assert distinct >= DISTINCT * sample_factor


@pytest.mark.timeout(0)
def test_a_job_that_goes_back_repeats_no_output_that_nobody_has_accepted(sample_factor: int) -> None:
    seen = Counter[str]()

    def run(schedule: Schedule) -> None:
        observer = job.run_going_back(schedule)
        seen["lost a manifest"] += bool(observer.ever_lost)
        seen["asked"] += observer.asked > 0
        seen["asked of removed epochs alone"] += observer.asked_of_removed > 0
        seen["accepted"] += observer.repeated > 0

    check(run, histories=WAYS_BACK * sample_factor, size=400, seed=4)
    print(f"of {WAYS_BACK * sample_factor} histories: {dict(seen)}")
    assert seen["lost a manifest"] >= WAYS_BACK * sample_factor // 8
    assert seen["asked of removed epochs alone"] >= WAYS_BACK * sample_factor // 16
    assert seen["accepted"] >= WAYS_BACK * sample_factor // 32


@pytest.mark.timeout(0)
def test_the_journal_keeps_its_promises_among_late_and_crashing_writers(search_factor: int) -> None:
    check(journal_job.run, histories=1_000 * search_factor, size=250, seed=2)


def test_committers_and_a_receiver_keep_theirs(search_factor: int) -> None:
    check(worlds.run_committers, histories=500 * search_factor, size=60)
    check(worlds.run_receiver, histories=500 * search_factor, size=60)


def test_a_job_that_nothing_befalls_ends_with_every_row_once() -> None:
    observer = job.run(Schedule(b""))
    assert observer.completed
    assert observer.rows


def test_the_same_schedule_gives_the_same_run() -> None:
    schedule = bytes(range(1, 250))
    runs = [job.run(Schedule(schedule)) for _ in range(2)]
    assert runs[0].rows == runs[1].rows
    assert runs[0].completed == runs[1].completed
    assert runs[0].journal == runs[1].journal
