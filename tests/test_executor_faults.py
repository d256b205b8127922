"""A Spark executor of a job is killed, and another one hangs and wakes up as a stranger: the output is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("with_pandas")

ROOT = Path(__file__).parent.parent
PATIENCE = 550
KEYS, ROWS = 5, 200

JOB = f"""
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import recovery
from recovery.events import EpochCompleted, Recovered
from recovery.inject.targets import Kind, Order
from recovery.inject.targets import ExecutorOf
from snapshot import PAUSE, Collection, Stream, ToDriver
from statebackend.ids import Partition
from tests.endless_job import wait_for
from tests.test_running_locally import NUMBERS, counted

rows = []
for number in range({ROWS}):
    rows += [("k" + str(number % {KEYS}), 1), PAUSE(0.04)]
program = counted(Stream.read(Collection(rows, NUMBERS, splits=1), uid="numbers"))

spark = (
    SparkSession.builder.master("local-cluster[2,3,1024]")
    .config("spark.executor.memory", "512m").config("spark.ui.enabled", "false").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
folder = Path(sys.argv[1])
run = recovery.run(
    program, spark, checkpoints=folder / "tree", local=folder / "local", every="150ms", parallelism=2,
    advanced={{"lost_after": "1500ms"}}, progress=False,
)
done = []
with recovery.attach(job_folder=folder / "local") as job:
    for order in (
        Order(Kind.KILL, ExecutorOf(Partition(0))),
        Order(Kind.STOP, ExecutorOf(Partition(1)), lasting=4000),
    ):
        wait_for(job, EpochCompleted)
        done.append(job.inject(order).pid)
        wait_for(job, Recovered)
run.wait()
print(json.dumps({{"rows": [[row["k"], row["n"]] for row in run.rows("out")], "done": done,
                  "restarts": run.status().restarts}}))
spark.stop()
"""


@pytest.mark.timeout(300)
def test_an_executor_is_killed_and_one_hangs_and_every_row_comes_once(tmp_path: Path) -> None:
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
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["rows"]) == sorted([f"k{key}", n + 1] for key in range(KEYS) for n in range(ROWS // KEYS))
    assert len(set(found["done"])) == 2
    assert found["restarts"] >= 2
