"""Reading the whole journal while others write to it and compact it.

Invariant: the state that is returned is the fold up to an entry that was the newest at some moment of the
read, so nothing is missed that was there before it began. Entries at or below a floor that appears meanwhile are not
trusted, as what was read there may be a late create of a paused writer: the summary says what counted. A journal with
entries beyond one that is missing is never taken for one that ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from snapshot.journal.entries import DamagedJournal
from snapshot.journal.entry_json import decode_entry, decode_summary
from snapshot.journal.machine import apply
from snapshot.journal.requests import (
    EntryRead,
    FloorRead,
    ReadEntry,
    ReadFloor,
    ReadSummary,
    SummaryRead,
    UnexpectedEvent,
)
from snapshot.journal.state import EMPTY, JournalState

_LOOKS: Final = 2
"""The number of times that an entry that is missing before others is looked for again."""


@dataclass(frozen=True, slots=True)
class JournalRead:
    """The content of the journal."""

    state: JournalState


ReadStep = ReadFloor | ReadSummary | ReadEntry | JournalRead


class _Phase(Enum):
    """The answer that is awaited."""

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
        self._listed: frozenset[int] = frozenset()
        self._doubts = 0

    def start(self) -> ReadStep:
        """Begin to read."""
        if self._phase is not _Phase.NEW:
            raise UnexpectedEvent("a journal reader was started twice; each reads once")
        return self._ask_floor()

    def handle(self, event: FloorRead | SummaryRead | EntryRead) -> ReadStep:
        """Take the answer to the last request."""
        match self._phase, event:
            case _Phase.FLOOR, FloorRead(floor=floor, entries=entries):
                self._listed = entries
                return self._load(floor) if self._has_moved(floor) else self._settle()
            case _Phase.SUMMARY, SummaryRead(data=data):
                return self._ask_floor() if data is None else self._begin_at(decode_summary(self._floor, data))
            case _Phase.ENTRIES, EntryRead(data=None):
                self._ended = True
                return self._ask_floor()
            case _Phase.ENTRIES, EntryRead(data=bytes() as data):
                self._after.append(data)
                self._doubts = 0
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
        """Read on until the journal ends, then return the fold of what was read, all of which counts."""
        if not self._ended:
            return self._ask_entry()
        beyond = [number for number in self._listed if number > self._next]
        if beyond:
            return self._ask_again(min(beyond))
        self._phase = _Phase.DONE
        state = self._base
        for data in self._after:
            state = apply(state, decode_entry(state.number + 1, data))
        return JournalRead(state)

    def _ask_again(self, found: int) -> ReadStep:
        """Ask again for an entry that is missing before one that is there: it was created since, or compacted, or lost.

        Entries are created in order, so a second look finds it, or a floor above it.
        """
        self._doubts += 1
        if self._doubts > _LOOKS:
            alone = found == self._next + 1
            missing = f"entry {self._next} is" if alone else f"entries {self._next} to {found - 1} are"
            raise DamagedJournal(f"journal {missing} missing, and entry {found} is there")
        self._ended = False
        return self._ask_entry()
