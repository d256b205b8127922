"""Programs that a streaming DataFrame feeds give what they give with sources of their own, each row once."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from examples import moved_query
from tests.spark_inputs_job import ORDERS
from tests.spark_programs import answer_of

pytestmark = pytest.mark.usefixtures("with_pandas")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("inputs")
    found: dict[str, Any] = answer_of("-m", "tests.spark_inputs_job", str(folder))
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
