"""Nothing but the journal, under one schedule: drivers, pinners and compactors, late and crashing, on one store.

Invariant: whatever a driver is told of its entries is compared with what the store truly took, and all that is read
with what the journal truly said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from recovery.testing.journalling import AnyStep, JournalRun
from recovery.testing.requests import Answer, Requests
from recovery.testing.store import SimulatedStore
from recovery.testing.truth import JournalTruth
from recovery.testing.worker import STORE
from snapshot.journal.compaction import JournalCompactor
from snapshot.journal.entries import Body, Claimed, Completed, Nonce, PinId, Pinned, Pinner
from snapshot.journal.reader import JournalRead, JournalReader
from snapshot.journal.state import JournalState
from snapshot.journal.writer import Fenced, JournalWriter, Won
from snapshot.testing.faults import Faults
from snapshot.testing.history import Channel
from snapshot.testing.process import Acted, Action, Broken, Effect, Event, Process, Received, Save, Started
from snapshot.testing.schedule import Schedule
from snapshot.testing.simulation import Simulation
from statebackend.ids import Epoch, Generation

WRITERS = ("writer1", "writer2", "writer3")


def run(schedule: Schedule) -> JournalTruth:
    """Run one history. Raises `Violation` if the journal breaks a promise."""
    truth = JournalTruth()
    processes: dict[str, Callable[[], Process]] = {
        STORE: partial(SimulatedStore, truth.objects, truth, 0),
        **{name: partial(Scribe, name, truth) for name in WRITERS},
    }
    faults = Faults(
        crashes=2,
        losses=4,
        pauses=4,
        calms=4,
        crashable=WRITERS,
        pausable=WRITERS,
        lossy=[Channel(STORE, name) for name in WRITERS],
    )
    Simulation(processes, schedule, faults).run(fair_steps=2_000)
    return truth


class Scribe:
    """A process that reads the journal and then claims, publishes, pins or compacts, as the schedule says."""

    def __init__(self, name: str, truth: JournalTruth) -> None:
        self._name = name
        self._truth = truth
        self._effects: list[Effect] = []
        self._store = Requests(STORE, 0)
        self._boots = 0
        self._numbered = 0
        self._left = 6
        self._busy = False
        self._writer: JournalWriter | None = None
        self._generation = Generation(0)

    def handle(self, event: Event) -> Iterable[Effect]:
        """Begin something, or go on with an answer."""
        match event:
            case Started(saved):
                self._boots = saved if isinstance(saved, int) else 0
                self._store = Requests(STORE, self._boots * 1_000_000)
                self._effects.append(Save(self._boots + 1))
                self._read()
            case Acted(Action(argument=int() as late)):
                self._store.time_out(late)
            case Acted(action):
                self._left -= 1
                self._begin(action.name)
            case Received(_, Answer() as answer):
                self._store.answered(answer)
            case Broken():
                self._store.broken()
            case _:
                pass
        effects, self._effects[:] = list(self._effects), []
        return effects

    def actions(self) -> Sequence[Action]:
        """Return all that can be asked of a journal, if idle, and time-outs."""
        if not self._writer or not self._left or self._busy:
            return self._store.actions()
        names = ("publish", "claim", "pin", "compact") if self._generation else ("claim", "compact")
        return [*(Action(name, drain=False) for name in names), *self._store.actions()]

    def _read(self) -> None:
        since = self._truth.journal.number

        def done(result: object) -> None:
            assert isinstance(result, JournalRead)
            self._truth.read(result.state, since)
            self._writer = JournalWriter(result.state)
            self._busy = False

        self._busy = True
        reader = JournalReader()
        self._machine(reader.handle, done).carry_out(reader.start())

    def _begin(self, name: str) -> None:
        self._busy = True
        state = self._journal
        match name:
            case "compact":
                compactor = JournalCompactor(state, state.number)
                self._machine(compactor.handle, self._idle).carry_out(compactor.start())
            case "claim":
                self._propose(Claimed(Generation(state.generation + 1), self._name))
            case "pin":
                newest = state.newest_complete
                self._propose(Pinned(PinId(self._nonce()), newest, Pinner.READER))
            case _:
                epoch = Epoch(self._generation, state.newest_complete.number + 1)
                self._propose(Completed(epoch, f"epochs/{epoch}/manifest.json", "none:0", has_committables=False))

    def _propose(self, body: Body) -> None:
        assert self._writer is not None
        nonce = self._nonce()

        def done(outcome: object) -> None:
            self._idle(None)
            if isinstance(outcome, Won):
                self._truth.won(outcome.entry)
                if isinstance(body, Claimed):
                    self._generation = body.generation
            elif isinstance(outcome, Fenced):
                self._truth.lost(nonce)
                self._read()  # whoever is fenced knows nothing any more
            else:
                self._truth.lost(nonce)

        self._machine(self._writer.handle, done).carry_out(self._writer.propose(nonce, body))

    def _idle(self, _: object) -> None:
        self._busy = False

    def _nonce(self) -> Nonce:
        self._numbered += 1
        return Nonce(f"{self._name}x{self._boots}x{self._numbered}")

    @property
    def _journal(self) -> JournalState:
        assert self._writer is not None
        return self._writer.state

    def _machine(self, handle: Callable[..., AnyStep], done: Callable[[object], None]) -> JournalRun:
        return JournalRun(self._store, self._effects, handle, done)
