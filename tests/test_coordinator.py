"""The coordinator step by step: what it says to every event, in every state."""

from __future__ import annotations

import pytest

from snapshot.cut.frames import Marker, MarkerMode
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.coordinator_events import (
    Abandon,
    AbandonReason,
    Acknowledged,
    AttemptBroken,
    AttemptStarted,
    CommitFailed,
    Committed,
    Complete,
    ContributorBack,
    ContributorChanged,
    CoordinatorInstruction,
    Declined,
    EpochRequested,
    Fenced,
    Promote,
    Publish,
    Published,
    PublishFailed,
    RecordCommitted,
    RemoveOlder,
    RollBack,
    SavepointRequested,
    Skipped,
    SkipReason,
    Stop,
    Ticked,
    Trigger,
)
from snapshot.epochs.coordinator_options import CoordinatorOptions, Rhythm
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

GENERATION = Generation(2)
BOTH = frozenset({Partition(0), Partition(1)})
OPTIONS = CoordinatorOptions(interval=10, timeout=60, max_in_flight=3)
SUBSUMED, DECLINED, TIMED_OUT = AbandonReason.SUBSUMED, AbandonReason.DECLINED, AbandonReason.TIMED_OUT
ATTEMPT_BROKEN, PUBLISH_FAILED = AbandonReason.ATTEMPT_BROKEN, AbandonReason.PUBLISH_FAILED

Instructions = list[CoordinatorInstruction[str]]


def epoch(number: int) -> Epoch:
    return Epoch(GENERATION, number)


def of_attempt(attempt: int) -> Incarnation:
    return Incarnation(GENERATION, Attempt(attempt))


def new(options: CoordinatorOptions = OPTIONS) -> Coordinator[str]:
    return Coordinator(options, GENERATION, now=0)


def started(options: CoordinatorOptions = OPTIONS) -> Coordinator[str]:
    coordinator = new(options)
    assert coordinator.handle(AttemptStarted(of_attempt(1), BOTH)) == []
    return coordinator


def triggered(*times: int, options: CoordinatorOptions = OPTIONS) -> Coordinator[str]:
    """A coordinator that has triggered an epoch at each of these times."""
    coordinator = started(options)
    for time in times:
        assert [type(i) for i in coordinator.handle(Ticked(time))] == [Trigger]
    return coordinator


def trigger(number: int, mode: MarkerMode = MarkerMode.ALIGNED, *, savepoint: bool = False) -> Trigger:
    return Trigger(Marker(epoch(number), mode, savepoint), BOTH)


def ack(number: int, partition: int, *, attempt: int = 1, output: bool = False) -> Acknowledged[str]:
    content = f"{number}/{partition}"
    return Acknowledged(epoch(number), of_attempt(attempt), Partition(partition), content, output)


def publish(number: int, base: Epoch | None = None, *, savepoint: bool = False, output: bool = False) -> Publish[str]:
    contents = {Partition(partition): f"{number}/{partition}" for partition in (0, 1)}
    return Publish(epoch(number), base, of_attempt(1), savepoint, contents, output)


def roll_back(to: Epoch | None, attempt: int, *, confirm_first: bool = False) -> RollBack:
    return RollBack(to, of_attempt(attempt), confirm_first)


def committed(number: int, partition: int, *, attempt: int = 1) -> Committed:
    return Committed(epoch(number), of_attempt(attempt), Partition(partition))


def declined(number: int, *, attempt: int = 1) -> Declined:
    return Declined(epoch(number), of_attempt(attempt), Partition(1), "disk full")


def acknowledge(coordinator: Coordinator[str], number: int, *, output: bool = False) -> Instructions:
    """Both partitions acknowledge; what the second of them leads to."""
    assert coordinator.handle(ack(number, 0, output=output)) == []
    return coordinator.handle(ack(number, 1))


# --- trigger


def test_an_epoch_is_triggered_every_interval_from_the_start_of_the_attempt() -> None:
    coordinator = started()
    assert coordinator.deadline == 10
    assert coordinator.handle(Ticked(9)) == []
    assert coordinator.handle(Ticked(10)) == [trigger(1)]
    assert coordinator.deadline == 20
    assert coordinator.handle(Ticked(19)) == []
    assert coordinator.handle(Ticked(20)) == [trigger(2)]
    assert list(coordinator.in_flight) == [epoch(1), epoch(2)]
    assert coordinator.statistics.triggered == 2


def test_intervals_that_passed_unseen_are_not_made_up_for() -> None:
    coordinator = started()
    assert coordinator.handle(Ticked(55)) == [trigger(1)]
    assert coordinator.handle(Ticked(64)) == []
    assert coordinator.handle(Ticked(65)) == [trigger(2)]


