"""The journal's machines on the simulated store: their requests become messages, and lost answers unknown outcomes.

Invariant: a request that failed is made again, as the machines expect of their host; only a create is never
repeated unasked, since its outcome is then unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from recovery.testing.requests import Requests
from recovery.testing.store import Content, Create, Creation, Delete, Listing, Read
from snapshot.journal import requests as asked
from snapshot.journal.compaction import CompactionStep
from snapshot.journal.reader import ReadStep
from snapshot.journal.writer import Step
from snapshot.testing.process import Effect
from snapshot.tree.layout import JournalEntry, JournalSummary, parse, path_of

AnyStep = Step | ReadStep | CompactionStep


class JournalRun:
    """Drives one machine to its result: `handle` takes an answer and returns the next step, `done` the result."""

    def __init__(
        self,
        store: Requests,
        effects: list[Effect],
        handle: Callable[..., AnyStep],
        done: Callable[[object], None],
    ) -> None:
        self._store = store
        self._effects = effects
        self._handle = handle
        self._done = done

    def carry_out(self, step: AnyStep) -> None:
        """Do what a machine asks for, and go on with the answer."""
        match step:
            case asked.CreateEntry(number, data):
                self._ask(Create(path_of(JournalEntry(number)), data), _created)
            case asked.CreateSummary(floor, data):
                self._ask(Create(path_of(JournalSummary(floor)), data), _created)
            case asked.ReadEntry(number):
                self._ask_again(Read(path_of(JournalEntry(number))), lambda answer: asked.EntryRead(_data(answer)))
            case asked.ReadSummary(floor):
                self._ask_again(Read(path_of(JournalSummary(floor))), lambda answer: asked.SummaryRead(_data(answer)))
            case asked.ReadFloor():
                self._ask_again(Listing("journal/"), lambda a: _floor(_listed(a)))
            case asked.ListJournal():
                self._ask_again(Listing("journal/"), _listed)
            case asked.DeleteEntry(number):
                self._ask_again(Delete(path_of(JournalEntry(number))), lambda _: asked.Deleted())
            case asked.DeleteSummary(floor):
                self._ask_again(Delete(path_of(JournalSummary(floor))), lambda _: asked.Deleted())
            case _:
                self._done(step)

    def _ask(self, request: object, event: Callable[[object | None], object]) -> None:
        def answered(answer: object | None) -> None:
            self.carry_out(self._handle(event(answer)))

        self._effects.append(self._store.ask(request, answered))

    def _ask_again(self, request: object, event: Callable[[object], object]) -> None:
        def answered(answer: object | None) -> None:
            if answer is None:
                self._ask_again(request, event)
            else:
                self.carry_out(self._handle(event(answer)))

        self._effects.append(self._store.ask(request, answered))


def _floor(listed: asked.JournalListed) -> asked.FloorRead:
    return asked.FloorRead(max(listed.floors, default=0), listed.entries)


def _data(answer: object) -> bytes | None:
    assert isinstance(answer, Content)
    assert answer.data is None or isinstance(answer.data, bytes)
    return answer.data


def _listed(answer: object) -> asked.JournalListed:
    assert isinstance(answer, Listing)
    places = [parse(path) for path in answer.paths]
    return asked.JournalListed(
        frozenset(place.number for place in places if isinstance(place, JournalEntry)),
        frozenset(place.number for place in places if isinstance(place, JournalSummary)),
    )


def _created(answer: object | None) -> asked.CreateAnswer:
    match answer:
        case Creation.CREATED:
            return asked.Created()
        case Creation.EXISTED:
            return asked.AlreadyThere()
        case _:
            return asked.OutcomeUnknown()
