"""The log of a folder of snapshots: what may follow on what, what may be deleted, and how it is written.

Invariant: entries are numbered, each is created once, on top of the one before, and says all that counts from
then on: the newest run, the snapshots that are kept, and the floor. So only the newest entry is read, besides those
that are snapshots themselves. A run is fenced by the entry with which the next one claims its generation: what
an older one wants to add after that is refused.

An entry at or below the floor may be gone, and a number there may be created again, by a process that slept: that is
void. Hence the creator of an entry reads the newest one before relying on it (see `counts`).

    log/0000000042.json                             an entry; of kind completed, it is a snapshot
    shared/<generation>-<partition>-<attempt>-<n>.sst   state
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from statebackend.errors import StoreError
from statebackend.files import FileSet, FileSetError, rescaled, union
from statebackend.ids import NO_EPOCH, Attempt, Epoch, Generation, Partition
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots.file_set_json import file_set_of, to_json
from statebackend.snapshots.sealed_json import Fields, NewerDocument, seal, unseal

LOG: Final = "log"
SHARED: Final = "shared"
FORMAT: Final = "epochcut.snapshot-folder"
VERSION: Final = 2
"""Version 1 has no notes."""

_NUMBER = r"(0|[1-9][0-9]*)"
_ENTRY = re.compile(LOG + r"/([0-9]{10})\.json")
_STATE = re.compile(SHARED + rf"/{_NUMBER}-{_NUMBER}-{_NUMBER}-{_NUMBER}\.sst")


class SnapshotFolderError(StoreError):
    """Something that a folder of snapshots does not do or cannot read; the message says which file, and what to do."""


class DamagedSnapshot(SnapshotFolderError):
    """An entry of the log is not as it was written, or gone."""


class NewerSnapshot(SnapshotFolderError):
    """A newer program has written to the folder."""


class ForeignSnapshot(SnapshotFolderError):
    """The folder belongs to another job."""


class NoSuchSnapshot(SnapshotFolderError):
    """There is no such snapshot: it was never complete, or it was removed."""


class FencedRun(SnapshotFolderError):
    """A newer run of the job has begun; this one has to stop."""


class RefusedSnapshot(SnapshotFolderError):
    """The parts are no snapshot that could follow on the newest one: a bug, or parts from elsewhere."""


@dataclass(frozen=True, slots=True)
class Part:
    """The contribution of one partition to a snapshot."""

    partition: Partition
    files: FileSet


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one operator over all its partitions, at an epoch."""

    job: str
    epoch: Epoch
    max_parallelism: int
    parts: tuple[Part, ...]
    note: str = ""
    """A text of the run that completed it, such as the number of the last batch that is in it."""

    def file_set(self, groups: KeyGroupRange) -> FileSet:
        """Return the files that a partition with these key groups starts from, at any parallelism (see `range_of`)."""
        return rescaled((part.files for part in self.parts), groups)

    @property
    def paths(self) -> frozenset[str]:
        """Return the paths of all files that it needs."""
        return frozenset(file.path for part in self.parts for file in part.files.files)


