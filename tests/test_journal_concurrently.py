"""The journal under concurrency: drivers, pinners, readers and compactors, late and crashing, over one store.

A string of bytes decides who moves, which answers are lost, which creates arrive late and who dies. The world knows
the true history: an entry is true if it was created at a number that was never used, and void if the number was used
before. Whatever the machines report is compared with that. Then the machines are broken, one rule at a time, and the
same search has to find each out.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.journal.compaction import Compacted, CompactionStep, JournalCompactor
from snapshot.journal.entries import (
    Body,
    Claimed,
    Committed,
    Completed,
    Entry,
    JournalError,
    Nonce,
    PinId,
    Pinned,
    Pinner,
    Removed,
    Unpinned,
)
from snapshot.journal.entry_json import decode_entry, encode_summary
from snapshot.journal.machine import apply
from snapshot.journal.reader import JournalRead, JournalReader, ReadStep
from snapshot.journal.requests import (
    AlreadyThere,
    CreateAnswer,
    Created,
    CreateEntry,
    CreateSummary,
    Deleted,
    DeleteEntry,
    DeleteSummary,
    EntryRead,
    FloorRead,
    JournalListed,
    ListJournal,
    OutcomeUnknown,
    ReadEntry,
    ReadFloor,
    ReadSummary,
    SummaryRead,
)
from snapshot.journal.state import EMPTY, JournalState
from snapshot.journal.writer import Event as WriterEvent
from snapshot.journal.writer import Fenced, Forgotten, JournalWriter, Outcome, Refused, Step, Won
from statebackend.ids import Epoch, Generation

Request = CreateEntry | CreateSummary | ReadEntry | ReadFloor | ReadSummary | ListJournal | DeleteEntry | DeleteSummary
Answer = CreateAnswer | EntryRead | FloorRead | SummaryRead | JournalListed | Deleted
Result = TypeVar("Result")

LONGEST = 5_000
"""So many moves bring everybody to an end who is alone."""
Script = Generator[Request, Answer, Result]


class Violation(Exception):
    """The journal did what it must never do."""


@dataclass(frozen=True)
class Kit:
    """The machines under test."""

    writer: type[JournalWriter] = JournalWriter
    reader: type[JournalReader] = JournalReader
    compactor: type[JournalCompactor] = JournalCompactor


@dataclass
class World:
    """The store, and the truth."""

    choices: Iterator[int]
    kit: Kit
    entries: dict[int, bytes] = field(default_factory=dict)
    summaries: dict[int, bytes] = field(default_factory=dict)
    history: list[Entry] = field(default_factory=list)
    folds: list[JournalState] = field(default_factory=lambda: [EMPTY])
    late: list[CreateEntry | CreateSummary] = field(default_factory=list)
    void: int = 0
    outcomes: list[tuple[Nonce, Outcome]] = field(default_factory=list)
    closing: bool = False
    names: int = 0

    def choose(self, options: int) -> int:
        """One of so many; the first when the bytes have run out."""
        return next(self.choices, 0) % options

    def fresh(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def create(self, request: CreateEntry | CreateSummary) -> CreateAnswer:
        if isinstance(request, CreateSummary):
            if request.floor in self.summaries:
                return AlreadyThere()
            self.summaries[request.floor] = request.data
            if request.floor >= len(self.folds) or request.data != encode_summary(self.folds[request.floor]):
                raise Violation(f"summary {request.floor} is not the fold of the entries up to it")
            return Created()
        if request.number in self.entries:
            return AlreadyThere()
        self.entries[request.number] = request.data
        if request.number <= len(self.history):
            self.void += 1
        else:
            self.append(decode_entry(request.number, request.data))
        return Created()

    def append(self, entry: Entry) -> None:
        if any(entry.nonce == other.nonce for other in self.history):
            raise Violation(f"{entry} is in the history twice")
        self.folds.append(apply(self.folds[-1], entry))
        self.history.append(entry)

    def serve(self, request: Request) -> Answer:
        match request:
            case CreateEntry() | CreateSummary():
                return self.create_or_worse(request)
            case ReadEntry(number=number):
                return EntryRead(self.entries.get(number))
            case ReadFloor():
                return FloorRead(max(self.summaries, default=0), frozenset(self.entries))
            case ReadSummary(floor=floor):
                return SummaryRead(self.summaries.get(floor))
            case ListJournal():
                return JournalListed(frozenset(self.entries), frozenset(self.summaries))
            case DeleteEntry(number=number):
                self.entries.pop(number, None)
                return Deleted()
            case DeleteSummary(floor=floor):
                self.summaries.pop(floor, None)
                return Deleted()

    def create_or_worse(self, request: CreateEntry | CreateSummary) -> CreateAnswer:
        match self.choose(8):
            case 5:
                self.create(request)
                return OutcomeUnknown()
            case 6:
                return OutcomeUnknown()
            case 7:
                self.late.append(request)
                return OutcomeUnknown()
            case _:
                return self.create(request)

    def check(self, nonce: Nonce, outcome: Outcome, state: JournalState) -> None:
        self.outcomes.append((nonce, outcome))
        if isinstance(outcome, Won) and outcome.entry not in self.history:
            raise Violation(f"{outcome} is not in the history")
        self.check_state(state)

    def check_state(self, state: JournalState) -> None:
        if state.number >= len(self.folds) or state.summarised() != self.folds[state.number].summarised():
            raise Violation(f"at entry {state.number} the history does not say {state}")

    def check_end(self) -> None:
        written = {entry.nonce for entry in self.history}
        for nonce, outcome in self.outcomes:
            if isinstance(outcome, Refused | Fenced) and nonce in written:
                raise Violation(f"{nonce} is in the history, and its writer was told {outcome}")


# --- what the actors do


def read(world: World) -> Script[JournalState]:
    newest = len(world.history)
    reader = world.kit.reader()
    step: ReadStep = reader.start()
    while not isinstance(step, JournalRead):
        answer = yield step
        assert isinstance(answer, FloorRead | SummaryRead | EntryRead)
        step = reader.handle(answer)
    if step.state.number < newest:
        raise Violation(f"a reader missed entries {step.state.number + 1} to {newest}")
    world.check_state(step.state)
    return step.state


def propose(world: World, writer: JournalWriter, body: Body) -> Script[Outcome]:
    nonce = Nonce(world.fresh())
    step: Step = writer.propose(nonce, body)
    while not isinstance(step, Won | Fenced | Refused | Forgotten):
        answer = yield step
        assert isinstance(answer, WriterEvent)
        step = writer.handle(answer)
    world.check(nonce, step, writer.state)
    return step


def compact(world: World, state: JournalState) -> Script[None]:
    compactor = world.kit.compactor(state, carried_out=state.number)
    step: CompactionStep = compactor.start()
    while not isinstance(step, Compacted):
        answer = yield step
        assert isinstance(answer, CreateAnswer | JournalListed | Deleted)
        step = compactor.handle(answer)


def drive(world: World) -> Script[None]:
    """A start of the job: claim a generation, and go on in its name until it is fenced."""
    state = yield from read(world)
    writer = world.kit.writer(state)
    while True:
        generation = Generation(writer.state.generation + 1)
        outcome = yield from propose(world, writer, Claimed(generation, "driver"))
        if isinstance(outcome, Won):
            break
    while not world.closing:
        if world.choose(5) == 4:
            yield from compact(world, writer.state)
            continue
        outcome = yield from propose(world, writer, driver_body(world, writer.state, generation))
        if isinstance(outcome, Fenced | Forgotten):
            return


def driver_body(world: World, state: JournalState, generation: Generation) -> Body:
    kind = world.choose(4)
    if kind == 1 and state.usable:
        return Committed(generation, state.usable[-1].epoch)
    if kind == 2 and state.retained:
        oldest = state.retained[0]
        return Removed(generation, (oldest.epoch,), (), (oldest.manifest,))
    epoch = Epoch(generation, state.newest_complete.number + 1)
    return Completed(epoch, f"epochs/{epoch}-x/manifest.json", "sha256:00", world.choose(2) == 1)


def visit(world: World) -> Script[None]:
    """Somebody from outside: reads, pins, unpins, compacts."""
    state = yield from read(world)
    if world.choose(3) == 2:
        yield from compact(world, state)
    if not state.usable or world.choose(2) == 1:
        return
    writer = world.kit.writer(state)
    pin = PinId(world.fresh())
    outcome = yield from propose(world, writer, Pinned(pin, state.usable[0].epoch, Pinner.READER))
    if isinstance(outcome, Won):
        yield from propose(world, writer, Unpinned(pin))


ROLES = (drive, drive, visit, visit)


class Actor:
    """One process at a time of a role; when it is over or dies, the next one starts."""

    def __init__(self, world: World, role: int) -> None:
        self.world, self.role = world, role
        self.begin()

    def begin(self) -> None:
        self.script = ROLES[self.role](self.world)
        self.request: Request | None = next(self.script, None)

    def move(self) -> None:
        if self.request is None:
            self.begin()
            return
        answer = self.world.serve(self.request)
        try:
            self.request = self.script.send(answer)
        except StopIteration:
            self.request = None


def explore(data: bytes, kit: Kit) -> World:
    """Run the schedule that the bytes describe; `Violation`, or an error of the journal, if it goes wrong."""
    world = World(iter(data), kit)
    actors = [Actor(world, role) for role in range(len(ROLES))]
    for choice in world.choices:
        actor = actors[choice % len(actors)]
        match choice // len(actors) % 16:
            case 0:
                actor.begin()
            case 1 if world.late:
                world.create(world.late.pop(world.choose(len(world.late))))
            case moves:
                for _ in range(moves):
                    actor.move()
    settle(world, actors)
    world.check_end()
    return world


def settle(world: World, actors: list[Actor]) -> None:
    """No more faults: everybody ends what he has begun, and what was late arrives."""
    world.closing = True
    for actor in actors:
        for _ in range(LONGEST):
            if actor.request is None:
                break
            actor.move()
        else:
            raise Violation("somebody never comes to an end, though nothing is in his way")
    for request in world.late:
        world.create(request)
    final = Actor(world, ROLES.index(visit))
    while final.request is not None:
        final.move()


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(st.binary(max_size=600))
def test_whatever_is_reported_is_what_the_history_says(data: bytes) -> None:
    explore(data, Kit())


def test_random_schedules_reach_what_is_hard_and_nothing_goes_wrong() -> None:
    worlds = [explore(random.Random(seed).randbytes(600), Kit()) for seed in range(60)]
    outcomes = [type(outcome) for world in worlds for _, outcome in world.outcomes]
    assert sum(world.void for world in worlds) > 50, "creates of numbers that were compacted away"
    assert all(outcomes.count(kind) > 50 for kind in (Won, Fenced, Refused))


def test_a_writer_that_was_left_far_behind_is_told_nothing_rather_than_something_false(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snapshot.journal.machine.NONCES_KEPT", 2)
    worlds = [explore(random.Random(seed).randbytes(600), Kit()) for seed in range(30)]
    outcomes = [type(outcome) for world in worlds for _, outcome in world.outcomes]
    assert outcomes.count(Forgotten) > 10


# --- machines with one rule broken


class IgnoresTheFloor(JournalWriter):
    def _is_void(self, floor: int) -> bool:
        return False


class DoesNotKnowItsOwnEntry(JournalWriter):
    def _is_own(self, found: Entry) -> bool:
        return False


class TakesUnknownForSuccess(JournalWriter):
    def handle(self, event: WriterEvent) -> Step:
        return super().handle(Created() if isinstance(event, OutcomeUnknown) else event)


class TrustsWhatItCollidesWith(JournalWriter):
    def _check(self) -> Step:
        return self._settle() if isinstance(self._found, bytes) else super()._check()


class DoesNotLookIntoTheSummary(JournalWriter):
    def _resume(self, summary: JournalState) -> Step:
        self._state = summary
        return self._try_next()


class AsksTheFloorOnce(JournalReader):
    def _has_moved(self, floor: int) -> bool:
        return super()._has_moved(floor) and not self._ended


class TrustsWhatItHasRead(JournalReader):
    def _has_moved(self, floor: int) -> bool:
        return floor > self._base.number + len(self._after)


class DeletesFirst(JournalCompactor):
    def _summarise(self) -> CompactionStep:
        return self._delete()

    def _delete(self) -> CompactionStep:
        summary = self._summary
        if self._deletions or summary is None:
            return super()._delete()
        self._summary = None
        return summary


class TakesUnknownForWritten(JournalCompactor):
    def handle(self, event: JournalListed | CreateAnswer | Deleted) -> CompactionStep:
        return super().handle(Created() if isinstance(event, OutcomeUnknown) else event)


MUTANTS = [
    Kit(writer=IgnoresTheFloor),
    Kit(writer=DoesNotKnowItsOwnEntry),
    Kit(writer=TakesUnknownForSuccess),
    Kit(writer=TrustsWhatItCollidesWith),
    Kit(writer=DoesNotLookIntoTheSummary),
    Kit(reader=AsksTheFloorOnce),
    Kit(reader=TrustsWhatItHasRead),
    Kit(compactor=DeletesFirst),
    Kit(compactor=TakesUnknownForWritten),
]


def name_of(kit: Kit) -> str:
    return next(m.__name__ for m in (kit.writer, kit.reader, kit.compactor) if m.__module__ == __name__)


@pytest.mark.parametrize("kit", MUTANTS, ids=name_of)
def test_each_broken_rule_is_found_out(kit: Kit) -> None:
    for seed in range(20_000):
        try:
            explore(random.Random(seed).randbytes(600), kit)
        except (Violation, JournalError):
            return
    pytest.fail("the search has not found the fault")
