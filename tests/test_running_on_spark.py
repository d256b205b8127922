"""Jobs whose partitions are Spark tasks: a process is killed, the session is stopped, its Java process dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_running_locally import KEYS, ROWS

pytestmark = pytest.mark.usefixtures("with_pandas")

ROOT = Path(__file__).parent.parent
PATIENCE = 200

JOB = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
import recovery
from recovery.events import EpochCompleted, WorkerJoined
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


def answer_of(script: str, *arguments: str) -> dict[str, object]:
    """What a program that makes a Spark session prints as its last line."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
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
    tmp_path: Path,
) -> None:
    answer = answer_of(JOB, str(tmp_path))
    rows = answer["rows"]
    assert isinstance(rows, list)
    assert sorted(rows) == sorted([f"k{key}", n + 1] for key in range(KEYS) for n in range(ROWS // KEYS))
    refused = "the job needs 4 task slots (its parallelism and standbys), and Spark's local[3] has 3; "
    assert answer["refused"] == refused + "start the session with master('local[4]') or more"
    assert answer["born"] is False


ENDED = """
import json, os, select, signal, sys
from pathlib import Path
from threading import Event
from pyspark import SparkContext
from pyspark.sql import SparkSession
import recovery
from recovery.events import EpochCompleted, Trouble, WorkerJoined
from tests.endless_job import program
from tests.test_functions_that_end import Echo, crash, echoing

folder, patience = Path(sys.argv[1]), float(sys.argv[2])

def session():
    settings = {**recovery.spark_settings(), "spark.ui.enabled": "false"}
    made = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made

def start(spark, tree="tree", of=None, **options):
    return recovery.run(
        of or program(folder / "output"), spark, checkpoints=folder / tree, local=folder / "local" / tree,
        every="100ms", parallelism=2, progress=False, **options,
    )

def over(run, end):
    complete = Event()
    run.listen(lambda event: complete.set() if isinstance(event, EpochCompleted) else None)
    assert complete.wait(patience)
    alive = [os.pidfd_open(event.pid) for event in run.events if isinstance(event, WorkerJoined)]
    end()
    try:
        run.wait(patience)
        said = ""
    except recovery.JobFailed as error:
        said = str(error)
    assert all(select.select([process], [], [], patience)[0] for process in alive)
    newest = [str(event.epoch) for event in run.events if isinstance(event, EpochCompleted)][-1]
    return said, newest, len([event for event in run.events if isinstance(event, Trouble)])

spark = session()
try:
    start(spark, "crash", echoing(Echo(crash)), scheme=recovery.Passive(poisoned_after=1)).wait(patience)
    crashed = ""
except recovery.JobFailed as error:
    crashed = str(error)
told = [over(start(spark), spark.stop)]
try:
    start(spark, "refused")
    refused = ""
except recovery.CannotLaunch as error:
    refused = str(error)
run = start(session())
told.append(over(run, lambda: os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)))
print(json.dumps({"told": told, "crashed": crashed, "refused": refused, "born": (folder / "refused").exists()}))
sys.stdout.flush()
os._exit(0)  # no word to a Java process that is dead
"""


def test_a_crash_in_a_task_is_named_and_a_session_that_is_stopped_or_whose_java_dies_ends_the_job_with_a_sentence(
    tmp_path: Path,
) -> None:
    found = answer_of(ENDED, str(tmp_path), str(PATIENCE / 4))
    crashed = str(found["crashed"])
    assert "crashed: Fatal Python error: Segmentation fault (" in crashed
    assert "in on_event" in crashed
    assert isinstance(found["told"], list)
    for (said, newest, troubles), why in zip(
        found["told"], ("was stopped", "Java process of the Spark session has died"), strict=True
    ):
        assert why in said
        assert said.endswith(f"; started again, the job goes on from epoch {newest}")
        assert troubles <= 2, "one for each process, and not again and again"
    assert found["refused"] == (
        "the Spark session was stopped, and nothing runs there any more; run the job with a new session"
    )
    assert found["born"] is False
