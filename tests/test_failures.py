"""What follows from a failure: reports go in, and what is to be done comes out."""

from __future__ import annotations

from recovery.decisions.restarts import Cause, Failure, RestartLimit
from recovery.events import AttemptFailed, Trouble
from recovery.restart_strategies import FixedDelay, NoRestart, Restarts
from recovery.schemes.rolling_back import BreakAttempt, Consequence, Failures, GiveUpJob
from statebackend.ids import Attempt, Generation, Incarnation, Partition


def attempt(number: int) -> Incarnation:
    return Incarnation(Generation(1), Attempt(number))


def failure(cause: Cause, of: int = 1, reason: str = "it broke") -> Failure:
    return Failure(attempt(of), cause, reason, Partition(0))


def failures_of(restarts: Restarts) -> Failures:
    return Failures(RestartLimit(restarts))


def failed(failures: Failures, what: Failure) -> list[Consequence]:
    return failures.failed(what, now=1.0, at=1.0, chance=0.5)


def test_a_failure_is_noted_and_breaks_the_attempt_once() -> None:
    failures = failures_of(FixedDelay(9, "2s"))
    noted, broken = failed(failures, failure(Cause.PROCESS))
    assert isinstance(noted, AttemptFailed)
    assert (noted.incarnation, noted.then) == (attempt(1), "restart")
    assert broken == BreakAttempt(failure(Cause.PROCESS), 2.0)
    assert failed(failures, failure(Cause.CHANNEL)) == [], "the other end of its channel has broken as well"


def test_the_attempt_after_a_broken_channel_waits_a_moment_for_the_process_that_is_gone() -> None:
    _, broken = failed(failures_of(FixedDelay(9, "0s")), failure(Cause.CHANNEL))
    assert isinstance(broken, BreakAttempt)
    assert 0 < broken.pause < 0.1
    _, at_once = failed(failures_of(FixedDelay(9, "0s")), failure(Cause.PROCESS))
    assert at_once == BreakAttempt(failure(Cause.PROCESS), 0.0)


def test_an_attempt_that_was_ended_on_purpose_does_not_fail() -> None:
    failures = failures_of(NoRestart())
    failures.planned(attempt(1))
    assert failed(failures, failure(Cause.CHANNEL)) == []
    assert failures.broken_by_coordinator(attempt(2), now=1.0, at=1.0, chance=0.5) == []


def test_an_attempt_that_the_coordinator_broke_counts_unless_its_failure_was_reported() -> None:
    failures = failures_of(FixedDelay(1, "0s"))
    failed(failures, failure(Cause.PROCESS))
    assert failures.broken_by_coordinator(attempt(2), now=1.0, at=1.0, chance=0.5) == []
    noted, end = failures.broken_by_coordinator(attempt(3), now=1.0, at=1.0, chance=0.5)
    assert isinstance(noted, AttemptFailed)
    assert isinstance(end, GiveUpJob)
    assert end.error.reason == (
        "more epochs in a row failed than are tolerated (it was restarted 1 times, as often as it may be)"
    )


def test_a_failure_without_a_cause_of_its_own_waits_for_one_that_explains_it() -> None:
    failures = failures_of(NoRestart())
    _, later = failed(failures, failure(Cause.PROCESS))
    assert isinstance(later, GiveUpJob)
    assert later.after > 0
    assert failed(failures, failure(Cause.RESOURCE)) == []
    (now,) = failed(failures, failure(Cause.PROGRAM, reason="ZeroDivisionError"))
    assert isinstance(now, GiveUpJob)
    assert now.after == 0
    assert now.error.reason == "partition 0: ZeroDivisionError"


def test_forgery_that_is_found_after_the_channel_broke_is_told() -> None:
    failures = failures_of(FixedDelay(9, "0s"))
    failed(failures, failure(Cause.CHANNEL))
    (told,) = failed(failures, failure(Cause.FORGED, reason="ForgedRecord"))
    assert isinstance(told, Trouble)
    assert (told.what, told.reason) == ("the network", "partition 0: ForgedRecord")
