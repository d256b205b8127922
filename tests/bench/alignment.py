"""What alignment costs against the number of shuffles and the parallelism: figures, a table and a plot.

Invariant: they come from a simulation on a simulated clock, so they are the same on every machine and in every
run; and each cut that they count was checked to be exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from snapshot.cut.frames import MarkerMode
from snapshot.testing.line_plot import Line, Panel, Scale, as_svg
from tests.bench.figures import Figure, figure, progress
from tests.bench.pipeline import (
    FRAME_BYTES,
    INTERVAL,
    LATENCY,
    QUEUE_FRAMES,
    SECOND,
    SERVICE,
    SLOW_SERVICE,
    WINDOW,
    EpochCost,
    Result,
    Settings,
    run,
)

WORKLOAD = "alignment"
SHUFFLES = (1, 2, 3, 4, 6)
PARALLELISM = (2, 4, 8, 16)
LOADS = (0.7, 1.1)
RESULTS = Path(__file__).parent / "results"

_NAMES = {0.7: "steady", 1.1: "back_pressured"}
_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """The three runs of one pipeline under one load."""

    shuffles: int
    parallelism: int
    load: float
    without: Result
    aligned: Result
    unaligned: Result
    cpu_s: float


def rows(
    shuffles: Sequence[int] = SHUFFLES, parallelism: Sequence[int] = PARALLELISM, loads: Sequence[float] = LOADS
) -> Iterator[Row]:
    """All pipelines, in the order of the table."""
    for load in loads:
        for width in parallelism:
            progress(f"alignment: parallelism {width}, load {load}")
            for length in shuffles:
                yield row(length, width, load)


def row(shuffles: int, parallelism: int, load: float) -> Row:
    """One pipeline without epochs, with aligned ones and with unaligned ones."""
    began = time.process_time()
    modes = (None, MarkerMode.ALIGNED, MarkerMode.UNALIGNED)
    without, aligned, unaligned = (run(Settings(shuffles, parallelism, load, mode)) for mode in modes)
    return Row(shuffles, parallelism, load, without, aligned, unaligned, time.process_time() - began)


def figures(chosen: Iterable[Row], results: Path | None = None) -> Iterator[Figure]:
    """The figures of these rows; then the table on standard error or, with the plot, into the folder `results`."""
    done = []
    for each in chosen:
        done.append(each)
        yield from _figures_of(each)
    if results is None:
        progress(table(done))
    else:
        (results / "alignment.md").write_text(document(done))
        (results / "alignment.svg").write_text(plot(done))
        progress(f"alignment: wrote alignment.md and alignment.svg to {results}")


def _figures_of(row: Row) -> Iterator[Figure]:
    place = f"{_NAMES[row.load]}_{row.shuffles}_shuffles_{row.parallelism}_parallel"
    aligned, unaligned, cpu = row.aligned.epochs, row.unaligned.epochs, row.cpu_s
    lost = [_lost(row, row.aligned)], [_lost(row, row.unaligned)]
    yield figure(WORKLOAD, f"aligned_epoch_ms_{place}", "ms", _durations(aligned), cpu)
    yield figure(WORKLOAD, f"aligned_held_back_ms_{place}", "ms", [epoch.held_back / 1_000 for epoch in aligned], cpu)
    yield figure(WORKLOAD, f"aligned_lost_pct_{place}", "%", lost[0], cpu)
    yield figure(WORKLOAD, f"unaligned_epoch_ms_{place}", "ms", _durations(unaligned), cpu)
    yield figure(WORKLOAD, f"unaligned_recorded_bytes_{place}", "bytes", [epoch.recorded for epoch in unaligned], cpu)
    yield figure(WORKLOAD, f"unaligned_lost_pct_{place}", "%", lost[1], cpu)


def _durations(epochs: Iterable[EpochCost]) -> list[float]:
    return [epoch.duration / 1_000 for epoch in epochs]


def _shown(load: float) -> str:
    return _NAMES[load].replace("_", "-")


def _lost(row: Row, result: Result) -> float:
    return 100 * (row.without.delivered - result.delivered) / row.without.delivered


# --- the table --------------------------------------------------------------------------------------------------------

_HEAD = """\
| shuffles | parallelism | aligned, ms | held back, ms | lost | unaligned, ms | in flight, KiB | lost |
|---:|---:|---:|---:|---:|---:|---:|---:|"""


def table(done: Sequence[Row]) -> str:
    """A Markdown table for each load."""
    parts = []
    for load in sorted({row.load for row in done}):
        lines = [line(row) for row in done if row.load == load]
        parts.append("\n".join([f"### Load {load}: {_shown(load)}\n", _HEAD, *lines]))
    return "\n\n".join(parts) + "\n"


def line(row: Row) -> str:
    """A pipeline's line of the table: medians over the epochs of a run."""
    aligned, unaligned = row.aligned.epochs, row.unaligned.epochs
    cells = (
        str(row.shuffles),
        str(row.parallelism),
        f"{median(_durations(aligned)):.1f}",
        f"{median(epoch.held_back for epoch in aligned) / 1_000:.1f}",
        f"{_lost(row, row.aligned):z.1f} %",
        f"{median(_durations(unaligned)):.1f}",
        f"{median(epoch.recorded for epoch in unaligned) / _KIB:.0f}",
        f"{_lost(row, row.unaligned):z.1f} %",
    )
    return f"| {' | '.join(cells)} |"


