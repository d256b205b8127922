"""Files of the newest epoch that are flipped or missing: the job goes back by itself only where that repeats no output.

Missing ones are noticed by the start, flipped ones by the partition that reads them: what follows is the same.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import recovery
from recovery.driver import claimed
from recovery.driver.claim import StartRefused
from recovery.driver.tree.damage import faults_of, files_in_doubt
from recovery.events import AttemptFailed, Claimed
from recovery.offline.job_tree import NEWEST, NEWEST_SAVEPOINT
from snapshot import ProcessContext
from snapshot.operators.row_class import Row
from snapshot.tree.manifest import Manifest
from statebackend.ids import Epoch
from tests.idle_stretch import LATE_TWICE, ONCE, PATIENCE, IdleJob, Tallied, idle_job, put, until

pytestmark = pytest.mark.timeout(300)

UNSEEN = range(400, 500)
"""Rows that change state, and of which nothing goes out."""
SEEN = range(500, 507)
"""One of each key."""


class Hushed(Tallied):
    """Gives nothing for some rows, though it counts them."""

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.tally.set(self.tally.get() + 1)
        if event.row not in UNSEEN:
            ctx.emit((event.row, self.tally.get()))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x40
    file.write_bytes(data)


WAYS: dict[str, Callable[[Path], None]] = {"flipped": flip, "missing": Path.unlink}


def newest(job: IdleJob) -> Manifest:
    return job.tree.manifest(job.tree.record(NEWEST))


def damage(job: IdleJob, way: Callable[[Path], None]) -> str:
    """Damage a file that the newest epoch has, and the savepoint has not."""
    path = _new_files(job)[0]
    way(Path(job.uri) / path)
    return path


def _new_files(job: IdleJob) -> list[str]:
    tree = job.tree
    before = {file.path for file in tree.manifest(tree.record(NEWEST_SAVEPOINT)).files()}
    return [file.path for file in newest(job).files() if file.path not in before]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> IdleJob:
    return idle_job(tmp_path_factory.mktemp("idle"))


@pytest.fixture
def job(original: IdleJob, tmp_path: Path) -> IdleJob:
    return original.copied(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_does_not_go_back_behind_output_because_a_file_is_damaged(job: IdleJob, way: str) -> None:
    path, epoch = damage(job, WAYS[way]), newest(job).epoch
    after = job.tree.state.output_after(job.tree.record(NEWEST_SAVEPOINT))
    with pytest.raises(StartRefused) as refused:
        job.start().wait(PATIENCE)
    said = str(refused.value)
    assert f"of {after.epochs} epoch" in said
    assert f"after {job.savepoint}, up to epoch {after.newest}, may be committed and would be made once more" in said
    assert "put back what is damaged or missing, from a copy, or accept the repeated output" in said
    assert re.search(rf"epoch {epoch}: files that it refers to are (missing or cut short|damaged) \(.*{path}", said)
    assert job.output() == ONCE
    assert job.outcome(job.start(accept_duplicates=True), LATE_TWICE) == LATE_TWICE


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> IdleJob:
    return unseen_job(tmp_path_factory.mktemp("unseen"))


def unseen_job(folder: Path) -> IdleJob:
    """A job that has counted rows after its savepoint, and given nothing for them."""
    job = idle_job(folder)
    run = job.start(of=Hushed)
    savepoint = run.savepoint(PATIENCE)
    put(job.rows, UNSEEN)
    until(run, lambda: _has_more(job, savepoint))
    run.cancel()
    run.wait(PATIENCE)
    return job


def _has_more(job: IdleJob, savepoint: Epoch) -> bool:
    """True if the rows that nobody sees are in a complete epoch."""
    manifest = newest(job)
    positions = [part for operator in manifest.operators for subtask in operator.subtasks for part in subtask.positions]
    read = any(f"{UNSEEN.start:06}" in str(part) for part in positions)
    return manifest.epoch > savepoint and read and bool(_new_files(job))


def goes_on(job: IdleJob, run: recovery.Run) -> None:
    """See that the job has counted every row once, and given each once."""
    put(job.rows, SEEN)
    expected = ONCE + Counter(SEEN)
    assert job.outcome(run, expected) == expected
    assert job.tallies(SEEN) == {row: sum(before % 7 == row % 7 for before in range(row + 1)) for row in SEEN}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_goes_back_by_itself_where_that_repeats_nothing(unseen: IdleJob, tmp_path: Path, way: str) -> None:
    job = unseen.copied(tmp_path)
    path, epoch, savepoint = damage(job, WAYS[way]), newest(job).epoch, job.savepoint
    run = job.start(of=Hushed)
    goes_on(job, run)
    claimed = [event for event in run.events if isinstance(event, Claimed)]
    assert claimed[-1].restores == savepoint
    assert claimed[-1].repeats == 0
    assert any(one.startswith(f"{epoch}: ") and path in one for one in claimed[-1].skipped)
    failed = [event for event in run.events if isinstance(event, AttemptFailed)]
    if way == "flipped":
        assert len(claimed) == 2
        assert path in failed[0].reason
        assert failed[0].then == "go back to the newest sound epoch, if that repeats no output"


def test_a_job_that_runs_goes_back_when_a_process_that_comes_back_finds_a_file_damaged(tmp_path: Path) -> None:
    job = unseen_job(tmp_path)
    launcher = recovery.LocalProcesses()
    scheme = recovery.Passive(restarts=recovery.FixedDelay(9, "1s"))
    unseen, savepoint = Path(job.uri) / _new_files(job)[0], job.savepoint
    run = job.start(of=Hushed, launcher=launcher, scheme=scheme)
    until(run, lambda: run.status().state is recovery.RunState.RUNNING)
    flip(unseen)
    os.kill(launcher.pids[0], signal.SIGKILL)
    shutil.rmtree(job.folder / "local")
    goes_on(job, run)
    claimed = [event for event in run.events if isinstance(event, Claimed)]
    assert [event.restores for event in claimed][1:] == [savepoint]


def test_a_file_that_the_driver_finds_sound_fails_the_attempt_and_not_the_epoch(
    job: IdleJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = damage(job, flip)
    monkeypatch.setattr(claimed, "faults_of", lambda *_: {})
    with pytest.raises(recovery.JobFailed, match=rf"{path} .* the driver reads it as it was written"):
        job.start(scheme=recovery.Passive(restarts=recovery.NoRestart())).wait(PATIENCE)
    assert [record.epoch for record in job.tree.state.usable][-1] > job.savepoint, "nothing is given up"


def test_which_files_are_in_doubt_and_what_is_wrong_with_them(job: IdleJob) -> None:
    manifest, store = newest(job), job.tree.store
    first, *others = sorted(manifest.files(), key=lambda file: file.path)
    text = f"statebackend.backends.backend.DamagedFile: {first.path} (base of epoch 1-1) in Store is damaged"
    assert files_in_doubt(text, manifest) == (first,)
    assert files_in_doubt(f"ValueError: {first.path}", manifest) == ()
    assert files_in_doubt(text, None) == ()
    assert faults_of(store, [first, *others]) == {}
    flip(Path(job.uri) / first.path)
    ((path, fault),) = faults_of(store, [first, *others]).items()
    assert path == first.path
    assert "was written" in fault
