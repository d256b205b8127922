"""The pages tell the truth: their programs do what they show, and their files and commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

import recovery
from snapshot import Collection, Stream, ToDriver
from tests.seeded import commit, cut, state, storage  # noqa: F401  (importing fills the table)
from tests.seeded.error import ERRORS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *(ROOT / ".github").glob("*.md"))}


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


@pytest.mark.parametrize("page", PAGES)
def test_the_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`((?:tests|snapshot|statebackend|recovery)/[\w/.]+(?:\.(?:py|md|svg)|/))`", PAGES[page])
    tests = {path.name for path in (ROOT / "tests").glob("**/test_*.py")}
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert set(re.findall(r"`(test_\w+\.py)`", PAGES[page])) <= tests


@pytest.mark.parametrize("page", PAGES)
def test_the_modules_that_a_page_names_can_be_imported(page: str) -> None:
    for name in set(re.findall(r"`((?:snapshot|statebackend|recovery)(?:\.[a-z_]+)+)`", PAGES[page])):
        module, _, last = name.rpartition(".")
        assert find_spec(name) or hasattr(import_module(module), last), name


def test_a_recorded_run_is_replayed_as_the_page_says(tmp_path: Path) -> None:
    numbers = Stream.read(Collection([{"n": n} for n in range(100)], pa.schema({"n": pa.int64()})), uid="numbers")
    with recovery.run(
        numbers.write(ToDriver(), uid="out"), checkpoints=tmp_path / "tree", trace=tmp_path / "trace.jsonl"
    ) as run:
        assert len(list(run.rows("out"))) == 100
    (program,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert re.fullmatch(r"\d+ events, all answered as in the run\n", said.stdout), said.stderr


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
    assert {
        one for page in PAGES.values() for one in re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE)
    } <= targets


def test_it_counts_the_seeded_errors_right() -> None:
    assert f"{len(ERRORS)} protocol errors" in README
