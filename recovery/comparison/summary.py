"""The figures of a comparison scheme by scheme, and what can be said of them in plain words.

Invariant: a scheme is called better in a figure only if each of its runs was better than each of the other's; failed
runs count for nothing, and what is not known is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from recovery.comparison.plan import Plan
from recovery.comparison.record import Outcome, Record
from recovery.schemes.named import COMPARED

_MB: Final = 1e6
_LIMITS: Final = ((0.05, "50 ms"), (0.2, "0.2 s"), (1.0, "1 s"))
"""The silences up to which the cheapest scheme is named."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure that runs are compared by."""

    name: str
    unit: str
    of: Callable[[Record], float | None]
    says: str
    is_least: Callable[[Record], bool] = lambda _: False
    """True if it would have been more, had the run been longer."""

    def values(self, records: Sequence[Record]) -> Sequence[float]:
        """Return the figure of each run that was measured and has it."""
        found = [self.of(record) for record in records if record.outcome is Outcome.MEASURED]
        return [value for value in found if value is not None]


def _part(part: str, name: str, unit: float = 1.0) -> Callable[[Record], float | None]:
    """Return a function that gives a figure of a part of a record; None where a run does not have it."""

    def of(record: Record) -> float | None:
        found = getattr(record, part)
        value = None if found is None else getattr(found, name)
        return None if value is None else value / unit

    return of


SILENCE: Final = Measure(
    "silence",
    "ms",
    _part("outage", "no_output_s", 1e-3),
    "the longest time without a new row, from the first fault on; > where it lasted until the end of the run",
    lambda record: record.outage is not None and record.outage.silent_at_end,
)
CPU: Final = Measure(
    "CPU",
    "s/s",
    _part("cost", "steady_cpu"),
    "processor time in a second before the fault, of all processes of the job, the driver too",
)
P99: Final = Measure("p99", "ms", _part("steady", "p99_ms"), "latency that 99 in 100 rows stay below before the fault")
MEASURES: Final[Sequence[Measure]] = (
    Measure("p50", "ms", _part("steady", "p50_ms"), "latency that half of the rows stay below before the fault"),
    P99,
    Measure("p99.9", "ms", _part("steady", "p999_ms"), "latency that 999 in 1000 rows stay below before the fault"),
    SILENCE,
    Measure("peak", "ms", _part("outage", "peak_latency_ms"), "the highest latency from the fault on"),
    Measure(
        "to normal",
        "s",
        _part("outage", "to_normal_s"),
        "from the last fault until the 99th percentile of each quarter of a second stays below twice the usual one "
        "and 50 ms more; > where that was not so at the end of the run",
        lambda record: record.outage is not None and not record.outage.normal_again,
    ),
    Measure(
        "rolling mean",
        "s",
        _part("outage", "rolling_mean_s"),
        "from the last fault until the mean of a second stays within the usual mean and 1.1 standard deviations, less "
        "half of that second: the rule of the scripts that came with Clonos, which have ten seconds; - where rows come "
        "in bursts",
    ),
    Measure(
        "redundancy",
        "s",
        lambda record: record.redundant_s,
        "from the last fault until each lost replica was replaced; - where none was lost, or not all were replaced",
    ),
    Measure("rows", "1/s", lambda record: record.throughput, "rows seen in a second before the fault"),
    CPU,
    Measure(
        "CPU per million",
        "s",
        _part("cost", "cpu_s_per_million"),
        "processor time for a million rows of the sources, start and recovery included",
    ),
    Measure("memory", "MB", _part("cost", "memory_bytes", _MB), "of all processes before the fault"),
    Measure(
        "loopback",
        "MB/s",
        _part("cost", "loopback_bytes", _MB),
        "bytes over the loopback in a second before the fault, those of other programs too",
    ),
    Measure(
        "stored",
        "MB",
        _part("cost", "stored_bytes", _MB),
        "bytes of state and of rows in flight that epochs wrote to the store in the whole run",
    ),
    Measure("lost", "rows", _part("difference", "lost"), "rows that did not come"),
    Measure("twice", "rows", _part("difference", "twice"), "rows that came more often than they should"),
    Measure(
        "wrong",
        "rows",
        _part("difference", "wrong"),
        "rows that should not be there, under schemes that are at least once",
    ),
    Measure("rolled back", "times", lambda record: record.restarts, "how often all partitions went back to an epoch"),
    Measure("masked", "times", lambda record: record.masked, "how often another replica made up for a loss"),
    Measure("others' CPU", "s/s", _part("cost", "others_cpu"), "processor time of other programs, which disturb"),
)
"""In the order of the tables."""


def of_scheme(records: Sequence[Record], scheme: str) -> Sequence[Record]:
    """Return the runs of a scheme, in the order in which they were done."""
    return sorted((record for record in records if record.scheme == scheme), key=lambda record: record.repeat)


