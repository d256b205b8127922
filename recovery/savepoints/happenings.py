"""The history of a job, as far as its journal still tells it: starts, epochs, commits, going back, removals.

Invariant: nothing is guessed. Entries are told in their order; what a summary has taken the place of is told as
one line, and what came before that is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recovery.decisions.notes import from_json
from recovery.offline.job_tree import JobTree, NoSuchEpoch, UnusableEpoch
from snapshot.journal.entries import (
    Body,
    Claimed,
    Closed,
    Committed,
    Completed,
    Pinned,
    Pinner,
    Removed,
    Rewound,
    Unpinned,
)
from snapshot.journal.entry_json import decode_entry, decode_summary
from snapshot.journal.state import NO_OUTPUT, EpochRecord, JournalState
from snapshot.tree.layout import JOURNAL, JournalEntry, JournalSummary, parse, path_of
from statebackend.ids import Epoch
from statebackend.stores.store import BlobNotFound, StoreUnavailable

_LOOKS: Final = 20


@dataclass(frozen=True, slots=True)
class Happened:
    """One entry. `what` is said for people; `at` is in milliseconds since 1970, where the epoch's manifest is still
    there.

    `took_ms` is the time from the trigger of an epoch until it was complete in the slowest partition.
    """

    number: int
    kind: str
    what: str
    epoch: Epoch | None = None
    at: int | None = None
    took_ms: float | None = None


def history(tree: JobTree) -> tuple[Happened, ...]:
    """Return all that is still known, oldest first; the job may run.

    Raises `StoreUnavailable` if each summary that is listed is gone before it is read.
    """
    found, entries = _begun(tree)
    for number in entries:
        try:
            data = tree.store.read(path_of(JournalEntry(number)))
        except BlobNotFound:
            continue  # compacted while we read
        found.append(_told(tree, number, decode_entry(number, data).body))
    return tuple(found)


def _begun(tree: JobTree) -> tuple[list[Happened], list[int]]:
    """Return what the newest summary tells, and the numbers of the entries after it."""
    for _ in range(_LOOKS):
        places = [parse(info.path) for info in tree.store.list(JOURNAL)]
        floor = max((place.number for place in places if isinstance(place, JournalSummary)), default=0)
        entries = sorted(place.number for place in places if isinstance(place, JournalEntry) and place.number > floor)
        if not floor:
            return [], entries
        try:
            data = tree.store.read(path_of(JournalSummary(floor)))
        except BlobNotFound:
            continue  # compacted twice since it was listed, so there is a newer one
        return [Happened(floor, "summary", _summarised(decode_summary(floor, data)))], entries
    raise StoreUnavailable(f"{tree.uri}: the journal's summary is gone each time that it is to be read; try again")


def _summarised(state: JournalState) -> str:
    epochs = f"{len(state.epochs)} epochs, the newest {state.newest_complete}" if state.epochs else "no epoch"
    return f"generation {state.generation}, claimed by {state.driver}; {epochs}; what came before is forgotten"


def _told(tree: JobTree, number: int, body: Body) -> Happened:
    match body:
        case Claimed(generation, driver):
            return Happened(number, "started", f"generation {generation}, claimed by {driver}")
        case Completed(epoch, manifest, digest, has_committables):
            pending = ", with output to be committed" if has_committables else ""
            at, took = _of_manifest(tree, EpochRecord(epoch, manifest, digest, has_committables, NO_OUTPUT))
            return Happened(number, "completed", f"epoch {epoch}{pending}", epoch, at, took)
        case Committed(_, epoch):
            return Happened(number, "committed", f"all output up to epoch {epoch}", epoch)
        case Rewound(_, epoch):
            return Happened(number, "went back", f"to epoch {epoch}; later ones are given up", epoch)
        case Removed(_, epochs, files, manifests):
            named = ", ".join(map(str, epochs))
            return Happened(number, "removed", f"epochs {named}: {len(files) + len(manifests)} files", epochs[-1])
        case Pinned(pin, epoch, pinner):
            who = "as a savepoint" if pinner is Pinner.SAVEPOINT else f"by reader {pin}"
            return Happened(number, "pinned", f"epoch {epoch} {who}", epoch)
        case Unpinned(pin):
            return Happened(number, "unpinned", f"{pin}")
        case Closed(_, to):
            return Happened(number, "moved", f"to {to}; nothing follows here")


def _of_manifest(tree: JobTree, record: EpochRecord) -> tuple[int | None, float | None]:
    try:
        manifest = tree.manifest(record)
    except (UnusableEpoch, NoSuchEpoch):
        return None, None
    took = [part.since_trigger_ms for part in from_json(manifest.notes).took]
    return manifest.created_at, max(took, default=None)
