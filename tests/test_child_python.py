"""A process that another one starts runs what that one would run, wherever both of them work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.driver.launchers.java_archive import NoJavaArchive, _make
from statebackend.child_python import command_of, environment

ROOT = Path(__file__).parent.parent

STARTS = {
    "a job's processes, which are forked": """
import recovery
from snapshot import Collection, Stream, ToDriver
import pyarrow as pa
numbers = Stream.read(Collection([("a", 1)], pa.schema({"k": pa.string(), "n": pa.int64()})), uid="numbers")
program = numbers.key_by("k").sum("n", uid="count").write(ToDriver(), uid="out")
run = recovery.run(program, checkpoints="tree", local="local", parallelism=1, progress=False)
assert [row["n"] for row in run.rows("out")] == [1]
""",
    "a process that is started in place of a fork": """
import os
from snapshot.host.process.fork_server import Wanted, _spawn
_, status = os.waitpid(_spawn(Wanted(1, 0, "127.0.0.1", 9, "00" * 32, ())), 0)
assert os.waitstatus_to_exitcode(status) == 75, "the driver could not be reached"
""",
    "the process that writes large files of state": """
from statebackend.backends.sst_process import _Writer
assert _Writer().stop() == -9
""",
}


def add_impostors(folder: Path) -> Path:
    """Put packages that are called as ours into the folder; return the file that is there when one was run."""
    for name in ("statebackend", "snapshot", "recovery", "statistics", "pyspark"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"open({str(folder / 'was-run')!r}, 'a').write({name!r})\n")
    return folder / "was-run"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", STARTS.values(), ids=STARTS.keys())
def test_nothing_is_run_that_lies_in_the_folder_where_a_command_is_given(code: str, tmp_path: Path) -> None:
    was_run = add_impostors(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert not was_run.exists(), was_run.read_text()
    assert done.returncode == 0, done.stderr


def test_a_program_that_looks_where_it_works_is_found_there_by_its_processes(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def doubled(row):\n    return (row.k, 2 * row.n)\n")
    code = """
import recovery
from snapshot import Collection, Stream, ToDriver
import pyarrow as pa
from mine import doubled
SCHEMA = pa.schema({"k": pa.string(), "n": pa.int64()})
numbers = Stream.read(Collection([("a", 4)], SCHEMA), uid="numbers")
program = numbers.map(doubled, schema=SCHEMA).write(ToDriver(), uid="out")
run = recovery.run(program, checkpoints="tree", local="local", parallelism=1, progress=False)
assert [row["n"] for row in run.rows("out")] == [8]
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_javas_file_is_made_by_a_process_that_is_started_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append((command, env))
        raise OSError("it is enough to have seen it")

    monkeypatch.setattr("recovery.driver.launchers.java_archive.subprocess.run", run)
    with pytest.raises(NoJavaArchive, match="it is enough"):
        _make(tmp_path / "file")
    [(command, found)] = started
    assert command[:-1] == command_of("recovery.driver.launchers.java_archive")
    assert found == {**environment(), "PYTHONSAFEPATH": "1"}


def test_no_entry_of_the_path_means_the_folder_in_which_the_other_process_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "lib", "/usr", "__editable__.finder.__path_hook__", str(tmp_path)])
    assert environment()["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), str(tmp_path / "lib"), "/usr"]