def test_nothing_is_triggered_before_the_participants_are_there() -> None:
    coordinator = new()
    assert coordinator.handle(Ticked(10)) == [Skipped(SkipReason.NOT_RUNNING)]
    assert coordinator.handle(SavepointRequested()) == [Skipped(SkipReason.NOT_RUNNING)]
    assert coordinator.handle(EpochRequested()) == [Skipped(SkipReason.NOT_RUNNING)]
    assert coordinator.handle(Ticked(15)) == []
    coordinator.handle(AttemptStarted(of_attempt(1), BOTH))
    assert coordinator.deadline == 25
    assert coordinator.statistics.skipped == 3


def test_numbers_go_on_from_the_last_one_of_the_journal() -> None:
    coordinator: Coordinator[str] = Coordinator(OPTIONS, GENERATION, now=0, complete=epoch(4), last_number=7)
    coordinator.handle(AttemptStarted(of_attempt(1), BOTH))
    assert coordinator.handle(Ticked(10)) == [trigger(8)]
    assert acknowledge(coordinator, 8) == [publish(8, epoch(4))]


def test_at_the_limit_of_epochs_in_flight_a_trigger_is_skipped_and_counted() -> None:
    coordinator = triggered(10, 20, 30)
    assert coordinator.handle(Ticked(40)) == [Skipped(SkipReason.IN_FLIGHT)]
    assert coordinator.handle(Ticked(45)) == []
    acknowledge(coordinator, 1)
    assert coordinator.handle(Ticked(50)) == [Skipped(SkipReason.IN_FLIGHT)]
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(Ticked(60)) == [trigger(4)]
    assert coordinator.statistics.skipped == 2


@pytest.mark.parametrize("mode", MarkerMode)
def test_epochs_have_the_mode_of_the_job_and_savepoints_are_aligned(mode: MarkerMode) -> None:
    coordinator = started(CoordinatorOptions(interval=10, mode=mode))
    assert coordinator.handle(Ticked(10)) == [trigger(1, mode)]
    assert coordinator.handle(SavepointRequested()) == [trigger(2, savepoint=True)]


ONE_BY_ONE = CoordinatorOptions(interval=10, timeout=60, max_in_flight=1, rhythm=Rhythm.ONE_BY_ONE)
WITH_REST = CoordinatorOptions(interval=10, timeout=60, max_in_flight=1, rhythm=Rhythm.WITH_REST)


def test_one_by_one_the_first_epoch_is_triggered_as_soon_as_the_attempt_runs() -> None:
    assert triggered(0, options=ONE_BY_ONE).deadline == 10


def test_one_by_one_an_epoch_that_is_due_begins_when_the_one_before_is_complete() -> None:
    coordinator = triggered(0, options=ONE_BY_ONE)
    assert coordinator.handle(Ticked(10)) == []
    assert coordinator.statistics.skipped == 0
    coordinator.handle(Ticked(14))
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.deadline == 14
    assert coordinator.handle(Ticked(14)) == [trigger(2)]


def test_one_by_one_an_epoch_that_was_complete_in_time_is_followed_at_the_interval() -> None:
    coordinator = triggered(0, options=ONE_BY_ONE)
    coordinator.handle(Ticked(4))
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(Ticked(9)) == []
    assert coordinator.handle(Ticked(10)) == [trigger(2)]


def test_one_by_one_an_epoch_that_is_given_up_is_followed_at_once_by_the_one_that_was_due() -> None:
    coordinator = triggered(0, options=ONE_BY_ONE)
    coordinator.handle(Ticked(12))
    assert [type(said) for said in coordinator.handle(declined(1))] == [Abandon]
    assert coordinator.handle(Ticked(13)) == [trigger(2)]


def test_one_by_one_an_attempt_after_the_last_epoch_has_epochs_again_as_its_sources_read_in_no_other_way() -> None:
    coordinator = started(ONE_BY_ONE)
    assert coordinator.handle(EpochRequested(last=True)) == [trigger(1)]
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(Ticked(50)) == []
    coordinator.handle(AttemptBroken(of_attempt(1), "lost"))
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(Ticked(51)) == [trigger(2)]


def test_with_rest_the_next_epoch_is_as_far_away_as_the_last_one_took() -> None:
    coordinator = triggered(10, options=WITH_REST)
    coordinator.handle(Ticked(45))
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.deadline == 80
    assert coordinator.handle(Ticked(79)) == []
    assert coordinator.handle(Ticked(80)) == [trigger(2)]


def test_with_rest_an_epoch_that_took_less_than_half_of_the_interval_moves_no_other() -> None:
    coordinator = triggered(10, options=WITH_REST)
    coordinator.handle(Ticked(15))
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(Ticked(20)) == [trigger(2)]


