"""The journal as it truly is: what was created at each number first, even if it was deleted or created again since.

Invariant: an entry that is created at a number that was used before is void; no process may act on it. Every other
entry must be admissible where it stands, and summaries must say what the entries up to them said.
"""

from __future__ import annotations

from snapshot.journal.entries import Completed, Entry, JournalError, Nonce, Pinner, Removed
from snapshot.journal.entry_json import decode_entry, decode_summary
from snapshot.journal.machine import apply
from snapshot.journal.state import EMPTY, JournalState
from snapshot.testing.history import Violation
from snapshot.tree.layout import JournalEntry, JournalSummary, parse


class JournalTruth:
    """The truth that every driver, reader and compactor is held to."""

    def __init__(self) -> None:
        self.journal: JournalState = EMPTY
        self.objects: dict[str, object] = {}
        """The objects in the store."""
        self._missing: dict[str, object] = {}
        """Manifests of complete epochs that the store had and has no more; `repair` puts them back."""
        self.ever_lost: set[str] = set()
        self._entries: dict[int, Entry] = {}
        self._states: list[JournalState] = [EMPTY]

    def creating(self, path: str, data: object) -> None:
        """Record a journal entry or a summary that comes into being."""
        assert isinstance(data, bytes)
        place = parse(path)
        if isinstance(place, JournalSummary):
            self._summarised(place.number, data)
        elif isinstance(place, JournalEntry) and place.number > self.journal.number:
            self._entered(decode_entry(place.number, data))

    def _summarised(self, floor: int, data: bytes) -> None:
        if floor > self.journal.number or decode_summary(floor, data) != self._states[floor].summarised():
            raise Violation(f"the summary at {floor} does not say what the entries up to it said")

    def _entered(self, entry: Entry) -> None:
        if any(entry.nonce == earlier.nonce for earlier in self._entries.values()):
            raise Violation(f"one proposal is in the journal twice, the second time as {entry}")
        match entry.body:
            case Removed(epochs=epochs):
                self._check_removal(frozenset(epochs))
            case Completed(epoch=epoch) if epoch.generation != self.journal.generation:
                raise Violation(f"epoch {epoch} is published by a generation that is fenced")
            case _:
                pass
        try:
            self.journal = apply(self.journal, entry)
        except JournalError as error:
            raise Violation(f"the journal takes an entry that may not be written: {error}") from error
        self._entries[entry.number] = entry
        self._states.append(self.journal)

    def _check_removal(self, epochs: frozenset[object]) -> None:
        if epochs & self.journal.pinned:
            raise Violation(f"epochs {epochs} are removed, and {self.journal.pinned} are pinned")
        if self.journal.usable and self.journal.usable[-1].epoch in epochs:
            raise Violation("the newest complete epoch is removed")

    def lose(self) -> bool:
        """Lose the newest manifest of the job, through no process's fault; return False if there is none."""
        there = [record.manifest for record in self.journal.usable if record.manifest in self.objects]
        for path in there[-1:]:
            self._missing[path] = self.objects.pop(path)
            self.ever_lost.add(path)
        return bool(there)

    def has_savepoint(self, behind: int) -> bool:
        """True if there is a savepoint with so many newer epochs after it."""
        savepoints = [pin.epoch.number for pin in self.journal.pins if pin.pinner is Pinner.SAVEPOINT]
        return bool(savepoints) and max(savepoints) + behind <= self.journal.newest_usable.number

    def repair(self) -> None:
        """Put back whatever was lost, as a person does, as far as it still belongs to the job."""
        kept = {record.manifest for record in self.journal.retained}
        self.objects.update({path: data for path, data in self._missing.items() if path in kept})
        self._missing.clear()

    def writing(self, path: str, data: object, existing: object | None) -> None:
        """Check that an object that is written does not give an existing name another content."""
        if existing is not None and existing != data:
            raise Violation(f"{path} is overwritten")

    def deleting(self, path: str) -> None:
        """Check that a journal object that is deleted is one that a summary stands for."""
        place = parse(path)
        if isinstance(place, JournalEntry | JournalSummary):
            floors = [found.number for found in map(parse, self.objects) if isinstance(found, JournalSummary)]
            if place.number > max(floors, default=0):
                raise Violation(f"{path} is deleted, and no summary stands for it")

    def won(self, entry: Entry) -> None:
        """Check that an entry that a writer believes to be in the journal is there."""
        if self._entries.get(entry.number) != entry:
            truth = self._entries.get(entry.number)
            raise Violation(f"a writer believes that entry {entry.number} is {entry.body}, but it is {truth}")

    def lost(self, nonce: Nonce) -> None:
        """Check that an entry that a writer believes not to be in the journal is not there."""
        if any(entry.nonce == nonce for entry in self._entries.values()):
            raise Violation(f"a writer believes that its proposal {nonce} came to nothing, and it is in the journal")

    def read(self, state: JournalState, since: int) -> None:
        """Check that what a reader believes was the journal at some moment since entry `since` was the last."""
        if state.number < since:
            raise Violation(f"a reader missed entries {state.number + 1} to {since}")
        if state.number > self.journal.number or state.summarised() != self._states[state.number].summarised():
            raise Violation(f"a reader believes that the journal says {state} at entry {state.number}")
