"""Histories become modules of TLA+, and rejections become errors that show the step; TLC itself is not run."""

from __future__ import annotations

import doctest
from enum import Enum
from pathlib import Path

import pytest

from snapshot.testing import Action, Kind, Record, Schedule, Send, Simulation, tla
from snapshot.testing.process import Acted, Effect, Event
from snapshot.testing.tla import (
    Rejected,
    Step,
    Tlc,
    TlcFailed,
    Trace,
    accept,
    as_module,
    as_value,
    rejections,
    trace_of,
    traces_of_lines,
)
from tests.test_trace import RUN, recorded


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "TRUE"),
        (7, "7"),
        (-1, "-1"),
        (Colour.RED, '"RED"'),
        ('a "b" \\', '"a \\"b\\" \\\\"'),
        ("1€", '"1?20ac"'),
        ("two\nlines", '"two?alines"'),
        ((1, "a"), '<<1, "a">>'),
        ([], "<<>>"),
        ({2, 1}, "{1, 2}"),
        (frozenset({("a", "b")}), '{<<"a", "b">>}'),
        ({"a": 1, "b_2": [3]}, "[a |-> 1, b_2 |-> <<3>>]"),
        ({1: 2, 3: 4}, "(1 :> 2 @@ 3 :> 4)"),
        ({"no name": 1}, '("no name" :> 1)'),
        ({}, "<<>>"),
    ],
)
def test_a_value_is_written_as_tla(value: object, text: str) -> None:
    assert as_value(value) == text


def test_a_value_without_a_form_in_tla_is_refused() -> None:
    with pytest.raises(TypeError, match="no form in TLA"):
        as_value({"amount": 1.5})


class Caller:
    def __init__(self, calls: int) -> None:
        self.calls = calls

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, Acted):
            self.calls -= 1
            return [Send("callee", self.calls)]
        return []

    def actions(self) -> list[Action]:
        return [Action("call")] if self.calls else []


def calls(record: Record) -> list[Step]:
    if record.kind is Kind.SENT:
        return [Step("Call", {"number": record.payload})]
    return [Step("Answer", {"number": record.payload})] if record.kind is Kind.RECEIVED else []


def trace() -> Trace:
    history = Simulation({"caller": lambda: Caller(2), "callee": lambda: Caller(0)}, Schedule(b"")).run()
    return trace_of(history, calls, {"processes": {"caller", "callee"}}, "two calls")


def test_a_step_knows_its_place_in_the_history() -> None:
    made = trace()
    assert [step.action for step in made.steps] == ["Call", "Answer", "Call", "Answer"]
    assert made.history is not None
    assert [made.history[step.at or 0].kind for step in made.steps] == [Kind.SENT, Kind.RECEIVED] * 2


def test_a_module_has_every_trace_as_a_constant() -> None:
    module = as_module("Check", "Calls", [trace(), Trace([Step("Nothing")])])
    assert module.startswith("---- MODULE Check ----\nEXTENDS Calls, ")
    assert '[action |-> "Call", number |-> 1],\n[action |-> "Answer", number |-> 1],' in module
    assert 'Trace1 == [config |-> [processes |-> {"callee", "caller"}], steps |-> <<' in module
    assert 'Trace2 == [config |-> <<>>, steps |-> <<\n[action |-> "Nothing"]\n>>]' in module
    assert "Traces == <<Trace1, Trace2>>" in module
    assert "TraceLongest == 6" in module


def test_a_module_without_traces_is_refused() -> None:
    with pytest.raises(ValueError, match="no trace"):
        as_module("Check", "Calls", [])


OUTPUT = '<<"rejected", 2, 3>>\n<<"checked", 2>>\nModel checking completed. No error has been found.\n'