def test_with_rest_an_epoch_that_the_end_of_its_attempt_has_ended_delays_nothing_in_the_next() -> None:
    coordinator = triggered(10, options=WITH_REST)
    coordinator.handle(Ticked(60))
    coordinator.handle(AttemptBroken(of_attempt(1), "lost"))
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(Ticked(70)) == [trigger(2)]


def test_a_savepoint_is_triggered_at_once_whatever_is_in_flight_and_the_interval_goes_on() -> None:
    coordinator = triggered(10, options=CoordinatorOptions(interval=10, max_in_flight=1))
    assert coordinator.handle(SavepointRequested()) == [trigger(2, savepoint=True)]
    assert coordinator.deadline == 20


def test_a_requested_epoch_is_triggered_at_once_whatever_is_in_flight_and_the_interval_goes_on() -> None:
    coordinator = triggered(10, options=CoordinatorOptions(interval=10, max_in_flight=1))
    assert coordinator.handle(EpochRequested()) == [trigger(2)]
    assert coordinator.deadline == 20
    assert coordinator.handle(Ticked(20)) == [Skipped(SkipReason.IN_FLIGHT)]


@pytest.mark.parametrize("last", [SavepointRequested(last=True), EpochRequested(last=True)])
def test_behind_the_last_epoch_none_is_triggered_by_the_interval(last: SavepointRequested | EpochRequested) -> None:
    coordinator = started(CoordinatorOptions(interval=10, max_in_flight=5))
    assert len(coordinator.handle(last)) == 1
    assert coordinator.handle(Ticked(10)) == []
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(Ticked(20)) == []
    assert coordinator.handle(SavepointRequested()) == [trigger(2, savepoint=True)]


@pytest.mark.parametrize("last", [SavepointRequested(last=True), EpochRequested(last=True)])
def test_behind_the_last_epoch_none_is_triggered_because_a_member_joins(
    last: SavepointRequested | EpochRequested,
) -> None:
    coordinator = started(CoordinatorOptions(interval=10, timeout=15))
    assert len(coordinator.handle(last)) == 1
    assert coordinator.handle(EpochRequested()) == []
    assert coordinator.handle(EpochRequested(last=True)) == [trigger(2)], "the last one can be asked for again"


def test_when_the_last_epoch_is_given_up_the_interval_goes_on() -> None:
    coordinator = started(CoordinatorOptions(interval=10, timeout=15, max_in_flight=5))
    coordinator.handle(EpochRequested(last=True))
    assert coordinator.handle(Ticked(10)) == []
    abandoned, again = coordinator.handle(Ticked(20))
    assert isinstance(abandoned, Abandon)
    assert again == trigger(2)


@pytest.mark.parametrize("mode", MarkerMode)
def test_a_requested_epoch_has_the_mode_of_the_job_and_is_no_savepoint(mode: MarkerMode) -> None:
    coordinator = started(CoordinatorOptions(interval=10, mode=mode))
    assert coordinator.handle(EpochRequested()) == [trigger(1, mode)]
    assert acknowledge(coordinator, 1) == [publish(1)]


def test_a_requested_epoch_does_not_wait_for_the_pause() -> None:
    coordinator = triggered(10, options=CoordinatorOptions(interval=10, min_pause=25, max_in_flight=1))
    acknowledge(coordinator, 1)
    coordinator.handle(Ticked(18))
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(EpochRequested()) == [trigger(2)]


def test_after_a_publication_there_is_a_pause() -> None:
    options = CoordinatorOptions(interval=10, min_pause=25, max_in_flight=1)
    coordinator = triggered(10, options=options)
    acknowledge(coordinator, 1)
    coordinator.handle(Ticked(18))
    coordinator.handle(Published(epoch(1)))
    assert coordinator.deadline == 43
    assert coordinator.handle(Ticked(42)) == []
    assert coordinator.handle(Ticked(43)) == [trigger(2)]
    assert coordinator.handle(Ticked(50)) == []
    assert coordinator.handle(Ticked(53)) == [Skipped(SkipReason.IN_FLIGHT)]


# --- acknowledgements


def test_an_epoch_is_published_when_all_have_acknowledged_it() -> None:
    coordinator = triggered(10)
    assert coordinator.handle(ack(1, 1)) == []
    assert coordinator.handle(ack(1, 0)) == [publish(1)]
    assert list(coordinator.in_flight) == [epoch(1)]
    assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1)), RemoveOlder(1, None)]
    assert coordinator.complete == epoch(1)
    assert coordinator.statistics.completed == 1


