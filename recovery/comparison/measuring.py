"""One run of a program under one scheme: it is started, has its faults, comes to its end, and is judged.

Invariant: all schemes are measured in the same way: rows are timed when this process has them, and processor time is
that of all processes of the job. What a scheme refuses, and what goes wrong, is part of the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from recovery.attached import CommandDeclined, ConnectionLost, attach
from recovery.comparison.arrivals import Arrivals
from recovery.comparison.machine import Reading, Span, memory_of_all, read_machine
from recovery.comparison.outages import outage, percentiles
from recovery.comparison.plan import Plan
from recovery.comparison.prepared import Prepared
from recovery.comparison.record import Cost, Outcome, Record, Seen, Struck
from recovery.comparison.rows import Identities, Truth
from recovery.driver.settings.options import Advanced
from recovery.driver.tree.address import JobNotRunning
from recovery.events import AnyEvent, AttemptFailed, EpochCompleted, RedundancyRestored, ReplicaLost
from recovery.inject.faults import Fault
from recovery.inject.moments import Alarm, MomentPassed
from recovery.running import Run, run
from recovery.schemes.named import Compared
from statebackend.durations import milliseconds
from statebackend.errors import JobError, OptionError, ProgramError

OTHERS_ALLOWED: Final = 0.2
"""Seconds of processor time in a second that other programs may take until a run counts as disturbed."""
_LOOK: Final = 0.02
_PATIENCE: Final = 60.0
"""Seconds that a job may take longer than its sources give rows."""
_EPOCHS: Final = 2
"""So many are complete before anything is measured."""
_NO_EPOCHS: Final = "1d"
_BEHIND_MS: Final = 500.0
"""So far, and an interval of epochs, a job may be behind its sources' schedule where the rate is sustained."""


class NotReached(JobError):
    """A job has not come as far as it has to in time; the message says what is missing."""


class _Refused(Exception):
    """The job cannot be run like this; the message says why."""


class _Missed(Exception):
    """A fault could not be brought about, or not in time; the message says why."""


@dataclass(slots=True)
class Taken:
    """A run with all that was seen of it; the record has neither the scheme's name nor the number of the run."""

    record: Record
    seen: Seen = field(default_factory=Seen)
    rows: Mapping[str, Identities] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Readings:
    begin: Reading
    """At the start of the job."""
    steady: Reading
    """At the beginning of what is measured."""
    fault: Reading
    """Before the first fault."""
    end: Reading
    due: int
    """The time before the first fault, or when it would be due, in microseconds since 1970."""
    memory_bytes: int


def measure(
    prepared: Prepared, compared: Compared, plan: Plan, scratch: Path, truth: Truth | None, faults: Sequence[Fault]
) -> Taken:
    """Run the program once, with these faults, and judge its rows if the truth is known."""
    blank = Record("", 0, Outcome.MEASURED, rate=prepared.rate)
    struck: list[Struck] = []
    begin = read_machine()
    try:
        with _job(prepared, compared, plan, scratch) as (job, arrivals, folder):
            steady = _until_measured(job, arrivals, plan, epochs=compared.survives)
            _see_that_it_keeps_up(job, arrivals, plan)
            before, due = read_machine(), time.time_ns() // 1_000
            memory = memory_of_all()
            _bring_about(faults, job, folder / "local", struck)
            job.wait(plan.seconds + _PATIENCE)
            readings = _Readings(begin, steady, before, read_machine(), due, memory)
    except Exception as error:  # of the program's own, too: whatever ended the job
        outcome, why = _outcome_of(error)
        return Taken(replace(blank, outcome=outcome, why=why, struck=tuple(struck)))
    taken = Taken(blank, *arrivals.all())
    taken.record = _judged(
        replace(blank, struck=tuple(struck)), taken, readings, job.events, prepared, compared, plan, truth
    )
    return taken


