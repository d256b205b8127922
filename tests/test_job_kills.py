"""Whole jobs whose processes are killed, at random moments and at every named point: no row is lost or comes twice."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.driver.claim import claim_next
from recovery.driver.tree.identity import bear, new_birth
from snapshot import fail_points
from snapshot.host.faults.crash_points import VARIABLE, UnknownCrash, crashing
from snapshot.journal.store import StoredJournal
from snapshot.journal.writer import JournalWriter
from statebackend import fail_points as of_state
from statebackend.stores.local_store import LocalStore
from tests.fault_report import Kind
from tests.job_kills import Trial, carry_out
from tests.jobs.driver import Mode, Settings
from tests.jobs.job import SinkKind
from tests.jobs.running_job import RunningJob

# --- random moments


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "sink", "mode", "parallelism"),
    [
        ("tumbling", "parquet", "unaligned", 2),
        ("sequences", "jsonl", "alignment_timeout", 2),
        ("merges", "driver", "aligned", 3),
    ],
)
def test_a_job_whose_processes_are_killed_at_random_moments_gives_every_row_once(
    tmp_path: Path, job: str, sink: SinkKind, mode: Mode, parallelism: int
) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"), job=job, sink=sink, mode=mode, parallelism=parallelism, every="150ms", standbys=1
    )
    report = carry_out(Trial(settings, kills=3, seed=7, driver_too=sink != "driver"))
    assert report.killed >= 3
    assert report.compared.rows > 1000
    assert report.compared.exact, report.compared.examples


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("job", "parallelism"), [("merges", 3), ("controlled", 2), ("tumbling", 2)])
def test_a_job_in_rounds_whose_processes_are_killed_gives_every_row_once(
    tmp_path: Path, job: str, parallelism: int
) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"), job=job, scheme="rounds", parallelism=parallelism, every="150ms", standbys=1
    )
    report = carry_out(Trial(settings, kills=3, seed=11, driver_too=job == "merges"))
    assert report.killed >= 3
    assert report.compared.rows > 1000
    assert report.compared.exact, report.compared.examples


@pytest.mark.timeout(600)
def test_a_job_that_has_faults_of_all_kinds_at_random_moments_gives_every_row_once(tmp_path: Path) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"), job="merges", mode="unaligned", every="150ms", standbys=1, lost_after="1s"
    )
    report = carry_out(Trial(settings, kills=5, seed=5, driver_too=True, kinds=tuple(Kind), longest=2_500))
    assert report.killed >= 5
    assert len(report.tallies) >= 4
    assert report.compared.rows > 1000
    assert report.compared.exact, report.compared.examples


@pytest.mark.timeout(600)
def test_in_flight_data_of_a_slow_partition_is_processed_once_by_a_job_of_another_parallelism(tmp_path: Path) -> None:
    settings = Settings(
        folder=str(tmp_path / "job"),
        job="skewed",
        sink="parquet",
        mode="unaligned",
        every="150ms",
        rows=16_000,
        rate=1e9,
        batch_rows=64,
        channel_buffer=1 << 20,
        input_buffer=4 << 20,
    )
    with RunningJob(settings) as job:
        for parallelism in (2, 3, 1):
            job.settings = replace(settings, parallelism=parallelism)
            job.start()
            job.wait_for(lambda event: event["event"] == "EpochCompleted" and event["channel_bytes"] != 0)
            job.kill_driver()
        job.start()
        compared = job.finish()
    assert compared.exact, compared.examples


# --- every named point

ELSEWHERE = (of_state.RUN_BEGUN, of_state.SNAPSHOT_COMPLETED, of_state.SNAPSHOTS_REMOVED, of_state.GARBAGE_DELETED)
"""Points of state that is used without a job: `test_state_kills` crashes there."""

IN_PLACE = (fail_points.BEFORE_REWIND, fail_points.REWOUND)
"""Points that those come to whom a failure of another one leaves alive: `test_rollback_in_place` crashes there."""

REWRITING = (of_state.BASE_LINKED, of_state.BASE_WRITTEN, of_state.BASE_UPLOADED)
"""Points that come when much of a large state has changed."""

RETURNING = (
    of_state.RESTORE_DOWNLOADED,
    of_state.RESTORE_FETCHED,
    of_state.RESTORE_OPENED,
    fail_points.DEPLOYED,
    fail_points.JOINED,
    fail_points.RESTORED_TOLD,
    fail_points.IN_FLIGHT_TAKEN_BACK,
)
"""Points that a partition comes to when it takes a role: it is to crash when it has state to go back to."""

ENDING = (fail_points.OUTPUT_ENDED,)
"""Points that come when all input has ended."""

CUTTING = tuple(
    point
    for point in (*of_state.POINTS, *fail_points.PARTITION_POINTS)
    if point not in (*ELSEWHERE, *IN_PLACE, *REWRITING, *RETURNING, *ENDING)
)
"""Points that come with every epoch, or with every few."""


def settings_for(folder: Path, number: int) -> Settings:
    """Programs and sinks take turns, so that points are met by all of them."""
    jobs = ("sequences", "tumbling", "merges", "controlled", "sessions", "running")
    sinks: tuple[SinkKind, ...] = ("jsonl", "parquet")
    return Settings(
        folder=str(folder / "job"),
        job=jobs[number % len(jobs)],
        sink=sinks[number % 2],
        mode="unaligned",
        every="100ms",
        rows=20_000,
        standbys=1,
    )


def crashes_at(folder: Path, points: Sequence[str], count: int) -> tuple[str, list[Path]]:
    """What to ask for, and the files that prove it."""
    proofs = [folder / f"crashed at {point}" for point in points]
    return ";".join(f"{point}:{count}:{proof}" for point, proof in zip(points, proofs, strict=True)), proofs


def groups_of(points: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(points[start : start + size]) for start in range(0, len(points), size)]


def await_crashes(job: RunningJob, proofs: Sequence[Path]) -> None:
    """Wait until the proof of each crash is there."""
    job.wait_for(lambda _: all(proof.exists() for proof in proofs))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "points"), list(enumerate(groups_of(CUTTING, 4))))
def test_a_partition_that_crashes_while_epochs_are_taken_costs_no_row(
    tmp_path: Path, number: int, points: tuple[str, ...]
) -> None:
    asked, proofs = crashes_at(tmp_path, points, 3)
    with RunningJob(settings_for(tmp_path, number), {VARIABLE: asked}) as job:
        job.start()
        await_crashes(job, proofs)
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "points"), list(enumerate(groups_of(RETURNING, 4))))
def test_a_partition_that_crashes_on_its_way_back_costs_no_row(
    tmp_path: Path, number: int, points: tuple[str, ...]
) -> None:
    asked, proofs = crashes_at(tmp_path, points, 1)
    downloads = of_state.RESTORE_DOWNLOADED in points
    # A standby that has the files already would spare the partition its download.
    with RunningJob(replace(settings_for(tmp_path, number), standbys=0 if downloads else 1)) as job:
        job.start()
        job.wait_for_kind("EpochCommitted")
        job.kill_driver()
        job.set_crash(partitions=asked)
        if downloads:
            shutil.rmtree(Path(job.settings.folder) / "local")
        job.start()
        await_crashes(job, proofs)
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
def test_a_partition_that_crashes_while_files_are_rewritten_costs_no_row(tmp_path: Path) -> None:
    asked, proofs = crashes_at(tmp_path, REWRITING, 1)
    settings = replace(settings_for(tmp_path, 0), job="many_keys", rows=400_000, rate=50_000.0)
    with RunningJob(settings, {VARIABLE: asked}) as job:
        job.start()
        await_crashes(job, proofs)
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [1, 2])
def test_a_partition_that_crashes_when_its_output_has_ended_costs_no_row(tmp_path: Path, count: int) -> None:
    asked, proofs = crashes_at(tmp_path, ENDING, count)
    with RunningJob(replace(settings_for(tmp_path, count), rows=6_000), {VARIABLE: asked}) as job:
        job.start()
        job.wait_for_kind("Running")
        compared = job.finish()
    assert proofs[0].exists()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "points"), list(enumerate(groups_of(fail_points.DRIVER_POINTS, 4))))
def test_a_driver_that_crashes_costs_no_row_when_it_is_started_again(
    tmp_path: Path, number: int, points: tuple[str, ...]
) -> None:
    with RunningJob(settings_for(tmp_path, number)) as job:
        for point in points:
            asked, proofs = crashes_at(tmp_path, [point], 2 if point not in ONCE else 1)
            job.set_crash(driver=asked)
            if point == fail_points.ORPHAN_DELETED:
                leave_an_orphan(LocalStore(tmp_path / "job" / "tree"))
            job.start()
            if point == fail_points.BEFORE_LEAVE:
                job.open_gate()
            assert job.await_end() == -signal.SIGKILL
            assert proofs[0].exists()
        job.set_crash()
        job.start()
        compared = job.finish()
    assert compared.exact, compared.examples


def leave_an_orphan(store: LocalStore) -> None:
    """Let an earlier driver have had the job, or the file would say that the journal has lost its claim."""
    bear(store, new_birth("kills", 128), "")
    journal = StoredJournal(store)
    claim_next(journal, JournalWriter(journal.read()), "nobody")
    store.write("shared/1-0-0-1.sst", b"of an attempt that is over")


ONCE = (fail_points.CLAIMED, fail_points.ORPHAN_DELETED, fail_points.BEFORE_LEAVE)
"""Points that a driver comes to once, or perhaps no more often."""


# --- asking for a crash


@pytest.mark.parametrize("asked", ["no such point:1:/tmp/x", "deployed:first:/tmp/x", "deployed:1", "deployed"])
def test_a_crash_that_cannot_be_meant_is_refused(asked: str) -> None:
    with pytest.raises(UnknownCrash, match="expected point:n:file"), crashing({VARIABLE: asked}):
        pass


def test_nothing_is_armed_where_nothing_is_asked_for() -> None:
    with crashing({}):
        fail_points.reached(fail_points.DEPLOYED)


def test_a_crash_that_has_been_does_not_come_again(tmp_path: Path) -> None:
    proof = tmp_path / "crashed"
    proof.touch()
    with crashing({VARIABLE: f"{fail_points.DEPLOYED}:1:{proof}"}):
        fail_points.reached(fail_points.DEPLOYED)


def test_every_point_of_a_job_is_crashed_at_in_one_of_these_tests() -> None:
    covered = (*ELSEWHERE, *IN_PLACE, *REWRITING, *RETURNING, *ENDING, *CUTTING, *fail_points.DRIVER_POINTS)
    assert sorted(covered) == sorted(fail_points.POINTS)
    assert len(set(fail_points.POINTS)) == len(fail_points.POINTS)
