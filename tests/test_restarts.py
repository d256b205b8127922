"""How often a job is tried again, and what no restart can cure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.decisions.restarts import Cause, Death, Failure, GiveUp, Known, Restart, RestartLimit, Verdict
from recovery.restart_strategies import ExponentialDelay, FailureRate, FixedDelay, NoRestart, Restarts
from recovery.schemes.passive import Passive
from snapshot.host.protocol.messages import AtWork
from statebackend.durations import milliseconds
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.window_models import spans


def failure(attempt: int, cause: Cause = Cause.PROCESS, text: str = "lost", traceback: str = "") -> Failure:
    return Failure(Incarnation(Generation(1), Attempt(attempt)), cause, text, Partition(2), Uid("count"), traceback)


def test_a_job_that_is_not_to_be_restarted_is_given_up_at_its_first_failure() -> None:
    verdict = RestartLimit(NoRestart()).failed(0, failure(1))
    assert verdict == GiveUp("the job is not to be restarted", failure(1))


def test_a_fixed_number_of_restarts_is_counted_for_good() -> None:
    limit = RestartLimit(FixedDelay(2, delay="50ms"))
    assert limit.failed(0, failure(1)) == Restart(50)
    limit.completed()
    assert limit.failed(10**9, failure(2)) == Restart(50)
    verdict = limit.failed(2 * 10**9, failure(3))
    assert verdict == GiveUp("it was restarted 2 times, as often as it may be", failure(3))
    assert limit.restarts == 2


def test_a_rate_of_restarts_forgets_those_that_are_long_ago() -> None:
    limit = RestartLimit(FailureRate(2, interval="100ms", delay="7ms"))
    assert limit.failed(0, failure(1)) == Restart(7)
    assert limit.failed(60, failure(2)) == Restart(7)
    assert limit.failed(100, failure(3)) == Restart(7), "the first is a hundred milliseconds ago"
    assert isinstance(limit.failed(159, failure(4)), GiveUp)


def test_an_attempt_counts_once_however_many_of_its_partitions_report() -> None:
    limit = RestartLimit(FixedDelay(2))
    assert limit.failed(0, failure(1, Cause.CHANNEL)) == Restart(0)
    assert limit.failed(1, failure(1)) == Known()
    assert limit.failed(2, failure(2)) == Restart(0)
    assert limit.failed(3, failure(1)) == Known(), "a report of an attempt before the last one"
    assert limit.restarts == 2


def test_a_partition_that_restarts_alone_counts_as_an_attempt_does() -> None:
    limit, partition = RestartLimit(FixedDelay(2)), Partition(2)
    assert limit.alone(0, partition, failure(1))
    limit.completed()
    assert limit.failed(1, failure(1)) == Restart(0), "the attempt went on, and fails later for the first time"
    limit.completed()
    assert not limit.alone(2, partition, failure(2))
    assert limit.failed(3, failure(2)) == GiveUp("it was restarted 2 times, as often as it may be", failure(2))
    assert not RestartLimit(NoRestart()).alone(0, partition, failure(1))


def test_a_partition_restarts_alone_once_until_an_epoch_is_complete() -> None:
    limit = RestartLimit(FixedDelay(99))
    assert limit.alone(0, Partition(2), failure(1))
    assert limit.alone(1, Partition(1), failure(1)), "another one does so beside it"
    assert not limit.alone(2, Partition(2), failure(1))
    limit.completed()
    assert limit.alone(3, Partition(2), failure(1))


def test_silences_of_partitions_that_restart_alone_count_too() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=2)
    assert limit.alone(0, Partition(2), failure(1, Cause.SILENT))
    assert not limit.alone(1, Partition(2), failure(1, Cause.SILENT))
    assert isinstance(limit.failed(1, failure(1, Cause.SILENT)), GiveUp)


@pytest.mark.parametrize("restarts", [NoRestart(), FixedDelay(9), FailureRate(9), ExponentialDelay()])
def test_what_will_happen_again_ends_the_job_at_once(restarts: Restarts) -> None:
    verdict = RestartLimit(restarts).failed(0, failure(1, Cause.UNUSABLE, "the state has another type"))
    assert isinstance(verdict, GiveUp)
    assert verdict.reason == "the same will happen again"
    assert str(verdict.failure) == "partition 2: count: the state has another type"


def test_what_will_happen_again_ends_the_job_also_if_it_is_reported_behind_a_broken_channel() -> None:
    limit = RestartLimit(FixedDelay(9))
    limit.failed(0, failure(1, Cause.CHANNEL))
    assert isinstance(limit.failed(1, failure(1, Cause.UNUSABLE)), GiveUp)


def test_a_record_that_fails_again_and_again_without_an_epoch_in_between_is_not_tried_for_ever() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=3)
    assert limit.failed(0, failure(1, Cause.PROGRAM)) == Restart(0)
    assert limit.failed(1, failure(2, Cause.PROGRAM)) == Restart(0)
    verdict = limit.failed(2, failure(3, Cause.PROGRAM, "ValueError: 7", "Traceback ..."))
    assert isinstance(verdict, GiveUp)
    assert "failed 3 times in a row without an epoch completed in between" in verdict.reason
    assert verdict.failure.traceback == "Traceback ..."


def test_a_partition_that_falls_silent_again_and_again_without_an_epoch_in_between_ends_the_job_with_a_suspicion() -> (
    None
):
    limit = RestartLimit(FixedDelay(99), poisoned_after=3)
    assert limit.failed(0, failure(1, Cause.SILENT)) == Restart(0)
    assert limit.failed(1, failure(2, Cause.PROCESS)) == Restart(0), "it is killed, and has said so"
    elsewhere = Failure(Incarnation(Generation(1), Attempt(3)), Cause.SILENT, "silent", Partition(1))
    assert limit.failed(2, elsewhere) == Restart(0)
    assert limit.failed(3, failure(4, Cause.SILENT)) == Restart(0)
    verdict = limit.failed(4, failure(5, Cause.SILENT))
    assert isinstance(verdict, GiveUp)
    assert "partition 2 fell silent 3 times in a row without an epoch completed in between" in verdict.reason
    assert "keeps the interpreter to itself" in verdict.reason


def test_processes_that_fall_silent_now_and_then_between_epochs_are_replaced() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=2)
    for attempt in range(1, 9):
        assert limit.failed(attempt, failure(attempt, Cause.SILENT)) == Restart(0)
        limit.completed()


def test_an_epoch_in_between_shows_that_the_program_can_go_on() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=2)
    for attempt in range(1, 9):
        assert limit.failed(attempt, failure(attempt, Cause.PROGRAM)) == Restart(0)
        limit.completed()


def test_the_cause_may_be_reported_after_the_channel_that_it_broke() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=2)
    for attempt in (1, 2):
        assert limit.failed(attempt, failure(attempt, Cause.CHANNEL)) == Restart(0)
        verdict = limit.failed(attempt, failure(attempt, Cause.PROGRAM))
        assert verdict == Known() if attempt == 1 else isinstance(verdict, GiveUp)


def test_two_partitions_that_fail_at_the_same_record_are_one_failure() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=2)
    assert limit.failed(0, failure(1, Cause.PROGRAM)) == Restart(0)
    assert limit.failed(0, failure(1, Cause.PROGRAM)) == Known()


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedDelay(0),
        lambda: FixedDelay(1, delay="-1s"),
        lambda: FailureRate(1, interval=0),
        lambda: ExponentialDelay(initial_backoff=0),
        lambda: ExponentialDelay(initial_backoff="2s", max_backoff="1s"),
        lambda: ExponentialDelay(multiplier=0.9),
        lambda: ExponentialDelay(jitter=1.0),
        lambda: ExponentialDelay(reset_after=0),
        lambda: ExponentialDelay(attempts=0),
        lambda: RestartLimit(NoRestart(), poisoned_after=0),
        lambda: Passive(standbys=-1),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"restart|poisoned_after|standbys|duration"):
        make()


# --- how processes died


def death(*, by_itself: bool = False, nth: int | None = None, partition: int = 2, what: str = "the row 7") -> Death:
    at_work = None if nth is None else AtWork(Uid("count"), what, nth)
    return Death(Partition(partition), "w", "its process 4 on h died", by_itself, at_work)


def die(limit: RestartLimit, death: Death) -> str:
    limit.lost(death.partition)
    return limit.died(death)


def test_processes_of_a_partition_that_end_themselves_again_and_again_end_the_job() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=3)
    assert not die(limit, death(by_itself=True))
    assert not die(limit, death(by_itself=True, partition=1))
    assert not die(limit, death(by_itself=True))
    why = die(limit, death(by_itself=True, nth=1))
    assert why.startswith(
        "processes of partition 2 have ended themselves 3 times without an epoch completed in between"
    )


def test_two_deaths_at_the_very_same_call_in_a_row_end_the_job_whatever_killed_the_processes() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=3)
    for _ in range(2):
        assert not die(limit, death())
    assert not die(limit, death(nth=5))
    assert not die(limit, death(nth=6)), "a row of the same content that comes later is another one"
    assert not die(limit, death(nth=6, what="the row 8"))
    assert not die(limit, death()), "it was at nothing"
    assert not die(limit, death(nth=6, what="the row 8"))
    why = die(limit, death(nth=6, what="the row 8"))
    assert why.startswith("8 processes of partition 2 have died")
    assert "the last two of them at the very same call" in why


def test_calls_that_cannot_be_told_apart_are_not_taken_for_the_same() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=1)
    assert not any(die(limit, death(nth=0)) for _ in range(9))


@given(st.lists(st.tuples(st.integers(0, 1), st.one_of(st.none(), st.integers(1, 10**6))), max_size=40))
def test_processes_that_are_killed_at_different_calls_never_end_the_job(killed: list[tuple[int, int | None]]) -> None:
    limit, before = RestartLimit(FixedDelay(99)), dict[int, int | None]()
    for partition, nth in killed:
        why = die(limit, death(nth=nth, partition=partition))
        assert bool(why) == (nth is not None and before.get(partition) == nth)
        before[partition] = nth


def test_an_epoch_in_between_forgets_how_processes_died() -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=2)
    for _ in range(9):
        assert not die(limit, death(by_itself=True, nth=1))
        assert limit.suspects == {2}
        limit.completed()
        assert limit.suspects == set()


@pytest.mark.parametrize(("poisoned_after", "losses"), [(1, 1), (2, 1), (3, 2), (9, 8)])
def test_a_process_is_asked_what_it_calls_in_time_for_the_last_death_to_be_explained(
    poisoned_after: int, losses: int
) -> None:
    limit = RestartLimit(FixedDelay(99), poisoned_after=poisoned_after)
    for _ in range(losses):
        assert limit.suspects == set(), "it is slower, so not before it is needed"
        limit.lost(Partition(2))
    assert limit.suspects == {2}


# --- delays that grow


def delays(restarts: ExponentialDelay, count: int, chance: float = 0.5) -> list[int]:
    """The delays of failures that come one after the other, each at the begin of its attempt."""
    limit, now, found = RestartLimit(restarts), 0, []
    for attempt in range(1, count + 1):
        verdict = limit.failed(now, failure(attempt), chance)
        assert isinstance(verdict, Restart)
        found.append(verdict.delay)
        now += verdict.delay
    return found


def test_the_first_restart_comes_at_once_and_the_others_later_and_later() -> None:
    assert delays(ExponentialDelay(max_backoff="5s"), 7) == [0, 1000, 1500, 2250, 3375, 5000, 5000]
    assert delays(ExponentialDelay(multiplier=1.0), 4) == [0, 1000, 1000, 1000]
    assert delays(ExponentialDelay(multiplier=1e300, initial_backoff="1ms"), 4) == [0, 1, 60_000, 60_000]


def test_the_first_restart_may_wait_as_well() -> None:
    assert delays(ExponentialDelay(initial_backoff="100ms", multiplier=2, at_once=False), 3) == [100, 200, 400]


def test_a_completed_epoch_starts_the_delays_anew_unless_only_time_shall() -> None:
    for at_once, then in ((True, 0), (False, 1500)):
        limit = RestartLimit(ExponentialDelay(at_once=at_once))
        limit.failed(0, failure(1))
        limit.completed()
        assert limit.failed(2000, failure(2)) == Restart(then)


def test_an_attempt_that_lived_long_starts_the_delays_anew() -> None:
    limit = RestartLimit(ExponentialDelay(at_once=False, reset_after="10s"))
    assert limit.failed(0, failure(1)) == Restart(1000)
    assert limit.failed(10_999, failure(2)) == Restart(1500), "it lived for 9.999 s"
    assert limit.failed(22_499, failure(3)) == Restart(1000), "it lived for 10 s"


def test_so_many_failures_in_a_row_and_no_more() -> None:
    limit = RestartLimit(ExponentialDelay(attempts=2))
    limit.failed(0, failure(1))
    limit.failed(0, failure(2))
    limit.completed()
    assert limit.failed(0, failure(3)) == Restart(0)
    assert limit.failed(0, failure(4)) == Restart(1000)
    verdict = limit.failed(2000, failure(5))
    assert verdict == GiveUp("it was restarted 2 times in a row, and no epoch was completed in between", failure(5))


STRATEGIES = st.one_of(
    st.builds(FixedDelay, st.integers(1, 4), spans(0, 100)),
    st.builds(FailureRate, st.integers(1, 4), spans(1, 1000), spans(0, 100)),
    st.builds(
        ExponentialDelay,
        initial_backoff=spans(1, 50),
        max_backoff=spans(50, 1000),
        multiplier=st.floats(1, 1e308),
        reset_after=spans(1, 1000),
        jitter=st.floats(0, 0.99),
        attempts=st.none() | st.integers(1, 4),
        at_once=st.booleans(),
    ),
)
STEPS = st.lists(st.tuples(st.integers(0, 400), st.floats(0, 1, exclude_max=True), st.booleans()), max_size=30)


@given(STRATEGIES, STEPS)
def test_a_strategy_keeps_its_limits_whatever_happens(restarts: Restarts, steps: list[tuple[int, float, bool]]) -> None:
    limit, now, in_a_row = RestartLimit(restarts), 0, 0
    given_up: Verdict | None = None
    at: list[int] = []
    for attempt, (passed, chance, completed) in enumerate(steps, start=1):
        now += passed
        verdict = limit.failed(now, failure(attempt), chance)
        assert limit.failed(now, failure(attempt), chance) == Known()
        if isinstance(verdict, GiveUp):
            given_up = verdict
            break
        assert isinstance(verdict, Restart)
        at.append(now)
        in_a_row += 1
        assert limit.restarts == len(at)
        match restarts:
            case FixedDelay(attempts, delay):
                assert len(at) <= attempts
                assert verdict.delay == milliseconds(delay)
            case FailureRate(failures, interval, delay):
                assert len([one for one in at if one > now - milliseconds(interval)]) <= failures
                assert verdict.delay == milliseconds(delay)
            case ExponentialDelay(max_backoff=most, attempts=most_in_a_row):
                assert 0 <= verdict.delay <= milliseconds(most)
                assert attempt > 1 or (verdict.delay == 0) == restarts.at_once or restarts.jitter > 0.5
                if restarts.at_once:
                    assert most_in_a_row is None or in_a_row <= most_in_a_row or passed >= 1
            case _:
                raise AssertionError(f"{restarts} is not drawn")
        now += verdict.delay
        if completed:
            limit.completed()
            in_a_row = 0
    if given_up is not None:
        match restarts:
            case FixedDelay(attempts, _):
                assert len(at) == attempts
            case FailureRate(failures, interval, _):
                assert len([one for one in at if one > now - milliseconds(interval)]) == failures
            case ExponentialDelay(attempts=int(most_in_a_row)):
                assert len(at) >= most_in_a_row
            case _:
                raise AssertionError(f"{restarts} never gives up")
