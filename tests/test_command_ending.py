"""`recovery savepoint`, `stop` and `cancel` against jobs that really run."""

from __future__ import annotations

from pathlib import Path

import pytest

import recovery
from recovery.driver.attempts.requests import EndKind
from recovery.offline.job_tree import open_tree
from tests.command_line import Printed, run_command
from tests.endless_job import PATIENCE, start

Capture = pytest.CaptureFixture[str]


def running(folder: Path) -> recovery.Run:
    run = start(folder, standbys=0)
    with recovery.attach(job_folder=folder / "local") as attached:
        attached.follow()
        while attached.status().state is not recovery.RunState.RUNNING:
            assert attached.next_event(PATIENCE) is not None
    return run


def said(capsys: Capture, folder: Path, *arguments: str) -> Printed:
    return run_command(capsys, *arguments, "--job-folder", folder / "local")


def test_a_savepoint_is_taken_and_then_the_job_is_stopped_with_another(tmp_path: Path, capsys: Capture) -> None:
    run = running(tmp_path)
    taken = said(capsys, tmp_path, "savepoint")
    assert taken.code == 0
    first = taken.out.split()[1]
    assert taken.out == f"savepoint {first} of {run.job}\n"
    assert not said(capsys, tmp_path, "stop", "--dry-run").code
    assert not run.status().state.over
    stopped = said(capsys, tmp_path, "stop", "--savepoint", "--json")
    assert stopped.code == 0
    end = run.wait(PATIENCE)
    assert end is not None
    assert (end.kind, str(end.epoch)) == (EndKind.STOPPED, stopped.json["savepoint"])
    assert {str(epoch) for epoch in open_tree(str(tmp_path / "tree")).savepoints} == {first, stopped.json["savepoint"]}
    gone = said(capsys, tmp_path, "stop")
    assert (gone.code, gone.out) == (3, "")
    assert "does not run on this host: no driver has left" in gone.err


def test_a_job_is_cancelled_at_once(tmp_path: Path, capsys: Capture) -> None:
    run = running(tmp_path)
    cancelled = said(capsys, tmp_path, "cancel")
    assert cancelled.code == 0
    assert cancelled.out == f"{run.job} is cancelled; started again, it goes on from its last complete epoch\n"
    assert run.wait(PATIENCE) is None
    assert run.status().state is recovery.RunState.STOPPED


def test_a_job_is_drained(tmp_path: Path, capsys: Capture) -> None:
    run = running(tmp_path)
    drained = said(capsys, tmp_path, "stop", "--drain")
    assert (drained.code, drained.out) == (0, f"{run.job} has stopped\n")
    end = run.wait(PATIENCE)
    assert end is not None
    assert end.kind is EndKind.FINISHED


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["stop"], 2, "which job? give --checkpoints"),
        (["savepoint", "--timeout", "soon", "--job-folder", "."], 2, "--timeout: "),
        (["stop", "--drain", "--savepoint"], 2, "not allowed with argument"),
        (["cancel", "--job-folder", "nowhere"], 3, "does not run on this host: no driver has left nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], code: int, problem: str, capsys: Capture) -> None:
    ended = run_command(capsys, *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert problem in ended.err
