"""The content of the journal, as a fold over its entries, and the entries that may follow.

Invariant: a `JournalState` is the fold of entries 1 to `number`, each of which was admissible where it stands.
So only the newest generation completes, commits and removes; epochs complete in rising order; what is pinned,
uncommitted or newest is never removed; and nothing follows once the job was moved away.

The fold is the same whether it began at the first entry or at a summary, but for what was removed; and the same entries
may follow. Of removed epochs it remembers how many had output (`JournalState.output_after`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from snapshot.journal.entries import (
    Body,
    Claimed,
    Closed,
    Committed,
    Completed,
    DamagedJournal,
    Entry,
    PinId,
    Pinned,
    Removed,
    Rewound,
    Unpinned,
    writer_of,
)
from snapshot.journal.state import NO_OUTPUT, NONCES_KEPT, EpochRecord, EpochState, JournalState, Pin, Removal
from statebackend.ids import Epoch, Generation


class Reason(Enum):
    """The reason why an entry may not follow."""

    FENCED = "fenced"
    GENERATION_TAKEN = "generation taken"
    NOT_CLAIMED = "not claimed"
    EPOCH_NOT_RISING = "epoch not rising"
    NO_SUCH_EPOCH = "no such epoch"
    ALREADY_COMMITTED = "already committed"
    NOT_COMMITTED = "not committed"
    NEWEST_EPOCH = "newest epoch"
    PINNED = "pinned"
    OTHER_MANIFESTS = "other manifests"
    PIN_TAKEN = "pin taken"
    NO_SUCH_PIN = "no such pin"
    NOTHING_TO_DO = "nothing to do"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of an entry, for the program and for the person who reads it."""

    reason: Reason
    text: str


def apply(state: JournalState, entry: Entry) -> JournalState:
    """Return the state after one more entry; `DamagedJournal` if no honest writer could have written it there."""
    if entry.number != state.number + 1:
        raise DamagedJournal(f"journal entry {entry.number} cannot follow entry {state.number}")
    if entry.nonce in state.nonces:
        raise DamagedJournal(
            f"journal entry {entry.number} has the nonce {entry.nonce} of entry {state.number_of(entry.nonce)}"
        )
    refused = refusal(state, entry.body)
    if refused is not None:
        raise DamagedJournal(
            f"journal entry {entry.number} ({type(entry.body).__name__.lower()}) may not stand there: {refused.text}; "
            "a program other than epochcut has written to the journal, or deleted from it"
        )
    nonces = (*state.nonces, entry.nonce)[-NONCES_KEPT:]
    return replace(_with_body(state, entry), number=entry.number, nonces=nonces)


def _with_body(state: JournalState, entry: Entry) -> JournalState:
    match entry.body:
        case Claimed(generation=generation, driver=driver):
            return replace(state, generation=generation, driver=driver)
        case Completed(epoch=epoch, manifest=manifest, digest=digest, has_committables=has_committables):
            output = state.output.and_of(epoch) if entry.body.adds_output else state.output
            record = EpochRecord(epoch, manifest, digest, has_committables, output)
            epochs = (*state.epochs, record)
            return replace(state, epochs=epochs, newest_complete=epoch, made_elsewhere=NO_OUTPUT)
        case Committed(epoch=epoch):
            return _moved(state, frozenset(r.epoch for r in state.usable if r.epoch <= epoch), EpochState.COMMITTED)
        case Rewound(to=to):
            given_up = frozenset(record.epoch for record in state.usable if record.epoch > to)
            return replace(_moved(state, given_up, EpochState.GIVEN_UP), made_elsewhere=NO_OUTPUT)
        case Removed(epochs=epochs, files=files, manifests=manifests):
            removal = Removal(entry.number, epochs, files, manifests)
            moved = _moved(state, frozenset(epochs), EpochState.REMOVED)
            return replace(moved, removals=(*state.removals, removal))
        case Pinned(pin=pin, epoch=epoch, pinner=pinner):
            return replace(state, pins=(*state.pins, Pin(pin, epoch, pinner)))
        case Unpinned(pin=pin):
            return replace(state, pins=tuple(other for other in state.pins if other.pin != pin))
        case Closed(to=to):
            return replace(state, moved_to=to)


def folded(state: JournalState, entry: Entry) -> JournalState:
    """Return the state after an entry that is known to have counted, though entries before it are lost: for repairs."""
    return replace(_with_body(state, entry), number=entry.number)


def _moved(state: JournalState, epochs: frozenset[Epoch], to: EpochState) -> JournalState:
    records = (replace(record, state=to) if record.epoch in epochs else record for record in state.epochs)
    return replace(state, epochs=tuple(records))


