"""The rounds of a source: their numbers, and when they are closed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshot.replication.pacing import PER_TICK, DriverClock, Pacing, clock_of

TICK = 5


def test_a_round_that_ends_with_its_tick_has_the_time_at_which_that_is_over() -> None:
    pacing = Pacing(TICK, now=1002)
    assert pacing.next_at == 1005
    assert clock_of(pacing.close(1005), TICK) == 1005
    assert pacing.next_at == 1010


def test_sources_that_begin_at_other_times_close_the_rounds_of_a_tick_with_one_number() -> None:
    assert Pacing(TICK, now=0).close(1006) == Pacing(TICK, now=1003).close(1009)


def test_a_round_that_is_closed_early_comes_before_that_which_ends_with_the_tick() -> None:
    pacing, other = Pacing(TICK, now=1000), Pacing(TICK, now=1000)
    first, second, last = pacing.close(1001), pacing.close(1001), pacing.close(1005)
    assert first < second < last == other.close(1005)
    assert clock_of(first, TICK) == clock_of(second, TICK) == 1000
    assert pacing.next_at == 1010


def test_a_tick_that_is_late_closes_one_round_for_all_the_time_since() -> None:
    pacing = Pacing(TICK, now=1000)
    assert clock_of(pacing.close(1042), TICK) == 1040
    assert pacing.next_at == 1045


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=400))
def test_numbers_rise_and_their_time_is_that_of_the_clock(steps: list[tuple[int, bool]]) -> None:
    """Rounds are closed at any time if the second is true, else when their tick is over."""
    now = 1_000_003
    pacing, last, clock = Pacing(TICK, now), -1, 0
    for passed, early in steps:
        now += passed
        if not early and now < pacing.next_at:
            continue
        number = pacing.close(now)
        assert number > last
        assert clock <= clock_of(number, TICK) <= now + TICK * (1 + len(steps) // PER_TICK)
        assert number >= now // TICK * PER_TICK - 1
        assert pacing.next_at > now
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
