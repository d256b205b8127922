"""A few kills of commands that change trees; hundreds by `python -m tests.savepoint_kills`."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.savepoint_kills import PRELOADED, VERBS, carry_out


@pytest.mark.timeout(600)
def test_whatever_is_killed_the_tree_is_sound_and_the_command_can_be_repeated(tmp_path: Path) -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    report = carry_out(10, 1, tmp_path, list(VERBS), jobs=False)
    assert report.kills.total() == 10
