"""Keeping the journal short: a summary takes the place of the entries up to its floor.

Invariant: the summary is there before the first entry at or below its floor is deleted, and a higher floor never goes
away. A summary is a function of the entries up to its floor alone, so compactors that do not know of each other, late
ones among them, write the same or an older one, which no reader looks at beside a newer one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from snapshot.journal.entry_json import encode_summary
from snapshot.journal.requests import (
    AlreadyThere,
    CreateAnswer,
    Created,
    CreateSummary,
    Deleted,
    DeleteEntry,
    DeleteSummary,
    JournalListed,
    ListJournal,
    OutcomeUnknown,
    UnexpectedEvent,
)
from snapshot.journal.state import JournalState

Deletion = DeleteEntry | DeleteSummary


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """First the summary, if a new one is due, and only when it is surely there the deletions, in this order."""

    summary: CreateSummary | None
    deletions: tuple[Deletion, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The compaction is done."""


CompactionStep = ListJournal | CreateSummary | Deletion | Compacted


def plan_compaction(state: JournalState, carried_out: int, listed: JournalListed) -> CompactionPlan:
    """Plan the compaction after which the journal begins at `state`, which is a fold of entries that count.

    `carried_out`: everything that removals up to this entry name is deleted. A summary forgets removals, so none is
    written while later ones are outstanding; what an earlier summary has made superfluous goes all the same: entries
    oldest first, with what paused writers created late among them, then summaries but for the newest two. The second is
    kept for readers that have just found it.
    """
    outstanding = any(removal.number > carried_out for removal in state.removals)
    newest = max(listed.floors, default=0)
    due = state.number > newest and not outstanding
    floor = state.number if due else newest
    superseded = sorted(listed.floors - {floor})[:-1]
    entries = tuple(DeleteEntry(number) for number in sorted(listed.entries) if number <= floor)
    summaries = tuple(DeleteSummary(old) for old in superseded)
    return CompactionPlan(CreateSummary(floor, encode_summary(state)) if due else None, entries + summaries)


class _Phase(Enum):
    """The answer that is awaited."""

    NEW = auto()
    LISTING = auto()
    SUMMARISING = auto()
    DELETING = auto()
    DONE = auto()


class JournalCompactor:
    """Carries out one compaction. A crash at any point leaves a journal that says the same; the next one goes on."""

    def __init__(self, state: JournalState, carried_out: int) -> None:
        self._state = state
        self._carried_out = carried_out
        self._phase = _Phase.NEW
        self._summary: CreateSummary | None = None
        self._deletions: deque[Deletion] = deque()

    def start(self) -> CompactionStep:
        """Begin to compact."""
        if self._phase is not _Phase.NEW:
            raise UnexpectedEvent("a journal compactor was started twice; each compacts once")
        self._phase = _Phase.LISTING
        return ListJournal()

    def handle(self, event: JournalListed | CreateAnswer | Deleted) -> CompactionStep:
        """Take the answer to the last request."""
        match self._phase, event:
            case _Phase.LISTING, JournalListed():
                plan = plan_compaction(self._state, self._carried_out, event)
                self._summary, self._deletions = plan.summary, deque(plan.deletions)
                return self._summarise()
            case _Phase.SUMMARISING, OutcomeUnknown():
                return self._summarise()
            case (_Phase.SUMMARISING, Created() | AlreadyThere()) | (_Phase.DELETING, Deleted()):
                return self._delete()
            case _:
                raise UnexpectedEvent(f"{event} while a journal compactor is {self._phase.name.lower()}")

    def _summarise(self) -> CompactionStep:
        if self._summary is None:
            return self._delete()
        self._phase = _Phase.SUMMARISING
        return self._summary

    def _delete(self) -> CompactionStep:
        if self._deletions:
            self._phase = _Phase.DELETING
            return self._deletions.popleft()
        self._phase = _Phase.DONE
        return Compacted()
