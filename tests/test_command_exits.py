"""How a command ends for errors that people can do something about."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.command.exits import Exit, exit_of
from statebackend.keyed_state import SnapshotFailed
from statebackend.tables.format.blocks import DamagedBlock, NewerBlock
from tests.command_line import Printed, run_command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SnapshotFailed("the store did not take it"), Exit.DECLINED),
        (DamagedBlock("a block"), Exit.DAMAGED),
        (NewerBlock("a block"), Exit.DAMAGED),
        (AssertionError("a mistake of ours"), None),
    ],
)
def test_what_state_cannot_be_read_or_written_for_has_a_code(error: Exception, code: Exit | None) -> None:
    assert exit_of(error) == code


def test_a_place_without_a_bucket_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    said = run_command(capsys, "list", "s3://")
    assert said == Printed(Exit.DECLINED, "", "recovery: s3:// names no bucket; expected s3://bucket/prefix\n")


def test_a_verb_that_does_not_exist_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    said = run_command(capsys, "lst", "/data")
    assert said.code == Exit.USAGE
    assert "there is no verb 'lst'; did you mean 'list'" in said.err


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "--version").out.startswith("epochcut ")


def test_checkpoints_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EPOCHCUT_CHECKPOINTS", str(tmp_path / "empty"))
    said = run_command(capsys, "verify")
    assert f"{tmp_path / 'empty'}: there is no such folder" in said.err
    monkeypatch.delenv("EPOCHCUT_CHECKPOINTS")
    assert "required: --checkpoints" in run_command(capsys, "verify").err


def test_a_savepoint_is_never_let_go_unless_it_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = run_command(capsys, "dispose", "--checkpoints", tmp_path)
    assert said.code == Exit.USAGE
    assert "required: --epoch" in said.err
