"""`recovery inject random`: faults at random, one after another, and a report of what came of them.

Invariant: with the same seed the same things are drawn; a job whose driver was killed is waited for, as its supervisor
may start it again.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from recovery.attached import Attached, CommandDeclined, ConnectionLost
from recovery.command.arguments import Verbs, add_running_job, add_verb, attached_to, mention, show
from recovery.command.exits import WrongUsage
from recovery.driver.tree.address import JobNotRunning
from recovery.events import AnyEvent, Finished, GaveUp, Recovered, Stopped
from recovery.inject.report import Entry, Injected, KindTotals, Report
from recovery.inject.schedule import Group, RandomFaults, Schedule, Span
from recovery.inject.targets import Kind, Order, TheDriver
from statebackend.durations import NotADuration, milliseconds
from statebackend.readable import readable

_HEADING: Final = (
    f"{'fault':8}{'done':>6}{'declined':>10}{'recovered':>11}{'output back, ms':>22}{'caught up, ms':>22}\n"
    f"{'':35}{'median':>11}{'worst':>11}{'median':>11}{'worst':>11}"
)


def in_words(injected: Injected) -> str:
    """Describe one fault."""
    who = "the driver" if injected.worker is None else injected.worker
    return f"{injected.order}: process {injected.pid} ({who}), {_distance(injected)}"


def entry_in_words(entry: Entry) -> str:
    """Describe one fault of a schedule."""
    what = in_words(entry.done) if entry.done is not None else f"{entry.order}: declined: {entry.refused}"
    return f"{entry.seconds:8.2f} s  {what}"


def report_in_words(report: Report) -> str:
    """Describe all faults of a schedule, kind by kind."""
    return "\n".join([_HEADING, *(_line(totals) for totals in report.totals())])


def _line(totals: KindTotals) -> str:
    times: Sequence[float | None] = (
        totals.output_median,
        totals.output_worst,
        totals.caught_up_median,
        totals.caught_up_worst,
    )
    counts = f"{totals.kind.value:8}{totals.done:6}{totals.refused:10}{totals.recoveries:11}"
    return counts + "".join(f"{'-' if time is None else format(time, '.0f'):>11}" for time in times)


def _distance(injected: Injected) -> str:
    if injected.complete is None:
        return "before any epoch was complete"
    if injected.since_complete_ms is None:
        return f"while epoch {injected.complete}, of an earlier start, was the last that is complete"
    return f"{injected.since_complete_ms:.0f} ms after epoch {injected.complete} was complete"


_EXAMPLE: Final = """example:
  $ recovery inject random --checkpoints /data/clicks --kinds kill,stop,cut --seed 7 --count 200 --every 1s..4s
      1.62 s  kill worker:1: process 4711 (8f3a90d25b1e44c7), 301 ms after epoch 17-1 was complete
  ...
  fault     done  declined  recovered       output back, ms         caught up, ms
                                          median      worst     median      worst
  kill        71         0         71        184        402        355        911
