"""The README tells the truth: its program does what it shows, and its files and commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeded import commit, cut, state, storage  # noqa: F401  (importing fills the table)
from tests.seeded.error import ERRORS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


PROGRAMS = re.findall(r"```python\n(.*?)```\s*```\n(.*?)```", README, re.DOTALL)


def test_it_has_programs_for_streams_for_state_and_for_protocols() -> None:
    assert len(PROGRAMS) == 5


@pytest.mark.parametrize(("program", "shown"), PROGRAMS, ids=["stream", "daily", "timers", "state", "protocol"])
def test_its_programs_print_what_it_shows(program: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    run = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.stderr == ""
    printed = [line for line in run.stdout.splitlines() if "hears of a broken link" not in line]
    assert [line for line in printed if line.strip()] == [line for line in shown.splitlines() if line.strip()]


def test_the_files_that_it_names_exist() -> None:
    for name in re.findall(r"`((?:tests|snapshot|statebackend|recovery)/[\w/.]+\.(?:py|md|svg))`", README):
        assert (ROOT / name).exists(), name


def test_its_pictures_exist() -> None:
    names = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README)
    assert len(names) == 2
    assert all((ROOT / name).exists() for name in names), names


def test_the_examples_that_it_names_exist() -> None:
    names = set(re.findall(r"\bexamples\.(\w+)`", README))
    assert {"clicks", "word_count"} <= names
    assert all((ROOT / "examples" / f"{name}.py").exists() for name in names), names


def test_the_commands_that_it_names_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets


def test_it_counts_the_seeded_errors_right() -> None:
    assert f"{len(ERRORS)} protocol errors" in README
