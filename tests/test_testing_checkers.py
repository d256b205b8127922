"""Happened-before and the checkers: right cuts pass, and each kind of wrong one is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.testing import (
    Acted,
    Action,
    Channel,
    Cut,
    Effect,
    Event,
    Faults,
    History,
    Kind,
    Received,
    Record,
    Schedule,
    Send,
    Simulation,
    Violation,
    check_channel_state,
    check_consistent,
    check_exactly_once,
    check_sequential,
)
from snapshot.testing.history import OUTSIDE
from snapshot.testing.search import schedules

NAMES = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Parcel:
    number: int


class Post:
    """Sends parcels round, and remembers the numbers of those that came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0
        self.got: tuple[int, ...] = ()

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted(Action("send", str(to))):
                self.sent += 1
                return [Send(to, Parcel(self.sent))]
            case Received(_, Parcel(number)):
                self.got = (*self.got, number)
            case _:
                pass
        return []

    def actions(self) -> Sequence[Action]:
        return [Action("send", to) for to in NAMES if to != self.name] if self.sent < 4 else []


def posts() -> Mapping[str, Callable[[], Post]]:
    def post(name: str) -> Callable[[], Post]:
        return lambda: Post(name)

    return {name: post(name) for name in NAMES}


def happen(schedule: Schedule, crashes: int = 0) -> History:
    return Simulation(posts(), schedule, Faults(crashes=crashes, cuts=crashes, pauses=crashes)).run()


def cut_after(history: History, length: int) -> Cut:
    """What an observer would have seen who stopped the world after so many records; consistent by its nature."""
    past = history[:length]
    while length < len(history) and history[length].kind not in (Kind.STARTED, Kind.ACTED, Kind.RECEIVED):
        length += 1
        past = history[:length]
    frontier = {name: max((r.at for r in past if r.process == name), default=-1) for name in NAMES}
    got = {name: tuple(number(r) for r in past if r.process == name and r.kind is Kind.RECEIVED) for name in NAMES}
    channels: dict[Channel, list[object]] = {}
    for record in history.kinds(Kind.RECEIVED):
        sent = history[record.cause or 0]
        if sent.at < length <= record.at:
            channels.setdefault(Channel(sent.process, record.process), []).append(record.payload)
    return Cut(frontier, got, channels)


def number(record: Record) -> int:
    assert isinstance(record.payload, Parcel)
    return record.payload.number


def check_all(history: History, cut: Cut) -> None:
    check_consistent(history, cut)
    check_channel_state(history, cut)
    check_sequential(history, cut, posts(), lambda post: post.got)


@given(schedules(60))
def test_happened_before_is_the_transitive_closure_of_process_order_and_messages(schedule: Schedule) -> None:
    history = happen(schedule, crashes=2)
    events = [record for record in history if record.kind not in OUTSIDE]
    past: dict[int, set[int]] = {}
    latest: dict[str, int] = {}
    for record in events:
        direct = [at for at in (latest.get(record.process), record.cause) if at is not None]
        past[record.at] = set(direct).union(*(past[at] for at in direct))
        latest[record.process] = record.at
    for first in events:
        for second in events:
            before = first.at in past[second.at]
            assert history.happened_before(first, second) == before
            assert history.concurrent(first, second) == (
                first is not second and not before and second.at not in past[first.at]
            )


def test_a_clock_counts_the_events_of_each_process_in_the_past_also_when_asked_before_the_end() -> None:
    history = History(("a", "b"))
    sent = history.append("a", 0, Kind.SENT, "b", "x")
    assert history.clock(history[sent]) == (1, 0)
    history.append("b", 0, Kind.ACTED)
    received = history.append("b", 0, Kind.RECEIVED, "a", "x", sent)
    lost = history.append("b", 0, Kind.LOST, "a", "y")
    assert history.clock(history[received]) == (1, 2)
    with pytest.raises(ValueError, match="b lost y on its way to a is nothing that a process knows of"):
        history.clock(history[lost])


def test_a_remark_belongs_to_the_stimulus_that_led_to_it() -> None:
    history = History(("a", "b"))
    acted = history.append("a", 0, Kind.ACTED)
    sent = history.append("a", 0, Kind.SENT, "b")
    crashed = history.append("a", 0, Kind.CRASHED)
    assert history.stimulus(history[sent]) == history.stimulus(history[acted]) == history[acted]
    assert history.before(history[sent]) == acted - 1
    assert history.effects(history[acted]) == [history[sent]]
    with pytest.raises(ValueError, match="#2 a crashed is not part of the handling of anything"):
        history.stimulus(history[crashed])


@given(schedules(), st.integers(3, 200))
def test_what_an_observer_sees_who_stops_the_world_is_a_right_cut(schedule: Schedule, length: int) -> None:
    history = happen(schedule)
    check_all(history, cut_after(history, length))


