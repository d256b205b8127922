"""The simulated network: what it guarantees, whatever the schedule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.testing import (
    Acted,
    Action,
    Channel,
    Effect,
    Event,
    Faults,
    History,
    Kind,
    Note,
    Received,
    Record,
    Save,
    Schedule,
    Send,
    Simulation,
    Started,
    Statistics,
    Violation,
)
from snapshot.testing.faults import Swarm
from snapshot.testing.network import Break, Network, Packet
from snapshot.testing.search import schedules

NAMES = ("a", "b", "c")
HARSH = Faults(crashes=3, cuts=3, pauses=3)


class Talker:
    """Sends numbered messages to the others, and notes what it sees. It saves how far it has come."""

    def __init__(self, name: str, messages: int = 6) -> None:
        self.name = name
        self.left = messages
        self.seen: list[Event] = []

    def handle(self, event: Event) -> Iterable[Effect]:
        self.seen.append(event)
        match event:
            case Started(int(left)):
                self.left = left
            case Acted(Action("talk", str(to))):
                self.left -= 1
                return [Send(to, (self.name, self.left)), Save(self.left)]
            case _:
                pass
        return []

    def actions(self) -> Sequence[Action]:
        return [Action("talk", to) for to in NAMES if to != self.name] if self.left else []


def talkers(messages: int = 6) -> Mapping[str, Callable[[], Talker]]:
    def talker(name: str) -> Callable[[], Talker]:
        return lambda: Talker(name, messages)

    return {name: talker(name) for name in NAMES}


def talk(schedule: Schedule, faults: Faults = HARSH) -> History:
    return Simulation(talkers(), schedule, faults).run()


def received(history: History, sender: str, receiver: str) -> list[Record]:
    return [record for record in history.of(receiver, Kind.RECEIVED) if record.peer == sender]


@given(schedules())
def test_the_same_schedule_gives_the_same_history(schedule: Schedule) -> None:
    assert list(talk(schedule)) == list(talk(Schedule(schedule.data)))


@given(schedules())
def test_what_is_received_was_sent_and_comes_in_the_order_of_its_channel(schedule: Schedule) -> None:
    history = talk(schedule)
    for sender in NAMES:
        for receiver in NAMES:
            sent = [r.at for r in history.of(sender, Kind.SENT) if r.peer == receiver]
            came = [r.cause for r in received(history, sender, receiver)]
            assert set(came) <= set(sent)
            assert came == sorted(set(came), key=lambda at: sent.index(at or 0))


@given(schedules())
def test_every_message_arrives_or_is_recorded_as_lost_and_never_both(schedule: Schedule) -> None:
    history = talk(schedule)
    ends = [r.cause for r in history.kinds(Kind.RECEIVED, Kind.LOST)]
    assert sorted(ends, key=str) == sorted((r.at for r in history.kinds(Kind.SENT)), key=str)


@given(schedules())
def test_without_faults_everything_arrives(schedule: Schedule) -> None:
    history = talk(schedule, Faults())
    assert len(history.kinds(Kind.RECEIVED)) == len(NAMES) * 6
    assert not history.kinds(Kind.LOST, Kind.BROKEN, Kind.CRASHED)


@given(schedules())
def test_what_a_crashed_process_finds_again_is_what_it_saved_last(schedule: Schedule) -> None:
    history = talk(schedule)
    for name in NAMES:
        saved = None
        for record in history.of(name, Kind.SAVED, Kind.STARTED):
            if record.kind is Kind.SAVED:
                saved = record.payload
            else:
                assert record.payload == saved


@given(schedules())
def test_a_crashed_process_does_nothing_until_it_starts_again_and_in_the_end_everybody_is_up(
    schedule: Schedule,
) -> None:
    simulation = Simulation(talkers(), schedule, HARSH)
    history = simulation.run()
    for name in NAMES:
        records = [r for r in history.of(name) if r.kind is not Kind.LOST]
        for record, following in pairwise(records):
            assert (record.kind is Kind.CRASHED) == (following.kind is Kind.STARTED)
            assert following.incarnation == record.incarnation + (record.kind is Kind.CRASHED)
        assert records[-1].kind is not Kind.CRASHED
    assert set(simulation.processes) == set(NAMES)


@given(schedules())
def test_nothing_of_the_old_connection_comes_after_the_news_that_it_broke(schedule: Schedule) -> None:
    history = talk(schedule)
    for broken in history.kinds(Kind.BROKEN):
        assert broken.peer is not None
        if broken.cause is None:
            continue
        for record in received(history, broken.peer, broken.process):
            assert record.cause is not None
            assert (record.cause < broken.cause) == (record.at < broken.at)


@given(schedules())
def test_whoever_lost_a_message_to_a_crash_hears_that_the_connection_broke(schedule: Schedule) -> None:
    history = talk(schedule, Faults(crashes=3))
    for lost in history.kinds(Kind.LOST):
        assert lost.cause is not None
        sent = history[lost.cause]
        told = [r for r in history.of(sent.process, Kind.BROKEN, Kind.CRASHED) if r.at > sent.at]
        assert told


@given(schedules())
def test_a_paused_process_takes_no_step(schedule: Schedule) -> None:
    history = talk(schedule, Faults(pauses=3))
    for name in NAMES:
        records = history.of(name)
        for record, following in pairwise(records):
            assert (record.kind is Kind.PAUSED) == (following.kind is Kind.RESUMED)


@given(schedules())
def test_faults_keep_within_their_budget_and_befall_only_whom_they_may(schedule: Schedule) -> None:
    faults = Faults(
        crashes=2, cuts=1, losses=2, crashable=["a"], cuttable=[Channel("a", "b")], lossy=[Channel("c", "b")]
    )
    history = talk(schedule, faults)
    assert len(history.kinds(Kind.CRASHED)) <= 2
    assert {r.process for r in history.kinds(Kind.CRASHED)} <= {"a"}
    assert len(history.kinds(Kind.CUT)) <= 1
    assert {(r.process, r.peer) for r in history.kinds(Kind.CUT)} <= {("a", "b")}
    between_others = [r for r in history.kinds(Kind.LOST) if "a" not in (r.process, r.peer)]
    assert len(between_others) <= 2
    assert {(r.process, r.peer) for r in between_others} <= {("c", "b")}


def explored(faults: Faults) -> list[History]:
    """Many histories, the same ones every time."""
    return [
        talk(Schedule(bytes((seed * 37 + n * n * 91 + n * seed) % 256 for n in range(80))), faults)
        for seed in range(120)
    ]


@pytest.mark.parametrize("kind", [Kind.CRASHED, Kind.CUT, Kind.PAUSED, Kind.LOST, Kind.BROKEN])
def test_every_fault_does_happen(kind: Kind) -> None:
    assert any(history.kinds(kind) for history in explored(HARSH))


def test_a_message_may_be_lost_on_a_lossy_channel_without_anybody_being_told() -> None:
    histories = explored(Faults(losses=2, lossy=[Channel("a", "b")]))
    assert any(history.kinds(Kind.LOST) for history in histories)
    assert not any(history.kinds(Kind.BROKEN) for history in histories)


def test_messages_overtake_each_other_only_where_that_is_declared() -> None:
    overtaken = set()
    for history in explored(Faults(overtaking=[Channel("a", "b")])):
        for sender in NAMES:
            for receiver in NAMES:
                came = [r.cause or 0 for r in received(history, sender, receiver)]
                if came != sorted(came):
                    overtaken.add((sender, receiver))
    assert overtaken == {("a", "b")}


def test_a_crash_may_come_in_the_middle_of_what_an_event_makes_a_process_do() -> None:
    halves = [
        record
        for history in explored(Faults(crashes=3))
        for record in history.kinds(Kind.SENT)
        if history[record.at + 1].kind is Kind.CRASHED
    ]
    assert halves, "a message was sent, but that it was sent was not saved"


def test_an_empty_schedule_delivers_everything_in_turn_and_knows_no_fault() -> None:
    for schedule in (Schedule(b""), Schedule(bytes(500))):
        history = talk(schedule)
        assert len(history.kinds(Kind.RECEIVED)) == len(history.kinds(Kind.SENT)) == 18
        assert not history.kinds(Kind.CRASHED, Kind.CUT, Kind.LOST, Kind.PAUSED)


def test_an_optional_action_is_not_taken_once_the_schedule_has_run_out() -> None:
    class Optional(Talker):
        def actions(self) -> Sequence[Action]:
            return [Action("more", drain=False)]

    assert not Simulation({"a": lambda: Optional("a")}, Schedule(b"")).run().kinds(Kind.ACTED)
    assert Simulation({"a": lambda: Optional("a")}, Schedule(b"\xff" * 9)).run().kinds(Kind.ACTED)


class Echo(Talker):
    def handle(self, event: Event) -> Iterable[Effect]:
        if isinstance(event, Received):
            return [Send(event.sender, event.message)]
        return super().handle(event)


def test_processes_that_never_come_to_rest_are_a_violation() -> None:
    with pytest.raises(Violation, match=r"to rest within 50 steps without faults; lately a received"):
        Simulation({name: lambda: Echo("a", 1) for name in NAMES}, Schedule(b"")).run(fair_steps=50)


class Clumsy(Talker):
    def handle(self, event: Event) -> Iterable[Effect]:
        if isinstance(event, Received):
            raise KeyError("state")
        return super().handle(event)


def test_a_process_that_raises_is_a_violation_that_says_when() -> None:
    schedule = Schedule(b"")
    with pytest.raises(Violation, match=r"b received \('a', 0\) from a, and raised KeyError\('state'\)") as caught:
        Simulation(
            {"a": lambda: Talker("a", 1), "b": lambda: Clumsy("b", 0), "c": lambda: Talker("c", 0)}, schedule
        ).run()
    assert schedule.history is not None
    assert schedule.history[caught.value.at[0]].kind is Kind.RECEIVED


def test_a_message_to_nobody_is_a_violation() -> None:
    with pytest.raises(Violation, match=r"a sent .* to 'b', and there is no such process"):
        Simulation({"a": lambda: Talker("a")}, Schedule(b"")).run()


def network() -> tuple[Network, History]:
    history = History(NAMES)
    return Network(history, Swarm(Schedule(b""), Faults()), Faults()), history


def deliver(net: Network) -> list[Packet | Break]:
    return [net.take(next(iter(net.ready)), Schedule(b"")) for _ in range(sum(len(link.queue) for link in net))]


def test_whoever_calls_a_process_that_is_down_hears_of_it_once() -> None:
    net, history = network()
    crash = history.append("b", 0, Kind.CRASHED)
    net.crash("b", crash, Schedule(b""))
    net.send("a", 0, "b", "first")
    net.send("a", 0, "b", "second")
    assert [record.payload for record in history.kinds(Kind.LOST)] == ["first", "second"]
    assert deliver(net) == [Break(crash)]


def test_what_is_sent_on_a_connection_that_broke_does_not_reach_the_process_that_started_again() -> None:
    net, history = network()
    net.send("a", 0, "b", "old")
    crash = history.append("b", 0, Kind.CRASHED)
    net.crash("b", crash, Schedule(b""))
    net.restart("b")
    net.send("a", 0, "b", "too early")
    net.send("b", 1, "a", "hello")
    news = deliver(net)
    assert news[0] == Break(crash)
    assert [item.message for item in news if isinstance(item, Packet)] == ["hello"]
    net.send("a", 0, "b", "new")
    assert [item.message for item in deliver(net) if isinstance(item, Packet)] == ["new"]
    assert [record.payload for record in history.kinds(Kind.LOST)] == ["old", "too early"]


def test_a_crash_loses_the_end_of_what_was_sent_and_no_more() -> None:
    net, history = network()
    for number in range(3):
        net.send("b", 0, "a", number)
    net.crash("b", history.append("b", 0, Kind.CRASHED), Schedule(b"\x80"))
    assert [item.message if isinstance(item, Packet) else "broken" for item in deliver(net)] == [0, "broken"]
    assert sorted(str(record.payload) for record in history.kinds(Kind.LOST)) == ["1", "2"]


def test_only_who_had_to_do_with_a_process_hears_of_its_crash() -> None:
    net, history = network()
    net.send("a", 0, "b", "hello")
    net.crash("b", history.append("b", 0, Kind.CRASHED), Schedule(b""))
    assert [link.channel for link in net.ready] == [Channel("b", "a")]


def test_a_cut_tells_both_ends() -> None:
    net, _ = network()
    net.send("a", 0, "b", "lost")
    net.cut(net.cuttable()[0], Schedule(b"\xff"))
    assert deliver(net) == [Break(None), Break(None)]
    assert net.cuttable() == []


FREQUENT_CRASHES = "ff 00 00 00"
A_CRASH_IN_THE_MIDDLE_OF_THE_NEXT_STEP = "ff 00 00 ff"


def test_no_fault_happens_after_the_schedule_has_run_out() -> None:
    announced = bytes.fromhex(FREQUENT_CRASHES + A_CRASH_IN_THE_MIDDLE_OF_THE_NEXT_STEP)
    faults = Faults(crashes=1)
    assert not talk(Schedule(announced), faults).kinds(Kind.CRASHED)
    assert len(talk(Schedule(announced + bytes(3)), faults).kinds(Kind.CRASHED)) == 1


def test_some_histories_have_slow_processes_and_slow_channels_and_the_benign_one_has_neither() -> None:
    def speeds(skew: int) -> tuple[set[int], set[int]]:
        swarm = Swarm(Schedule(bytes([0, 0, skew])), Faults())
        names = [f"p{number}" for number in range(30)]
        return {swarm.speed(name) for name in names}, {swarm.speed(name, "q") for name in names}

    assert {(len(of_processes), len(of_channels)) for of_processes, of_channels in map(speeds, range(256))} == {
        (1, 1),
        (1, 3),
        (3, 1),
        (3, 3),
    }
    assert speeds(0) == ({4}, {4})


def test_statistics_tell_histories_apart() -> None:
    statistics = Statistics()
    for data in (b"", b"", b"\x00\x00\x00\x00\x00\x00\xff\xff"):
        Simulation(talkers(), Schedule(data), HARSH, statistics).run()
    assert (statistics.histories, statistics.distinct) == (3, 2)
    assert statistics.steps == 3 * 36
    assert str(statistics) == "108 steps in 3 histories, 2 of them distinct"


@given(st.binary(), st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(0, 40))
def test_a_choice_is_an_option_with_a_weight_and_zero_is_the_first_of_them(
    data: bytes, weights: list[int], rare: int
) -> None:
    schedule = Schedule(data)
    if not data:
        assert schedule.choose(weights, rare) is None
        assert schedule.exhausted
    elif not any(weights):
        with pytest.raises(ValueError, match="a weight above 0"):
            Schedule(bytes(3)).choose(weights, rare)
    else:
        chosen = schedule.choose(weights, rare)
        assert chosen is not None
        assert chosen == len(weights) if data[0] >= 256 - rare else weights[chosen] > 0
        if data[0] == 0:
            assert chosen == next(at for at, weight in enumerate(weights) if weight)


def test_every_option_can_be_reached_however_many_there_are() -> None:
    weights = [1] * 300
    pairs = (Schedule(bytes([high, low])) for high in range(256) for low in range(256))
    assert {schedule.choose(weights) for schedule in pairs} == set(range(300))
    assert {Schedule(bytes([byte])).number(7) for byte in range(256)} == set(range(7))


def test_the_engine_does_without_hypothesis() -> None:
    """Only the search needs it, so a run can be replayed and drawn where hypothesis is not installed."""
    code = "import sys; sys.modules['hypothesis'] = None; import snapshot.testing"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_note_is_in_the_history_and_goes_nowhere() -> None:
    class Noting(Talker):
        def handle(self, event: Event) -> Iterable[Effect]:
            return [Note("here")] if isinstance(event, Started) else []

        def actions(self) -> Sequence[Action]:
            return ()

    history = Simulation({"a": lambda: Noting("a")}, Schedule(b"")).run()
    assert [(record.process, note) for record, note in history.notes(str)] == [("a", "here")]
