"""A job whose partitions are Spark tasks: one of their processes is killed, and the output is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_running_locally import KEYS, ROWS

ROOT = Path(__file__).parent.parent
PATIENCE = 200

JOB = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
import recovery
from recovery.driver.events import EpochCompleted, WorkerJoined
from tests.test_running_locally import program, when_complete

spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
folder = Path(sys.argv[1])
try:
    recovery.run(program(), spark.sparkContext, checkpoints=folder / "refused", parallelism=4, progress=False)
    refused = ""
except recovery.CannotLaunch as error:
    refused = str(error)
run = recovery.run(
    program(), spark, checkpoints=folder / "tree", local=folder / "local", every="100ms", parallelism=2,
    scheme=recovery.Passive(standbys=1), progress=False,
)

def kill():
    pid = next(event.pid for event in run.events if isinstance(event, WorkerJoined))
    os.kill(pid, signal.SIGKILL)

when_complete(run, 3, kill)
run.wait()
rows = [[row["k"], row["n"]] for row in run.rows("out")]
print(json.dumps({"rows": rows, "refused": refused, "born": (folder / "refused").exists()}))
spark.stop()
"""


@pytest.fixture
def answer(tmp_path: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_killed_task_costs_no_row_and_too_few_slots_are_refused_before_anything_starts(
    answer: dict[str, object],
) -> None:
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert sorted(rows) == sorted([f"k{key}", n + 1] for key in range(KEYS) for n in range(ROWS // KEYS))
    refused = "the job needs 4 task slots (its parallelism and standbys), and Spark's local[3] has 3; "
    assert answer["refused"] == refused + "start the session with master('local[4]') or more"
    assert answer["born"] is False
