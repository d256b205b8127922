"""Programs that a streaming DataFrame feeds give what they give with sources of their own, each row once."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples import moved_query
from tests.spark_inputs_job import ORDERS

pytestmark = pytest.mark.usefixtures("with_pandas")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("inputs")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_inputs_job", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(600)
def test_words_of_a_file_source_are_counted_per_minute_as_with_files(said: dict[str, Any]) -> None:
    expected, *wrong = said["words"]
    assert expected > 900
    assert wrong == [0, 0]


@pytest.mark.timeout(600)
def test_timers_over_events_of_the_rate_source_fire_as_with_generated_ones(said: dict[str, Any]) -> None:
    expected, *wrong = said["orders"]
    assert expected > ORDERS / 10
    assert wrong == [0, 0]


@pytest.mark.timeout(600)
def test_a_query_is_moved_by_ten_lines_and_its_rows_before_and_after_count_once(said: dict[str, Any]) -> None:
    assert said["moved"] == [2 * moved_query.ROWS, 0, 0]
    assert len(inspect.getsource(moved_query.move).splitlines()[2:]) == 10, "the lines after its head and docstring"
