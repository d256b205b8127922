"""The agreement of replicas on rounds: kills, cuts and false suspicions never lead to two decisions for one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pytest

from snapshot.ids import Replica
from snapshot.replication.agreement import (
    Acknowledge,
    Agreement,
    Append,
    AskToReadmit,
    Commit,
    Decided,
    Instruction,
    Message,
    Tell,
    View,
)
from snapshot.testing import (
    Acted,
    Action,
    Broken,
    Channel,
    Effect,
    Event,
    Faults,
    Note,
    Received,
    Save,
    Schedule,
    Send,
    Simulation,
    Started,
    Violation,
)
from snapshot.testing.history import Kind
from snapshot.testing.process import ORDINARY
from snapshot.testing.search import Run, check, search

DRIVER = "driver"
ROUNDS = 3
NAMES = tuple(str(replica) for replica in range(3))


def first_view(replicas: int) -> View:
    everyone = frozenset(map(Replica, range(replicas)))
    return View(1, everyone, everyone, Replica(0))


FIRST = first_view(3)
FAULTS = Faults(
    crashes=2, cuts=2, pauses=2, calms=2, crashable=NAMES,
    cuttable=[Channel(one, other) for one in NAMES for other in NAMES if one != other], pausable=NAMES,
)  # fmt: skip


class Member:
    """A replica that proposes some rounds whenever it is primary, and suspects others now and then."""

    def __init__(self, own: int, view: View, machine: type[Agreement[str]]) -> None:
        self.own, self.dead = Replica(own), False
        self.agreement = machine(self.own, view)
        self.view = view
        self.proposed, self.suspicions = 0, 2

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Started(saved):
                self.dead = saved is not None  # a replica that was lost never comes back as the same one
                yield Save("was there")
            case _ if self.dead:
                pass
            case Acted(Action("propose")):
                self.proposed += 1
                decision = f"{self.own}.{self.view.number}.{self.proposed}"
                yield from self.carry_out(self.agreement.propose(decision))
            case Acted(Action("suspect", int(other))):
                self.suspicions -= 1
                yield Send(DRIVER, ("suspected", other, self.view.number))
            case Received("driver", View() as view):
                self.view = view
                yield from self.carry_out(self.agreement.viewed(view))
            case Received(sender, (Append() | Acknowledge() | Commit()) as message):
                yield from self.carry_out(self.agreement.heard(Replica(int(sender)), message))
            case Broken(peer) if peer != DRIVER:
                yield from self.carry_out(self.agreement.linked(Replica(int(peer))))

    def carry_out(self, instructions: Iterable[Instruction[str]]) -> Iterable[Effect]:
        for instruction in instructions:
            match instruction:
                case Tell(to, message):
                    yield Send(str(to), message)
                case Decided():
                    yield Note(instruction)
                case AskToReadmit(replica, view):
                    yield Send(DRIVER, ("caught up", replica, view))

    def actions(self) -> Sequence[Action]:
        if self.dead:
            return []
        found = [Action("propose")] if self.agreement.is_primary and self.proposed < ROUNDS else []
        others = sorted(self.view.in_sync - {self.own}) if self.suspicions else []
        return [*found, *(Action("suspect", other, weight=ORDINARY // 2, drain=False) for other in others)]


class Driver:
    """The arbiter of views: the lost and the suspected are out of sync, and those are in again who have caught up."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.over = False

    def handle(self, event: Event) -> Iterable[Effect]:
        view = self.view
        match event:
            case Started():
                return [Send(str(member), view) for member in sorted(view.members)]
            case Broken(peer):
                return self.changed(view.members - {Replica(int(peer))}, view.in_sync - {Replica(int(peer))})
            case Received(_, ("suspected", int(other), number)) if number == view.number:
                return self.changed(view.members, view.in_sync - {Replica(other)})
            case Received(_, ("caught up", int(other), number)) if number == view.number and other in view.members:
                return self.changed(view.members, view.in_sync | {Replica(other)})
        return []

    def changed(self, members: frozenset[Replica], in_sync: frozenset[Replica]) -> list[Effect]:
        if self.over or (members, in_sync) == (self.view.members, self.view.in_sync):
            return []
        if not in_sync:
            self.over = True
            return [Note("collapsed")]
        primary = self.view.primary if self.view.primary in in_sync else min(in_sync)
        self.view = View(self.view.number + 1, members, in_sync, primary)
        return [Send(str(member), self.view) for member in sorted(members)]

    def actions(self) -> Sequence[Action]:
        return []


