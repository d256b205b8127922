"""The effect of a fault, as comparisons and benchmarks judge it, on rows that come late, again, or not for a while."""

from __future__ import annotations

import numpy as np
import pytest

from recovery.comparison.outages import ROLLING, Moments, Sightings, outage, over_time

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


def test_rows_scheduled_at_one_time_are_told_apart_by_what_they_are() -> None:
    seen = Sightings.of(np.array([7, 7, 7]), np.array([20, 10, 15]), np.array([1, 2, 1], np.uint64))
    assert seen.came.tolist() == [10, 15]


def test_a_job_that_stays_late_until_the_end_is_not_normal_again() -> None:
    scheduled, came = _steady(10)
    came = np.where(scheduled >= 5 * SECOND, came + SECOND, came)
    found = outage(Sightings.of(scheduled, came), 5 * SECOND, 9 * SECOND)
    assert not found.normal_again
    assert found.to_normal_s == pytest.approx(4)
    assert outage(Sightings.of(*_steady(10)), 5 * SECOND, 9 * SECOND).normal_again


def test_silence_counts_from_the_first_of_several_faults_and_the_way_back_from_the_last() -> None:
    scheduled, came = _steady(12)
    for fault in (5 * SECOND, 7 * SECOND):
        held = (came >= fault) & (came < fault + 400 * MS)
        came = np.where(held, fault + 400 * MS, came)
    found = outage(Sightings.of(scheduled, came), 5 * SECOND, 11 * SECOND, 7 * SECOND)
    assert found.no_output_s == pytest.approx(0.401)
    assert found.to_normal_s == pytest.approx(0.5)


def test_the_rolling_mean_is_over_the_limit_until_the_late_rows_have_left_its_window() -> None:
    scheduled, came = _steady(12)
    assert outage(Sightings.of(scheduled, came), 5 * SECOND, 11 * SECOND).rolling_mean_s == 0
    held = (came >= 5 * SECOND) & (came < 5 * SECOND + 600 * MS)
    came = np.where(held, 5 * SECOND + 600 * MS, came)
    found = outage(Sightings.of(scheduled, came), 5 * SECOND, 11 * SECOND)
    assert found.rolling_mean_s == pytest.approx(0.6 + ROLLING / SECOND / 2, abs=0.01)


def test_latency_over_time_is_by_when_rows_were_scheduled() -> None:
    scheduled, came = _steady(2)
    came = np.where((scheduled >= SECOND) & (scheduled < SECOND + 250 * MS), came + 500 * MS, came)
    found = over_time(Sightings.of(scheduled, came), 0, 2 * SECOND)
    assert [at for at, _ in found] == [place * 250 * MS for place in range(8)]
    assert [latency.p50_ms for _, latency in found] == [2, 2, 2, 2, 502, 2, 2, 2]
    assert all(latency.rows == 250 for _, latency in found)


def test_a_job_that_falls_silent_for_good_is_silent_until_the_end_at_least() -> None:
    scheduled, came = _steady(10)
    chosen = came < 5 * SECOND + 2 * MS
    found = outage(Sightings.of(scheduled[chosen], came[chosen]), 5 * SECOND, 9 * SECOND)
    assert found.silent_at_end
    assert found.no_output_s == pytest.approx(3.999, abs=0.002)
    assert not found.normal_again
    assert not outage(Sightings.of(scheduled, came), 5 * SECOND, 9 * SECOND).silent_at_end


def test_rows_that_come_after_the_end_count_for_silence_and_peak() -> None:
    scheduled, came = _steady(10)
    came = np.where(came >= 5 * SECOND, np.maximum(came, 20 * SECOND), came)
    found = outage(Sightings.of(scheduled, came), 5 * SECOND, 9 * SECOND)
    assert found.no_output_s == pytest.approx(15, abs=0.01)
    assert found.peak_latency_ms == pytest.approx(15_002, abs=5)
    assert not found.silent_at_end


def test_output_in_bursts_is_normal_as_long_as_its_rows_are_no_later_than_usual() -> None:
    scheduled, _ = _steady(12)
    came = (scheduled // SECOND + 1) * SECOND  # as epochs show them
    found = outage(Sightings.of(scheduled, came), 5 * SECOND + 300 * MS, 11 * SECOND)
    assert (found.to_normal_s, found.normal_again, found.rolling_mean_s) == (0, True, None)
    late = np.where((scheduled >= 6 * SECOND) & (scheduled < 7 * SECOND), came + 2 * SECOND, came)
    found = outage(Sightings.of(scheduled, late), 5 * SECOND + 300 * MS, 11 * SECOND)
    assert found.to_normal_s == pytest.approx(1.75)


def test_what_is_usual_is_learnt_from_the_given_time() -> None:
    scheduled, came = _steady(10)
    came = np.where(scheduled < 3 * SECOND, came + SECOND, came)
    held = (came >= 5 * SECOND) & (came < 5 * SECOND + 600 * MS)
    seen = Sightings.of(scheduled, np.where(held, 5 * SECOND + 600 * MS, came))
    assert outage(seen, 5 * SECOND, 9 * SECOND, usual=4 * SECOND).to_normal_s == 0
    assert outage(seen, 5 * SECOND, 9 * SECOND, usual=500 * MS).to_normal_s == pytest.approx(0.75)