@pytest.mark.parametrize(
    "stale",
    [
        ack(1, 0),
        ack(2, 1),
        ack(1, 7),
        ack(1, 1, attempt=2),
        ack(1, 1, attempt=0),
        Acknowledged(epoch(1), Incarnation(Generation(1), Attempt(1)), Partition(1), "", has_committables=False),
        declined(1, attempt=2),
        committed(1, 1, attempt=2),
        CommitFailed(epoch(1), of_attempt(2), Partition(1), "gone"),
        AttemptStarted(of_attempt(1), BOTH),
        AttemptStarted(of_attempt(2), BOTH),
    ],
    ids=str,
)
def test_a_report_that_is_stale_or_not_expected_is_refused_and_counted(
    stale: Acknowledged[str] | Declined | Committed | CommitFailed | AttemptStarted,
) -> None:
    coordinator = triggered(10)
    coordinator.handle(ack(1, 0))
    assert coordinator.handle(stale) == []
    assert coordinator.statistics.refused == 1
    assert coordinator.handle(ack(1, 1)) == [publish(1)]


def test_an_attempt_that_others_believe_broken_goes_on_if_it_is_not_the_current_one() -> None:
    coordinator = triggered(10)
    assert coordinator.handle(AttemptBroken(of_attempt(2), "old news")) == []
    assert coordinator.state is CoordinatorState.RUNNING


# --- publication


def test_one_publication_is_under_way_at_a_time_and_in_order() -> None:
    coordinator = triggered(10, 20, 30)
    assert acknowledge(coordinator, 1) == [publish(1)]
    assert acknowledge(coordinator, 2) == []
    assert acknowledge(coordinator, 3) == []
    assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1)), RemoveOlder(1, None), publish(2)]
    assert coordinator.handle(Published(epoch(2))) == [Complete(epoch(2)), RemoveOlder(1, None), publish(3)]
    assert coordinator.handle(Published(epoch(3))) == [Complete(epoch(3)), RemoveOlder(1, None)]


def test_an_epoch_that_is_acknowledged_first_subsumes_the_older_ones() -> None:
    coordinator = triggered(10, 20, 30)
    assert acknowledge(coordinator, 3) == [Abandon(epoch(1), SUBSUMED), Abandon(epoch(2), SUBSUMED), publish(3)]
    assert coordinator.statistics.abandoned == 2
    assert coordinator.statistics.failures_in_a_row == 0


def test_an_epoch_that_is_acknowledged_by_all_is_not_subsumed_any_more() -> None:
    coordinator = triggered(10, 20, 30)
    acknowledge(coordinator, 1)
    assert acknowledge(coordinator, 3) == [Abandon(epoch(2), SUBSUMED)]
    assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1)), RemoveOlder(1, None), publish(3)]


def test_a_savepoint_is_not_subsumed_but_waited_for() -> None:
    coordinator = started()
    coordinator.handle(SavepointRequested())
    coordinator.handle(Ticked(10))
    assert acknowledge(coordinator, 2) == []
    assert acknowledge(coordinator, 1) == [publish(1, savepoint=True)]
    assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1)), RemoveOlder(1, None), publish(2)]


@pytest.mark.parametrize("event", [declined(1), Ticked(60)], ids=str)
def test_the_epoch_that_waits_for_a_savepoint_is_published_when_that_fails(event: Declined | Ticked) -> None:
    coordinator = started()
    coordinator.handle(SavepointRequested())
    coordinator.handle(Ticked(10))
    acknowledge(coordinator, 2)
    assert publish(2) in coordinator.handle(event)


def test_an_epoch_that_waits_for_a_savepoint_is_not_timed_out() -> None:
    coordinator = triggered(10)
    coordinator.handle(SavepointRequested())
    acknowledge(coordinator, 1)
    coordinator.handle(Ticked(20))
    assert acknowledge(coordinator, 3) == []
    coordinator.handle(Ticked(30))
    timed_out, _ = coordinator.handle(Ticked(75))
    assert isinstance(timed_out, Abandon)
    assert timed_out.epoch == epoch(2)
    assert coordinator.handle(Published(epoch(1)))[-1] == publish(3)


def test_an_epoch_that_could_not_be_published_is_abandoned_and_the_next_one_is_tried() -> None:
    coordinator = triggered(10, 20)
    acknowledge(coordinator, 1)
    acknowledge(coordinator, 2)
    assert coordinator.handle(PublishFailed(epoch(1), "no space")) == [
        Abandon(epoch(1), PUBLISH_FAILED, "no space"),
        publish(2),
    ]
    assert coordinator.complete is None
    assert coordinator.statistics.failures_in_a_row == 1


def test_an_answer_about_an_epoch_that_is_not_being_published_is_an_error() -> None:
    coordinator = triggered(10)
    with pytest.raises(ValueError, match="epoch 1-2 is not the one being published, which is None"):
        coordinator.handle(Published(epoch(1)))
    acknowledge(coordinator, 1)
    with pytest.raises(ValueError, match="epoch 2-2 is not the one being published, which is 1-2"):
        coordinator.handle(PublishFailed(epoch(2), ""))


# --- giving up


