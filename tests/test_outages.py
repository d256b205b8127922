"""What the benchmark of recoveries makes of rows that come late, again, or not at all for a while."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.outages import Moments, Sightings, outage

MS = 1_000
SECOND = 1_000 * MS


def _steady(seconds: float, latency_ms: int = 2) -> tuple[Moments, Moments]:
    """A row each millisecond."""
    scheduled = np.arange(0, int(seconds * SECOND), MS, dtype=np.int64)
    return scheduled, scheduled + latency_ms * MS


def test_a_row_that_comes_again_counts_when_it_first_came() -> None:
    seen = Sightings.of(np.array([7, 7, 3]), np.array([20, 10, 15]))
    assert seen.scheduled.tolist() == [7, 3]
    assert seen.came.tolist() == [10, 15]


def test_nothing_is_noticed_of_a_fault_that_delays_nothing() -> None:
    found = outage(Sightings.of(*_steady(10)), 5 * SECOND, 9 * SECOND)
    assert found.no_output_s == pytest.approx(0.001)
    assert found.peak_latency_ms == 2
    assert found.to_normal_s == 0


def test_rows_that_wait_for_an_outage_to_end_are_late_by_as_much() -> None:
    scheduled, came = _steady(10)
    held = (came >= 5 * SECOND) & (came < 5 * SECOND + 600 * MS)
    came = np.where(held, 5 * SECOND + 600 * MS, came)
    found = outage(Sightings.of(scheduled, came), 5 * SECOND, 9 * SECOND)
    assert found.no_output_s == pytest.approx(0.601)
    assert found.peak_latency_ms == pytest.approx(602)
    assert found.to_normal_s == pytest.approx(0.75)


def test_rows_made_again_in_an_outage_are_no_output() -> None:
    scheduled, came = _steady(10)
    held = (came >= 5 * SECOND) & (came < 5 * SECOND + 600 * MS)
    came = np.where(held, 5 * SECOND + 600 * MS, came)
    again = np.arange(4 * SECOND, 5 * SECOND - 10 * MS, MS, dtype=np.int64)
    seen = Sightings.of(np.concatenate((scheduled, again)), np.concatenate((came, again + SECOND)))
    assert outage(seen, 5 * SECOND, 9 * SECOND).no_output_s == pytest.approx(0.601)


def test_a_second_late_stretch_counts_until_its_end() -> None:
    scheduled, came = _steady(10)
    late = (came >= 6 * SECOND) & (came < 6 * SECOND + 100 * MS)
    came = np.where(late, came + 100 * MS, came)
    assert outage(Sightings.of(scheduled, came), 5 * SECOND, 9 * SECOND).to_normal_s == pytest.approx(1.25)


def test_without_output_before_or_after_nothing_can_be_said() -> None:
    seen = Sightings.of(*_steady(10))
    with pytest.raises(ValueError, match="before"):
        outage(seen, -SECOND, SECOND)
    with pytest.raises(ValueError, match="after"):
        outage(seen, 11 * SECOND, 12 * SECOND)
