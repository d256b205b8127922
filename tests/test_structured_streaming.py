"""Queries of Spark's that are killed in a commit go on from their checkpoint, and each row is there once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import recovery
from snapshot import SparkSource, Stream, ToDriver
from tests.structured_formats import PIPE
from tests.structured_job import TARGETS

pytestmark = pytest.mark.usefixtures("with_pandas")

ROOT = Path(__file__).parent.parent
FILES, ROWS = 3, 25
PATIENCE = 250


def command(folder: Path, what: str) -> list[str]:
    return [sys.executable, "-m", "tests.structured_job", str(folder), what]


def environment(**more: str) -> dict[str, str]:
    spark = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **spark, **more}


def run_until_all_stop(folder: Path) -> None:
    """Kill driver, JVM and all when each query has reached its point."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command(folder, "stop"),
            cwd=ROOT,
            env=environment(**{PIPE: str(pipe)}),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    reader = subprocess.Popen(["head", "-n", str(len(TARGETS)), str(pipe)], stdout=subprocess.PIPE)
    try:
        said, _ = reader.communicate(timeout=PATIENCE)
        assert said.count(b"stopped") == len(TARGETS)
    except subprocess.TimeoutExpired:
        raise AssertionError((folder / "log").read_text()[-3000:]) from None
    finally:
        reader.kill()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def written(folder: Path) -> dict[str, list[int]]:
    """What readers see who know nothing of the queries."""
    lines = [line for path in (folder / "files").glob("part-*") for line in path.read_text().splitlines()]
    connection = sqlite3.connect(folder / "sqlite")
    in_sqlite = [row[0] for row in connection.execute("SELECT n FROM numbers")]
    connection.close()
    return {
        "files": sorted(json.loads(line)["n"] for line in lines),
        "sqlite": sorted(in_sqlite),
    }


def read_by_a_program(folder: Path) -> list[int]:
    """What a stream program reads of the log that is new to it."""
    log = SparkSource("n bigint, batch bigint", str(folder / "stream"))
    program = Stream.read(log, uid="numbers").write(ToDriver(), uid="out")
    with recovery.run(program, checkpoints=str(folder / "program"), available_now=True) as run:
        return sorted(int(str(row["n"])) for row in run.rows("out"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("structured")
    (folder / "in").mkdir()
    for batch in range(FILES):
        rows = [{"n": batch * ROWS + number, "batch": batch} for number in range(ROWS)]
        path = folder / "in" / f"{batch}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (batch, batch))
    return folder


@pytest.mark.timeout(600)
def test_queries_killed_in_a_commit_lose_and_repeat_nothing(folder: Path) -> None:
    run_until_all_stop(folder)
    first, second = list(range(ROWS)), list(range(2 * ROWS))
    assert written(folder) == {"files": first, "sqlite": second}
    assert read_by_a_program(folder) == second
    done = subprocess.run(
        command(folder, "finish"), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["batches"] == [FILES - 1] * len(TARGETS)
    assert "epochcut.sqlite has no option 'tabel'; it has path, table, key" in said["misspelt"]
    everything = list(range(FILES * ROWS))
    assert written(folder) == {"files": everything, "sqlite": everything}
    assert list((folder / "files" / ".staged").iterdir()) == []
    assert read_by_a_program(folder) == everything[2 * ROWS :]