def in_digits(value: float) -> str:
    """Return three significant digits, or the whole number if it has more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def sentences(plan: Plan, records: Sequence[Record], rows_differ: str) -> Sequence[str]:
    """Return what the figures say."""
    failed = {record.scheme for record in records if record.outcome is Outcome.FAILED}
    groups = {scheme: of_scheme(records, scheme) for scheme in plan.schemes if scheme not in failed}
    alone = ["There is one run of each scheme: what is said of the differences may be chance."]
    return [
        *_about_outcomes(records, rows_differ),
        *(alone if plan.repeats == 1 else []),
        *_about(groups, SILENCE, "Output was silent shortest"),
        *_about_limits(groups),
        *_about(groups, CPU, "The least processor time was used"),
        *_about(groups, P99, "Before the fault the 99th percentile of the latency was lowest"),
        *_about_standby(groups),
    ]


def _about_outcomes(records: Sequence[Record], rows_differ: str) -> Sequence[str]:
    measured = [record for record in records if record.outcome is Outcome.MEASURED]
    said = [f"{len(measured)} of {len(records)} runs were measured."]
    failed = [record for record in records if record.outcome is Outcome.FAILED]
    if failed:
        names = ", ".join(sorted({record.scheme for record in failed}))
        said.append(
            f"{len(failed)} runs failed ({names}); the reasons are below, and what follows leaves these schemes out."
        )
    refused = sorted({record.scheme for record in records if record.outcome is Outcome.REFUSED})
    if refused:
        said.append(f"The program, or an option of the plan, is refused by {', '.join(refused)}.")
    missed = sum(record.outcome is Outcome.NO_FAULT for record in records)
    if missed:
        said.append(f"In {missed} runs a fault could not be brought about; they count for nothing.")
    disturbed = sum(record.disturbed for record in measured)
    if disturbed:
        said.append(
            f"{disturbed} of the measured runs were disturbed by other programs on the machine; their figures say "
            "little, and so do comparisons with them."
        )
    if rows_differ:
        said.append(
            f"Two runs without faults differ from each other ({rows_differ}), so for these outputs it cannot be told "
            "whether rows are lost, come twice or are wrong."
        )
    known = [record.difference for record in measured if record.difference is not None and record.difference.expected]
    if known:
        twice = sum(difference.twice for difference in known)
        where = "In the other outputs no" if rows_differ else "In the measured runs no"
        wrong = sum(difference.wrong for difference in known)
        said.append(
            f"{where} row was lost"
            + (f"; {wrong:,} were wrong, under schemes that are at least once" if wrong else " or wrong")
            + (f", and {twice:,} came twice, to outputs that are at least once." if twice else ", and none came twice.")
        )
    return said


def _about(groups: Mapping[str, Sequence[Record]], measure: Measure, what: str) -> Sequence[str]:
    """Name the best scheme in a figure, and those that cannot be told from it."""
    values = {scheme: found for scheme, runs in groups.items() if (found := measure.values(runs))}
    if len(values) < 2:
        return []
    best = min(values, key=lambda scheme: median(values[scheme]))
    same = [scheme for scheme in values if scheme != best and min(values[scheme]) <= max(values[best])]
    others = {scheme: median(values[scheme]) for scheme in values if scheme != best and scheme not in same}
    told = f"{what} under {best}: {_range(values[best], measure.unit)}."
    if same:
        told += f" Not told apart from it by these runs: {_listed(values, same, measure.unit)}."
    if others:
        told += f" Worse in every run: {_listed(values, sorted(others, key=lambda one: others[one]), measure.unit)}."
    return [told]


def _about_limits(groups: Mapping[str, Sequence[Record]]) -> Sequence[str]:
    """Name the scheme that uses the least processor time among those that were never silent for longer."""
    if not any(SILENCE.values(runs) for runs in groups.values()):
        return []
    said: list[str] = []
    before = none = ""
    for limit, name in _LIMITS:
        quiet = {
            scheme: median(CPU.values(runs))
            for scheme, runs in groups.items()
            if (silences := SILENCE.values(runs)) and max(silences) <= limit * 1000 and CPU.values(runs)
        }
        cheapest = min(quiet, key=lambda scheme: quiet[scheme], default="")
        if not cheapest:
            none = f"No scheme was silent for less than {name} in all of its runs."
        elif cheapest != before:
            cost = in_digits(quiet[cheapest])
            repeats = "; it is at least once" if COMPARED[cheapest].at_least_once else ""
            said.append(
                f"Where output may be silent for {name} at most, {cheapest} costs least ({cost} s/s of CPU){repeats}."
            )
        before = cheapest
    return [none, *said] if none else said


def _about_standby(groups: Mapping[str, Sequence[Record]]) -> Sequence[str]:
    """Compare active replication with the best that passive recovery can do, as that is the fair baseline."""
    tuned = "passive+standby-open"
    if not {"active", tuned} <= groups.keys():
        return []
    silences = [SILENCE.values(groups[scheme]) for scheme in ("active", tuned)]
    costs = [CPU.values(groups[scheme]) for scheme in ("active", tuned)]
    if not all(silences) or not all(costs):
        return []
    ours, theirs = median(silences[0]), median(silences[1])
    ratio = median(costs[0]) / median(costs[1])
    return [
        f"Beside a passive job with an open standby, which is the baseline to beat, active replication has "
        f"{in_digits(ours)} ms of silence to {in_digits(theirs)} ms, and {in_digits(ratio)} times its processor time."
    ]


def _listed(values: Mapping[str, Sequence[float]], schemes: Sequence[str], unit: str) -> str:
    return ", ".join(f"{scheme} ({_range(values[scheme], unit)})" for scheme in schemes)


def _range(values: Sequence[float], unit: str) -> str:
    middle = f"{in_digits(median(values))} {unit}"
    return middle if len(values) == 1 else f"{middle}, {in_digits(min(values))} to {in_digits(max(values))}"