@given(schedules(), st.integers(3, 200), st.data())
def test_any_frontier_is_consistent_exactly_if_it_is_closed_under_happened_before(
    schedule: Schedule, length: int, data: st.DataObject
) -> None:
    history = happen(schedule)
    whole = cut_after(history, length).frontier
    cut = Cut({name: data.draw(st.integers(-1, len(history))) if name == "a" else at for name, at in whole.items()})
    inside = [record for record in history if cut.includes(record)]
    closed = all(
        cut.includes(earlier)
        for record in inside
        for earlier in history
        if earlier.at == record.cause or (earlier.process == record.process and earlier.at < record.at)
    )
    if closed:
        check_consistent(history, cut)
    else:
        with pytest.raises(Violation, match="had not sent it yet") as caught:
            check_consistent(history, cut)
        assert not cut.includes(history[caught.value.at[0]])
        with pytest.raises(Violation):
            check_sequential(history, cut, posts(), lambda post: post.got)


@given(schedules(), st.integers(0, 11))
def test_channel_state_that_is_missing_or_invented_or_in_disorder_is_refused(schedule: Schedule, sending: int) -> None:
    history = happen(schedule)
    cut = cut_after(history, history.kinds(Kind.SENT)[sending].at + 1)
    channel, messages = next(iter(cut.channels.items()))
    wrongs: list[list[object]] = [[], [*messages, Parcel(77)], [*messages, messages[0]]]
    if len(messages) > 1:
        wrongs.append([*messages[1:], messages[0]])
    for wrong in wrongs:
        falsified = replace(cut, channels={**cut.channels, channel: wrong})
        with pytest.raises(Violation, match=f"in flight on {channel}, but it was"):
            check_channel_state(history, falsified)
        with pytest.raises(Violation, match=f"in flight on {channel}, but the events in its past leave"):
            check_sequential(history, falsified, posts(), lambda post: post.got)


@given(schedules(), st.integers(3, 200), st.sampled_from(NAMES))
def test_a_recorded_state_that_the_past_does_not_lead_to_is_refused(schedule: Schedule, length: int, name: str) -> None:
    history = happen(schedule)
    cut = cut_after(history, length)
    state = cut.states[name]
    assert isinstance(state, tuple)
    for wrong in ((*state, 5), state[1:] if state else (1,)):
        with pytest.raises(Violation, match=f"as the state of {name}, but the events in its past lead to"):
            check_sequential(history, replace(cut, states={**cut.states, name: wrong}), posts(), lambda post: post.got)


def test_messages_without_content_are_not_held_against_a_cut() -> None:
    history = History(("a", "b"))
    sent = history.append("a", 0, Kind.SENT, "b", "marker")
    history.append("b", 0, Kind.RECEIVED, "a", "marker", sent)
    cut = Cut({"b": 1})
    with pytest.raises(Violation):
        check_consistent(history, cut)
    check_consistent(history, cut, lambda message: None)
    check_channel_state(history, Cut({"a": 0}), lambda message: None)


def test_a_process_that_behaves_otherwise_the_second_time_is_named() -> None:
    behaviours = iter(range(100))

    class Fickle(Post):
        def handle(self, event: Event) -> Iterable[Effect]:
            return [Send("b", next(behaviours))] if isinstance(event, Acted) else super().handle(event)

        def actions(self) -> Sequence[Action]:
            return [Action("send")] if not self.sent else []

    class Once(Fickle):
        def handle(self, event: Event) -> Iterable[Effect]:
            self.sent += isinstance(event, Acted)
            return super().handle(event)

    factories: dict[str, Callable[[], Post]] = {"a": lambda: Once("a"), "b": lambda: Once("b")}
    history = Simulation(factories, Schedule(b"")).run()
    with pytest.raises(Violation, match="a is not deterministic"):
        check_sequential(history, Cut({"a": 99, "b": 99}), factories, lambda post: post.got)


@given(schedules(), st.integers(3, 200))
def test_a_cut_behind_crashes_is_replayed_with_them(schedule: Schedule, length: int) -> None:
    history = happen(schedule, crashes=2)
    end = Cut({name: len(history) for name in NAMES})
    reached = Simulation(posts(), Schedule(schedule.data), Faults(crashes=2, cuts=2, pauses=2))
    assert list(reached.run()) == list(history)
    states = {name: post.got for name, post in reached.processes.items()}
    check_sequential(history, replace(end, states=states), posts(), lambda post: post.got)


def test_what_is_lost_and_what_is_there_twice_is_counted_and_named() -> None:
    check_exactly_once([1, 2, 2], [2, 1, 2])
    with pytest.raises(Violation) as caught:
        check_exactly_once("aabc", "abbbz", "the committed output")
    assert str(caught.value) == (
        "the committed output is not exactly-once: "
        "2 lost (such as a, c), 2 too many (such as b), 1 from nowhere (such as z)"
    )