def refusal(state: JournalState, body: Body) -> Refusal | None:
    """Return why this may not be the next entry after `state`; None if it may."""
    writer = writer_of(body)
    if writer is not None and writer != state.generation:
        if writer > state.generation:
            return Refusal(Reason.NOT_CLAIMED, f"generation {writer} was never claimed; {state.generation} is newest")
        return Refusal(Reason.FENCED, f"generation {writer} is fenced by {state.generation} at {state.driver!r}")
    if state.moved_to:
        return Refusal(Reason.CLOSED, f"the job goes on at {state.moved_to}, and here nothing follows any more")
    match body:
        case Claimed(generation=generation):
            return _refusal_of_claim(state, generation)
        case Completed(epoch=epoch):
            return _refusal_of_completion(state, epoch)
        case Committed(epoch=epoch):
            return _refusal_of_commit(state, epoch)
        case Rewound(to=to):
            return _refusal_of_rewind(state, to)
        case Removed():
            return _refusal_of_removal(state, body)
        case Pinned(pin=pin, epoch=epoch):
            return _refusal_of_pin(state, pin, epoch)
        case Unpinned(pin=pin):
            if all(other.pin != pin for other in state.pins):
                return Refusal(Reason.NO_SUCH_PIN, f"there is no pin {pin}")
            return None
        case Closed():
            return None


def _refusal_of_claim(state: JournalState, generation: Generation) -> Refusal | None:
    if generation <= state.generation:
        return Refusal(Reason.GENERATION_TAKEN, f"generation {generation} is taken; {state.generation} is newest")
    if generation != state.generation + 1:
        return Refusal(Reason.NOT_CLAIMED, f"generation {generation} skips some; {state.generation} is newest")
    return None


def _refusal_of_completion(state: JournalState, epoch: Epoch) -> Refusal | None:
    if epoch.number <= state.newest_complete.number:
        newest = state.newest_complete
        return Refusal(Reason.EPOCH_NOT_RISING, f"epoch {epoch} cannot complete; {newest} is complete already")
    return None


def _refusal_of_commit(state: JournalState, epoch: Epoch) -> Refusal | None:
    record = _usable(state, epoch)
    if record is None:
        return _no_such_epoch(state, epoch)
    if record.state is EpochState.COMMITTED:
        return Refusal(Reason.ALREADY_COMMITTED, f"epoch {epoch} is committed already")
    return None


def _refusal_of_rewind(state: JournalState, to: Epoch) -> Refusal | None:
    if _usable(state, to) is None:
        return _no_such_epoch(state, to)
    if all(record.epoch <= to for record in state.usable) and not state.made_elsewhere.epochs:
        return Refusal(Reason.NOTHING_TO_DO, f"epoch {to} is the newest already; there is nothing to give up")
    return None


def _refusal_of_removal(state: JournalState, body: Removed) -> Refusal | None:
    if not body.epochs or len(set(body.epochs)) < len(body.epochs):
        return Refusal(Reason.NOTHING_TO_DO, "a removal names at least one epoch, and each once")
    retained = {record.epoch: record for record in state.retained}
    for epoch in body.epochs:
        record = retained.get(epoch)
        if record is None:
            return _no_such_epoch(state, epoch)
        refused = _refusal_to_remove(state, record)
        if refused is not None:
            return refused
    if set(body.manifests) != {retained[epoch].manifest for epoch in body.epochs}:
        return Refusal(Reason.OTHER_MANIFESTS, "a removal names the manifests of its epochs, and no others")
    return None


def _refusal_to_remove(state: JournalState, record: EpochRecord) -> Refusal | None:
    if record.awaits_commit:
        return Refusal(Reason.NOT_COMMITTED, f"epoch {record.epoch} is not committed")
    if record.epoch in state.pinned:
        return Refusal(Reason.PINNED, f"epoch {record.epoch} is pinned")
    if record == state.usable[-1]:
        return Refusal(Reason.NEWEST_EPOCH, f"epoch {record.epoch} is the newest that the job can come back to")
    return None


def _refusal_of_pin(state: JournalState, pin: PinId, epoch: Epoch) -> Refusal | None:
    if any(other.pin == pin for other in state.pins):
        return Refusal(Reason.PIN_TAKEN, f"there is a pin {pin} already")
    return None if _usable(state, epoch) else _no_such_epoch(state, epoch)


def _usable(state: JournalState, epoch: Epoch) -> EpochRecord | None:
    return next((record for record in state.usable if record.epoch == epoch), None)


def _no_such_epoch(state: JournalState, epoch: Epoch) -> Refusal:
    listed = ", ".join(str(record.epoch) for record in state.usable) or "none"
    return Refusal(Reason.NO_SUCH_EPOCH, f"epoch {epoch} cannot be had; complete and not removed: {listed}")
