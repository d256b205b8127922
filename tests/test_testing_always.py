"""What must always hold is checked after each step, and a history is shrunk from several seeds."""

from __future__ import annotations

import doctest
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import pytest

from snapshot.testing import (
    Acted,
    Action,
    Effect,
    Event,
    Faults,
    InFlight,
    Kind,
    Received,
    Schedule,
    Send,
    Simulation,
    Violation,
    search,
    simulation,
)
from snapshot.testing.search import SIZE, Counterexample, Run, replay
from snapshot.testing.search import search as find

NAMES = ("a", "b", "c")


class Holder:
    """Passes a token on, and lets go of it a step later than it should: in the end there is one token all the same."""

    def __init__(self, name: str, late: bool) -> None:
        self.name, self._late = name, late
        self.holds = name == "a"
        self.left = 3
        self.must_let_go = False

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted(Action("let go")):
                self.holds, self.must_let_go = False, False
            case Acted():
                self.left -= 1
                if self._late and self.left == 1:
                    self.must_let_go = True
                else:
                    self.holds = False
                return [Send(NAMES[(NAMES.index(self.name) + 1) % len(NAMES)], "token")]
            case Received():
                self.holds, self.must_let_go = True, False
            case _:
                pass
        return []

    def actions(self) -> Sequence[Action]:
        if self.must_let_go:
            return [Action("let go")]
        return [Action("pass on")] if self.holds and self.left else []


def one_token(processes: Mapping[str, Holder], in_flight: Sequence[InFlight]) -> bool:
    return sum(process.holds for process in processes.values()) + len(in_flight) == 1


def ring(*, late: bool, always: bool = True) -> Run:
    def run(schedule: Schedule) -> None:
        processes = {name: lambda name=name: Holder(name, late) for name in NAMES}
        done = Simulation(processes, schedule, Faults(pauses=2), always=one_token if always else None)
        done.run()
        if not one_token(done.processes, ()):
            raise Violation("there is not one token in the end")

    return run


def test_what_is_wrong_for_one_step_only_is_found_by_what_must_always_hold_and_by_nothing_else() -> None:
    assert find(ring(late=True, always=False), histories=100) is None
    assert find(ring(late=False), histories=100) is None
    found = find(ring(late=True), histories=100)
    assert found is not None
    assert found.history is not None
    assert isinstance(found.violation, Violation)
    [at] = found.violation.at
    assert found.history[at].what == "acted: pass on"
    assert str(found.violation) == f"what must always hold does not after {found.history[at]}"
    # The step comes last: nothing is done after it, but for what it made the process send.
    assert {record.kind for record in found.history[at + 1 :]} == {Kind.SENT}
    assert ">" in found.text()
    again = replay(ring(late=True), found.schedule.hex())
    assert str(again) == str(found)
    # A token that is passed on late for the first time, with no step that need not be there.
    assert len(found.history.kinds(Kind.ACTED)) == 4
    assert not found.history.kinds(Kind.PAUSED)


@pytest.mark.parametrize("data", [b"", bytes(200)], ids=["fair steps", "chosen steps"])
def test_a_violation_that_is_returned_or_raised_keeps_its_words_and_what_it_shows(data: bytes) -> None:
    def returned(processes: Mapping[str, Holder], in_flight: Sequence[InFlight]) -> Violation | None:
        sent = [message.sent for message in in_flight]
        return Violation(f"{len(processes)} are up", sent) if sent else None

    def raised(processes: Mapping[str, Holder], in_flight: Sequence[InFlight]) -> None:
        assert not in_flight, "a message is on its way"

    processes = {name: lambda name=name: Holder(name, True) for name in NAMES}
    with pytest.raises(Violation, match="3 are up") as caught:
        Simulation(processes, Schedule(data), always=returned).run()
    assert caught.value.at == (4,)
    done = Simulation(processes, Schedule(data), always=raised)
    with pytest.raises(Violation, match="a message is on its way") as plain:
        done.run()
    assert plain.value.at == (3,)
    assert done.history[3].what == "acted: pass on"


def test_the_processes_that_are_down_are_not_asked_and_what_was_lost_is_not_on_its_way() -> None:
    seen: set[tuple[int, int]] = set()

    def note(processes: Mapping[str, Holder], in_flight: Sequence[InFlight]) -> None:
        seen.add((len(processes), len(in_flight)))
        assert all(message.channel.sender in NAMES and message.message == "token" for message in in_flight)

    def run(schedule: Schedule) -> None:
        processes = {name: lambda name=name: Holder(name, False) for name in NAMES}
        Simulation(processes, schedule, Faults(crashes=2), always=note).run()

    assert find(run, histories=100) is None
    assert {(3, 0), (3, 1), (2, 0)} <= seen


def test_the_example_of_the_simulation_runs() -> None:
    names = {**vars(simulation), "Acted": Acted, "Action": Action, "Received": Received, "Send": Send}
    finder, runner = (
        doctest.DocTestFinder(recurse=False),
        doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL),
    )
    [example] = finder.find(simulation.Simulation, "Simulation", globs=names)
    runner.run(example)
    assert runner.summarize(verbose=False) == (0, 4)


# --- shrinking from several seeds -------------------------------------------------------------------------------------


def from_one_seed(run: Run, seed: int, histories: int = 300) -> Counterexample | None:
    return search._found(search._Counted(run), histories, SIZE, Random(seed), True)


def valleys(schedule: Schedule) -> None:
    """A promise that is broken in two ways, between which no small change leads; one of them has a short history."""
    first = schedule.number(256)
    wanted = 2 if first < 8 else 9
    history = Simulation({"a": lambda: Holder("b", False)}, schedule).history
    for step in range(wanted):
        history.append("a", 0, Kind.NOTED, payload=step)
    others = [schedule.number(256) for _ in range(wanted)]
    if (first < 8 and all(other > 150 for other in others)) or (
        first > 200 and all(other > 100 for other in others[:3])
    ):
        raise Violation("down here")


@pytest.mark.parametrize("seed", range(4))
def test_the_history_from_several_seeds_is_never_longer_than_that_from_the_first(seed: int) -> None:
    for run in (ring(late=True), valleys):
        one, several = from_one_seed(run, seed), find(run, 300, seed=seed)
        assert one is not None
        assert several is not None
        assert search._length(several) <= search._length(one)


def test_from_some_seeds_it_is_shorter() -> None:
    def is_shorter(seed: int) -> bool:
        one, several = from_one_seed(valleys, seed), find(valleys, 300, seed=seed)
        return one is not None and several is not None and search._length(several)[0] < search._length(one)[0]

    assert any(is_shorter(seed) for seed in range(16))


def test_other_seeds_take_no_more_runs_than_the_first_or_than_there_are_histories() -> None:
    runs = 0

    def counted(schedule: Schedule) -> None:
        nonlocal runs
        runs += 1
        valleys(schedule)

    alone = search._Counted(counted)
    assert search._found(alone, 50, SIZE, Random(0), True) is not None
    runs = 0
    assert find(counted, 50) is not None
    # What is found from each seed is run once more, to be shown.
    assert runs <= alone.runs + max(alone.runs, 50) + 4