"""
_LAST: Final = 30.0
"""Seconds that the job may take to recover from the last fault, to be in the report."""
_PAUSE: Final = 0.2


def add_to(kinds: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(kinds, "random", "faults at random, one after another, and a report", _EXAMPLE, _run)
    add_running_job(parser)
    every = ",".join(kind.value for kind in Kind)
    parser.add_argument("--kinds", default="kill,stop,cut,break", metavar="KINDS", help=f"of {every} (%(default)s)")
    groups = ",".join(group.value for group in Group)
    parser.add_argument("--who", default="workers,standbys,links", help=f"of {groups} (%(default)s)")
    parser.add_argument("--count", type=int, default=10, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn (%(default)s)")
    parser.add_argument("--every", default="1s..4s", metavar="TIMES", help="from one to the next (%(default)s)")
    parser.add_argument("--for", dest="lasting", default="0.2s..6s", metavar="TIMES", help="stop, cut (%(default)s)")
    parser.add_argument("--delay", default="10ms..200ms", metavar="TIMES", help="of a delay (%(default)s)")
    parser.add_argument("--restart", default="2m", metavar="TIME", help="wait so long for a driver (%(default)s)")


@dataclass(frozen=True, slots=True)
class _Result:
    """For JSON."""

    seed: int
    faults: list[Entry]
    totals: list[KindTotals]


def _run(arguments: argparse.Namespace) -> None:
    wanted, patience = _wanted(arguments), _seconds(arguments.restart)
    run = _Faults(arguments, wanted, patience)
    try:
        run.all()
    finally:
        report = run.report
        if report.entries:
            result = _Result(arguments.seed, report.entries, list(report.totals()))
            show(result, report_in_words(report), as_json=arguments.json)


class _Faults:
    def __init__(self, arguments: argparse.Namespace, wanted: RandomFaults, patience: float) -> None:
        self._arguments = arguments
        self._patience = patience
        self._job: Attached = attached_to(arguments)
        self._began = time.monotonic()
        self._schedule = Schedule(wanted, random.Random(arguments.seed).random, self._began)
        self._over = False
        self.report = Report()

    def all(self) -> None:
        """Inject the faults, and wait for the recovery from the last."""
        try:
            while not self._schedule.over and not self._over:
                self._listen(self._schedule.due)
                if self._over:
                    raise ConnectionLost(f"the job is over after {self.report.done} faults")
                order = self._schedule.take(time.monotonic(), self._job.status().roles)
                if order is None:
                    self._listen(time.monotonic() + _PAUSE)
                else:
                    self._do(order)
            self._listen(time.monotonic() + _LAST, for_recovery=True)
        finally:
            self._job.close()

    def _do(self, order: Order) -> None:
        entry = Entry(time.monotonic() - self._began, order, None)
        try:
            entry.done = self._job.inject(order)
        except CommandDeclined as declined:
            entry.refused = str(declined)
        self.report.add(entry)
        if not self._arguments.json:
            print(readable(entry_in_words(entry)), flush=True)
        if isinstance(order.target, TheDriver) and order.kind is Kind.KILL and entry.done is not None:
            self._attach_again(entry.done.pid)

    def _listen(self, until: float, *, for_recovery: bool = False) -> None:
        """Handle events until then; `for_recovery` stops earlier if the job has recovered from all faults."""
        while (left := until - time.monotonic()) > 0 and not self._over:
            if for_recovery and self.report.all_recovered:
                return
            event = self._job.next_event(left)
            if event is not None:
                self._heard(event)

    def _heard(self, event: AnyEvent) -> None:
        if isinstance(event, Recovered):
            self.report.recovered(event)
        self._over = isinstance(event, Finished | Stopped | GaveUp)

    def _attach_again(self, gone: int) -> None:
        """Attach to the driver that is started after the one with process id `gone`."""
        self._job.close()
        if not self._arguments.json:
            mention("waiting for the job to be started again")
        deadline = time.monotonic() + self._patience
        while True:
            with suppress(JobNotRunning):
                self._job = attached_to(self._arguments)
                if self._job.pid != gone:
                    return
                self._job.close()
            if time.monotonic() > deadline:
                raise JobNotRunning(
                    f"the job was not started again in {self._patience:g} s after its driver was killed"
                )
            time.sleep(_PAUSE)


def _wanted(arguments: argparse.Namespace) -> RandomFaults:
    try:
        return RandomFaults(
            kinds=[Kind(name) for name in arguments.kinds.split(",")],
            groups=[Group(name) for name in arguments.who.split(",")],
            count=arguments.count,
            every=_span(arguments.every),
            lasting=_span(arguments.lasting),
            by=_span(arguments.delay),
        )
    except ValueError as error:
        raise WrongUsage(str(error)) from error


def _span(text: str) -> Span:
    least, dots, most = text.partition("..")
    return Span(milliseconds(least), milliseconds(most if dots else least))


def _seconds(text: str) -> float:
    try:
        return milliseconds(text) / 1000
    except NotADuration as error:
        raise WrongUsage(str(error)) from error
