"""The space-time diagram of the lectures as text: a column for each process, and time running down.

Invariant: each record has a row of its own, and the rows of a process are in its order; of a very long
history those rows are left out that are far from its ends, its cut and what is marked. If there is a cut, all of
its past stands above it, so the cut is a straight line: a consistent cut leaves every arrow pointing down, and a
message that arrives above the line but is sent below it is the contradiction itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from snapshot.testing.history import Cut, History, Kind, Record

_SYMBOLS = {
    Kind.STARTED: "○",
    Kind.CRASHED: "✗",
    Kind.BROKEN: "≀",
    Kind.NOTED: "◆",
    Kind.SAVED: "▪",
    Kind.PAUSED: "‖",
    Kind.RESUMED: "▷",
}
_WORDS = 110  # what a row says; a payload that is longer can be had from the history

_NEAR = 60  # rows that are kept around whatever matters in a very long history

_LEGEND = (
    "● acts, sends, receives  ◆ remarks  ▪ saves  ○ starts  ✗ crashes  ≀ hears of a broken link  ‖ ▷ pauses, resumes"
)


class Fate(Enum):
    """The fate of a message at a cut."""

    PAST = "in the past of the cut"
    CROSSING = "in flight across the cut"
    FUTURE = "after the cut"
    CONTRADICTION = "received inside the cut, but sent outside of it"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the picture: what it is called, and where it was sent and received, or lost."""

    name: str
    sent: Record
    arrived: Record | None
    fate: Fate


def messages(history: History, cut: Cut | None = None) -> dict[int, Message]:
    """Return all messages by the place of their sending, named m1, m2 and so on."""
    ends = {
        record.cause: record
        for record in history
        if record.cause is not None and record.kind in (Kind.RECEIVED, Kind.LOST)
    }
    sends = history.kinds(Kind.SENT)
    return {
        sent.at: Message(f"m{number}", sent, ends.get(sent.at), _fate(sent, ends.get(sent.at), cut))
        for number, sent in enumerate(sends, 1)
    }


def uneventful(record: Record) -> bool:
    """True if a picture can do without the record: it is the first start of a process, from nothing."""
    return record.kind is Kind.STARTED and not record.incarnation and record.payload is None


def _fate(sent: Record, arrived: Record | None, cut: Cut | None) -> Fate:
    if arrived is not None and arrived.kind is Kind.LOST:
        return Fate.LOST
    if cut is None:
        return Fate.PAST
    received_inside = arrived is not None and cut.includes(arrived)
    if cut.includes(sent):
        return Fate.PAST if received_inside else Fate.CROSSING
    return Fate.CONTRADICTION if received_inside else Fate.FUTURE


def as_text(history: History, cut: Cut | None = None, marked: Collection[int] = ()) -> str:
    """Return the history as lines of characters; rows at the places `marked` begin with `>`."""
    return _Page(history, cut, marked).text()