def keeps_up(prepared: Prepared, compared: Compared, plan: Plan, scratch: Path) -> tuple[Outcome, str]:
    """Run the program until its first fault would be due; return if it was measured, so keeps up, or else why not."""
    try:
        with _job(prepared, compared, plan, scratch) as (job, arrivals, _):
            _until_measured(job, arrivals, plan, epochs=compared.survives)
            _see_that_it_keeps_up(job, arrivals, plan)
    except Exception as error:  # of the program's own, too
        return _outcome_of(error)
    return Outcome.MEASURED, ""


def rows_without_faults(prepared: Prepared, compared: Compared, plan: Plan, scratch: Path) -> Mapping[str, Identities]:
    """Run the program once, measure nothing, and return the rows of each output; the job's own error if it fails."""
    with _job(prepared, compared, plan, scratch) as (job, arrivals, _):
        job.wait(plan.seconds + _PATIENCE)
    return arrivals.all()[1]


@contextmanager
def _job(prepared: Prepared, compared: Compared, plan: Plan, scratch: Path) -> Iterator[tuple[Run, Arrivals, Path]]:
    """Run the program in a folder of its own; at the end it is over, and all its rows have come."""
    advanced = Advanced()
    if plan.lost_after is not None:
        advanced["lost_after"] = plan.lost_after
    if plan.heartbeat is not None:
        advanced["heartbeat"] = plan.heartbeat
    with TemporaryDirectory(dir=scratch, prefix="run-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            job = run(
                prepared.program,
                checkpoints=folder / "checkpoints",
                every=plan.every if compared.survives else _NO_EPOCHS,
                parallelism=plan.parallelism,
                scheme=compared.scheme,
                local=folder / "local",
                progress=False,
                give_up_after=None,
                advanced=advanced,
            )
        except (OptionError, ProgramError) as error:
            raise _Refused(str(error)) from error
        arrivals = Arrivals(job, prepared)
        try:
            yield job, arrivals, folder
        finally:
            if not job.status().state.over:
                job.cancel()
            arrivals.wait()


def _outcome_of(error: Exception) -> tuple[Outcome, str]:
    match error:
        case _Refused():
            return Outcome.REFUSED, str(error)
        case _Missed():
            return Outcome.NO_FAULT, str(error)
        case NotReached():
            return Outcome.FAILED, str(error)
        case _:
            return Outcome.FAILED, f"{type(error).__name__}: {error}"


# --- until the first fault --------------------------------------------------------------------------------------------


def _until_measured(job: Run, arrivals: Arrivals, plan: Plan, *, epochs: bool) -> Reading:
    """Wait until `warm` and `before` are over; return the reading from between them.

    A job that is ready later than `warm` allows is measured for as long before the fault, and for less after it.
    """
    deadline = time.monotonic() + plan.seconds + _PATIENCE
    while (began := arrivals.began()) is None or (epochs and len(job.status().epochs) < _EPOCHS):
        _pause(job, deadline, "it has given no rows, or has not completed two epochs")
    measured = max(time.time(), began + plan.warm_s)
    late = measured - began - plan.warm_s
    if late > plan.after_s / 2:
        raise _Missed(f"the job was ready {late:.1f} s later than the plan's warm-up allows; give more of it (warm)")
    while time.time() < measured:
        _pause(job, deadline, "time does not pass")
    steady = read_machine()
    while time.time() < measured + plan.before_s:
        _pause(job, deadline, "time does not pass")
    return steady


def _see_that_it_keeps_up(job: Run, arrivals: Arrivals, plan: Plan) -> None:
    """Raise `NotReached` if sources or newest rows are further behind than a rate that is sustained leaves them."""
    sources = max((figures.lag_ms for figures in job.status().figures.values()), default=0.0)
    behind = max(sources, arrivals.newest_latency_ms())
    if behind > _BEHIND_MS + milliseconds(plan.every):
        raise NotReached(
            f"the rate is not sustained: the job was {behind / 1000:.1f} s behind its sources' schedule before any "
            "fault; give a lower rate"
        )


