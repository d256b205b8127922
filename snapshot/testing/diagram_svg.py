"""The space-time diagram of the lectures as SVG: a line for each process, and time running to the right.

Invariant: every record has a place on the time axis that is its own, wide enough for its label, so labels do
not overlap; the cut crosses each process's line behind the last of its records inside; and colours mean the same in
every picture.
"""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from snapshot.testing.diagram import Fate, Message, messages, uneventful
from snapshot.testing.history import Cut, History, Kind, Record

_ROW = 90
_TOP = 60
_STEP = 26
_LETTER = 6.2
_LONGEST = 22

_COLOURS = {
    Fate.PAST: "#444444",
    Fate.FUTURE: "#9a9a9a",
    Fate.CROSSING: "#1f6fd0",
    Fate.CONTRADICTION: "#d01f1f",
    Fate.LOST: "#c08a30",
}
_CUT = "#1d8a4b"
_STYLE = """
text { font: 11px sans-serif; fill: #222222 }
text.name { font-weight: bold; font-size: 13px }
text.halo { fill: none; stroke: white; stroke-width: 4px; stroke-linejoin: round }
.line { stroke: #222222; stroke-width: 1.6 }
.down { stroke: #bbbbbb; stroke-width: 1.2; stroke-dasharray: 2 5 }
"""


def as_svg(history: History, cut: Cut | None = None, marked: Collection[int] = ()) -> str:
    """Return the history as an SVG document; the records at the places `marked` have a ring."""
    return _Drawing(history, cut, marked).svg()


