"""What alignment costs against the number of shuffles and the parallelism: figures, a table and a plot.

What always holds: they come from a simulation on a simulated clock, so they are the same on every machine and in every
run; and each cut that they count was checked to be exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from snapshot.frames import MarkerMode
from tests.bench.figures import Figure, figure, progress
from tests.bench.line_plot import Line, Panel, Scale, as_svg
from tests.bench.pipeline import (
    FRAME_BYTES,
    INTERVAL,
    LATENCY,
    QUEUE_FRAMES,
    SECOND,
    SERVICE,
    SLOW_SERVICE,
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


def _lost(row: Row, result: Result) -> float:
    return 100 * (1 - result.delivered / row.without.delivered)


# --- the table --------------------------------------------------------------------------------------------------------

_HEAD = """\
| shuffles | parallelism | aligned, ms | held back, ms | lost | unaligned, ms | in flight, KiB | lost |
|---:|---:|---:|---:|---:|---:|---:|---:|"""


def table(done: Sequence[Row]) -> str:
    """A Markdown table for each load."""
    parts = []
    for load in sorted({row.load for row in done}):
        lines = [line(row) for row in done if row.load == load]
        parts.append("\n".join([f"### Load {load}: {_NAMES[load].replace('_', '-')}\n", _HEAD, *lines]))
    return "\n\n".join(parts) + "\n"


def line(row: Row) -> str:
    """A pipeline's line of the table: medians over the epochs of a run."""
    aligned, unaligned = row.aligned.epochs, row.unaligned.epochs
    cells = (
        str(row.shuffles),
        str(row.parallelism),
        f"{median(_durations(aligned)):.1f}",
        f"{median(epoch.held_back for epoch in aligned) / 1_000:.1f}",
        f"{_lost(row, row.aligned):.1f} %",
        f"{median(_durations(unaligned)):.1f}",
        f"{median(epoch.recorded for epoch in unaligned) / _KIB:.0f}",
        f"{_lost(row, row.unaligned):.1f} %",
    )
    return f"| {' | '.join(cells)} |"


def document(done: Sequence[Row]) -> str:
    """The page with the tables, the plot, and what one learns from them."""
    return f"""\
# What alignment costs

`make bench ONLY="alignment --write"` makes this page. It is a simulation: the clock is simulated, the aligners,
outboxes and markers are the real ones, and every cut was checked to be exact. Storing what was in flight is not simulated.

A pipeline is a source and as many operators as there are shuffles, each with the same parallelism; each shuffle connects
everybody with everybody. Work comes in frames of {FRAME_BYTES // _KIB} KiB. An operator needs {SERVICE / 1_000:g} ms for a frame, on average; subtask 0
of the last one is slow and needs {SLOW_SERVICE / 1_000:g} ms. The network takes {LATENCY / 1_000:g} ms. Each channel holds at most {QUEUE_FRAMES} frames at the
sender and {QUEUE_FRAMES} on the way and at the receiver. An epoch begins every {1_000 * INTERVAL / SECOND:g} ms, unless one is under way.

The load is what the sources offer, as a share of what the slow subtask can take.

- *aligned, unaligned*: from the trigger until every subtask has cut and all that was in flight is known.
- *held back*: from a subtask's first marker to its cut, mean over the subtasks; its channels are held back for up to that time.
- *in flight*: what an unaligned epoch records; an aligned one records nothing.
- *lost*: frames that did not get through in {Settings(1, 2, 1.1, None).window // SECOND} s, against a run without epochs.

![Duration of an epoch and in-flight data against the number of shuffles](alignment.svg)

{INTERPRETATION}

{table(done)}"""


INTERPRETATION = ""


# --- the plot ---------------------------------------------------------------------------------------------------------


def plot(done: Sequence[Row]) -> str:
    """The duration of an epoch, and below it what it records, against the number of shuffles; a column for each width."""
    widths, loads = sorted({row.parallelism for row in done}), sorted({row.load for row in done}, reverse=True)
    durations, recorded = [], []
    for width in widths:
        aligned, unaligned, bytes_ = [], [], []
        for load in loads:
            name, here = _NAMES[load].replace("_", "-"), [r for r in done if (r.parallelism, r.load) == (width, load)]
            xs, open_ = [r.shuffles for r in here], load < 1
            ys = [median(_durations(r.aligned.epochs)) for r in here]
            aligned.append(Line(f"aligned, {name}", tuple(zip(xs, ys, strict=True)), dashed=False, hollow=open_))
            ys = [median(_durations(r.unaligned.epochs)) for r in here]
            unaligned.append(Line(f"unaligned, {name}", tuple(zip(xs, ys, strict=True)), dashed=True, hollow=open_))
            ys = [median(epoch.recorded for epoch in r.unaligned.epochs) / _MIB for r in here]
            bytes_.append(Line(f"unaligned, {name}", tuple(zip(xs, ys, strict=True)), dashed=True, hollow=open_))
        durations.append(Panel(f"parallelism {width}", (*aligned, *unaligned)))
        recorded.append(Panel("", tuple(bytes_)))
    return as_svg(
        "shuffles",
        (
            (Scale("duration of an epoch, ms", 1, 1_000), tuple(durations)),
            (Scale("in flight, MiB per epoch", 0.01, 100), tuple(recorded)),
        ),
    )