def test_an_epoch_that_takes_too_long_is_abandoned() -> None:
    coordinator = triggered(10)
    coordinator.handle(Ticked(60))
    coordinator.handle(ack(1, 0))
    assert coordinator.handle(Ticked(69)) == []
    assert coordinator.deadline == 70
    assert coordinator.handle(Ticked(70)) == [
        Abandon(epoch(1), TIMED_OUT, "partitions still awaited: 1"),
        trigger(3),
    ]
    assert coordinator.handle(ack(1, 1)) == []
    assert coordinator.statistics.refused == 1


def test_the_publication_under_way_is_not_timed_out_and_nobody_waits_for_its_time_out() -> None:
    coordinator = triggered(10_000, options=CoordinatorOptions(interval=10_000, timeout=60))
    assert coordinator.deadline == 10_060
    acknowledge(coordinator, 1)
    assert coordinator.deadline == 20_000
    assert coordinator.handle(Ticked(10_060)) == []
    assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1)), RemoveOlder(1, None)]


def test_an_epoch_that_one_participant_declines_is_abandoned_once() -> None:
    coordinator = triggered(10)
    assert coordinator.handle(declined(1)) == [Abandon(epoch(1), DECLINED, "partition 1: disk full")]
    assert coordinator.handle(declined(1)) == []
    assert coordinator.statistics.failures_in_a_row == 1


def test_an_epoch_that_all_have_acknowledged_cannot_be_declined() -> None:
    coordinator = triggered(10, 20)
    acknowledge(coordinator, 1)
    acknowledge(coordinator, 2)
    assert coordinator.handle(declined(1)) == []
    assert coordinator.handle(declined(2)) == []
    assert list(coordinator.in_flight) == [epoch(1), epoch(2)]


def test_more_failures_in_a_row_than_tolerated_break_the_attempt() -> None:
    coordinator = triggered(10, 20, options=CoordinatorOptions(interval=10, tolerated_failures=1, max_in_flight=3))
    coordinator.handle(declined(1))
    coordinator.handle(Ticked(30))
    first, second, third = coordinator.handle(declined(2))
    assert first == Abandon(epoch(2), DECLINED, "partition 1: disk full")
    assert isinstance(second, Abandon)
    assert (second.epoch, second.reason) == (epoch(3), ATTEMPT_BROKEN)
    assert "more than 1 epochs in a row failed; the last one, 2-2: a participant declined it" in second.detail
    assert third == roll_back(None, 2)
    assert coordinator.statistics.failures_in_a_row == 0


def test_a_complete_epoch_in_between_makes_the_failures_count_anew() -> None:
    coordinator = triggered(10, 20, 30, options=CoordinatorOptions(interval=10, tolerated_failures=1, max_in_flight=3))
    coordinator.handle(declined(1))
    acknowledge(coordinator, 2)
    coordinator.handle(Published(epoch(2)))
    assert coordinator.handle(declined(3)) == [Abandon(epoch(3), DECLINED, "partition 1: disk full")]
    assert coordinator.state is CoordinatorState.RUNNING


def test_no_failure_is_tolerated_if_none_is_to_be() -> None:
    coordinator = triggered(10, options=CoordinatorOptions(interval=10, tolerated_failures=0))
    assert coordinator.handle(declined(1))[-1] == roll_back(None, 2)


def test_a_time_out_that_breaks_the_attempt_takes_the_other_late_epochs_with_it() -> None:
    options = CoordinatorOptions(interval=10, timeout=60, tolerated_failures=0, max_in_flight=3)
    coordinator = triggered(10, 20, options=options)
    instructions = coordinator.handle(Ticked(90))
    assert [(type(i), getattr(i, "epoch", None)) for i in instructions] == [
        (Abandon, epoch(1)),
        (Abandon, epoch(2)),
        (RollBack, None),
        (Skipped, None),
    ]


# --- commit


def test_an_epoch_is_recorded_as_committed_when_all_its_committers_have_committed() -> None:
    coordinator = triggered(10)
    coordinator.handle(ack(1, 0, output=True))
    assert coordinator.handle(ack(1, 1, output=True)) == [publish(1, output=True)]
    assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1))]
    assert coordinator.handle(committed(1, 0)) == []
    assert coordinator.handle(committed(1, 0)) == []
    assert coordinator.handle(committed(1, 1)) == [RecordCommitted(epoch(1)), RemoveOlder(1, None)]
    assert coordinator.handle(committed(1, 1)) == []


def test_whoever_has_nothing_to_commit_is_not_waited_for() -> None:
    coordinator = triggered(10)
    assert acknowledge(coordinator, 1, output=True) == [publish(1, output=True)]
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(committed(1, 1)) == []
    assert coordinator.handle(committed(1, 0)) == [RecordCommitted(epoch(1)), RemoveOlder(1, None)]


