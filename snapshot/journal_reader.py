"""Reading the whole journal while others write to it and compact it.

What always holds: the state that is returned is the fold up to an entry that was the newest at some moment of the
read, so nothing is missed that was there before it began. Entries at or below a floor that appears meanwhile are not
trusted, as what was read there may be a late create of a paused writer: the summary says what counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from snapshot.journal import apply
from snapshot.journal_json import decode_entry, decode_summary
from snapshot.journal_requests import (
    EntryRead,
    FloorRead,
    ReadEntry,
    ReadFloor,
    ReadSummary,
    SummaryRead,
    UnexpectedEvent,
)
from snapshot.journal_state import EMPTY, JournalState


@dataclass(frozen=True, slots=True)
class JournalRead:
    """What the journal says."""

    state: JournalState


ReadStep = ReadFloor | ReadSummary | ReadEntry | JournalRead


class _Phase(Enum):
    """Which answer is awaited."""

    NEW = auto()
    FLOOR = auto()
    SUMMARY = auto()
    ENTRIES = auto()
    DONE = auto()


class JournalReader:
    """Reads the journal once. It writes nothing, and may be dropped at any point.

    `start` and `handle` return the next request, or the result. `DamagedJournal` and `NewerJournal` name the entry
    or the summary that cannot be read.
    """

    def __init__(self) -> None:
        self._phase = _Phase.NEW
        self._base = EMPTY
        self._floor = 0
        self._after: list[bytes] = []
        self._ended = False

    def start(self) -> ReadStep:
        """Begin to read."""
        if self._phase is not _Phase.NEW:
            raise UnexpectedEvent("a journal reader was started twice; each reads once")
        return self._ask_floor()

    def handle(self, event: FloorRead | SummaryRead | EntryRead) -> ReadStep:
        """Take the answer to the last request."""
        match self._phase, event:
            case _Phase.FLOOR, FloorRead(floor=floor):
                return self._load(floor) if self._has_moved(floor) else self._settle()
            case _Phase.SUMMARY, SummaryRead(data=data):
                return self._ask_floor() if data is None else self._begin_at(decode_summary(self._floor, data))
            case _Phase.ENTRIES, EntryRead(data=None):
                self._ended = True
                return self._ask_floor()
            case _Phase.ENTRIES, EntryRead(data=bytes() as data):
                self._after.append(data)
                return self._ask_entry()
            case _:
                raise UnexpectedEvent(f"{event} while a journal reader is at {self._phase.name.lower()}")

    @property
    def _next(self) -> int:
        return self._base.number + len(self._after) + 1

    def _has_moved(self, floor: int) -> bool:
        return floor > self._base.number

    def _ask_floor(self) -> ReadStep:
        self._phase = _Phase.FLOOR
        return ReadFloor()

    def _load(self, floor: int) -> ReadStep:
        self._phase, self._floor = _Phase.SUMMARY, floor
        return ReadSummary(floor)

    def _ask_entry(self) -> ReadStep:
        self._phase = _Phase.ENTRIES
        return ReadEntry(self._next)

    def _begin_at(self, summary: JournalState) -> ReadStep:
        """Keep what was read beyond the floor: it counts, as the floor was asked for after it was read."""
        beyond = summary.number - self._base.number
        self._ended = self._ended and beyond <= len(self._after)
        self._base, self._after = summary, self._after[beyond:]
        return self._settle()

    def _settle(self) -> ReadStep:
        """All that was read counts; it is the whole if the read came to the end of the journal."""
        if not self._ended:
            return self._ask_entry()
        self._phase = _Phase.DONE
        state = self._base
        for data in self._after:
            state = apply(state, decode_entry(state.number + 1, data))
        return JournalRead(state)
