"""The report of a comparison: one HTML file that needs nothing else, with the figures of all runs beside it.

Invariant: all that the report says follows from the folder's results; texts of programs and errors are shown as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq

from recovery.comparison.measuring import OTHERS_ALLOWED
from recovery.comparison.pictures import Pictures
from recovery.comparison.record import Outcome, Record
from recovery.comparison.runs import Results
from recovery.comparison.summary import MEASURES, Measure, in_digits, of_scheme, sentences
from recovery.schemes.named import COMPARED

REPORT = "report.html"
FIGURES = "figures.parquet"

_THREATS = (
    "Rows are timed when the process of the driver has them, which takes a millisecond or so more than the target of a "
    "sink in a partition's own process would see; this is so for all schemes. A program's own targets are left out.",
    "All processes share one machine: a scheme that uses more processor time takes it from the others' share, and a "
    "loss of the machine itself is not among the faults.",
    "Latency begins at the time for which a row was scheduled, not at the time at which a source gave it, so it "
    "includes all waiting.",
    "A fault strikes at a moment that is chosen relative to an epoch where the plan says so; the figures hold for that "
    "distance. Bytes over the loopback are those of all programs.",
    "The scheme `none` takes no epochs, has no fault, and shows all rows at once.",
)


def write_report(results: Results) -> Path:
    """Write the report and the figures of all runs into the results' folder, and return the report's file.

    `NoPictures` if what draws them is not installed; the figures are there all the same.
    """
    write_figures(results)
    pictures = Pictures(results)
    page = files("recovery.comparison").joinpath("report.html").read_text(encoding="utf-8")
    body = "\n".join(_sections(results, pictures))
    file = results.folder / REPORT
    part = file.with_suffix(".part")
    part.write_text(page.replace("{{title}}", escape(results.program)).replace("{{body}}", body), encoding="utf-8")
    part.replace(file)
    return file


def write_figures(results: Results) -> Path:
    """Write a Parquet file with a row for each run and figure, and return it."""
    runs = [(record, measure) for record in results.records for measure in MEASURES]
    table = pa.table(
        {
            "scheme": pa.array([record.scheme for record, _ in runs], pa.string()),
            "repeat": pa.array([record.repeat for record, _ in runs], pa.int64()),
            "outcome": pa.array([record.outcome.value for record, _ in runs], pa.string()),
            "why": pa.array([record.why for record, _ in runs], pa.string()),
            "disturbed": pa.array([record.disturbed for record, _ in runs], pa.bool_()),
            "figure": pa.array([measure.name for _, measure in runs], pa.string()),
            "unit": pa.array([measure.unit for _, measure in runs], pa.string()),
            "value": pa.array([measure.of(record) for record, measure in runs], pa.float64()),
        }
    )
    file = results.folder / FIGURES
    pq.write_table(table, file)
    return file


def _sections(results: Results, pictures: Pictures) -> Iterator[str]:
    plan, records = results.plan, results.records
    yield f"<h1>Recovery schemes compared: {escape(results.program)}</h1>"
    yield "<h2>Summary</h2><ul>"
    yield from (f"<li>{escape(said)}</li>" for said in sentences(plan, records, results.rows_differ))
    yield "</ul>"
    if any(record.struck for record in records if record.outcome is Outcome.MEASURED):
        yield "<h2>Latency around the fault</h2>"
        yield _figure(
            pictures.on_one_axis(),
            "The 99th percentile of the latency of the rows that were scheduled in each quarter of a second: for each "
            "scheme the median of its runs.",
        )
        yield _figure(
            pictures.run_by_run(), "Each run on its own: the median and the 99th percentile, on the same two axes."
        )
        yield "<h2>Cost and masking</h2>"
        yield _figure(
            pictures.cost_and_silence(),
            "Processor time of all processes while nothing fails, against the longest silence when something does. "
            "Large points are medians, small ones single runs. Down and to the left is better.",
        )
    yield "<h2>Figures</h2>"
    yield from _table(results)
    yield "<h2>Refused, failed and without a fault</h2>"
    yield from _others(records)
    yield "<h2>Method</h2>"
    yield from _method(results)
    yield "<h2>Threats to validity</h2><ul>"
    yield from (f"<li>{escape(threat)}</li>" for threat in _THREATS)
    yield "</ul>"


def _figure(svg: str, caption: str) -> str:
    return f'<figure role="img" aria-label="{escape(caption)}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def _table(results: Results) -> Iterator[str]:
    schemes = results.plan.schemes
    yield '<div class="wide"><table><caption>The median of the measured runs, and below it the value of each run in '
    yield "the order in which they were done; * marks a run that other programs disturbed.</caption><thead><tr><th "
    yield 'scope="col">figure</th>' + "".join(f'<th scope="col">{escape(name)}</th>' for name in schemes)
    yield "</tr></thead><tbody>"
    if results.sustained:
        yield '<tr><th scope="row">sustainable rate <span class="soft">1/s</span></th>'
        yield "".join(f"<td><b>{_rate(results.sustained.get(scheme))}</b></td>" for scheme in schemes) + "</tr>"
    for measure in MEASURES:
        title = f'{escape(measure.name)} <span class="soft">{escape(measure.unit)}</span>'
        yield f'<tr title="{escape(measure.says)}"><th scope="row">{title}</th>'
        for scheme in schemes:
            runs = [run for run in of_scheme(results.records, scheme) if run.outcome is Outcome.MEASURED]
            known = [(value, run) for run in runs if (value := measure.of(run)) is not None]
            each = " ".join(_value(measure, value, run) for value, run in known)
            middle = in_digits(median(value for value, _ in known)) if known else "-"
            yield f'<td><b>{middle}</b><br><span class="soft">{each}</span></td>'
        yield "</tr>"
    yield "</tbody></table></div><dl>"
    yield from (f"<dt>{escape(one.name)}</dt><dd>{escape(one.says)} ({escape(one.unit)})</dd>" for one in MEASURES)
    yield "</dl>"


def _value(measure: Measure, value: float, run: Record) -> str:
    return ("&gt;" if measure.is_least(run) else "") + in_digits(value) + ("*" if run.disturbed else "")


def _rate(rate: float | None) -> str:
    return "none" if rate is None else in_digits(rate)


def _others(records: Sequence[Record]) -> Iterator[str]:
    left = [record for record in records if record.outcome is not Outcome.MEASURED]
    if not left:
        yield "<p>All runs were measured.</p>"
        return
    yield '<table><thead><tr><th class="text">scheme</th><th>run</th><th class="text">outcome</th>'
    yield '<th class="text">reason</th></tr></thead><tbody>'
    for one in left:
        yield f'<tr><td class="text">{escape(one.scheme)}</td><td>{one.repeat + 1}</td><td class="text">'
        yield f'{escape(one.outcome.value)}</td><td class="text">{escape(one.why)}</td></tr>'
    yield "</tbody></table>"


def _method(results: Results) -> Iterator[str]:
    plan = results.plan
    faults = "; ".join(map(str, plan.orders)) or "none"
    yield (
        f"<p>Each scheme ran the same program {plan.repeats} times, in turns with the others, each time for "
        f"{plan.seconds:g} s: {escape(plan.warm)} in which nothing is measured, {escape(plan.before)} that say what is "
        f"usual, and {escape(plan.after)} from then on. Faults: {escape(faults)}. Epochs were taken every "
        f"{escape(plan.every)}, by {plan.parallelism} partitions. Two runs without faults said which rows have to "
        "come; each run is compared with them row by row. A run in which a row is lost or wrong, or comes twice to an "
        "output that is exactly once, is a failed run and counts for no figure. A fault that could not be brought "
        "about was tried three times. A run is disturbed if other programs used more than "
        f"{OTHERS_ALLOWED:g} s of processor time in a second.</p>"
    )
    yield "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(COMPARED[name].says)}</dd>" for name in plan.schemes)
    yield "</dl><h3>Program</h3>" + f"<pre>{escape(results.explained)}</pre>"
    yield "<h3>Plan</h3><dl>" + _listed(asdict(plan)) + "</dl>"
    yield "<h3>Machine and versions</h3><dl>" + _listed(dict(results.machine)) + "</dl>"
    yield (
        f"<p>Beside this file: <code>{FIGURES}</code> has a row for each run and figure, and <code>runs/</code> a file "
        "for each run with every row that was seen: when it was scheduled, when it was seen, and a number that is the "
        "same for equal rows.</p>"
    )


def _listed(items: dict[str, object] | dict[str, str]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(_said(value))}</dd>" for name, value in items.items())


def _said(value: object) -> str:
    if value is None:
        return "not given"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