_PAGE = """\
# What alignment costs

`make bench ONLY="alignment --write"` makes this page, the same on every machine. It is a simulation: the clock is
simulated; the aligners, outboxes and markers are the real ones, and every cut was checked to be exact. The time to
store what was in flight is not simulated.

{interpretation}

![Duration of an epoch, and in-flight data, against the number of shuffles](alignment.svg)

A pipeline is a source and as many operators as there are shuffles, all with the same parallelism; a shuffle connects
everybody with everybody. Data come in frames of {frame} KiB. An operator works on a frame for {service:g} ms, on
average; one subtask of the last operator is slow and needs {slow:g} ms. The network takes {latency:g} ms. A channel
holds at most {queue} frames at its sender, and {queue} on the way and at its receiver; when an outbox is full, its
sender waits. An epoch begins every {interval:g} ms, unless one is under way.

- *load*: what the sources offer, as a share of what the slow subtask can take.
- *aligned*, *unaligned*: from the trigger until every subtask has cut and all that was in flight is known.
- *held back*: from a subtask's first marker to its cut, mean over the subtasks.
- *in flight*: what an unaligned epoch records; an aligned one records nothing.
- *lost*: frames that did not get through within {window} s, against a run without epochs. It follows neither the mode
  nor the shuffles here: markers change the order in which a subtask takes its frames, and that changes the
  outcome a bit.

All are medians over the epochs of a run, but for *lost*.

{tables}"""

_INTERPRETATION = """\
An aligned epoch lasts as long as its markers wait behind data. Under back-pressure that grows with every shuffle and
with the parallelism, as more channels hold more frames: from {short:.0f} ms to {long:.0f} ms here, against
{calm:.0f} ms at most under the steady load. An unaligned epoch lasts {fast:.0f} ms at most, about a millisecond for
each shuffle and the same under either load; its price is recorded data, up to {recorded:.0f} MiB per epoch."""


def document(done: Sequence[Row]) -> str:
    """The page with the tables, the plot, and what one learns from them."""
    return _PAGE.format(
        interpretation=_interpretation(done),
        frame=FRAME_BYTES // _KIB,
        service=SERVICE / 1_000,
        slow=SLOW_SERVICE / 1_000,
        latency=LATENCY / 1_000,
        queue=QUEUE_FRAMES,
        interval=INTERVAL / 1_000,
        window=WINDOW // SECOND,
        tables=table(done),
    )


def _interpretation(done: Sequence[Row]) -> str:
    pressed = [median(_durations(row.aligned.epochs)) for row in done if row.load > 1]
    return _INTERPRETATION.format(
        short=min(pressed),
        long=max(pressed),
        calm=max(median(_durations(row.aligned.epochs)) for row in done if row.load < 1),
        fast=max(median(_durations(row.unaligned.epochs)) for row in done),
        recorded=max(median(epoch.recorded for epoch in row.unaligned.epochs) for row in done) / _MIB,
    )


# --- the plot ---------------------------------------------------------------------------------------------------------


def plot(done: Sequence[Row]) -> str:
    """The duration of an epoch, and below it what it records, against the number of shuffles, for each parallelism."""
    durations, recorded = [], []
    for width in sorted({row.parallelism for row in done}):
        here = [row for row in done if row.parallelism == width]
        unaligned = _lines(here, MarkerMode.UNALIGNED, lambda row: median(_durations(row.unaligned.epochs)))
        aligned = _lines(here, MarkerMode.ALIGNED, lambda row: median(_durations(row.aligned.epochs)))
        durations.append(Panel(f"parallelism {width}", aligned + unaligned))
        recorded.append(Panel("", _lines(here, MarkerMode.UNALIGNED, _recorded_mib)))
    upper = Scale("duration of an epoch, ms", 1, 1_000), tuple(durations)
    lower = Scale("in flight, MiB per epoch", 0.01, 100), tuple(recorded)
    return as_svg("shuffles", (upper, lower))


def _recorded_mib(row: Row) -> float:
    return median(epoch.recorded for epoch in row.unaligned.epochs) / _MIB


def _lines(here: Sequence[Row], mode: MarkerMode, height: Callable[[Row], float]) -> tuple[Line, ...]:
    """A line for each load, the higher first: hollow without back-pressure, dashed if unaligned."""
    lines = []
    for load in sorted({row.load for row in here}, reverse=True):
        points = tuple((float(row.shuffles), height(row)) for row in here if row.load == load)
        dashed = mode is MarkerMode.UNALIGNED
        lines.append(Line(f"{mode.value}, {_shown(load)}", points, dashed=dashed, hollow=load < 1))
    return tuple(lines)
