"""Writing to the journal: one proposal at a time, against any number of other writers and compactions.

Invariant: what a writer concludes rests only on entries that *count*. Whatever it has created or read at a
number counts if the floor, read afterwards, is below that number. For a compaction publishes its summary before it
deletes, so one who can create an old number again, or who finds there what such a one created, also finds the floor.
Only then is the entry folded, and only then is the next number tried or an outcome reported.

An answer that was lost is never taken for success or failure: the writer reads what is at the number, and creates
again if there is nothing. Its nonce tells it whether what it finds is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from snapshot.journal.entries import Body, Entry, JournalError, Nonce
from snapshot.journal.entry_json import decode_entry, decode_summary, encode_entry
from snapshot.journal.machine import Reason, Refusal, apply, refusal
from snapshot.journal.requests import (
    AlreadyThere,
    CreateAnswer,
    Created,
    CreateEntry,
    EntryRead,
    FloorRead,
    OutcomeUnknown,
    ReadEntry,
    ReadFloor,
    ReadSummary,
    SummaryRead,
    UnexpectedEvent,
)
from snapshot.journal.state import JournalState
from statebackend.ids import Generation


class BadProposal(JournalError):
    """A proposal while another is under way, or with a nonce that was used before: a bug in the caller."""


@dataclass(frozen=True, slots=True)
class Won:
    """The proposal is in the journal for good, at this number."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer generation has claimed the job: the proposal is not in the journal, and its generation must stop."""

    by: Generation


@dataclass(frozen=True, slots=True)
class Refused:
    """The proposal is not in the journal, as the newest entry of which the writer knows does not admit it."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Forgotten:
    """It cannot be told any more whether the proposal counted at this number: an error, not a success.

    More entries than a summary remembers nonces were written and compacted while the answer was outstanding. A pin
    is found in the state if it counted and is still there; a driver stops, and the job is started again.
    """

    number: int


Event = CreateAnswer | EntryRead | FloorRead | SummaryRead
Outcome = Won | Fenced | Refused | Forgotten
Step = CreateEntry | ReadEntry | ReadFloor | ReadSummary | Outcome


class _Phase(Enum):
    """The answer that is awaited."""

    IDLE = auto()
    CREATING = auto()
    LOOKING = auto()
    CHECKING = auto()
    LOADING = auto()


class JournalWriter:
    """Brings proposals into the journal, one after the other.

    `propose` and `handle` return the next request, or the outcome, after which the writer is free again. A writer that
    dies in between leaves its entry there or not; a later reader of the journal decides. An exception
    (`DamagedJournal`, `NewerJournal`) is final: the journal needs a person.

    A generation uses one writer for all that it writes.
    """

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._phase = _Phase.IDLE
        self._proposal: tuple[Nonce, Body] | None = None
        self._created = False
        self._found: Entry | bytes | None = None
        self._floor = 0

    @property
    def state(self) -> JournalState:
        """Return the fold of all entries that this writer knows to count; after `Won`, its own included."""
        return self._state

    def forget_removals(self, up_to: int) -> None:
        """Forget the removals up to this entry, which are carried out; no proposal may be under way.

        A summary at this entry or after it does not know them any more.
        """
        if self._proposal is not None:
            raise BadProposal(f"a proposal is under way, {self._proposal[1]}; removals are forgotten after its outcome")
        self._state = self._state.without_removals(up_to)

    def propose(self, nonce: Nonce, body: Body) -> Step:
        """Begin to bring this into the journal. The nonce is fresh: no proposal ever had it."""
        if self._proposal is not None:
            raise BadProposal(f"a proposal is under way, {self._proposal[1]}; {body} must wait for its outcome")
        if nonce in self._state.nonces:
            raise BadProposal(f"nonce {nonce} was used for entry {self._state.number_of(nonce)}; {body} needs its own")
        self._proposal = nonce, body
        self._created = False
        return self._try_next()

    def handle(self, event: Event) -> Step:
        """Take the answer to the last request."""
        match self._phase, event:
            case _Phase.CREATING, Created():
                self._found = self._entry
                return self._check()
            case _Phase.CREATING, AlreadyThere() | OutcomeUnknown():
                return self._look()
            case _Phase.LOOKING, EntryRead(data=data):
                self._found = data
                return self._check()
            case _Phase.CHECKING, FloorRead(floor=floor):
                return self._load(floor) if self._is_void(floor) else self._settle()
            case _Phase.LOADING, SummaryRead(data=data):
                return self._check() if data is None else self._resume(decode_summary(self._floor, data))
            case _:
                raise UnexpectedEvent(f"{event} while {self._phase.name.lower()} journal entry {self._next}")

    @property
    def _next(self) -> int:
        return self._state.number + 1

    @property
    def _entry(self) -> Entry:
        """Return the proposal as the entry at the number that is being tried."""
        assert self._proposal is not None
        nonce, body = self._proposal
        return Entry(self._next, nonce, body)

    def _try_next(self) -> Step:
        """Create at the next number, or see whether the journal goes on beyond what refuses the proposal."""
        entry = self._entry
        refused = refusal(self._state, entry.body)
        if refused is None:
            self._phase, self._created = _Phase.CREATING, True
            return CreateEntry(entry.number, encode_entry(entry))
        if refused.reason is Reason.FENCED:
            return self._end(Fenced(self._state.generation))
        return self._look()

    def _look(self) -> Step:
        self._phase = _Phase.LOOKING
        return ReadEntry(self._next)

    def _check(self) -> Step:
        """Ask for the floor, on which depends whether what was created or read counts."""
        self._phase = _Phase.CHECKING
        return ReadFloor()

    def _is_void(self, floor: int) -> bool:
        return floor >= self._next

    def _settle(self) -> Step:
        """Go on from what is at the number, which counts: our own entry, another writer's, or nothing yet."""
        if self._found is None:
            refused = refusal(self._state, self._entry.body)
            return self._try_next() if refused is None else self._end(Refused(refused))
        found = self._found if isinstance(self._found, Entry) else decode_entry(self._next, self._found)
        own = self._is_own(found)
        self._state = apply(self._state, found)
        self._created = False
        return self._end(Won(found)) if own else self._try_next()

    def _is_own(self, found: Entry) -> bool:
        return found == self._entry

    def _load(self, floor: int) -> Step:
        """Ask for the summary: what is at the number is void, and the summary knows what counted there."""
        self._phase, self._floor = _Phase.LOADING, floor
        return ReadSummary(floor)

    def _resume(self, summary: JournalState) -> Step:
        """Go on from the summary, unless our own entry counted before it was compacted."""
        tried, may_be_there = self._entry, self._created
        self._state, self._created = summary, False
        if tried.nonce in summary.nonces:
            return self._end(Won(tried))
        if may_be_there and not summary.remembers(tried.number):
            return self._end(Forgotten(tried.number))
        return self._try_next()

    def _end(self, outcome: Outcome) -> Outcome:
        self._phase, self._proposal, self._found = _Phase.IDLE, None, None
        return outcome
