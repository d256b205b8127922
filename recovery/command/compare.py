"""`recovery compare`: a program under several recovery schemes with the same faults, and a report.

Invariant: a comparison that ends early, by Ctrl-C or by an error, keeps the runs that are done, and goes on from there.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from recovery.command.arguments import Verbs, add_verb, in_columns, in_lines, mention, show
from recovery.comparison.plan import PLANS, Plan, in_words
from recovery.comparison.record import Outcome, Record
from recovery.comparison.report import write_report
from recovery.comparison.runs import Results, carry_out
from recovery.comparison.summary import CPU, P99, SILENCE, Measure, in_digits, of_scheme, sentences
from recovery.savepoints.programs import program_from
from recovery.schemes.named import COMPARED

_EXAMPLE = """example:
  $ recovery compare jobs/clicks.py:program --folder clicks-compared
  $ recovery compare jobs/clicks.py:program --folder hung --schemes passive,active --fault "stop worker:0 for 3s"

Three faults at once are three --fault, the last two without a moment; three in a row are three with `at +2s`, say.
Rows of the program are made at its own rate, or at --rate. Its sinks are replaced: no target is written to.
"""

_NUMBERS = ("rate", "share", "repeats", "parallelism", *("every", "warm", "before", "after", "lost_after", "heartbeat"))


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "compare", "run a program under several recovery schemes, with faults", _EXAMPLE, _run)
    parser.add_argument("program", metavar="PROGRAM", help="module:function, or folder/file.py:function")
    parser.add_argument("--folder", required=True, type=Path, metavar="FOLDER", help="for the results and the report")
    plans = ", ".join(f"{name} ({in_words(plan.expected_s)})" for name, plan in PLANS.items())
    parser.add_argument("--plan", choices=PLANS, default="small", help=f"what to begin with: {plans} (%(default)s)")
    parser.add_argument("--schemes", metavar="NAMES", help=f"of {', '.join(COMPARED)} (all)")
    parser.add_argument(
        "--fault",
        dest="faults",
        action="append",
        metavar="FAULT",
        help=f"as `recovery inject` says it: KIND TARGET [by TIME] [for TIME] [at MOMENT] ({'; '.join(Plan().faults)})",
    )
    parser.add_argument("--rate", type=float, metavar="ROWS", help="rows per second of all paced sources (as they say)")
    parser.add_argument(
        "--share",
        type=float,
        metavar="PART",
        help="instead: run each scheme at this part of the highest rate that it sustains, such as 0.5",
    )
    parser.add_argument("--repeats", type=int, metavar="N", help=f"runs of each scheme ({Plan().repeats})")
    parser.add_argument("--parallelism", type=int, metavar="N", help=f"partitions ({Plan().parallelism})")
    for option, what in (
        ("every", "the interval of epochs"),
        ("warm", "nothing is measured for so long"),
        ("before", "what is usual is measured for so long"),
        ("after", "what follows from the faults is measured for so long"),
    ):
        parser.add_argument(f"--{option}", metavar="TIME", help=f"{what} ({getattr(Plan(), option)})")
    parser.add_argument("--lost-after", metavar="TIME", help="a silent process is lost after so long (as jobs have it)")
    parser.add_argument("--heartbeat", metavar="TIME", help="how often a process says that it lives (as jobs have it)")


def _run(arguments: argparse.Namespace) -> None:
    plan = _plan(arguments)
    plan.check()
    program = program_from(arguments.program)
    with _quiet():
        found = carry_out(program, arguments.program, plan, arguments.folder, mention)
    report = write_report(found)
    show({"report": report, "runs": found.records}, described(found, report), as_json=arguments.json)


@contextmanager
def _quiet() -> Iterator[None]:
    """Log no warnings of jobs: that processes die is what is asked for."""
    log = logging.getLogger("epochcut")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _plan(arguments: argparse.Namespace) -> Plan:
    given: dict[str, Any] = {name: value for name in _NUMBERS if (value := getattr(arguments, name)) is not None}
    if arguments.schemes is not None:
        given["schemes"] = tuple(name.strip() for name in arguments.schemes.split(","))
    if arguments.faults is not None:
        given["faults"] = tuple(arguments.faults)
    return replace(PLANS[arguments.plan], **given)


def described(found: Results, report: Path) -> str:
    """Return the results for people: a line for each scheme, what they say, and where the report is."""
    shown = (SILENCE, P99, CPU)
    heads = ("scheme", "measured", *(f"{measure.name}, {measure.unit}" for measure in shown))
    rows = [_row(scheme, of_scheme(found.records, scheme), shown) for scheme in found.plan.schemes]
    lines = in_columns(heads, rows, heads[1:])
    return in_lines([*lines, "", *sentences(found.plan, found.records, found.rows_differ), "", f"report: {report}"])


def _row(scheme: str, runs: Sequence[Record], shown: Sequence[Measure]) -> Sequence[str]:
    measured = sum(run.outcome is Outcome.MEASURED for run in runs)
    values = [measure.values(runs) for measure in shown]
    figures = [in_digits(median(found)) if found else "-" for found in values]
    return (scheme, f"{measured} of {len(runs)}", *figures)
