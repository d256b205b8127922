"""The pictures of a comparison, as SVG: latency around the fault, and cost against silence.

Invariant: schemes are told apart without colour: by the dashes of their lines, the shapes of their points, and names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from recovery.comparison.outages import Percentiles, over_time
from recovery.comparison.record import Outcome, Record, read_rows
from recovery.comparison.runs import Results
from recovery.comparison.summary import CPU, SILENCE, of_scheme
from statebackend.errors import OptionError

_COLOURS: Final = (
    *("#0072b2", "#d55e00", "#009e73", "#6e40c9", "#1b1f24"),
    *("#cc79a7", "#8a6d00", "#56b4e9", "#9a1f61", "#4d4d4d"),
)
_DASHES: Final = (
    *([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4]),
    *([4, 1, 1, 1], [1, 3], [10, 2, 2, 2, 2, 2], [3, 6], [14, 2]),
)
_SHAPES: Final = (
    *("circle", "square", "triangle-up", "diamond", "cross"),
    *("triangle-down", "triangle-right", "triangle-left", "stroke", "arrow"),
)
_WIDTH: Final = 760
_LEAST: Final = 0.1
"""Milliseconds: what is less is drawn there, as the axis is logarithmic."""
_AROUND: Final = "seconds after the first fault, of the time for which rows were scheduled"


class NoPictures(OptionError, ImportError):
    """The packages that draw pictures are not installed."""

    def __init__(self) -> None:
        super().__init__("a report needs altair and vl-convert; install them: pip install 'epochcut[report]'")


Points = Sequence[tuple[float, Percentiles]]
"""The latency by the seconds after the first fault."""


def around(results: Results) -> Mapping[str, Sequence[Points]]:
    """Return the latency around the fault in each run that was measured and had one, by scheme."""
    return {
        scheme: [
            list(_points(record, results))
            for record in of_scheme(results.records, scheme)
            if record.outcome is Outcome.MEASURED and record.struck
        ]
        for scheme in results.plan.schemes
    }


def _points(record: Record, results: Results) -> Iterator[tuple[float, Percentiles]]:
    seen, fault = read_rows(results.file(record)).sightings, record.struck[0].at
    for at, latency in over_time(seen, fault - int(results.plan.before_s * 1e6), record.ended):
        yield (at - fault) / 1e6, latency


class Pictures:
    """Draws with altair, if that is installed; else `NoPictures`."""

    def __init__(self, results: Results) -> None:
        try:
            import altair
            import vl_convert
        except ImportError as error:
            raise NoPictures from error
        self._alt: Any = altair
        self._svg: Any = vl_convert.vegalite_to_svg
        self._results = results
        self._around = {scheme: runs for scheme, runs in around(results).items() if runs}

    def on_one_axis(self) -> str:
        """Return the 99th percentile around the fault of all schemes: the median of their runs."""
        values = [
            {"scheme": scheme, "seconds": at, "ms": max(_LEAST, latency)}
            for scheme, runs in self._around.items()
            for at, latency in _medians(runs)
        ]
        alt, chosen = self._alt, self._scale(list(self._around))
        base = alt.Chart(alt.Data(values=values)).encode(
            x=alt.X("seconds:Q", title=_AROUND),
            y=alt.Y("ms:Q", title="99th percentile of the latency, ms", scale=alt.Scale(type="log")),
            color=alt.Color("scheme:N", scale=chosen(_COLOURS), legend=_below(alt)),
        )
        dashes = alt.StrokeDash("scheme:N", scale=chosen(_DASHES), legend=_below(alt))
        shapes = alt.Shape("scheme:N", scale=chosen(_SHAPES), legend=_below(alt))
        lines = base.mark_line(strokeWidth=1.6).encode(strokeDash=dashes)
        points = base.mark_point(size=34, filled=True, opacity=1).encode(shape=shapes)
        both = (lines + points).properties(width=_WIDTH, height=360)
        return self._drawn(both + self._fault(alt.Data(values=[{}])))

    def run_by_run(self) -> str:
        """Return the median and the 99th percentile of each run around the fault, scheme below scheme."""
        values = [
            {"scheme": scheme, "run": str(number + 1), "seconds": at, "ms": max(_LEAST, ms), "percentile": name}
            for scheme, runs in self._around.items()
            for number, points in enumerate(runs)
            for at, latency in points
            for name, ms in (("median", latency.p50_ms), ("99th percentile", latency.p99_ms))
        ]
        alt, data = self._alt, self._alt.Data(values=values)
        lines = alt.Chart().mark_line(strokeWidth=1.2, color="#1b1f24")
        lines = lines.encode(
            x=alt.X("seconds:Q", title=_AROUND),
            y=alt.Y("ms:Q", title="latency, ms", scale=alt.Scale(type="log")),
            detail="run:N",
            strokeDash=alt.StrokeDash("percentile:N", legend=_below(alt)),
        )
        both = alt.layer(lines, self._fault(), data=data).properties(width=_WIDTH, height=110)
        order = list(self._around)
        return self._drawn(both.facet(row=alt.Row("scheme:N", title=None, sort=order, header=_above(alt))))

    def cost_and_silence(self) -> str:
        """Return the processor time against the silence: a small point for each run, a large one for the medians."""
        runs: list[dict[str, object]] = []
        middles: list[dict[str, object]] = []
        for scheme in self._around:
            found = [
                (cpu, max(_LEAST, silence))
                for record in of_scheme(self._results.records, scheme)
                if record.outcome is Outcome.MEASURED
                and (cpu := CPU.of(record)) is not None
                and (silence := SILENCE.of(record)) is not None
            ]
            runs += [{"scheme": scheme, "cpu": cpu, "ms": ms} for cpu, ms in found]
            if found:
                cpu, ms = (median(values) for values in zip(*found, strict=True))
                middles.append({"scheme": scheme, "cpu": cpu, "ms": ms})
        alt, chosen = self._alt, self._scale(list(self._around))
        base = alt.Chart(alt.Data(values=middles)).encode(
            x=alt.X("cpu:Q", title="seconds of processor time in a second, before the fault"),
            y=alt.Y("ms:Q", title="silence, ms", scale=alt.Scale(type="log")),
            color=alt.Color("scheme:N", scale=chosen(_COLOURS), legend=_below(alt)),
            shape=alt.Shape("scheme:N", scale=chosen(_SHAPES), legend=_below(alt)),
        )
        large = base.mark_point(size=170, filled=True, opacity=0.9)
        small = base.properties(data=alt.Data(values=runs)).mark_point(size=36, filled=False)
        names = base.mark_text(align="left", dx=11, fontSize=12).encode(text="scheme:N")
        return self._drawn((small + large + names).properties(width=_WIDTH, height=340))

    def _scale(self, schemes: Sequence[str]) -> Any:
        """Return a function that gives the schemes these colours, dashes or shapes."""
        places = [self._results.plan.schemes.index(scheme) for scheme in schemes]
        return lambda marks: self._alt.Scale(domain=schemes, range=[marks[place % len(marks)] for place in places])

    def _fault(self, data: Any = None) -> Any:
        alt = self._alt
        chart = alt.Chart() if data is None else alt.Chart(data)
        return chart.mark_rule(color="#57606a", strokeDash=[3, 3]).encode(x=alt.datum(0))

    def _drawn(self, chart: Any) -> str:
        chart = chart.configure(background="white", font="Helvetica, Arial, sans-serif")
        return str(self._svg(chart.configure_axis(grid=True, gridColor="#e6e9ec").to_dict()))


def _below(alt: Any) -> Any:
    return alt.Legend(title=None, orient="bottom", columns=3, columnPadding=60, labelLimit=0, symbolSize=140)


def _above(alt: Any) -> Any:
    return alt.Header(labelOrient="top", labelAnchor="start", labelFontWeight="bold", labelFontSize=12)


def _medians(runs: Sequence[Points]) -> Iterator[tuple[float, float]]:
    """Yield the median of the runs' 99th percentiles in each quarter of a second that most of them have."""
    found: dict[float, list[float]] = {}
    for points in runs:
        for at, latency in points:
            found.setdefault(round(at, 3), []).append(latency.p99_ms)
    for at in sorted(found):
        if 2 * len(found[at]) > len(runs):
            yield at, median(found[at])
