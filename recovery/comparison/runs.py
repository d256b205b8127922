"""All runs of a comparison, in turns, with their results in a folder, from which it goes on if it was ended.

Invariant: a run that is in the folder is not done again; a folder has the results of one program and one plan, from
one machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from recovery.comparison.machine import describe_machine
from recovery.comparison.measuring import Taken, measure, rows_without_faults
from recovery.comparison.plan import START_S, Plan, in_words
from recovery.comparison.prepared import Prepared, code_of, prepare
from recovery.comparison.record import Outcome, Record, read, read_all, write
from recovery.comparison.rows import Identities, Truth
from recovery.comparison.sustainable import NothingSustained, sustainable
from recovery.comparison.truths import RUNS, is_there, truth_of, why_rows_differ
from recovery.schemes.named import COMPARED
from snapshot.program.program import Program
from statebackend.errors import JobError, OptionError

_TRIES: Final = 3
_PLAN: Final = "plan.json"
_RATES: Final = "sustainable.json"
_RUNS: Final = "runs"
_REFERENCE: Final = "passive"
"""The scheme of the runs without faults."""


class OtherResults(OptionError, ValueError):
    """The folder has the results of another plan, program or machine."""


class NoTruth(JobError):
    """The program fails without any fault; the message says why."""


class NoResults(OptionError, ValueError):
    """The folder has no comparison that this version can read."""


@dataclass(frozen=True, slots=True)
class Results:
    """All that a folder has of a comparison."""

    folder: Path
    program: str
    """The name of the program."""
    explained: str
    """Its stages."""
    plan: Plan
    machine: Mapping[str, str]
    records: Sequence[Record]
    rows_differ: str
    """The outputs whose rows cannot be compared, as they differ from run to run; empty if there are none."""
    sustained: Mapping[str, float]
    """The highest rate that each scheme sustains, in rows per second, if it was looked for."""

    def file(self, record: Record) -> Path:
        """Return the file of a run."""
        return self.folder / _RUNS / record.name


def carry_out(program: Program, name: str, plan: Plan, folder: Path, told: Callable[[str], object]) -> Results:
    """Do all runs of the plan that the folder does not have yet, and return the results of all.

    `told` hears what is being done, and how long it will take. `NotComparable`, `UnusablePlan` and `OtherResults`
    before anything runs.
    """
    plan.check()
    prepare(program, plan.rate, plan.seconds)
    _open(folder, name, program, plan)
    runs = _Runs(program, plan, folder, told)
    runs.look_for_rates()
    for repeat in range(plan.repeats):
        for scheme in plan.schemes:
            runs.do(Record(scheme, repeat, Outcome.MEASURED))
    return results(folder)


def results(folder: Path) -> Results:
    """Read what a folder has; `NoResults` if it has no comparison."""
    said = _said(folder)
    try:
        plan = _plan(said["plan"])
    except (KeyError, TypeError) as error:
        raise NoResults(f"{folder} has no comparison: {error}") from error
    rates = {scheme: rate for scheme, rate in _rates(folder).items() if isinstance(rate, float)}
    records = read_all(folder / _RUNS)
    return Results(
        folder, said["program"], said["explained"], plan, said["machine"], records, why_rows_differ(folder), rates
    )


def _open(folder: Path, name: str, program: Program, plan: Plan) -> None:
    """Make the folder if it is not there; `OtherResults` if it has others."""
    (folder / _RUNS).mkdir(parents=True, exist_ok=True)
    said = {
        "program": name,
        "explained": program.explain(),
        "code": code_of(program),
        "plan": asdict(plan),
        "machine": describe_machine(),
    }
    file = folder / _PLAN
    if not file.exists():
        part = file.with_suffix(".part")
        part.write_text(json.dumps(said, indent=1))
        part.replace(file)
        return
    there = _said(folder)
    for part_of, value in json.loads(json.dumps(said)).items():
        if there.get(part_of) != value:
            what = {"code": "version of the program's code", "explained": "program"}.get(part_of, part_of)
            raise OtherResults(f"{folder} has results of another {what}; choose another folder, or delete this one")


def _said(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _PLAN).read_text())
    except (OSError, ValueError) as error:
        raise NoResults(f"{folder} has no comparison that can be read: {error}; choose another folder") from error
    if not isinstance(found, dict):
        raise NoResults(f"{folder / _PLAN} is no plan of a comparison; choose another folder")
    return found


def _plan(data: dict[str, object]) -> Plan:
    lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
    return Plan(**{**data, **lists})  # type: ignore[arg-type]


def _rates(folder: Path) -> dict[str, float | str]:
    """Return the rate that each scheme sustains, or why there is none, as far as that is known."""
    file = folder / _RATES
    return json.loads(file.read_text()) if file.exists() else {}


class _Runs:
    """Does the runs of a comparison, and says how long those that are left will take."""

    def __init__(self, program: Program, plan: Plan, folder: Path, told: Callable[[str], object]) -> None:
        self._program, self._plan, self._folder, self._told = program, plan, folder, told
        self._truths: dict[float, Truth | None] = {}
        self._number = 0
        self._took: list[float] = []

    def look_for_rates(self) -> None:
        """Look for the rate that each scheme sustains, if the plan says a share of it."""
        if self._plan.share is None:
            return
        for scheme in self._plan.schemes:
            rates = _rates(self._folder)
            if scheme in rates:
                continue
            self._told(f"looking for the rate that {scheme} sustains")
            try:
                found: float | str = sustainable(self._program, COMPARED[scheme], self._plan, self._folder, self._told)
            except NothingSustained as error:
                found = str(error)
            part = self._folder / f"{_RATES}.part"
            part.write_text(json.dumps({**rates, scheme: found}))
            part.replace(self._folder / _RATES)

    def do(self, blank: Record) -> None:
        """Do a run, unless the folder has it; again if its fault could not be brought about."""
        file = self._folder / _RUNS / blank.name
        if file.exists():
            read(file)  # a file that is damaged is named now
            self._pass(1)
            return
        compared, plan = COMPARED[blank.scheme], self._plan
        rate = self._rate(blank.scheme)
        if isinstance(rate, str):
            taken = Taken(replace(blank, outcome=Outcome.FAILED, why=rate))
        else:
            truth = self._truth(rate)
            prepared = prepare(self._program, rate, plan.seconds, shown_at_once=compared.shows_at_once)
            began = self._begin(f"{blank.scheme}, {blank.repeat + 1} of {plan.repeats}")
            for tries in range(1, _TRIES + 1):
                taken = measure(prepared, compared, plan, self._folder, truth, plan.orders if compared.survives else ())
                taken.record = replace(taken.record, tries=tries)
                if taken.record.outcome is not Outcome.NO_FAULT:
                    break
            self._end(began, taken)
        write(file.parent, replace(taken.record, scheme=blank.scheme, repeat=blank.repeat), taken.seen)

    def _rate(self, scheme: str) -> float | str | None:
        """Return the rate of a scheme's runs, or why there is none; None if it is the program's own."""
        if self._plan.share is None:
            return self._plan.rate
        found = _rates(self._folder)[scheme]
        return found if isinstance(found, str) else found * self._plan.share

    def _truth(self, rate: float | None) -> Truth | None:
        """Return the rows that should come at this rate."""
        prepared = prepare(self._program, rate, self._plan.seconds)
        if prepared.rate not in self._truths:
            if is_there(self._folder, prepared.rate):
                self._pass(RUNS)
            self._truths[prepared.rate] = truth_of(self._folder, prepared, partial(self._reference, prepared))
        return self._truths[prepared.rate]

    def _reference(self, prepared: Prepared, number: int) -> Mapping[str, Identities]:
        began = self._begin(f"without faults, {number} of {RUNS}")
        try:
            rows = rows_without_faults(prepared, COMPARED[_REFERENCE], self._plan, self._folder)
        except Exception as error:  # of the program's own, too
            raise NoTruth(f"the program does not come to its end, though nothing fails: {error}") from error
        self._took.append(time.monotonic() - began)
        return rows

    def _pass(self, runs: int) -> None:
        """Count runs that are in the folder."""
        self._number += runs

    def _begin(self, what: str) -> float:
        """Tell that a run begins, and return the time."""
        plan = self._plan
        usual = sum(self._took) / len(self._took) if self._took else plan.seconds + START_S
        left = in_words(usual * (plan.runs - self._number))
        self._number += 1
        self._told(f"run {self._number} of {plan.runs}: {what}; about {left} left")
        return time.monotonic()

    def _end(self, began: float, taken: Taken) -> None:
        """Take note of how long it took, and tell what became of it if it was not measured."""
        self._took.append(time.monotonic() - began)
        if taken.record.outcome is not Outcome.MEASURED:
            self._told(f"  {taken.record.outcome.value}: {taken.record.why}")