def test_the_newest_of_epochs_that_are_committed_is_recorded_for_all() -> None:
    coordinator = triggered(10, 20)
    for number, partition in ((1, 0), (2, 1)):
        coordinator.handle(ack(number, partition, output=True))
        coordinator.handle(ack(number, 1 - partition))
        coordinator.handle(Published(epoch(number)))
    assert coordinator.handle(committed(2, 1)) == []
    assert coordinator.handle(committed(2, 0)) == [RecordCommitted(epoch(2)), RemoveOlder(1, None)]


def test_an_epoch_without_output_is_not_subsumed_for_before_the_older_are_committed() -> None:
    coordinator = triggered(10, 20)
    acknowledge(coordinator, 1, output=True)
    coordinator.handle(Published(epoch(1)))
    acknowledge(coordinator, 2)
    assert coordinator.handle(Published(epoch(2))) == [Complete(epoch(2))]
    assert coordinator.handle(committed(2, 0)) == [RecordCommitted(epoch(1)), RemoveOlder(1, None)]


def test_a_commit_that_fails_for_good_stops_the_job() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1, output=True)
    coordinator.handle(Published(epoch(1)))
    failed = CommitFailed(epoch(1), of_attempt(1), Partition(0), "the table is gone")
    assert coordinator.handle(failed) == [Stop("partition 0 cannot commit epoch 1-2: the table is gone")]
    assert coordinator.state is CoordinatorState.STOPPED


# --- retention


def test_retention_keeps_what_the_oldest_epoch_in_flight_was_triggered_on() -> None:
    options = CoordinatorOptions(interval=10, max_in_flight=3, retain=2)
    coordinator = triggered(10, options=options)
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    coordinator.handle(Ticked(20))
    coordinator.handle(SavepointRequested())
    acknowledge(coordinator, 2)
    assert coordinator.handle(Published(epoch(2))) == [Complete(epoch(2)), RemoveOlder(2, epoch(1))]
    coordinator.handle(Ticked(30))
    assert acknowledge(coordinator, 3) == [publish(3, epoch(1), savepoint=True)]
    assert coordinator.handle(Published(epoch(3))) == [Complete(epoch(3)), RemoveOlder(2, epoch(2))]


# --- contributors


def changed(partition: int = 0, attempt: int = 1) -> ContributorChanged:
    return ContributorChanged(of_attempt(attempt), Partition(partition))


CHANGED = AbandonReason.CONTRIBUTOR_CHANGED


def test_a_new_contributor_begins_at_the_last_complete_epoch_and_all_in_flight_are_abandoned() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    coordinator.handle(Ticked(20))
    coordinator.handle(Ticked(30))
    coordinator.handle(ack(2, 0))
    assert coordinator.handle(changed()) == [
        Abandon(epoch(2), CHANGED, "partition 0"),
        Abandon(epoch(3), CHANGED, "partition 0"),
        Promote(Partition(0), epoch(1)),
    ]
    assert coordinator.handle(ack(2, 1)) == []
    assert coordinator.handle(Ticked(40)) == [trigger(4)]
    assert acknowledge(coordinator, 4) == [publish(4, epoch(1))]
    assert coordinator.statistics.failures_in_a_row == 0


@pytest.mark.parametrize("is_published", [True, False])
def test_a_new_contributor_hears_where_it_begins_when_the_publication_under_way_is_over(is_published: bool) -> None:
    coordinator = triggered(10, 20)
    acknowledge(coordinator, 1)
    assert coordinator.handle(changed(0)) == [Abandon(epoch(2), CHANGED, "partition 0")]
    assert coordinator.handle(changed(1)) == []
    assert coordinator.handle(SavepointRequested()) == [Skipped(SkipReason.PROMOTING)]
    assert coordinator.handle(Ticked(30)) == [Skipped(SkipReason.PROMOTING)]
    if is_published:
        promoted = [Promote(Partition(0), epoch(1)), Promote(Partition(1), epoch(1))]
        assert coordinator.handle(Published(epoch(1))) == [Complete(epoch(1)), *promoted, RemoveOlder(1, None)]
    else:
        promoted = [Promote(Partition(0), None), Promote(Partition(1), None)]
        failed = Abandon(epoch(1), PUBLISH_FAILED, "no space")
        assert coordinator.handle(PublishFailed(epoch(1), "no space")) == [failed, *promoted]
    assert coordinator.handle(SavepointRequested()) == [trigger(3, savepoint=True)]


def test_a_contributor_that_changes_in_an_attempt_that_breaks_begins_nowhere() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1)
    coordinator.handle(changed())
    coordinator.handle(AttemptBroken(of_attempt(1), ""))
    assert coordinator.handle(Published(epoch(1))) == [roll_back(epoch(1), 2)]
    assert coordinator.handle(changed(attempt=2)) == []
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(changed(attempt=1)) == []
    assert coordinator.handle(changed(attempt=2)) == [Promote(Partition(0), epoch(1))]


