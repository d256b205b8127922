"""How a command ends for errors that people can do something about."""

from __future__ import annotations

import pytest

from recovery.command.exits import Exit, exit_of
from statebackend.keyed_state import SnapshotFailed
from statebackend.tables.blocks import DamagedBlock, NewerBlock
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
