"""How many rows are worked on at once: as many as take about as long as they may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.host.flow.pace import Pace


def pieces(pace: Pace, per_row: float, count: int, overhead: float = 0.0) -> list[float]:
    """So many pieces one after the other: how long each takes."""
    took = []
    for _ in range(count):
        rows = pace.rows
        took.append(overhead + rows * per_row)
        pace.took(rows, took[-1])
    return took


def test_quick_rows_soon_come_as_many_at_once_as_may_be() -> None:
    pace = Pace(0.02, 16_384)
    pieces(pace, 1e-7, 5, overhead=3e-4)
    assert pace.rows == 16_384


@pytest.mark.parametrize("per_row", [0.0004, 0.0012, 0.03])
def test_slow_rows_come_so_few_that_they_take_as_long_as_they_may(per_row: float) -> None:
    pace = Pace(0.02, 16_384)
    took = pieces(pace, per_row, 10)
    assert all(seconds <= max(0.021, per_row) for seconds in took[1:])
    assert pace.rows == max(1, round(0.02 / per_row - 0.5))


def test_rows_that_become_slow_are_noticed_with_one_piece_and_quick_ones_within_a_few() -> None:
    pace = Pace(0.02, 16_384)
    pieces(pace, 1e-7, 10)
    assert pieces(pace, 0.001, 2)[1] == pytest.approx(0.02)
    pieces(pace, 1e-7, 6)
    assert pace.rows == 16_384


def test_a_few_rows_that_come_alone_do_not_make_many_come_in_small_pieces() -> None:
    pace = Pace(0.02, 16_384)
    pieces(pace, 2e-7, 10, overhead=5e-4)
    for rows in (100, 10, 1, 8_000, 150, 16_384, 60):
        pace.took(rows, 5e-4 + rows * 2e-7)
        assert pace.rows == 16_384


def test_rows_that_become_slow_one_by_one_are_noticed_within_a_fraction_of_a_second() -> None:
    pace = Pace(0.02, 16_384)
    pieces(pace, 1e-7, 100)
    for _ in range(1000):
        pace.took(1, 0.001)
    assert 19 <= pace.rows <= 21


@given(st.integers(1, 20_000), st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, 100)), max_size=20))
def test_it_is_always_one_row_at_least_and_never_too_many(most: int, took: list[tuple[int, float]]) -> None:
    pace = Pace(0.02, most)
    for rows, seconds in took:
        pace.took(rows, seconds)
        assert 1 <= pace.rows <= most
