"""The processes of a job whose driver is killed in the middle of slow calls: none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orphans import SLOW, orphans_of

SECONDS = 5.0
ENDLESS = 3600.0


@pytest.mark.parametrize("call", [SLOW, ENDLESS])
def test_no_process_of_a_job_outlives_a_killed_driver_by_long_though_its_functions_are_slow(
    tmp_path: Path, call: float
) -> None:
    assert orphans_of(tmp_path, SECONDS, call) == []


def test_no_task_of_spark_outlives_a_killed_driver_by_long(tmp_path: Path) -> None:
    assert orphans_of(tmp_path, SECONDS, ENDLESS, spark=True) == []
