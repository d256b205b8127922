"""Faults, and reports of many, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from recovery.inject.report import Entry, Injected, KindTotals, Report

_HEADING: Final = (
    f"{'fault':8}{'done':>6}{'declined':>10}{'recovered':>11}{'output back, ms':>22}{'caught up, ms':>22}\n"
    f"{'':35}{'median':>11}{'worst':>11}{'median':>11}{'worst':>11}"
)


def in_words(injected: Injected) -> str:
    """One fault."""
    who = "the driver" if injected.worker is None else injected.worker
    return f"{injected.order}: process {injected.pid} ({who}), {_distance(injected)}"


def entry_in_words(entry: Entry) -> str:
    """One fault of a schedule."""
    what = in_words(entry.done) if entry.done is not None else f"{entry.order}: declined: {entry.refused}"
    return f"{entry.seconds:8.2f} s  {what}"


def report_in_words(report: Report) -> str:
    """All faults of a schedule, kind by kind."""
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
