"""The folders of commands in the temporary folder: locked while in use, and deleted by the next command if not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.scratch import scratch_folder

LIVES = """
import sys
from recovery.scratch import scratch_folder
with scratch_folder("reading") as folder:
    (folder / "state").mkdir()
    (folder / "state" / "file").write_text("read")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def aged(folder: Path) -> Path:
    """As if it had been made an hour ago."""
    then = folder.stat().st_mtime - 3600
    os.utime(folder, (then, then))
    return folder


def test_what_a_killed_command_has_left_is_deleted_by_the_next_one_and_what_a_live_one_uses_is_not(
    temporary: Path,
) -> None:
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", LIVES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        for _ in range(2)
    ]
    try:
        killed, live = (aged(Path(command.stdout.readline().strip())) for command in commands if command.stdout)
        commands[0].send_signal(signal.SIGKILL)
        commands[0].wait()
        assert (killed / "state" / "file").is_file()
        with scratch_folder("editing") as own:
            assert not killed.exists()
            assert (live / "state" / "file").is_file()
            assert own.is_dir()
        assert set(temporary.iterdir()) == {live}
    finally:
        for command in commands:
            command.communicate()
    assert not list(temporary.iterdir())


def test_a_folder_that_is_not_locked_yet_and_those_of_others_stay(temporary: Path) -> None:
    young = temporary / "epochcut-reading-young"
    with_files, foreign, empty = (
        temporary / name for name in ("epochcut-reading-full", "epochcut-42", "epochcut-upgrade-empty")
    )
    for folder in (young, with_files, foreign, empty):
        folder.mkdir()
    (with_files / "file").write_text("of a command that locks nothing")
    for folder in (with_files, foreign, empty):
        aged(folder)
    with scratch_folder("reading"):
        assert {folder for folder in (young, with_files, foreign, empty) if folder.exists()} == {
            young,
            with_files,
            foreign,
        }


def test_a_purpose_whose_folders_nobody_would_delete_is_refused(temporary: Path) -> None:
    with pytest.raises(ValueError, match="'writing' is none of reading, editing"), scratch_folder("writing"):
        pass
    assert not list(temporary.iterdir())


def test_what_another_user_has_made_is_neither_deleted_nor_followed(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / ".in-use").write_text("")
    theirs = temporary / "epochcut-reading-theirs"
    theirs.mkdir()
    (theirs / ".in-use").symlink_to(elsewhere / "made")
    link = temporary / "epochcut-reading-link"
    link.symlink_to(elsewhere)
    with scratch_folder("editing"):
        assert aged(theirs).is_dir()
    with scratch_folder("editing"):
        pass
    assert link.is_symlink()
    assert not (elsewhere / "made").exists()
    (theirs / ".in-use").unlink()
    aged(theirs)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with scratch_folder("editing"):
        assert theirs.is_dir(), "though it is empty, and looks as if its process had been killed"
