"""Line plots as SVG, in rows of panels that share their axes.

Invariant: equal data give equal bytes; and two lines differ in more than their colour: in dash and marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

_HEIGHT = 190
_GAP = 22
_LEGEND = 212
_LEFT, _TOP, _BOTTOM = 78, 74, 56
_SOLID, _DASHED, _MOMENT = "#1f5fa8", "#c2571a", "#b00020"
_STYLE = """
text { font: 12px sans-serif; fill: #222222 }
text.title { font-weight: bold }
.grid { stroke: #e4e4e4; stroke-width: 1 }
.frame { fill: none; stroke: #888888; stroke-width: 1 }
.line { fill: none; stroke-width: 1.8 }
"""
_STYLE_OF_MOMENTS = f".moment {{ stroke: {_MOMENT}; stroke-width: 1.4 }}\n"


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together, as (x, y). Lines of one name look the same in all panels."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool
    hollow: bool = False
    dotted: bool = True
    """True if each of its points has a marker: not where there are too many to tell them apart."""

    @property
    def colour(self) -> str:
        """Return the colour, which follows from the dash."""
        return _DASHED if self.dashed else _SOLID


@dataclass(frozen=True, slots=True)
class Panel:
    """A small plot."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A place on the x axis at which something happened."""

    x: float
    name: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis between two powers of ten."""

    label: str
    least: float
    most: float

    def ticks(self) -> list[float]:
        """Return the powers of ten on the axis."""
        first, last = round(log10(self.least)), round(log10(self.most))
        return [10.0**power for power in range(first, last + 1)]

    def share(self, value: float) -> float:
        """Return where a value is, from 0 at the bottom to 1 at the top; a value below the axis is drawn on it."""
        return log10(max(value, self.least) / self.least) / log10(self.most / self.least)


def as_svg(
    x_label: str,
    rows: Sequence[tuple[Scale, Sequence[Panel]]],
    *,
    width: int = 190,
    ticks: Sequence[float] | None = None,
    moments: Sequence[Moment] = (),
) -> str:
    """Draw the rows below each other, each with its own scale; all panels are `width` wide and share the x axis.

    The axis is labelled at the `ticks`, or at every point that a line has; each panel shows all `moments`.
    """
    xs = sorted({x for _, panels in rows for panel in panels for line in panel.lines for x, _ in line.points})
    columns = max(len(panels) for _, panels in rows)
    whole = _LEFT + columns * (width + _GAP)
    height = _TOP + len(rows) * (_HEIGHT + _GAP) + _BOTTOM - _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" width="{whole}" height="{height}">',
        f"<style>{_STYLE}{_STYLE_OF_MOMENTS if moments else ''}</style>",
        f'<rect width="{whole}" height="{height}" fill="white"/>',
        *_legend(rows[0][1][0].lines),
    ]
    for number, (scale, panels) in enumerate(rows):
        top = _TOP + number * (_HEIGHT + _GAP)
        middle = top + _HEIGHT / 2
        parts.append(_text(20, middle, scale.label, "middle", extra=f' transform="rotate(-90 20 {middle:g})"'))
        for column, panel in enumerate(panels):
            across = _Across(xs[0], xs[-1], _LEFT + column * (width + _GAP), width)
            parts += _panel(panel, scale, across, top, labelled=column == 0)
            parts += [part for moment in moments for part in _moment(moment, across, top)]
            if number == len(rows) - 1:
                parts += [
                    _text(across.at(x), top + _HEIGHT + 17, f"{x:g}", "middle")
                    for x in (xs if ticks is None else ticks)
                ]
                parts.append(_text(across.left + width / 2, top + _HEIGHT + 38, x_label, "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True)
class _Across:
    """The x axis of a panel."""

    least: float
    most: float
    left: float
    width: int

    def at(self, x: float) -> float:
        return self.left + 14 + (x - self.least) / max(1, self.most - self.least) * (self.width - 28)


def _panel(panel: Panel, scale: Scale, across: _Across, top: float, *, labelled: bool) -> Iterator[str]:
    left, right = across.left, across.left + across.width
    if panel.title:
        yield _text(left + across.width / 2, top - 8, panel.title, "middle", extra=' class="title"')
    for tick in scale.ticks():
        y = top + _HEIGHT * (1 - scale.share(tick))
        yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        if labelled:
            yield _text(left - 6, y + 4, f"{tick:g}", "end")
    yield f'<rect class="frame" x="{left}" y="{top}" width="{across.width}" height="{_HEIGHT}"/>'
    for line in panel.lines:
        points = [(across.at(x), top + _HEIGHT * (1 - scale.share(y))) for x, y in line.points]
        yield from _drawn(line, points)


def _moment(moment: Moment, across: _Across, top: float) -> Iterator[str]:
    x = across.at(moment.x)
    yield f'<line class="moment" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + _HEIGHT}"/>'
    yield _text(x + 5, top + 14, moment.name, "start")


def _drawn(line: Line, points: Sequence[tuple[float, float]]) -> Iterator[str]:
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="line" points="{path}" stroke="{line.colour}"{dash}/>'
    fill = "white" if line.hollow else line.colour
    for x, y in points if line.dotted else ():
        look = f'fill="{fill}" stroke="{line.colour}" stroke-width="1.6"'
        if line.dashed:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" {look}/>'
        else:
            yield f'<rect x="{x - 3.4:.1f}" y="{y - 3.4:.1f}" width="6.8" height="6.8" {look}/>'


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        left = _LEFT + number * _LEGEND
        yield from _drawn(line, [(left, 24), (left + 34, 24)])
        yield _text(left + 44, 28, line.name, "start")


def _text(x: float, y: float, text: str, anchor: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'
