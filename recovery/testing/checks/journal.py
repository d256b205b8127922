"""The journal as it truly is: what was created at each number first, even if it was deleted or created again since.

Invariant: an entry that is created at a number that was used before is void; no process may act on it. Every other
entry must be admissible where it stands, and summaries must say what the entries up to them said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from snapshot.journal.entries import Completed, Entry, JournalError, Nonce, Removed
from snapshot.journal.entry_json import decode_entry, decode_summary
from snapshot.journal.machine import apply
from snapshot.journal.state import EMPTY, JournalState
from snapshot.testing.history import Violation
from snapshot.tree.layout import JournalEntry, JournalSummary, parse


class JournalTruth:
    """The truth that every driver, reader and compactor is held to."""

    def __init__(self) -> None:
        self.state: JournalState = EMPTY
        self.entries: dict[int, Entry] = {}
        self._states: list[JournalState] = [EMPTY]

    def creating(self, path: str, data: bytes, there: Collection[str]) -> Entry | None:
        """Take an object that comes into being, where `there` is all there is.

        Return the entry that it is, unless it is none, or is void.
        """
        place = parse(path)
        if isinstance(place, JournalSummary):
            self._summarised(place.number, data, there)
        elif isinstance(place, JournalEntry) and place.number > self.state.number:
            return self._entered(decode_entry(place.number, data))
        return None

    def _summarised(self, floor: int, data: bytes, there: Collection[str]) -> None:
        if floor > self.state.number or decode_summary(floor, data) != self._states[floor].summarised():
            raise Violation(f"the summary at {floor} does not say what the entries up to it said")
        removals = self._states[floor].removals
        left = [path for removal in removals for path in (*removal.files, *removal.manifests) if path in there]
        if left:
            raise Violation(f"the summary at {floor} forgets that {left} are to be deleted")

    def _entered(self, entry: Entry) -> Entry:
        if any(entry.nonce == earlier.nonce for earlier in self.entries.values()):
            raise Violation(f"one proposal is in the journal twice, the second time as {entry}")
        match entry.body:
            case Removed(epochs=epochs):
                self._check_removal(frozenset(epochs))
            case Completed(epoch=epoch) if epoch.generation != self.state.generation:
                raise Violation(f"epoch {epoch} is published by a generation that is fenced")
            case _:
                pass
        try:
            self.state = apply(self.state, entry)
        except JournalError as error:
            raise Violation(f"the journal takes an entry that may not be written: {error}") from error
        self.entries[entry.number] = entry
        self._states.append(self.state)
        return entry

    def _check_removal(self, epochs: frozenset[object]) -> None:
        if epochs & self.state.pinned:
            raise Violation(f"epochs {epochs} are removed, and {self.state.pinned} are pinned")
        if self.state.usable and self.state.usable[-1].epoch in epochs:
            raise Violation("the newest complete epoch is removed")

    def deleting(self, path: str, there: Iterable[str]) -> None:
        """Check that a journal object that is deleted is one that a summary stands for; `there` is all there is."""
        place = parse(path)
        if isinstance(place, JournalEntry | JournalSummary):
            floors = [found.number for found in map(parse, there) if isinstance(found, JournalSummary)]
            if place.number > max(floors, default=0):
                raise Violation(f"{path} is deleted, and no summary stands for it")

    def won(self, entry: Entry) -> None:
        """Check that an entry that a writer believes to be in the journal is there."""
        truth = self.entries.get(entry.number)
        if truth != entry:
            raise Violation(f"a writer believes that entry {entry.number} is {entry.body}, but it is {truth}")

    def lost(self, nonce: Nonce) -> None:
        """Check that an entry that a writer believes not to be in the journal is not there."""
        if any(entry.nonce == nonce for entry in self.entries.values()):
            raise Violation(f"a writer believes that its proposal {nonce} came to nothing, and it is in the journal")

    def read(self, state: JournalState, since: int) -> None:
        """Check that what a reader believes was the journal at some moment since entry `since` was the last."""
        if state.number < since:
            raise Violation(f"a reader missed entries {state.number + 1} to {since}")
        if state.number > self.state.number or state.summarised() != self._states[state.number].summarised():
            raise Violation(f"a reader believes that the journal says {state} at entry {state.number}")