def histories(machine: type[Agreement[str]] = Agreement) -> Run:
    """Return one history after another of replicas with this machine."""

    def run(schedule: Schedule) -> None:
        first = first_view(2 + schedule.number(2))
        processes: dict[str, Callable[[], Member | Driver]] = {DRIVER: lambda: Driver(first)}
        for member in first.members:
            processes[str(member)] = partial(Member, member, first, machine)
        simulation = Simulation(processes, schedule, FAULTS)
        history = simulation.run()
        decided: dict[int, str] = {}
        places: dict[str, int] = {}
        for record in history:
            if record.kind is Kind.NOTED and isinstance(record.payload, Decided):
                place, decision = record.payload.place, record.payload.decision
                if decided.setdefault(place, decision) != decision:
                    raise Violation(
                        f"{record.process} took {decision} at {place}, others {decided[place]}", [record.at]
                    )
                if place != places.get(record.process, 0):
                    raise Violation(f"{record.process} took {place} out of order", [record.at])
                places[record.process] = place + 1
        driver = simulation.processes[DRIVER]
        assert isinstance(driver, Driver)
        for name in map(str, first.members) if not driver.over else ():
            process = simulation.processes[name]
            assert isinstance(process, Member)
            if not process.dead and process.own == driver.view.primary:
                assert not process.agreement.undecided, f"{name} waits for ever for {process.agreement.undecided}"

    return run


def test_a_decision_is_taken_when_all_in_sync_have_acknowledged_it() -> None:
    primary: Agreement[str] = Agreement(Replica(0), FIRST)
    told = primary.propose("a")
    assert told == [Tell(Replica(1), Append(1, 0, ("a",))), Tell(Replica(2), Append(1, 0, ("a",)))]
    assert primary.heard(Replica(1), Acknowledge(1, 1)) == []
    taken, *commits = primary.heard(Replica(2), Acknowledge(1, 1))
    assert taken == Decided(0, "a")
    assert commits == [Tell(Replica(1), Commit(1, 1)), Tell(Replica(2), Commit(1, 1))]


def test_a_follower_acknowledges_what_it_has_and_takes_what_is_committed() -> None:
    follower: Agreement[str] = Agreement(Replica(1), FIRST)
    assert follower.heard(Replica(0), Append(1, 0, ("a", "b"))) == [Tell(Replica(0), Acknowledge(1, 2))]
    assert follower.heard(Replica(0), Commit(1, 1)) == [Decided(0, "a")]
    assert follower.heard(Replica(2), Commit(1, 2)) == [], "it is not the primary"


def test_what_a_new_primary_does_not_have_gives_way() -> None:
    follower: Agreement[str] = Agreement(Replica(2), FIRST)
    follower.heard(Replica(0), Append(1, 0, ("a", "b")))
    assert follower.heard(Replica(1), Append(2, 0, ("a",))) == [Tell(Replica(1), Acknowledge(2, 1))]
    assert follower.heard(Replica(0), Append(1, 2, ("c",))) == []
    assert follower.undecided == ["a"]


def test_who_was_left_out_is_waited_for_before_the_driver_is_asked_for_it() -> None:
    primary: Agreement[str] = Agreement(Replica(0), FIRST)
    two = frozenset(map(Replica, range(2)))
    primary.viewed(View(2, two, frozenset([Replica(0)]), Replica(0)))
    primary.propose("a")
    assert primary.heard(Replica(1), Acknowledge(2, 1)) == [AskToReadmit(Replica(1), 2)]
    assert not any(isinstance(one, Decided) for one in primary.propose("b"))


def test_old_decisions_are_forgotten_and_counted_on() -> None:
    alone: Agreement[int] = Agreement(Replica(0), View(1, frozenset([Replica(0)]), frozenset([Replica(0)]), Replica(0)))
    for number in range(5_000):
        assert alone.propose(number) == [Decided(number, number)]
    (told, _) = alone.linked(Replica(1))
    assert isinstance(told, Tell)
    assert isinstance(told.message, Append)
    assert told.message.decisions[-1] == 4_999
    assert len(told.message.decisions) < 2_000


def test_no_place_has_two_decisions_whatever_fails_and_whoever_is_suspected() -> None:
    check(histories(), histories=400, size=200)


# --- seeded errors


class TakesAtOnce(Agreement[str]):
    """Takes its own decision before the others have it."""

    def _settle(self) -> list[Instruction[str]]:
        return [*self._take(self._end), *super()._settle()]


class HeedsOldViews(Agreement[str]):
    def heard(self, sender: Replica, message: Message[str]) -> list[Instruction[str]]:
        if isinstance(message, Append) and message.view < self._number and message.first <= self._end:
            self._log[message.first - self._first :] = message.decisions
            return [Tell(sender, Acknowledge(message.view, self._end))]
        return super().heard(sender, message)


class AsksTooSoon(Agreement[str]):
    """Asks to readmit a replica, and does not wait for it meanwhile."""

    def _settle(self) -> list[Instruction[str]]:
        instructions = super()._settle()
        self._asked = set()
        return instructions


@pytest.mark.parametrize("machine", [TakesAtOnce, HeedsOldViews, AsksTooSoon])
def test_an_agreement_that_is_wrong_is_found(machine: type[Agreement[str]]) -> None:
    assert search(histories(machine), histories=5_000, size=80, seed=2, shrink=False) is not None
