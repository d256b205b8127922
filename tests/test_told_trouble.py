"""What goes wrong in a running job is said: through logging, in its status, and by the command."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import recovery
from recovery import events as log
from recovery.command.main import main
from recovery.driver.report.logs import JobLogger, level_of, words_of
from statebackend.ids import Epoch, Generation
from tests.endless_job import PATIENCE, start, wait_for, wait_until_all_run

EPOCH = Epoch(Generation(1), 7)


def abandoned(at: float, detail: str = "no space left on device") -> log.EpochAbandoned:
    return log.EpochAbandoned(at=at, epoch=EPOCH, reason="a participant declined it", detail=detail)


def test_warnings_that_are_alike_are_said_once_in_ten_seconds_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = JobLogger("clicks")
    for at in (0.0, 1.0, 9.9, 10.0):
        logger.say(abandoned(at))
    assert [record.getMessage() for record in caplog.records] == [
        "job clicks: epoch 7-1 is abandoned: a participant declined it: no space left on device",
        "job clicks: epoch 7-1 is abandoned: a participant declined it: no space left on device "
        "(and 2 more like it before)",
    ]
    assert {(record.name, record.levelname) for record in caplog.records} == {("epochcut.epochs", "WARNING")}


def test_warnings_that_are_not_alike_are_all_said(caplog: pytest.LogCaptureFixture) -> None:
    logger = JobLogger("clicks")
    logger.say(log.Trouble(at=0.0, what="the store", reason="it has failed for 1.0 s"))
    logger.say(log.Trouble(at=0.1, what="taking epochs", reason="a source"))
    assert len(caplog.records) == 2


def test_an_epoch_that_goes_with_its_attempt_is_no_warning_of_its_own() -> None:
    event = log.EpochAbandoned(at=0.0, epoch=EPOCH, reason="its attempt broke", detail="")
    assert level_of(event)[1] == logging.DEBUG


def test_the_end_of_a_job_that_failed_is_an_error() -> None:
    event = log.GaveUp(at=0.0, reason="seven is refused")
    assert level_of(event)[1] == logging.ERROR
    assert words_of(event) == "failed: seven is refused"


@contextmanager
def lost(folder: Path) -> Iterator[None]:
    """A file is where the folder was."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def test_a_lost_output_folder_is_said_everywhere_and_the_job_goes_on_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(tmp_path) as run, recovery.attach(job_folder=tmp_path / "local") as attached:
        wait_until_all_run(attached)
        wait_for(attached, log.EpochCommitted)
        with lost(tmp_path / "output"):
            wait_for(attached, log.EpochAbandoned)
            wait_for(attached, log.EpochAbandoned)
            status = run.status()
            assert main(["status", "--job-folder", str(tmp_path / "local")]) == 0
            said = capsys.readouterr().out
        wait_for(attached, log.EpochCompleted)
        assert not run.status().trouble
        assert not run.status().abandoned_in_a_row
    assert "output" in status.trouble
    assert status.abandoned_in_a_row >= 1
    assert "trouble: epoch" in said
    assert "epochs abandoned since then: " in said
    assert "rows in/s" in said
    assert f"process {os.getpid()}" not in said
    assert any(record.name == "epochcut.epochs" and "output" in record.getMessage() for record in caplog.records)


LOSES_ITS_OUTPUT = """
import sys
from pathlib import Path
import recovery
from tests.endless_job import program
from tests.test_told_trouble import lose_when_committed
folder = Path(sys.argv[1])
with recovery.run(
    program(folder / "output"), checkpoints=folder / "tree", local=folder / "local", every="100ms",
    give_up_after="1s", progress=False,
) as run:
    lose_when_committed(run, folder / "output")
    run.wait()
"""


def lose_when_committed(run: recovery.Run, folder: Path) -> None:
    committed = threading.Event()
    run.listen(lambda event: committed.set() if isinstance(event, log.EpochCommitted) else None)
    assert committed.wait(PATIENCE)
    folder.rename(folder.with_name("aside"))
    folder.write_text("in the way")


def test_a_job_that_completes_no_epoch_any_more_ends_and_says_why_without_any_configuration(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOSES_ITS_OUTPUT, str(tmp_path)]
    ran = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 1
    assert "is abandoned: " in ran.stderr  # a warning, while it ran
    assert "recovery.schemes.rolling_back.JobFailed: no epoch has been completed for " in ran.stderr
    assert "Option give_up_after" in ran.stderr