def _pause(job: Run, deadline: float, missing: str) -> None:
    state = job.status().state
    if state.over:
        job.wait(_PATIENCE)  # raises what ended it
        raise NotReached("it had come to its end before it was measured; let it read for longer (before, after)")
    if time.monotonic() > deadline:
        raise NotReached(f"{missing}, for as long as it should take in all and a minute; it is {state.value}")
    time.sleep(_LOOK)


# --- the faults -------------------------------------------------------------------------------------------------------


def _bring_about(faults: Sequence[Fault], job: Run, folder: Path, struck: list[Struck]) -> None:
    """Bring the faults about one after the other, each when its moment has come."""
    if not faults:
        return
    try:
        with attach(job_folder=folder) as attached:
            attached.follow()
            for fault in faults:
                alarm = Alarm(fault.at, time.monotonic(), job.status().complete)
                while alarm.due is None or alarm.due > time.monotonic():
                    left = None if alarm.due is None else max(0.0, alarm.due - time.monotonic())
                    event = attached.next_event(left)
                    if event is not None:
                        alarm.heard(event, time.monotonic())
                done = attached.inject(fault.order)
                struck.append(Struck(str(fault.order), int(done.at * 1e6), done.since_complete_ms))
    except (CommandDeclined, ConnectionLost, JobNotRunning, MomentPassed) as error:
        raise _Missed(f"{faults[len(struck)]}: {error}") from error


# --- what came of it --------------------------------------------------------------------------------------------------


def _judged(
    blank: Record,
    taken: Taken,
    readings: _Readings,
    events: Sequence[AnyEvent],
    prepared: Prepared,
    compared: Compared,
    plan: Plan,
    truth: Truth | None,
) -> Record:
    seen = taken.seen.sightings
    began = int(seen.scheduled.min())
    ended = began + int(plan.seconds * 1e6)
    first = blank.struck[0].at if blank.struck else readings.due
    before = int(plan.before_s * 1e6)
    usual = seen.between(first - before, first)
    found = Span.between(readings.steady, readings.fault)
    cost = _cost(found, readings, prepared.rate * plan.seconds, events)
    once = [uid for uid, output in prepared.outputs.items() if output.exactly_once]
    differs, complaint = (None, "") if truth is None else truth.judge(taken.rows, once, more=compared.at_least_once)
    record = replace(
        blank,
        began=began,
        ended=ended,
        steady=percentiles(usual),
        throughput=len(usual.came) / plan.before_s,
        cost=cost,
        difference=differs,
        restarts=sum(isinstance(event, AttemptFailed) for event in events),
        masked=sum(isinstance(event, ReplicaLost) for event in events),
        redundant_s=_redundant(blank.struck, events),
        disturbed=cost.others_cpu > OTHERS_ALLOWED,
    )
    if complaint:
        return replace(record, outcome=Outcome.FAILED, why=complaint)
    if not blank.struck:
        return record
    try:
        return replace(record, outage=outage(seen, first, ended, blank.struck[-1].at, before))
    except ValueError as error:
        return replace(record, outcome=Outcome.FAILED, why=str(error))


def _redundant(struck: Sequence[Struck], events: Sequence[AnyEvent]) -> float | None:
    """Return the seconds from the last fault until each lost replica was replaced; None if not all were."""
    lost = sum(isinstance(event, ReplicaLost) for event in events)
    restored = [event.at for event in events if isinstance(event, RedundancyRestored)]
    if not struck or not lost or len(restored) < lost:
        return None
    return max(0.0, max(restored) - struck[-1].at / 1e6)


def _cost(steady: Span, readings: _Readings, rows: float, events: Sequence[AnyEvent]) -> Cost:
    whole = Span.between(readings.begin, readings.end)
    stored = sum(event.state_bytes + event.channel_bytes for event in events if isinstance(event, EpochCompleted))
    return Cost(
        steady.cpu_s / steady.seconds,
        whole.cpu_s / rows * 1e6,
        readings.memory_bytes,
        int(steady.loopback_bytes / steady.seconds),
        stored,
        whole.others_cpu_s / whole.seconds,
    )