def test_no_epoch_begins_while_a_contributor_is_absent() -> None:
    coordinator = triggered(10)
    gone = ContributorChanged(of_attempt(1), Partition(1), absent=True)
    assert coordinator.handle(gone) == [Abandon(epoch(1), CHANGED, "partition 1"), Promote(Partition(1), None)]
    assert coordinator.handle(Ticked(20)) == [Skipped(SkipReason.ABSENT)]
    assert coordinator.handle(SavepointRequested()) == [Skipped(SkipReason.ABSENT)]
    assert coordinator.handle(ContributorBack(of_attempt(1), Partition(0))) == []
    assert coordinator.handle(Ticked(30)) == [Skipped(SkipReason.ABSENT)]
    assert coordinator.handle(ContributorBack(of_attempt(2), Partition(1))) == []
    assert coordinator.handle(Ticked(40)) == [Skipped(SkipReason.ABSENT)]
    assert coordinator.handle(ContributorBack(of_attempt(1), Partition(1))) == []
    assert coordinator.handle(Ticked(50)) == [trigger(2)]


def test_the_next_attempt_does_not_wait_for_a_contributor_that_was_absent() -> None:
    coordinator = triggered()
    coordinator.handle(ContributorChanged(of_attempt(1), Partition(1), absent=True))
    coordinator.handle(AttemptBroken(of_attempt(1), ""))
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(EpochRequested()) == [trigger(1)]


def test_epochs_go_on_when_the_last_one_was_given_up_and_another_one_is_complete() -> None:
    coordinator = triggered()
    coordinator.handle(EpochRequested(last=True))
    coordinator.handle(changed())
    assert coordinator.handle(Ticked(10)) == [trigger(2)]
    acknowledge(coordinator, 2)
    coordinator.handle(Published(epoch(2)))
    assert coordinator.handle(Ticked(20)) == [trigger(3)]


def test_epochs_go_on_after_the_last_one_for_a_contributor_that_may_do_again_what_it_had_done() -> None:
    coordinator = triggered()
    coordinator.handle(EpochRequested(last=True))
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    assert coordinator.handle(Ticked(10)) == []
    coordinator.handle(ContributorChanged(of_attempt(1), Partition(0), absent=True))
    coordinator.handle(ContributorBack(of_attempt(1), Partition(0)))
    assert coordinator.handle(Ticked(20)) == [trigger(2)]


# --- attempts


def test_a_broken_attempt_is_rolled_back_to_the_last_complete_epoch() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1)
    coordinator.handle(Published(epoch(1)))
    coordinator.handle(Ticked(20))
    coordinator.handle(Ticked(30))
    assert coordinator.handle(AttemptBroken(of_attempt(1), "lost worker 3")) == [
        Abandon(epoch(2), ATTEMPT_BROKEN, "lost worker 3"),
        Abandon(epoch(3), ATTEMPT_BROKEN, "lost worker 3"),
        roll_back(epoch(1), 2),
    ]
    assert coordinator.state is CoordinatorState.STARTING
    assert coordinator.incarnation == of_attempt(2)
    assert coordinator.handle(ack(2, 0)) == []
    assert coordinator.statistics.failures_in_a_row == 0


def test_the_next_attempt_uses_no_number_again() -> None:
    coordinator = triggered(10, 20)
    coordinator.handle(AttemptBroken(of_attempt(1), ""))
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(Ticked(30)) == [trigger(3)]
    assert coordinator.handle(ack(3, 0, attempt=2)) == []
    published = coordinator.handle(ack(3, 1, attempt=2))
    assert [getattr(i, "incarnation", None) for i in published] == [of_attempt(2)]


def test_after_an_attempt_that_could_not_be_restored_the_claim_is_confirmed_first() -> None:
    coordinator = new()
    assert coordinator.handle(AttemptBroken(of_attempt(1), "")) == [roll_back(None, 2, confirm_first=True)]
    assert coordinator.handle(AttemptBroken(of_attempt(1), "")) == []
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(AttemptBroken(of_attempt(2), "")) == [roll_back(None, 3)]
    assert coordinator.handle(AttemptBroken(of_attempt(3), "")) == [roll_back(None, 4, confirm_first=True)]


