"""When a driver looks for what attempts that are over have left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decisions.cleanup import Sweeps


def test_a_driver_looks_a_second_after_an_attempt_runs_and_then_ever_less_often() -> None:
    sweeps, looked = Sweeps(), []
    sweeps.attempt_runs(100.0)
    for _ in range(7):
        due = sweeps.due
        assert due is not None
        looked.append(due)
        sweeps.began(due)
        sweeps.ended(due)
    pauses = [round(later - earlier) for earlier, later in zip([100.0, *looked], looked, strict=False)]
    assert pauses == [1, 10, 60, 600, 3600, 3600, 3600]


def test_nothing_is_looked_for_before_an_attempt_runs_nor_while_the_next_one_is_on_its_way() -> None:
    sweeps = Sweeps()
    assert sweeps.due is None
    sweeps.attempt_runs(0.0)
    sweeps.attempt_over()
    assert sweeps.due is None
    sweeps.attempt_runs(50.0)
    assert sweeps.due == 1.0, "the look that is overdue comes at once"


def test_a_job_whose_attempts_are_short_is_looked_through_all_the_same() -> None:
    sweeps, looks = Sweeps(), 0
    for now in range(40):
        sweeps.attempt_runs(now / 10)
        due = sweeps.due
        if due is not None and due <= now / 10:
            sweeps.began(now / 10)
            sweeps.ended(now / 10)
            looks += 1
        sweeps.attempt_over()
    assert looks == 3


def test_an_attempt_that_runs_while_the_tree_is_looked_through_gets_a_look_of_its_own() -> None:
    sweeps = Sweeps()
    sweeps.attempt_runs(0.0)
    sweeps.began(1.0)
    sweeps.attempt_over()
    sweeps.attempt_runs(1.05)
    assert sweeps.due is None
    sweeps.ended(1.1)
    assert sweeps.due == pytest.approx(3.1), "twenty times what the first one took"
    sweeps.began(3.1)
    sweeps.ended(3.1)
    assert sweeps.due == pytest.approx(13.1)


def test_what_was_not_begun_cannot_end() -> None:
    with pytest.raises(ValueError, match="nothing was begun"):
        Sweeps().ended(1.0)


@given(st.lists(st.tuples(st.sampled_from(["runs", "over", "look"]), st.floats(0, 100)), max_size=60))
def test_looking_takes_no_more_than_a_twentieth_of_the_time(moves: list[tuple[str, float]]) -> None:
    sweeps, now, free_from = Sweeps(), 0.0, 0.0
    for move, seconds in moves:
        match move:
            case "runs":
                sweeps.attempt_runs(now)
            case "over":
                sweeps.attempt_over()
            case _:
                due = sweeps.due
                if due is not None:
                    now = max(now, due)
                    assert now >= free_from
                    sweeps.began(now)
                    assert sweeps.due is None
                    free_from = now + 21 * seconds - 1e-6 * now
                    sweeps.ended(now + seconds)
        now += seconds