class _Page:
    """Lays out the rows: the place, the columns, and the same in words."""

    def __init__(self, history: History, cut: Cut | None, marked: Collection[int]) -> None:
        self.history = history
        self.cut = cut
        self.marked = marked
        self.messages = messages(history, cut)
        longest = max((len(name) for name in history.processes), default=0)
        self.width = max(longest + 3, len(f"m{len(self.messages)}") + 7, 10)
        self.centres = {name: 2 + self.width * n + longest // 2 for n, name in enumerate(history.processes)}
        self.end = self.width * len(history.processes)
        self.lines = dict.fromkeys(history.processes, "│")

    def text(self) -> str:
        heads = [" "] * (self.end + 1)
        for name, centre in self.centres.items():
            start = centre - len(name) // 2
            heads[start : start + len(name)] = name
        rows = [" " * 7 + "".join(heads).rstrip()]
        if self.cut is None:
            rows += self._rows(list(self.history))
        else:
            rows += self._rows([record for record in self.history if self._inside(record)])
            rows.append(" " * 7 + "═" * self.end + f" {self.cut.name}")
            rows += self._rows([record for record in self.history if not self._inside(record)])
        return "\n".join([*_abridged(rows), "", " " * 7 + _LEGEND, ""])

    def _inside(self, record: Record) -> bool:
        """True if the record is inside the cut; a loss counts where its message was sent, wherever it was lost."""
        at = record.cause if record.kind is Kind.LOST and record.cause is not None else record.at
        return self.cut is not None and self.cut.includes(self.history[at])

    def _rows(self, records: list[Record]) -> list[str]:
        rows = []
        for record in records:
            if uneventful(record):
                continue
            cells = [" "] * self.end
            for name, centre in self.centres.items():
                cells[centre] = self.lines[name]
            words = self._draw(record, cells)
            mark = ">" if record.at in self.marked else " "
            rows.append(f"{mark}{'#' + str(record.at):>5} {''.join(cells)} {words}".rstrip())
        return rows

    def _draw(self, record: Record, cells: list[str]) -> str:
        """Put the record into the cells of its row; return the words for it."""
        own = self.centres[record.process]
        cells[own] = _SYMBOLS.get(record.kind, "●")
        message = self.messages.get(record.cause if record.cause is not None else record.at)
        words = f"{record.process} {record.what}"
        words = words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
        match record.kind:
            case Kind.CRASHED:
                self.lines[record.process] = " "
            case Kind.STARTED | Kind.RESUMED:
                self.lines[record.process] = "│"
            case Kind.PAUSED:
                self.lines[record.process] = "┊"
            case Kind.SENT if message and record.peer:
                self._stub(cells, own, self.centres[record.peer], message.name, "▸◂")
                words += f"  ({message.name})"
                if message.fate is Fate.CROSSING and self.cut is not None:
                    words += "  in flight across the cut"
            case Kind.LOST if message and record.peer:
                cells[own] = self.lines[record.process]
                self._stub(cells, own, self.centres[record.peer], message.name, "✗✗")
                words += f"  ({message.name})"
            case Kind.RECEIVED if message and record.peer:
                self._arrow(cells, self.centres[record.peer], own, message.name)
                words += f"  ({message.name})"
                if message.fate is Fate.CONTRADICTION:
                    words += "  <-- not sent yet"
            case _:
                pass
        return words

    def _stub(self, cells: list[str], start: int, towards: int, name: str, heads: str) -> None:
        """Draw a short arrow that leaves `start`; the rest of its way is drawn where it arrives."""
        if towards >= start:
            text = f"─{name}─{heads[0]}"
            cells[start + 1 : start + 1 + len(text)] = text
        else:
            text = f"{heads[1]}─{name}─"
            cells[start - len(text) : start] = text

    def _arrow(self, cells: list[str], start: int, end: int, name: str) -> None:
        """Draw the whole way from the sender's column to the receiver's."""
        if start == end:
            self._stub(cells, end, end, name, "◂◂")
            return
        low, high = min(start, end) + 1, max(start, end)
        way = [("┼" if cells[at] != " " else "╌") for at in range(low, high)]
        way[0 if end < start else -1] = "◂" if end < start else "▸"
        cells[low:high] = way
        middle = (start + 3 if start < end else start - 2 - len(name)) if high - low > 6 else low
        cells[middle : middle + len(name)] = name


def _abridged(rows: list[str]) -> list[str]:
    """Return all rows of a short history; of a longer one those near its ends, its cut and the marked rows."""
    if len(rows) <= 10 * _NEAR:
        return rows
    matters = [0, len(rows), *(number for number, row in enumerate(rows) if row.startswith(">") or "══" in row)]
    kept = sorted({at for number in matters for at in range(number - _NEAR, number + _NEAR) if 0 <= at < len(rows)})
    short = [rows[0]]
    for before, at in pairwise(kept):
        if at > before + 1:
            short.append(f"       ... {at - before - 1} rows ...")
        short.append(rows[at])
    return short
