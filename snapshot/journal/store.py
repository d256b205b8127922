"""The journal in a blob store: here the journal's machines are carried out, and no rule of the protocol is decided.

Invariant: each request is made as the machine asked for it, and is answered by what the store said. A create
whose answer was lost is told to the machine as such, never as a success or a failure.
"""

from __future__ import annotations

from snapshot.journal.compaction import Compacted, JournalCompactor
from snapshot.journal.entries import Body, Nonce, UnderRepair
from snapshot.journal.reader import JournalRead, JournalReader
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
from snapshot.journal.state import JournalState
from snapshot.journal.writer import Fenced, Forgotten, JournalWriter, Outcome, Refused, Won
from snapshot.tree.layout import JOURNAL, REPAIR, JournalEntry, JournalSummary, parse, path_of
from statebackend import means
from statebackend.stores.patience import Patience, Trial
from statebackend.stores.store import BlobNotFound, BlobStore, Creation, UnknownOutcome


def fresh_nonce() -> Nonce:
    """Return a nonce that no proposal ever had: 128 random bits."""
    return Nonce(means.token_hex(16))


class StoredJournal:
    """The journal of the job whose tree is at the root of the store.

    Every call returns when its machine is done, and repeats what the store failed to do as long as `patience` says. It
    raises `StoreUnavailable` or `UnknownOutcome` when the store goes on failing, what the machines raise
    (`DamagedJournal`, `NewerJournal`), and `UnderRepair` while the journal is being replaced, so that no process writes
    to it then. It keeps nothing between calls, so threads may share it as they may the store.
    """

    def __init__(self, store: BlobStore, patience: Patience | None = None) -> None:
        self._store = store
        self._patience = patience or Patience()

    def read(self) -> JournalState:
        """Return what the journal said at some moment of this call. Writes nothing; a crash leaves no trace."""
        reader = JournalReader()
        step = reader.start()
        while not isinstance(step, JournalRead):
            step = reader.handle(self._read(step))
        return step.state

    def propose(self, writer: JournalWriter, nonce: Nonce, body: Body) -> Outcome:
        """Bring this into the journal, or learn why not. The nonce is fresh; the writer is the caller's generation's.

        After a crash or an error of the store, the proposal may be in the journal or not, or may yet get there. The
        writer cannot be used any more then: the driver stops, and the next start reads what counts.
        """
        doubts = self._patience.begin()
        step = writer.propose(nonce, body)
        while True:
            match step:
                case CreateEntry(number, data):
                    step = writer.handle(self._create(path_of(JournalEntry(number)), data, doubts))
                case ReadEntry() | ReadFloor() | ReadSummary():
                    step = writer.handle(self._read(step))
                case Won() | Fenced() | Refused() | Forgotten():
                    doubts.over()
                    return step

    def compact(self, state: JournalState, carried_out: int) -> None:
        """Let the journal begin at `state`, which was read or won; what removals up to `carried_out` name is deleted.

        A crash or an error at any point leaves a journal that says the same; the next compaction goes on.
        """
        doubts = self._patience.begin()
        compactor = JournalCompactor(state, carried_out)
        step = compactor.start()
        while True:
            match step:
                case ListJournal():
                    step = compactor.handle(self._list())
                case CreateSummary(floor, data):
                    step = compactor.handle(self._create(path_of(JournalSummary(floor)), data, doubts))
                case DeleteEntry(number):
                    step = compactor.handle(self._delete(path_of(JournalEntry(number))))
                case DeleteSummary(floor):
                    step = compactor.handle(self._delete(path_of(JournalSummary(floor))))
                case Compacted():
                    return

    def _create(self, path: str, data: bytes, doubts: Trial) -> CreateAnswer:
        """Create an object; `doubts` bounds how many answers may be lost in one call, as a store may never answer."""
        try:
            creation = self._patience.ask(lambda: self._store.create(path, data))
        except UnknownOutcome as error:
            doubts.wait(error)
            return OutcomeUnknown()
        doubts.over()
        return Created() if creation is Creation.CREATED else AlreadyThere()

    def _read(self, request: ReadEntry | ReadFloor | ReadSummary) -> EntryRead | FloorRead | SummaryRead:
        match request:
            case ReadEntry(number):
                return EntryRead(self._content(path_of(JournalEntry(number))))
            case ReadSummary(floor):
                return SummaryRead(self._content(path_of(JournalSummary(floor))))
            case ReadFloor():
                listed = self._list()
                return FloorRead(max(listed.floors, default=0), listed.entries)

    def _content(self, path: str) -> bytes | None:
        try:
            return self._patience.ask(lambda: self._store.read(path))
        except BlobNotFound:
            return None

    def _list(self) -> JournalListed:
        paths = [info.path for info in self._patience.ask(lambda: self._store.list(JOURNAL))]
        if REPAIR in paths:
            raise UnderRepair(f"{REPAIR}: a repair of the journal is under way, or was interrupted")
        places = list(map(parse, paths))
        return JournalListed(
            frozenset(place.number for place in places if isinstance(place, JournalEntry)),
            frozenset(place.number for place in places if isinstance(place, JournalSummary)),
        )

    def _delete(self, path: str) -> Deleted:
        self._patience.ask(lambda: self._store.delete(path))
        return Deleted()
