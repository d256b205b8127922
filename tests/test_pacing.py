"""The rounds of a source: their numbers, and when they are closed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.replication.pacing import PER_TICK, DriverClock, Pacing, clock_of

TICK = 5


def test_a_round_is_closed_when_its_tick_is_over_and_not_before() -> None:
    pacing = Pacing(TICK, full=100, now=1002)
    assert pacing.due(1004, rows=99) is None
    number = pacing.due(1005, rows=0)
    assert number is not None
    assert clock_of(number, TICK) == 1005
    assert pacing.due(1009, rows=0) is None
    assert pacing.next_at == 1010


def test_sources_that_begin_at_other_times_close_the_rounds_of_a_tick_with_one_number() -> None:
    early, late = Pacing(TICK, full=100, now=0), Pacing(TICK, full=100, now=1003)
    assert early.due(1006, rows=1) == late.due(1009, rows=2)


def test_a_full_round_is_closed_early_and_comes_before_that_which_ends_with_the_tick() -> None:
    pacing, other = Pacing(TICK, full=100, now=1000), Pacing(TICK, full=100, now=1000)
    first, second = pacing.due(1001, rows=100), pacing.due(1001, rows=250)
    last, others = pacing.due(1005, rows=0), other.due(1005, rows=0)
    assert first is not None
    assert second is not None
    assert last is not None
    assert first < second < last == others
    assert clock_of(first, TICK) == clock_of(second, TICK) == 1000


def test_a_tick_that_is_late_closes_one_round_for_all_the_time_since() -> None:
    pacing = Pacing(TICK, full=100, now=1000)
    number = pacing.due(1042, rows=10)
    assert number is not None
    assert clock_of(number, TICK) == 1040
    assert pacing.due(1044, rows=10) is None


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["due", "full", "close"])), max_size=400))
def test_numbers_rise_and_their_time_is_that_of_the_clock(steps: list[tuple[int, str]]) -> None:
    now = 1_000_003
    pacing, last, clock = Pacing(TICK, full=100, now=now), -1, 0
    for passed, step in steps:
        now += passed
        number = pacing.close(now) if step == "close" else pacing.due(now, 100 if step == "full" else 0)
        if number is None:
            continue
        assert number > last
        assert clock <= clock_of(number, TICK) <= now + TICK * (1 + len(steps) // PER_TICK)
        assert number >= now // TICK * PER_TICK - 1
        last, clock = number, clock_of(number, TICK)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 80)), min_size=1, max_size=50), st.integers(-100, 100))
def test_the_drivers_clock_is_known_as_well_as_the_quickest_word_says(
    words: list[tuple[int, int]], drift_ppm: int
) -> None:
    """Words come after some seconds, and are under way for some milliseconds; the process's own clock drifts."""
    rate = 1 + drift_ppm / 1e6

    def own(true: float) -> float:
        return 500 + true * rate

    true = 1000.0
    clock = DriverClock(int(true * 1000), own(true))
    last = clock.now(own(true))
    for seconds, delay in words:
        said = true + seconds
        true = said + delay / 1000
        clock.heard(int(said * 1000), own(true))
        now = clock.now(own(true))
        assert now >= last
        assert said * 1000 - 1 <= now <= true * 1000 + 60 * 0.2 + 1
        last = now
