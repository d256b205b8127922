"""The marker rule on any strongly connected graph: what it records is a state that the system could have been in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings

from snapshot.cut.chandy_lamport import MarkerRule, Recorded, SendMarkers
from snapshot.testing import (
    Acted,
    Action,
    Channel,
    Cut,
    Effect,
    Event,
    History,
    Note,
    Received,
    Schedule,
    Send,
    Simulation,
    Violation,
    check_channel_state,
    check_consistent,
    check_sequential,
)
from snapshot.testing.search import check, search

START = 100
Rule = MarkerRule[str, int, int, "Money"]
Instruction = SendMarkers[str, int] | Recorded[str, int, int, "Money"]


@dataclass(frozen=True, slots=True)
class Money:
    amount: int
    hops: int

    def __str__(self) -> str:
        return f"{self.amount}€"


@dataclass(frozen=True, slots=True)
class Marker:
    snapshot: int


@dataclass(frozen=True, slots=True)
class CutHere:
    snapshot: int


class Branch:
    """A branch of a bank: money comes in and goes out, some of it round in circles, and now and then it is counted."""

    def __init__(
        self, incoming: Sequence[str], outgoing: Sequence[str], snapshots: int, transfers: int, counts: bool
    ) -> None:
        self.balance = START
        self.transfers = transfers
        self.outgoing = outgoing
        self.must_count = counts
        self.optional = set(range(snapshots))
        self.rule: Rule = MarkerRule(incoming, outgoing, lambda: self.balance)

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted(Action("transfer", str(to))):
                self.transfers -= 1
                return [self.pay(to, self.transfers + 1, hops=2)]
            case Acted(Action("count", int(snapshot))):
                self.must_count = False
                self.optional.discard(snapshot)
                return self.carry_out(self.rule.start(snapshot))
            case Received(sender, Money() as money):
                self.rule.message(sender, money)
                self.balance += money.amount
                to = self.outgoing[money.hops % len(self.outgoing)]
                return [self.pay(to, money.amount, money.hops - 1)] if money.hops else []
            case Received(sender, Marker(snapshot)):
                return self.carry_out(self.rule.marker(sender, snapshot))
            case _:
                return []

    def actions(self) -> Sequence[Action]:
        transfers = [Action("transfer", to) for to in self.outgoing if self.transfers]
        counts = [Action("count", snapshot, drain=False) for snapshot in self.optional]
        return [*transfers, *([Action("count", 0)] if self.must_count else counts)]

    def pay(self, to: str, amount: int, hops: int) -> Send:
        self.balance -= amount
        return Send(to, Money(amount, hops))

    def carry_out(self, instructions: Iterable[Instruction]) -> Iterable[Effect]:
        for instruction in instructions:
            match instruction:
                case SendMarkers(snapshot, channels):
                    yield Note(CutHere(snapshot))
                    yield from [Send(to, Marker(snapshot)) for to in channels]
                case Recorded():
                    yield Note(instruction)


@dataclass(frozen=True, slots=True)
class Graph:
    edges: frozenset[tuple[str, str]]
    names: tuple[str, ...]

    def outgoing(self, name: str) -> list[str]:
        return sorted(to for sender, to in self.edges if sender == name)

    def incoming(self, name: str) -> list[str]:
        return sorted(sender for sender, to in self.edges if to == name)


def any_strongly_connected_graph(schedule: Schedule) -> Graph:
    """A ring, so that everybody reaches everybody, and any other edges."""
    names = tuple(f"p{number}" for number in range(2 + schedule.number(4)))
    ring = zip(names, (*names[1:], names[0]), strict=True)
    others = [(a, b) for a in names for b in names if a != b and schedule.flag()]
    return Graph(frozenset([*ring, *others]), names)


def money(message: object) -> object | None:
    return message if isinstance(message, Money) else None


def cuts(history: History) -> list[Cut]:
    """One for each snapshot that anybody has begun; everybody must have recorded it."""
    begun = {note.snapshot for _, note in history.notes(CutHere)}
    return [cut_of(history, snapshot) for snapshot in sorted(begun)]


def cut_of(history: History, snapshot: int) -> Cut:
    marks = [record for record, note in history.notes(CutHere) if note.snapshot == snapshot]
    parts = {record.process: note for record, note in history.notes(Recorded) if note.snapshot == snapshot}
    if set(parts) != set(history.processes):
        raise Violation(f"snapshot {snapshot} is finished only at {sorted(parts)}")
    channels = {
        Channel(sender, name): messages for name, part in parts.items() for sender, messages in part.channels.items()
    }
    frontier = {record.process: history.before(record) for record in marks}
    return Cut(frontier, {name: part.state for name, part in parts.items()}, channels, f"snapshot {snapshot}")


def run(schedule: Schedule, branch: type[Branch] = Branch) -> None:
    graph = any_strongly_connected_graph(schedule)
    snapshots, transfers = 1 + schedule.number(3), schedule.number(4)

    def open_branch(name: str) -> Callable[[], Branch]:
        counts = name == graph.names[0]
        return lambda: branch(graph.incoming(name), graph.outgoing(name), snapshots, transfers, counts)

    branches: Mapping[str, Callable[[], Branch]] = {name: open_branch(name) for name in graph.names}
    history = Simulation(branches, schedule).run()
    found = cuts(history)
    if not found:
        raise Violation("nobody has counted")
    for cut in found:
        check_consistent(history, cut, money)
        check_channel_state(history, cut, money)
        check_sequential(history, cut, branches, lambda branch: branch.balance, money)
        check_total(cut, len(graph.names) * START)


def check_total(cut: Cut, total: int) -> None:
    in_flight = [message for messages in cut.channels.values() for message in messages]
    counted = sum(state for state in cut.states.values() if isinstance(state, int))
    counted += sum(message.amount for message in in_flight if isinstance(message, Money))
    if counted != total:
        raise Violation(f"{cut.name} counts {counted} where there are {total}", cut=cut)


def test_every_snapshot_of_any_graph_is_a_state_that_the_system_could_have_been_in() -> None:
    check(run, histories=5 * settings().max_examples)


class MarkerAfterOneMoreMessage(Branch):
    def carry_out(self, instructions: Iterable[Instruction]) -> Iterable[Effect]:
        effects = list(super().carry_out(instructions))
        cut = any(isinstance(effect, Note) and isinstance(effect.what, CutHere) for effect in effects)
        return [effects[0], self.pay(self.outgoing[0], 1, 0), *effects[1:]] if cut else effects


class ForgetsWhatWasInFlight(Branch):
    def __init__(
        self, incoming: Sequence[str], outgoing: Sequence[str], snapshots: int, transfers: int, counts: bool
    ) -> None:
        super().__init__(incoming, outgoing, snapshots, transfers, counts)
        self.rule = _Deaf(incoming, outgoing, lambda: self.balance)


class _Deaf(MarkerRule[str, int, int, Money]):
    def message(self, channel: str, message: Money) -> None:
        pass


class TakesAMarkerForOneOnEveryChannel(Branch):
    def handle(self, event: Event) -> Iterable[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Marker):
            channels = self.rule._incoming
            return [
                effect
                for channel in channels
                for effect in self.carry_out(self.rule.marker(channel, event.message.snapshot))
            ]
        return super().handle(event)


class SendsNoMarkerBackToWhereItCameFrom(Branch):
    def handle(self, event: Event) -> Iterable[Effect]:
        effects = super().handle(event)
        if isinstance(event, Received) and isinstance(event.message, Marker):
            return [e for e in effects if not (isinstance(e, Send) and e.to == event.sender)]
        return effects


@pytest.mark.parametrize(
    "wrong",
    [
        MarkerAfterOneMoreMessage,
        ForgetsWhatWasInFlight,
        TakesAMarkerForOneOnEveryChannel,
        SendsNoMarkerBackToWhereItCameFrom,
    ],
)
def test_a_branch_that_breaks_the_rule_is_caught(wrong: type[Branch]) -> None:
    assert search(lambda schedule: run(schedule, wrong), shrink=False) is not None


def test_a_snapshot_that_is_started_twice_sends_its_markers_once() -> None:
    rule: Rule = MarkerRule(["a"], ["a", "b"], lambda: 5)
    assert rule.start(1) == [SendMarkers(1, ("a", "b"))]
    assert rule.start(1) == []


def test_what_arrives_between_the_cut_and_the_marker_is_the_state_of_the_channel() -> None:
    rule: Rule = MarkerRule(["a", "b"], [], lambda: 5)
    before, between, after = Money(1, 0), Money(2, 0), Money(3, 0)
    rule.message("b", before)
    rule.marker("a", 1)
    rule.message("a", after)
    rule.message("b", between)
    assert rule.marker("b", 1) == [Recorded(1, 5, {"a": (), "b": (between,)})]
    rule.message("b", after)
    assert rule.marker("b", 1) == []


def test_a_process_alone_has_recorded_as_soon_as_it_starts() -> None:
    rule: Rule = MarkerRule([], [], lambda: 5)
    assert rule.start(1) == [SendMarkers(1, ()), Recorded(1, 5, {})]