def test_a_rejection_shows_the_step_those_before_it_and_the_diagram() -> None:
    accepted, other = Trace([Step("Nothing")]), trace()
    (rejected,) = rejections(OUTPUT, [accepted, other])
    assert (rejected.trace, rejected.index, rejected.step) == (other, 3, other.steps[3])
    assert rejected.at == (other.steps[3].at,)
    text = str(rejected)
    assert text.startswith("two calls is rejected at step 4 of 4: the specification does not allow it\n      1  Call(")
    assert ">     4  Answer(number=0)" in text
    assert "caller" in text.split("\n\n", 1)[1]


def test_a_step_without_a_history_is_shown_without_a_diagram() -> None:
    assert "\n\n" not in str(Rejected(Trace([Step("Call", {"number": 1})]), 0, "why"))


@pytest.mark.parametrize("output", ["", "Parsing failed", '<<"checked", 3>>'])
def test_an_output_that_does_not_come_to_the_end_accepts_nothing(output: str) -> None:
    with pytest.raises(TlcFailed, match="has not checked the 2 traces"):
        rejections(output, [trace(), trace()])


def test_the_first_rejection_is_raised_with_how_many_there_are() -> None:
    rejected = rejections(OUTPUT, [trace(), trace()])
    with pytest.raises(Rejected) as caught:
        accept(rejected * 2)
    assert caught.value.__notes__ == ["2 of the histories are rejected"]
    accept([])


def test_tlc_that_is_not_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "Calls.tla").write_text("---- MODULE Calls ----\n====\n")
    with pytest.raises(TlcFailed, match="make test-specs"):
        Tlc(tmp_path).check(tmp_path / "Calls.tla", [trace()])


FAKE = """#!/bin/sh
case "$*" in *"-workers 1"*) ;; *) exit 9 ;; esac
if grep -q Broken Check.tla; then cat <<'END'
Error: TLC threw an unexpected exception.
The exception was a java.lang.RuntimeException
: Attempted to apply a function to an argument not in its domain.
Error: The behavior up to this point is:
State 1: <Initial predicate>
/\\ traceNext = 1
/\\ traceNumber = 2

State 2: <Consume line 1>
/\\ traceNext = 2
/\\ traceNumber = 2

END
else grep -o 'Traces == .*' Check.tla >&2; echo '<<"rejected", 1, 0>>'; echo '<<"checked", 1>>'; fi
"""


def test_a_step_that_cannot_be_evaluated_is_rejected_and_the_others_are_checked_still(tmp_path: Path) -> None:
    (tmp_path / "Calls.tla").write_text("---- MODULE Calls ----\n====\n")
    (tmp_path / "tlc.jar").touch()
    java = tmp_path / "java"
    java.write_text(FAKE)
    java.chmod(0o755)
    broken = Trace([Step("Call"), Step("Broken")], name="a broken one")
    found = Tlc(tmp_path, str(java)).check(tmp_path / "Calls.tla", [trace(), broken])
    assert [(one.trace.name, one.index) for one in found] == [("a broken one", 1), ("two calls", 0)]
    assert "no meaning for it: Attempted to apply a function" in str(found[0])


def test_the_example_of_the_module_is_as_it_says() -> None:
    assert doctest.testmod(tla).attempted == 2
    assert doctest.testmod(tla).failed == 0


def test_a_recorded_trace_of_a_coordinator_becomes_steps() -> None:
    lines = recorded(RUN)
    first, second = traces_of_lines([*lines, *lines, '{"event"'])
    assert first.steps == second.steps
    assert first.config["complete"] == "5-2"
    actions = [step.action for step in first.steps]
    assert actions[:3] == ["AttemptStarted", "Ticked", "Ticked"]
    trigger = first.steps[actions.index("Trigger")]
    assert trigger.fields["epoch"] == "6-3"
    assert trigger.fields["participants"] == [0, 1]
    assert "marker" not in trigger.fields
    assert first.steps[actions.index("Publish")].fields["contents"] == ["0", "1"]
    assert as_module("Check", "Coordinator", [first]).count('action |-> "RollBack"') == 1
