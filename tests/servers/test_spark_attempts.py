"""Tasks of a query that fail, or have a speculative copy on another worker, add no row to what a program reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.spark_attempts_job import BATCHES, ROWS, TASKS
from tests.servers.spark_cluster import Place, running_cluster

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("with_pandas")
def test_rows_of_tasks_with_two_attempts_come_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1, Place(), (Place(), Place("127.0.0.2"))) as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "tests.servers.spark_attempts_job", cluster.master, str(tmp_path)],
            cwd=ROOT, env=Place().environment(), capture_output=True, text=True, check=False, timeout=550,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    every = [f"{batch}-{task}-{attempt}" for batch in range(BATCHES) for task in range(TASKS) for attempt in (0, 1)]
    assert said["attempts"] == every
    assert said["rows"] == list(range(BATCHES * TASKS * ROWS))
