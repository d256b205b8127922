"""Processes beside a running job that do not ask its driver: a reader that pins an epoch, a clean-up, and a disaster.

Invariant: a reader reads only what it has pinned before, and the clean-up deletes only what the
classification allows, having read the journal first and listed the tree last. A disaster takes manifests alone, which
a person can put back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from recovery.decisions.cleanup import EpochFiles, Fate, ObservedTree, classify
from recovery.testing.journalling import AnyStep, JournalRun
from recovery.testing.requests import Answer, Requests
from recovery.testing.store import Content, Delete, Listing, Read
from recovery.testing.truth import JournalTruth
from recovery.testing.worker import STORE
from snapshot.journal.entries import Body, Nonce, PinId, Pinned, Pinner, Unpinned
from snapshot.journal.reader import JournalRead, JournalReader
from snapshot.journal.state import JournalState
from snapshot.journal.writer import JournalWriter, Won
from snapshot.testing.history import Violation
from snapshot.testing.process import Acted, Action, Broken, Effect, Event, Received
from snapshot.tree.manifest_json import decode
from statebackend.ids import Epoch


class Bystander(ABC):
    """A process that reads the journal when the schedule says so, `turns` times at most, and goes on from there."""

    def __init__(self, name: str, truth: JournalTruth, turns: int) -> None:
        self._name = name
        self._truth = truth
        self._turns = turns
        self._busy = False
        self._effects: list[Effect] = []
        self._pending: deque[Callable[[], None]] = deque()
        self._store = Requests(STORE, 0)

    def handle(self, event: Event) -> Iterable[Effect]:
        """Begin, or go on with an answer."""
        match event:
            case Acted(Action("begin")):
                self._turns -= 1
                self._busy = True
                self._read_journal(self._go_on)
            case Acted(Action("read on")):
                self._pending.popleft()()
            case Acted(Action(argument=int() as late)):
                self._store.time_out(late)
            case Received(_, Answer() as answer):
                self._store.answered(answer)
            case Broken():
                self._store.broken()
            case _:
                pass
        effects, self._effects[:] = list(self._effects), []
        return effects

    def actions(self) -> Sequence[Action]:
        """Return what it may do: begin, if idle, or go on, which it does in its own time, and time-outs."""
        begin = [Action("begin", drain=False)] if self._turns and not self._busy else []
        on = [Action("read on")] if self._pending else []
        return [*begin, *on, *self._store.actions()]

    @abstractmethod
    def _go_on(self, state: JournalState) -> None:
        """Do with the journal what this process is for, then call `_done`."""

    def _done(self) -> None:
        self._busy = False

    def _read_journal(self, then: Callable[[JournalState], None]) -> None:
        reader, since = JournalReader(), self._truth.journal.number

        def done(result: object) -> None:
            assert isinstance(result, JournalRead)
            self._truth.read(result.state, since)
            then(result.state)

        self._machine(reader.handle, done).carry_out(reader.start())

    def _machine(self, handle: Callable[..., AnyStep], done: Callable[[object], None]) -> JournalRun:
        return JournalRun(self._store, self._effects, handle, done)

    def _ask(self, request: object, then: Callable[[object], None]) -> None:
        """Ask, when the schedule lets this process go on, until there is an answer."""

        def answered(answer: object | None) -> None:
            if answer is None:
                self._ask(request, then)
            else:
                then(answer)

        self._pending.append(lambda: self._effects.append(self._store.ask(request, answered)))


class Reader(Bystander):
    """Pins the newest epoch, reads all of it, and lets it go."""

    def _go_on(self, state: JournalState) -> None:
        if not state.usable:
            self._turns += 1
            self._done()
            return
        record = state.usable[-1]
        writer, pin = JournalWriter(state), PinId(f"{self._name}-{self._turns}")

        def pinned(outcome: object) -> None:
            if isinstance(outcome, Won):
                self._truth.won(outcome.entry)
                self._read_manifest(record.manifest, record.epoch, unpin)
            else:
                self._done()  # the epoch went away before it was pinned

        def unpin() -> None:
            self._propose(writer, Unpinned(pin), unpinned)

        def unpinned(outcome: object) -> None:
            assert isinstance(outcome, Won)
            self._done()

        self._propose(writer, Pinned(pin, record.epoch, Pinner.READER), pinned)

    def _propose(self, writer: JournalWriter, body: Body, then: Callable[[object], None]) -> None:
        nonce = Nonce(f"{self._name}x{self._turns}x{type(body).__name__}")
        self._machine(writer.handle, then).carry_out(writer.propose(nonce, body))

    def _read_manifest(self, path: str, epoch: Epoch, then: Callable[[], None]) -> None:
        def answered(answer: object) -> None:
            if answer == Content(None) and path in self._truth.ever_lost:
                then()
                return
            data = self._found(answer, path, epoch)
            assert isinstance(data, bytes)
            self._read_files(sorted(decode(data, path).references()), epoch, then)

        self._ask(Read(path), answered)

    def _read_files(self, paths: list[str], epoch: Epoch, then: Callable[[], None]) -> None:
        if not paths:
            then()
            return

        def answered(answer: object) -> None:
            self._found(answer, paths[0], epoch)
            self._read_files(paths[1:], epoch, then)

        self._ask(Read(paths[0]), answered)

    def _found(self, answer: object, path: str, epoch: Epoch) -> object:
        assert isinstance(answer, Content)
        if answer.data is None:
            raise Violation(f"{self._name} has pinned epoch {epoch}, and {path} is not there")
        return answer.data


class Disaster:
    """Takes the newest manifests away, one for each of `turns` at most."""

    def __init__(self, truth: JournalTruth, turns: int) -> None:
        self._truth = truth
        self._turns = turns

    def handle(self, event: Event) -> Iterable[Effect]:
        """Strike, if there is anything to take."""
        if isinstance(event, Acted) and self._truth.lose():
            self._turns -= 1
        return []

    def actions(self) -> Sequence[Action]:
        """Return the strike, if one may come."""
        return [Action("lose a manifest", drain=False)] if self._turns else []


class Janitor(Bystander):
    """Cleans up from outside: whatever the removals name, and what fenced generations have left behind."""

    def _go_on(self, state: JournalState) -> None:
        self._look_at(state, [])

    def _look_at(self, state: JournalState, known: list[EpochFiles]) -> None:
        if len(known) == len(state.retained):
            self._ask(Listing(""), lambda listed: self._classify(state, known, listed))
            return
        record = state.retained[len(known)]

        def answered(answer: object) -> None:
            assert isinstance(answer, Content)
            files = decode(answer.data, record.manifest).references() if isinstance(answer.data, bytes) else None
            self._look_at(state, [*known, EpochFiles(record.epoch, files)])

        self._ask(Read(record.manifest), answered)

    def _classify(self, state: JournalState, known: list[EpochFiles], listed: object) -> None:
        assert isinstance(listed, Listing)
        fates = classify(ObservedTree(state, tuple(known), listed.paths))
        self._delete([*fates.of(Fate.REMOVABLE), *fates.of(Fate.ORPHANED)])

    def _delete(self, paths: list[str]) -> None:
        if paths:
            self._ask(Delete(paths[0]), lambda _: self._delete(paths[1:]))
        else:
            self._done()