class Kind(Enum):
    """The change that an entry makes."""

    CLAIMED = "claimed"
    COMPLETED = "completed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Kept:
    """A complete snapshot that was not removed, and the entry that holds it."""

    epoch: Epoch
    number: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of the log from this number on. `parts`, and perhaps a `note`, are there if the entry is a snapshot."""

    job: str
    number: int
    nonce: str
    kind: Kind
    generation: Generation
    newest: Epoch
    max_parallelism: int
    floor: int
    kept: tuple[Kept, ...]
    parts: tuple[Part, ...] = ()
    note: str = ""

    def snapshot(self) -> Snapshot:
        """Return the snapshot that this entry completes."""
        return Snapshot(self.job, self.newest, self.max_parallelism, self.parts, self.note)


def nothing(job: str) -> Entry:
    """Return the entry that stands for an empty log."""
    return Entry(job, 0, "", Kind.REMOVED, Generation(0), NO_EPOCH, 0, 0, ())


# --- what may follow on what -----------------------------------------------------------------------------------------


def claimed(state: Entry, nonce: str) -> Entry:
    """Return the entry with which a new run begins, and fences all before it."""
    return replace(_next(state, nonce, Kind.CLAIMED), generation=Generation(state.generation + 1))


def completed(
    state: Entry, nonce: str, epoch: Epoch, parts: tuple[Part, ...], kept_paths: frozenset[str], note: str = ""
) -> Entry:
    """Return the entry that completes a snapshot. `kept_paths` are the files of all snapshots that the state keeps.

    A file of an earlier run has to be among these: any other may be deleted at any time.
    """
    if epoch.generation < state.generation:
        raise FencedRun(
            f"the snapshot of epoch {epoch} of {state.job} cannot be completed: run {state.generation} has begun since "
            f"run {epoch.generation}, which has to stop; what it had completed before can be restored"
        )
    if epoch.generation > state.generation or epoch.number <= state.newest.number:
        raise RefusedSnapshot(
            f"epoch {epoch} of {state.job} cannot be completed: run {state.generation} is the newest, and epoch "
            f"{state.newest} was completed last; expected a later number of that run"
        )
    whole = _whole(parts, epoch, state)
    for file in whole.files:
        made_by = generation_of(file.path)
        if made_by is None or made_by > epoch.generation:
            raise RefusedSnapshot(f"epoch {epoch} of {state.job} names {file.path}, which its run cannot have made")
        if made_by < epoch.generation and file.path not in kept_paths:
            raise RefusedSnapshot(
                f"epoch {epoch} of {state.job} names {file.path} of an earlier run, which no kept snapshot needs, so "
                f"it may be deleted; begin again from a snapshot that is kept"
            )
    entry = _next(state, nonce, Kind.COMPLETED)
    kept = (*state.kept, Kept(epoch, entry.number, nonce))
    return replace(entry, newest=epoch, max_parallelism=whole.range.end, kept=kept, parts=parts, note=note)


def removed(state: Entry, nonce: str, keep: int) -> Entry:
    """Return the entry by which only the `keep` newest snapshots stay, and all entries up to it may go."""
    if keep < 1:
        raise ValueError(f"cannot keep {keep} snapshots; the newest always stays")
    entry = _next(state, nonce, Kind.REMOVED)
    return replace(entry, floor=entry.number - 1, kept=state.kept[-keep:])


def counts(created: Entry, newest: Entry) -> bool:
    """True if an entry that was created is part of the log, by the newest entry of some moment after that.

    A snapshot that counted and was removed since is taken for one that did not: it can only have been by a newer run.
    """
    in_log = created.number > newest.floor or created.number == newest.number
    return in_log or any(kept.nonce == created.nonce for kept in newest.kept)


def garbage(
    state: Entry, stored: Iterable[str], kept_paths: frozenset[str], removed_paths: frozenset[str]
) -> list[str]:
    """Return the stored files that will never be needed again, the oldest first; below, why this stays true for good.

    A file that no kept snapshot names and that an earlier run has made: that run is fenced, so it completes nothing
    any more, and later ones may only name its files if a kept snapshot does. And a file that a removed snapshot named,
    if no kept one does: the newest run's file sets only go on from the newest snapshot, which is kept.
    """
    found = []
    for path in stored:
        match = _STATE.fullmatch(path)
        if match and path not in kept_paths and (int(match[1]) < state.generation or path in removed_paths):
            found.append((int(match[1]), int(match[3]), int(match[4]), path))
    return [path for *_, path in sorted(found)]


def _next(state: Entry, nonce: str, kind: Kind) -> Entry:
    return replace(state, number=state.number + 1, nonce=nonce, kind=kind, parts=(), note="")


def _whole(parts: tuple[Part, ...], epoch: Epoch, state: Entry) -> FileSet:
    """Join all parts; they must be a state of all key groups, as many as ever."""
    try:
        whole = union(part.files for part in parts)
    except FileSetError as error:
        raise RefusedSnapshot(f"the parts of epoch {epoch} of {state.job} do not fit together: {error}") from error
    if whole.range.first != 0 or whole.range.end != (state.max_parallelism or whole.range.end):
        raise RefusedSnapshot(
            f"the parts of epoch {epoch} of {state.job} hold key groups {whole.range}; expected all from 0 to "
            f"{state.max_parallelism or 'the maximum parallelism'}, which was fixed with the first snapshot"
        )
    return whole


# --- names -----------------------------------------------------------------------------------------------------------


def entry_path(number: int) -> str:
    """Return the path of an entry; names sort like numbers."""
    return f"{LOG}/{number:010}.json"


def entry_number(path: str) -> int | None:
    """Return the number of the entry at this path; None if the file is not ours."""
    match = _ENTRY.fullmatch(path)
    return int(match[1]) if match else None


def state_path(generation: Generation, partition: Partition, attempt: Attempt, number: int) -> str:
    """Return the path of a file of state."""
    return f"{SHARED}/{generation}-{partition}-{attempt}-{number}.sst"


def generation_of(path: str) -> Generation | None:
    """Return the run that made a file of state; None if the file is not ours."""
    match = _STATE.fullmatch(path)
    return Generation(int(match[1])) if match else None


# --- bytes -----------------------------------------------------------------------------------------------------------


def encode(entry: Entry) -> bytes:
    """Return the bytes that are stored at the entry's number."""
    content = {
        "job": entry.job,
        "number": entry.number,
        "nonce": entry.nonce,
        "kind": entry.kind.value,
        "generation": entry.generation,
        "newest": "" if entry.newest == NO_EPOCH else str(entry.newest),
        "max_parallelism": entry.max_parallelism,
        "floor": entry.floor,
        "kept": [{"epoch": str(kept.epoch), "number": kept.number, "nonce": kept.nonce} for kept in entry.kept],
        "parts": [{"partition": part.partition, "state": json.loads(to_json(part.files))} for part in entry.parts],
        "note": entry.note,
    }
    return seal(FORMAT, VERSION, content)