class _Drawing:
    """Gives each record its place on the time axis, and draws from the back to the front."""

    def __init__(self, history: History, cut: Cut | None, marked: Collection[int]) -> None:
        self.history = history
        self.cut = cut
        self.marked = marked
        self.messages = messages(history, cut)
        longest = max((len(name) for name in history.processes), default=0)
        self.left = 30 + 8 * longest
        self.ys = {name: _TOP + _ROW * number for number, name in enumerate(history.processes)}
        self.bottom = _TOP + _ROW * len(history.processes)
        self.xs: dict[int, float] = {}
        edge = float(self.left)
        for record in history:
            if not uneventful(record) and record.kind is not Kind.LOST:
                wide = max(_STEP, len(self._label(record)) * _LETTER + 12)
                self.xs[record.at] = edge + wide / 2
                edge += wide
        self.right = max(edge, self.left + 4 * _STEP) + 20

    def svg(self) -> str:
        width, height = round(max(self.right + 20, 900)), self.bottom + 10
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}">',
            f"<style>{_STYLE}</style>",
            f"<defs>{''.join(self._head(fate) for fate in Fate)}</defs>",
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *self._cut_parts(),
            *(part for name in self.history.processes for part in self._process(name)),
            *(part for message in self.messages.values() for part in self._message(message)),
            *(part for record in self.history if record.at in self.xs for part in self._event(record)),
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _label(self, record: Record) -> str:
        match record.kind:
            case Kind.RECEIVED:
                return ""
            case Kind.SENT | Kind.ACTED | Kind.NOTED:
                text = str(record.payload)
            case Kind.SAVED:
                text = f"saves {record.payload}"
            case Kind.STARTED if record.payload is None:
                text = "starts anew"
            case Kind.STARTED:
                text = f"starts from {record.payload}"
            case Kind.BROKEN | Kind.CUT:
                text = f"⚡ {record.peer}"
            case _:
                text = record.kind.name.lower()
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

    def _head(self, fate: Fate) -> str:
        return (
            f'<marker id="{fate.name}" viewBox="0 0 10 10" refX="9" refY="5" orient="auto" '
            'markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse">'
            f'<path d="M0 1 L10 5 L0 9 z" fill="{_COLOURS[fate]}"/></marker>'
        )

    def _process(self, name: str) -> list[str]:
        """Draw the line of a process, dashed while it is down."""
        y = self.ys[name]
        parts = [f'<text class="name" x="12" y="{y + 5}">{escape(name)}</text>']
        start, style = float(self.left), "line"
        for record in self.history.of(name, Kind.CRASHED, Kind.STARTED):
            if record.at in self.xs:
                x = self.xs[record.at]
                parts.append(_line(start, y, x, y, f'class="{style}"'))
                start, style = x, "down" if record.kind is Kind.CRASHED else "line"
        return [*parts, _line(start, y, self.right, y, f'class="{style}"')]

    def _message(self, message: Message) -> list[str]:
        sent, fate = message.sent, message.fate
        x, y = self.xs[sent.at], self.ys[sent.process]
        target = self.ys[sent.peer or sent.process]
        if message.arrived is None:
            return []
        colour = _COLOURS[fate]
        thick = 2.4 if fate in (Fate.CONTRADICTION, Fate.CROSSING) else 1.3
        title = f"<title>{message.name}: {escape(str(sent.payload))}, {fate.value}</title>"
        style = f'stroke="{colour}" stroke-width="{thick}" fill="none"'
        if fate is Fate.LOST:
            end, half = x + _STEP, y + (target - y) * 0.4
            cross = f'<text x="{end - 4}" y="{half + 5}" style="fill:{colour};font-weight:bold">✕</text>'
            return [f"<g>{title}{_line(x, y, end, half, style)}{cross}</g>"]
        end = self.xs[message.arrived.at]
        head = f'{style} marker-end="url(#{fate.name})"'
        if sent.process == sent.peer:
            path = f"M{x:.1f} {y} C{x:.1f} {y + 40} {end:.1f} {y + 40} {end:.1f} {y + 3}"
            return [f'<g>{title}<path d="{path}" {head}/></g>']
        return [f"<g>{title}{_line(x, y, end, target, head)}</g>"]

    def _event(self, record: Record) -> list[str]:
        x, y = self.xs[record.at], self.ys[record.process]
        colour = "#222222"
        if record.kind is Kind.CRASHED:
            symbol = (
                f'<path d="M{x - 7:.1f} {y - 7} L{x + 7:.1f} {y + 7} M{x - 7:.1f} {y + 7} L{x + 7:.1f} {y - 7}" '
                'stroke="#d01f1f" stroke-width="3"/>'
            )
        elif record.kind in (Kind.NOTED, Kind.SAVED):
            symbol = f'<rect x="{x - 4:.1f}" y="{y - 4}" width="8" height="8" fill="{_CUT}"/>'
        else:
            filled = "white" if record.kind in (Kind.STARTED, Kind.PAUSED, Kind.RESUMED) else colour
            symbol = f'<circle cx="{x:.1f}" cy="{y}" r="3.5" fill="{filled}" stroke="{colour}"/>'
        ring = ""
        if record.at in self.marked:
            ring = f'<circle cx="{x:.1f}" cy="{y}" r="9" fill="none" stroke="#d01f1f" stroke-width="1.5"/>'
        # A label stands on the side that the message does not leave to, so that its arrow never crosses it.
        upwards = record.kind is Kind.SENT and self.ys[record.peer or record.process] < y
        place = f'x="{x:.1f}" y="{y + (22 if upwards else -12)}" text-anchor="middle"'
        label = escape(self._label(record))
        texts = [f'<text class="halo" {place}>{label}</text>', f"<text {place}>{label}</text>"] if label else []
        return [f"<g><title>{escape(str(record))}</title>{symbol}{ring}</g>", *texts]

    def _cut_parts(self) -> list[str]:
        """Draw the past of the cut, tinted, and the line that ends it."""
        if self.cut is None:
            return []
        crossings = [(self._crossing(name), y) for name, y in self.ys.items()]
        top, bottom = _TOP - 34, self.bottom - _ROW + 34
        points = [(crossings[0][0], top), *crossings, (crossings[-1][0], bottom)]
        line = " ".join(f"{x:.1f},{y}" for x, y in points)
        return [
            f'<polygon points="{self.left - 12},{top} {line} {self.left - 12},{bottom}" fill="#eef7f1"/>',
            f'<polyline points="{line}" fill="none" stroke="{_CUT}" stroke-width="2" stroke-dasharray="7 4"/>',
            f'<text x="{points[0][0]:.1f}" y="{top - 6}" text-anchor="middle" style="fill:{_CUT};font-weight:bold">'
            f"{escape(self.cut.name)}</text>",
        ]

    def _crossing(self, name: str) -> float:
        """Return where the cut crosses a process's line: after the last record inside, before the first one outside."""
        assert self.cut is not None
        drawn = [record for record in self.history.of(name) if record.at in self.xs]
        inside = [self.xs[record.at] for record in drawn if self.cut.includes(record)]
        outside = [self.xs[record.at] for record in drawn if not self.cut.includes(record)]
        last = inside[-1] if inside else self.left - 12.0
        return min(last + 13, (last + outside[0]) / 2) if outside else last + 13

    def _legend(self) -> list[str]:
        y = self.bottom - 8
        fates = [fate for fate in Fate if any(message.fate is fate for message in self.messages.values())]
        parts, x = [], 12.0
        for fate in fates:
            meaning = "a message" if self.cut is None and fate is Fate.PAST else fate.value
            style = f'stroke="{_COLOURS[fate]}" stroke-width="2" marker-end="url(#{fate.name})"'
            parts.append(_line(x, y - 4, x + 24, y - 4, style))
            parts.append(f'<text x="{x + 30:.1f}" y="{y}">{meaning}</text>')
            x += 50 + len(meaning) * _LETTER
        signs = f'<tspan fill="{_CUT}">■</tspan> remark or save   <tspan fill="#d01f1f">✕</tspan> crash'
        parts.append(f'<text x="{x:.1f}" y="{y}">{signs}</text>')
        return parts


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'