def test_a_roll_back_waits_for_the_publication_under_way_and_goes_to_its_epoch() -> None:
    coordinator = triggered(10, 20, 30)
    acknowledge(coordinator, 1)
    acknowledge(coordinator, 2)
    assert coordinator.handle(AttemptBroken(of_attempt(1), "x")) == [
        Abandon(epoch(2), ATTEMPT_BROKEN, "x"),
        Abandon(epoch(3), ATTEMPT_BROKEN, "x"),
    ]
    assert coordinator.state is CoordinatorState.BROKEN
    assert coordinator.handle(AttemptBroken(of_attempt(1), "y")) == []
    assert coordinator.handle(AttemptStarted(of_attempt(1), BOTH)) == []
    assert coordinator.handle(Ticked(80)) == [Skipped(SkipReason.NOT_RUNNING)]
    assert coordinator.deadline == 90
    assert coordinator.handle(Published(epoch(1))) == [roll_back(epoch(1), 2)]
    assert coordinator.complete == epoch(1)
    coordinator.handle(AttemptStarted(of_attempt(2), BOTH))
    assert coordinator.handle(Ticked(90)) == [trigger(4)]
    coordinator.handle(ack(4, 0, attempt=2))
    [published] = coordinator.handle(ack(4, 1, attempt=2))
    assert isinstance(published, Publish)
    assert (published.epoch, published.base, published.incarnation) == (epoch(4), epoch(1), of_attempt(2))


def test_a_roll_back_after_a_publication_that_failed_goes_to_the_epoch_before() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1)
    coordinator.handle(AttemptBroken(of_attempt(1), ""))
    assert coordinator.handle(PublishFailed(epoch(1), "no space")) == [
        Abandon(epoch(1), PUBLISH_FAILED, "no space"),
        roll_back(None, 2),
    ]
    assert not coordinator.in_flight
    assert coordinator.statistics.abandoned == 1


def test_after_a_roll_back_all_restored_participants_report_what_they_have_committed() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1, output=True)
    coordinator.handle(Published(epoch(1)))
    coordinator.handle(AttemptBroken(of_attempt(1), ""))
    assert coordinator.handle(committed(1, 0)) == []
    assert coordinator.handle(committed(1, 0, attempt=2)) == []
    assert coordinator.handle(AttemptStarted(of_attempt(2), BOTH)) == []
    assert coordinator.handle(committed(1, 1, attempt=2)) == [RecordCommitted(epoch(1)), RemoveOlder(1, None)]


def test_a_commit_that_was_reported_to_a_broken_attempt_is_reported_again() -> None:
    coordinator = triggered(10)
    acknowledge(coordinator, 1, output=True)
    coordinator.handle(Ticked(20))
    coordinator.handle(Published(epoch(1)))
    acknowledge(coordinator, 2)
    coordinator.handle(AttemptBroken(of_attempt(1), ""))
    assert coordinator.handle(committed(1, 0)) == []
    assert coordinator.handle(Published(epoch(2))) == [roll_back(epoch(2), 2)]
    assert coordinator.handle(AttemptStarted(of_attempt(2), BOTH)) == []
    assert coordinator.handle(committed(2, 1, attempt=2)) == []
    assert coordinator.handle(committed(2, 0, attempt=2)) == [RecordCommitted(epoch(1)), RemoveOlder(1, None)]


def test_a_new_generation_replays_the_commits_that_the_last_one_left() -> None:
    coordinator: Coordinator[str] = Coordinator(
        OPTIONS, GENERATION, now=0, complete=epoch(4), last_number=4, uncommitted=[epoch(4), epoch(3)]
    )
    assert coordinator.handle(committed(4, 1)) == []
    assert coordinator.handle(AttemptStarted(of_attempt(1), BOTH)) == []
    assert coordinator.handle(committed(4, 0)) == [RecordCommitted(epoch(4)), RemoveOlder(1, None)]


def test_if_all_were_quick_the_replay_is_recorded_when_the_attempt_starts() -> None:
    coordinator: Coordinator[str] = Coordinator(
        OPTIONS, GENERATION, now=0, complete=epoch(4), last_number=4, uncommitted=[epoch(4)]
    )
    coordinator.handle(committed(4, 1))
    coordinator.handle(committed(4, 0))
    assert coordinator.handle(AttemptStarted(of_attempt(1), BOTH)) == [RecordCommitted(epoch(4)), RemoveOlder(1, None)]


# --- the end


@pytest.mark.parametrize("state", ["starting", "running", "publishing", "broken"])
def test_whoever_is_fenced_stops_and_says_nothing_any_more(state: str) -> None:
    coordinator = new() if state == "starting" else triggered(10)
    if state in ("publishing", "broken"):
        acknowledge(coordinator, 1)
    if state == "broken":
        coordinator.handle(AttemptBroken(of_attempt(1), ""))
    assert coordinator.handle(Fenced(Generation(3))) == [Stop("generation 3 has claimed the job; generation 2 is over")]
    assert coordinator.state is CoordinatorState.STOPPED
    for event in (
        Ticked(99),
        SavepointRequested(),
        EpochRequested(),
        ack(1, 0),
        Published(epoch(1)),
        AttemptBroken(of_attempt(1), ""),
    ):
        assert coordinator.handle(event) == []
    assert coordinator.complete is None