def decode(job: str, number: int, data: bytes) -> Entry:
    """Return the entry found at this number.

    Raise `DamagedSnapshot`, `NewerSnapshot` or `ForeignSnapshot` if it is none of ours.
    """
    where = entry_path(number)
    try:
        entry = _entry(unseal(data, FORMAT, VERSION))
    except NewerDocument as error:
        raise NewerSnapshot(
            f"{where} of {job} was written by a newer program: {error}; use a release of epochcut at least as new"
        ) from error
    except ValueError as error:
        raise DamagedSnapshot(f"{where} of {job} is damaged: {error}; {_BRING_BACK}") from error
    if entry.number != number:
        raise DamagedSnapshot(f"{where} of {job} is damaged: it says that it is entry {entry.number}; {_BRING_BACK}")
    if entry.job != job:
        raise ForeignSnapshot(
            f"{where} belongs to job {entry.job!r}, not to {job!r}; give every job a folder of its own"
        )
    return entry


_BRING_BACK: Final = "bring it back from a copy of the folder"


def missing(job: str, kept: Kept) -> DamagedSnapshot:
    """Return the error for a snapshot that is kept and yet gone."""
    return DamagedSnapshot(
        f"{entry_path(kept.number)} of {job} is missing: the log keeps epoch {kept.epoch}; {_BRING_BACK}"
    )


def _entry(fields: Fields) -> Entry:
    newest = fields.text("newest")
    entry = Entry(
        job=fields.text("job"),
        number=fields.count("number"),
        nonce=fields.text("nonce"),
        kind=Kind(fields.text("kind")),
        generation=Generation(fields.count("generation")),
        newest=Epoch.parse(newest) if newest else NO_EPOCH,
        max_parallelism=fields.count("max_parallelism"),
        floor=fields.count("floor"),
        kept=tuple(map(_kept, fields.objects("kept"))),
        parts=tuple(map(_part, fields.objects("parts"))),
        note=fields.text("note") if fields.version > 1 else "",
    )
    fields.close()
    return entry


def _kept(fields: Fields) -> Kept:
    kept = Kept(Epoch.parse(fields.text("epoch")), fields.count("number"), fields.text("nonce"))
    fields.close()
    return kept


def _part(fields: Fields) -> Part:
    part = Part(Partition(fields.count("partition")), file_set_of(fields.value("state")))
    fields.close()
    return part
