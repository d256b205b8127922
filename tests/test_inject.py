"""What a fault is asked for with, when it comes, and what a schedule draws: texts and moments, without any job."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.events import AnyEvent, EpochAbandoned, EpochCompleted, EpochTriggered, Finished, Marks, Recovered
from recovery.inject.moments import After, Alarm, AtEpoch, Mark, MomentPassed, NotAMoment, parse_moment
from recovery.inject.report import Entry, Injected, Report
from recovery.inject.schedule import Group, RandomFaults, Schedule, Span, choose
from recovery.inject.targets import (
    AllOf,
    Anything,
    ContradictingOrder,
    ExecutorOf,
    Kind,
    LinkBetween,
    NoSuchTarget,
    NotATarget,
    Order,
    PrimaryOf,
    ReplicaAt,
    StandbyAt,
    Target,
    TheDriver,
    WorkerOf,
    member_at,
    members_of,
    parse_target,
    standby_at,
    worker_of,
)
from snapshot.ids import Member, Replica
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition

partitions = st.integers(0, 999_999).map(Partition)
few = st.integers(0, 7).map(Partition)
targets: st.SearchStrategy[Target] = st.one_of(
    st.builds(WorkerOf, partitions),
    st.builds(PrimaryOf, partitions),
    st.builds(AllOf, partitions),
    st.builds(ReplicaAt, st.builds(Member, partitions, st.integers(0, 999_999).map(Replica))),
    st.builds(ExecutorOf, partitions),
    st.builds(StandbyAt, st.integers(0, 999_999)),
    st.just(TheDriver()),
    st.just(Anything()),
    st.builds(LinkBetween, partitions, st.none() | partitions).filter(lambda link: link.one != link.other),
)


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def triggered(number: int) -> AnyEvent:
    return EpochTriggered(at=0.0, epoch=epoch(number), mode="aligned", savepoint=False)


def completed(number: int) -> AnyEvent:
    return EpochCompleted(
        at=0.0,
        epoch=epoch(number),
        savepoint=False,
        since_trigger_ms=0.0,
        alignment_ms=0.0,
        sync_ms=0.0,
        async_ms=0.0,
        state_bytes=0,
        channel_bytes=0,
    )


def abandoned(number: int) -> AnyEvent:
    return EpochAbandoned(at=0.0, epoch=epoch(number), reason="", detail="")


# --- targets


@given(targets)
def test_a_target_is_read_as_it_is_written(target: Target) -> None:
    assert parse_target(str(target)) == target


@given(st.text(max_size=20))
def test_any_text_is_a_target_or_refused_by_name(text: str) -> None:
    known = re.fullmatch("driver|random|(worker|standby|executor):[0-9]+|(worker|link):[0-9]+-([0-9]+|driver)", text)
    if known is None:
        with pytest.raises(NotATarget, match=re.escape(repr(text))):
            parse_target(text)


def test_a_worker_and_the_driver_are_a_link_as_well() -> None:
    assert parse_target("worker:2-driver") == parse_target("link:2-driver") == LinkBetween(Partition(2), None)


members = st.builds(Member, st.integers(0, 5).map(Partition), st.integers(0, 2).map(Replica))


@given(st.dictionaries(st.text("abc", min_size=1), st.none() | members), few | partitions)
def test_who_is_meant_has_that_partition_or_the_refusal_says_what_is_there(
    present: dict[str, Member | None], partition: Partition
) -> None:
    having = [has for has in present.values() if has is not None and has.partition == partition]
    if having:
        assert present[worker_of(partition, present, 6)] == min(having)
    else:
        with pytest.raises(NoSuchTarget, match="no partition" if partition >= 6 else "no process has partition"):
            worker_of(partition, present, 6)
    if partition < sum(has is None for has in present.values()):
        assert present[standby_at(partition, present)] is None
    else:
        with pytest.raises(NoSuchTarget, match="no standby"):
            standby_at(partition, present)


def test_a_member_is_the_process_that_has_that_role_or_the_refusal_says_which_there_are() -> None:
    first, other = Member(Partition(1), Replica(0)), Member(Partition(1), Replica(2))
    present = {"a": first, "b": None, "c": other, "d": Member(Partition(0))}
    assert member_at(other, Partition(1), present, 2) == "c"
    assert members_of(Partition(1), present, 2) == {first: "a", other: "c"}
    with pytest.raises(NoSuchTarget, match=r"no member 1\.1 at the moment; there is replica:1\.0, replica:1\.2"):
        member_at(Member(Partition(1), Replica(1)), Partition(1), present, 2)
    with pytest.raises(NoSuchTarget, match="no primary of partition 1"):
        member_at(None, Partition(1), present, 2)


# --- orders


def test_an_order_says_itself_in_words() -> None:
    assert str(Order(Kind.DELAY, LinkBetween(Partition(0), Partition(1)), 10_000, 200)) == (
        "delay link:0-1 by 200 ms for 10 s"
    )
    assert str(Order(Kind.KILL, TheDriver())) == "kill driver"


@given(st.sampled_from(Kind), targets, st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_an_order_lasts_exactly_if_its_kind_does_and_is_for_what_its_kind_is_for(
    kind: Kind, target: Target, lasting: int | None, by: int | None
) -> None:
    try:
        Order(kind, target, lasting, by)
    except ContradictingOrder:
        return
    assert (lasting is not None) == (kind in (Kind.STOP, Kind.CUT, Kind.DELAY))
    assert (by is not None) == (kind is Kind.DELAY)
    assert lasting != 0
    assert by != 0
    if isinstance(target, LinkBetween):
        assert kind in (Kind.CUT, Kind.BREAK, Kind.DELAY)
    if isinstance(target, TheDriver | ExecutorOf):
        assert kind in (Kind.KILL, Kind.STOP)


# --- moments


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", After(0)),
        ("+3s", After(3000)),
        ("epoch:17", AtEpoch(17, Mark.COMPLETE, 0)),
        ("epoch:17+0.3s", AtEpoch(17, Mark.COMPLETE, 300)),
        ("epoch:17:triggered+50ms", AtEpoch(17, Mark.TRIGGERED, 50)),
        ("epoch:next:complete+1m", AtEpoch(None, Mark.COMPLETE, 60_000)),
    ],
)
def test_moments_are_read(text: str, moment: After | AtEpoch) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    "text", ["", "+", "then", "epoch:", "epoch:x", "epoch:17+", "epoch:17-3s", "epoch:17:gone", "3s"]
)
def test_what_is_no_moment_is_refused_by_name(text: str) -> None:
    with pytest.raises(NotAMoment, match="is no moment"):
        parse_moment(text)


histories = st.lists(st.tuples(st.sampled_from([triggered, completed, abandoned]), st.integers(1, 3)), max_size=12).map(
    lambda steps: [(make, sum(step for _, step in steps[: index + 1])) for index, (make, _) in enumerate(steps)]
)


@given(histories, st.integers(0, 20) | st.none(), st.sampled_from(Mark), st.integers(0, 5000))
def test_an_alarm_is_due_after_its_epoch_or_refuses_what_will_never_be(
    history: list[tuple[object, int]], wanted: int | None, mark: Mark, offset: int
) -> None:
    alarm = Alarm(AtEpoch(wanted, mark, offset), 0.0, None)
    making = {triggered: Mark.TRIGGERED, completed: Mark.COMPLETE, abandoned: None}
    for now, (make, number) in enumerate(history):
        reached = making[make]  # type: ignore[index]
        fits = reached is mark and wanted in (None, number)
        missed = (
            not fits
            and wanted is not None
            and (
                (reached is mark and number > wanted)
                or (reached is None and mark is Mark.COMPLETE and number == wanted)
            )
        )
        try:
            alarm.heard(make(number), float(now))  # type: ignore[operator]
        except MomentPassed:
            assert missed
            return
        assert not missed
        if fits:
            assert alarm.due == now + offset / 1000
            alarm.heard(completed(99), 1000.0)
            assert alarm.due == now + offset / 1000
            return


def test_an_epoch_that_is_complete_already_does_not_come() -> None:
    with pytest.raises(MomentPassed, match="epoch 17 is over already: epoch 18 is complete"):
        Alarm(AtEpoch(17, Mark.COMPLETE, 0), 0.0, epoch(18))
    assert Alarm(After(200), 1.0, epoch(18)).due == 1.2


def test_other_events_say_nothing_about_a_moment() -> None:
    alarm = Alarm(AtEpoch(1, Mark.COMPLETE, 0), 0.0, None)
    alarm.heard(Finished(at=0.0), 1.0)
    assert alarm.due is None


# --- schedules

spans = st.tuples(st.integers(1, 2000), st.integers(0, 2000)).map(lambda pair: Span(pair[0], sum(pair)))
presents = st.dictionaries(
    st.text("abcdef", min_size=1), st.none() | st.integers(0, 3).map(Partition).map(Member), max_size=6
)


def wanted_of(kinds: list[Kind], groups: list[Group], count: int, spans: tuple[Span, Span, Span]) -> RandomFaults:
    every, lasting, by = spans
    return RandomFaults(kinds=kinds, groups=groups, count=count, every=every, lasting=lasting, by=by)


@given(
    st.lists(st.sampled_from(Kind), min_size=1, max_size=3),
    st.integers(1, 6),
    st.tuples(spans, spans, spans),
    st.lists(presents, min_size=1, max_size=30),
    st.integers(0, 2**32),
)
def test_a_schedule_follows_from_its_seed_and_what_it_is_told_and_keeps_to_what_was_asked_for(
    kinds: list[Kind],
    count: int,
    spans: tuple[Span, Span, Span],
    presents: list[dict[str, Member | None]],
    seed: int,
) -> None:
    wanted = wanted_of(kinds, list(Group), count, spans)
    twins = [Schedule(wanted, Random(seed).random, 0.0) for _ in range(2)]
    done, last = 0, 0.0
    for present in presents:
        now = twins[0].due
        assert twins[0].take(now - 0.0001, present) is None or twins[0].over
        first, second = (twin.take(now, present) for twin in twins)
        assert first == second
        if first is None:
            continue
        done += 1
        assert wanted.every.least <= (now - last) * 1000 + 0.001
        last = now
        assert first.kind in kinds
        assert first.lasting is None or wanted.lasting.least <= first.lasting <= wanted.lasting.most
        assert first.by is None or wanted.by.least <= first.by <= wanted.by.most
        match first.target:
            case WorkerOf(partition) | ExecutorOf(partition) | LinkBetween(one=partition):
                assert partition in {has.partition for has in present.values() if has is not None}
            case StandbyAt(index):
                assert index < sum(has is None for has in present.values())
            case _:
                pass
    assert done <= count
    assert twins[0].over == (done == count)


def test_a_fault_that_can_happen_to_nobody_waits_for_somebody() -> None:
    wanted = wanted_of([Kind.KILL], [Group.STANDBYS], 1, (Span(1, 1),) * 3)
    schedule = Schedule(wanted, Random(1).random, 0.0)
    assert schedule.take(1.0, {"a": Member(Partition(0))}) is None
    assert schedule.take(2.0, {"a": Member(Partition(0)), "b": None}) == Order(Kind.KILL, StandbyAt(0))
    assert schedule.over
    assert schedule.take(9.0, {"b": None}) is None


def test_nobody_is_chosen_where_nobody_is() -> None:
    assert choose(Kind.CUT, [Group.LINKS], {"a": None}, Random(1).random) is None
    alone = {"a": Member(Partition(0))}
    assert choose(Kind.CUT, [Group.LINKS], alone, Random(1).random) == LinkBetween(Partition(0), None)


# --- reports


def injected(order: Order) -> Injected:
    return Injected(order, 0.0, "worker", 1, Partition(0), epoch(3), 12.0)


def recovered(output: float) -> Recovered:
    marks = Marks(first_output=output, caught_up=2 * output)
    incarnation = Incarnation(Generation(1), Attempt(2))
    return Recovered(at=0.0, incarnation=incarnation, epoch=epoch(3), epoch_age_ms=1.0, marks=marks)


def test_a_recovery_is_that_of_all_faults_since_the_one_before() -> None:
    report = Report()
    kill, stop = Order(Kind.KILL, WorkerOf(Partition(0))), Order(Kind.STOP, WorkerOf(Partition(0)), 5)
    report.add(Entry(0.0, kill, injected(kill)))
    report.recovered(recovered(100.0))
    report.add(Entry(1.0, kill, injected(kill)))
    report.add(Entry(1.1, stop, injected(stop)))
    report.add(Entry(1.2, stop, None, "there is no partition 0"))
    report.recovered(recovered(300.0))
    assert report.all_recovered
    report.add(Entry(2.0, stop, injected(stop)))
    kills, stops = report.totals()
    assert (kills.kind, kills.done, kills.refused, kills.recoveries) == (Kind.KILL, 2, 0, 2)
    assert (kills.output_median, kills.output_worst, kills.caught_up_worst) == (200.0, 300.0, 600.0)
    assert (stops.kind, stops.done, stops.refused, stops.recoveries) == (Kind.STOP, 2, 1, 1)
    assert report.done == 4
