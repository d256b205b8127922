"""How often a job is tried again, and what no restart can cure."""

from __future__ import annotations

import pytest

from recovery.passive import Passive
from recovery.restarts import (
    Cause,
    Failure,
    FixedRestarts,
    GiveUp,
    Known,
    NoRestart,
    Restart,
    RestartLimit,
    RestartRate,
    Restarts,
)
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid


def failure(attempt: int, cause: Cause = Cause.PROCESS, text: str = "lost", traceback: str = "") -> Failure:
    return Failure(Incarnation(Generation(1), Attempt(attempt)), cause, text, Partition(2), Uid("count"), traceback)


def test_a_job_that_is_not_to_be_restarted_is_given_up_at_its_first_failure() -> None:
    verdict = RestartLimit(NoRestart()).failed(0, failure(1))
    assert verdict == GiveUp("the job is not to be restarted", failure(1))


def test_a_fixed_number_of_restarts_is_counted_for_good() -> None:
    limit = RestartLimit(FixedRestarts(2, delay=50))
    assert limit.failed(0, failure(1)) == Restart(50)
    limit.completed()
    assert limit.failed(10**9, failure(2)) == Restart(50)
    verdict = limit.failed(2 * 10**9, failure(3))
    assert verdict == GiveUp("it was restarted 2 times, as often as it may be", failure(3))
    assert limit.restarts == 2


def test_a_rate_of_restarts_forgets_those_that_are_long_ago() -> None:
    limit = RestartLimit(RestartRate(2, within=100, delay=7))
    assert limit.failed(0, failure(1)) == Restart(7)
    assert limit.failed(60, failure(2)) == Restart(7)
    assert limit.failed(100, failure(3)) == Restart(7), "the first is a hundred milliseconds ago"
    assert isinstance(limit.failed(159, failure(4)), GiveUp)


def test_an_attempt_counts_once_however_many_of_its_partitions_report() -> None:
    limit = RestartLimit(FixedRestarts(2))
    assert limit.failed(0, failure(1, Cause.CHANNEL)) == Restart(0)
    assert limit.failed(1, failure(1)) == Known()
    assert limit.failed(2, failure(2)) == Restart(0)
    assert limit.failed(3, failure(1)) == Known(), "a report of an attempt before the last one"
    assert limit.restarts == 2


@pytest.mark.parametrize("restarts", [NoRestart(), FixedRestarts(9), RestartRate(9)])
def test_what_will_happen_again_ends_the_job_at_once(restarts: Restarts) -> None:
    verdict = RestartLimit(restarts).failed(0, failure(1, Cause.UNUSABLE, "the state has another type"))
    assert isinstance(verdict, GiveUp)
    assert verdict.reason == "the same will happen again"
    assert str(verdict.failure) == "partition 2: count: the state has another type"


def test_what_will_happen_again_ends_the_job_also_if_it_is_reported_behind_a_broken_channel() -> None:
    limit = RestartLimit(FixedRestarts(9))
    limit.failed(0, failure(1, Cause.CHANNEL))
    assert isinstance(limit.failed(1, failure(1, Cause.UNUSABLE)), GiveUp)


def test_a_record_that_fails_again_and_again_without_an_epoch_in_between_is_not_tried_for_ever() -> None:
    limit = RestartLimit(FixedRestarts(99), poisoned_after=3)
    assert limit.failed(0, failure(1, Cause.PROGRAM)) == Restart(0)
    assert limit.failed(1, failure(2, Cause.PROGRAM)) == Restart(0)
    verdict = limit.failed(2, failure(3, Cause.PROGRAM, "ValueError: 7", "Traceback ..."))
    assert isinstance(verdict, GiveUp)
    assert "failed 3 times in a row without an epoch completed in between" in verdict.reason
    assert verdict.failure.traceback == "Traceback ..."


def test_an_epoch_in_between_shows_that_the_program_can_go_on() -> None:
    limit = RestartLimit(FixedRestarts(99), poisoned_after=2)
    for attempt in range(1, 9):
        assert limit.failed(attempt, failure(attempt, Cause.PROGRAM)) == Restart(0)
        limit.completed()


def test_the_cause_may_be_reported_after_the_channel_that_it_broke() -> None:
    limit = RestartLimit(FixedRestarts(99), poisoned_after=2)
    for attempt in (1, 2):
        assert limit.failed(attempt, failure(attempt, Cause.CHANNEL)) == Restart(0)
        verdict = limit.failed(attempt, failure(attempt, Cause.PROGRAM))
        assert verdict == Known() if attempt == 1 else isinstance(verdict, GiveUp)


def test_two_partitions_that_fail_at_the_same_record_are_one_failure() -> None:
    limit = RestartLimit(FixedRestarts(99), poisoned_after=2)
    assert limit.failed(0, failure(1, Cause.PROGRAM)) == Restart(0)
    assert limit.failed(0, failure(1, Cause.PROGRAM)) == Known()


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedRestarts(0),
        lambda: FixedRestarts(1, delay=-1),
        lambda: RestartRate(1, within=0),
        lambda: RestartLimit(NoRestart(), poisoned_after=0),
        lambda: Passive(standbys=-1),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"restart|poisoned_after|standbys"):
        make()
