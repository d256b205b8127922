"""Decide which files of a job's tree may be deleted, and when: by the journal, the references and a listing.

Invariant: no file is deleted that a retained epoch, a pin, or an epoch in flight or its base refers to, nor
one whose owner may still be about to refer to it. What an epoch leaves behind is named in a `Removed` entry before
the first of it is deleted, so a clean-up that dies is taken up by the next; deleting twice does no harm.

An epoch in flight may be acknowledged with any file of its base, also when later epochs have completed meanwhile. So
nothing from the oldest base on is removed.

An orphan needs no entry, because it stays one. An attempt is over when its generation is fenced, or when the driver has
rolled back, which waits for the publication under way: no epoch of it completes any more. A later attempt refers to
its own files, and to those of the epoch that it was restored from, which was retained. So a file of an attempt that is
over, to which no retained epoch refers, is never referred to again, whichever driver goes on and whatever it decides;
it may be deleted at any later time, and again if a process that wakes up late uploads it once more.

An attempt that runs leaves orphans as well: in-flight data of an epoch that was given up, a base that a newer one
has replaced before any epoch named it, files of a rewriting that failed half-way. A partition says with each epoch from
which number on it may name files anew later (`NamedFrom`). Once that epoch is complete, every later one names, below
that number, only files of this epoch; so a file below it to which no retained epoch refers is an orphan. Rows that wait
in the tree for their commit are not judged by it, as when they are named is the sink's affair.

The driver looks for orphans when an attempt runs, never while one is awaited, so no recovery waits for it. Looking
takes at most a twentieth of the time. A process that was taken for lost may wake up at any time and finish an upload,
so the driver looks again, ever less often, for as long as it has the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from snapshot.ids import numbered_from, replica_of
from snapshot.journal.entries import Removed
from snapshot.journal.state import JournalState
from snapshot.tree.layout import Content, EndNoted, JournalEntry, JournalSummary, ManifestFile, SharedFile, parse
from statebackend.errors import StoreError
from statebackend.ids import Epoch, Generation, Incarnation, Partition


class CleanupError(StoreError):
    """The observed facts contradict each other or are not enough, so that nothing may be deleted."""


@dataclass(frozen=True, slots=True)
class EpochFiles:
    """All files that the manifest of a retained epoch refers to; None if it cannot be read."""

    epoch: Epoch
    files: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class InFlight:
    """An epoch under way: the complete epoch it builds on, if any, and what has been acknowledged for it."""

    epoch: Epoch
    base: Epoch | None
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NamedFrom:
    """The lowest number of files that epochs after a complete one may name anew, for each partition of its attempt."""

    incarnation: Incarnation
    numbers: Mapping[Partition, int]

    def is_passed(self, file: SharedFile) -> bool:
        """True if no epoch after the complete one names this file, unless that one does.

        Replicas of a partition number their files apart, and only one of them has spoken.
        """
        if file.incarnation != self.incarnation or file.content not in _NUMBERED:
            return False
        number = self.numbers.get(file.partition, 0)
        return number - 1 >= file.number >= numbered_from(replica_of(number - 1))


_NUMBERED: Final = frozenset({Content.STATE, Content.CHANNEL, Content.BROADCAST})


@dataclass(frozen=True, slots=True)
class ObservedTree:
    """The observed tree: first the journal was read, then the manifests of its retained epochs, then the listing.

    `found` are the paths of all objects in the tree. Only the driver knows what is in flight, which attempt is the
    present one, and from where on it names files; from outside, `in_flight` is empty and the others are None. The epoch
    that `named_from` speaks of is complete in the journal.
    """

    journal: JournalState
    references: tuple[EpochFiles, ...]
    found: tuple[str, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    attempt: Incarnation | None = None
    named_from: NamedFrom | None = None


class Fate(Enum):
    """The fate of an object; only what is removable or orphaned is ever deleted."""

    NEEDED = "referred to, or part of the journal, which compaction alone shortens"
    REMOVABLE = "named by a removal"
    ORPHANED = "left by attempts that are over, or uploaded in vain; no epoch can name them"
    IN_FLIGHT_POSSIBLE = "of the current generation: its driver alone knows"
    UNEXPLAINED = "left likewise, but perhaps of an epoch whose manifest cannot be read"
    FOREIGN = "not ours"


@dataclass(frozen=True, slots=True)
class Classified:
    """An object, and what becomes of it."""

    path: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class Classification:
    """The fate of every object found."""

    objects: tuple[Classified, ...]

    def of(self, fate: Fate) -> tuple[str, ...]:
        """Return the paths with this fate; removable ones come in the order in which they are to be deleted."""
        return tuple(item.path for item in self.objects if item.fate is fate)


def classify(observed: ObservedTree) -> Classification:
    """Decide on every object before the first is deleted. `CleanupError` if the references are not complete."""
    needed = _needed(observed)
    named = _named_by_removals(observed.journal)
    unreadable = any(known.files is None for known in observed.references)
    ordered = sorted(observed.found, key=lambda path: (named.get(path, -1), path))
    leftover = Fate.UNEXPLAINED if unreadable else Fate.ORPHANED
    fates = (_fate(path, needed, named, observed, leftover) for path in ordered)
    return Classification(tuple(map(Classified, ordered, fates)))


def _fate(path: str, needed: frozenset[str], named: Mapping[str, int], observed: ObservedTree, leftover: Fate) -> Fate:
    match parse(path):
        case None:
            return Fate.FOREIGN
        case JournalEntry() | JournalSummary() | EndNoted():
            return Fate.NEEDED
        case (ManifestFile() | SharedFile()) as item:
            if path in needed:
                return Fate.NEEDED
            if path in named:
                return Fate.REMOVABLE
            return leftover if _is_over(item, observed) else Fate.IN_FLIGHT_POSSIBLE


def _is_over(item: ManifestFile | SharedFile, observed: ObservedTree) -> bool:
    """True if no epoch that completes from now on can refer to it, unless a retained one does."""
    generation = observed.journal.generation
    match item:
        case ManifestFile(epoch):
            # Epochs complete in rising order of their numbers, and each publication writes a manifest of its own.
            return epoch.generation < generation or epoch.number <= observed.journal.newest_complete.number
        case SharedFile(incarnation):
            present, named_from = observed.attempt, observed.named_from
            if incarnation.generation < generation or (present is not None and incarnation < present):
                return True
            return named_from is not None and named_from.is_passed(item)


def removable_epochs(state: JournalState, retain: int, oldest_base_in_flight: Epoch | None) -> tuple[Epoch, ...]:
    """Return the epochs that the retention lets go, oldest first.

    Kept are the newest `retain` that the job can come back to, at least one; what is pinned; what has output that
    is not committed; and everything from the oldest base of an epoch in flight on.
    """
    if retain < 1:
        raise ValueError(f"a job retains at least one complete epoch, not {retain}")
    kept = {record.epoch for record in state.usable[-retain:]} | state.pinned
    return tuple(
        record.epoch
        for record in state.retained
        if record.epoch not in kept
        and not record.awaits_commit
        and (oldest_base_in_flight is None or record.epoch < oldest_base_in_flight)
    )


def plan_removal(observed: ObservedTree, by: Generation, retain: int) -> Removed | None:
    """Return what the driver proposes to the journal; None if nothing is to be removed, or nothing can be now.

    Only when the entry is won may the files that it names be deleted; they are then classified as `REMOVABLE`. While an
    epoch that stays cannot be read, nothing is removed, as it is not known which files it shares.
    """
    bases = [in_flight.base for in_flight in observed.in_flight if in_flight.base is not None]
    epochs = removable_epochs(observed.journal, retain, min(bases, default=None))
    references = _references(observed)
    if not epochs or any(files is None for epoch, files in references.items() if epoch not in epochs):
        return None
    kept = _union(files for epoch, files in references.items() if epoch not in epochs)
    kept |= _union(in_flight.files for in_flight in observed.in_flight)
    doomed = [path for epoch in epochs for path in sorted((references[epoch] or frozenset()) - kept)]
    manifests = (record.manifest for record in observed.journal.retained if record.epoch in epochs)
    return Removed(by, epochs, tuple(dict.fromkeys(doomed)), tuple(manifests))


def _needed(observed: ObservedTree) -> frozenset[str]:
    manifests = frozenset(record.manifest for record in observed.journal.retained)
    in_flight = _union(item.files for item in observed.in_flight)
    return manifests | in_flight | _union(_references(observed).values())


def _references(observed: ObservedTree) -> dict[Epoch, frozenset[str] | None]:
    """Return the files of each retained epoch, oldest first; `CleanupError` if one of them was not looked at."""
    known = {item.epoch: item.files for item in observed.references}
    retained = [record.epoch for record in observed.journal.retained]
    for epoch in retained:
        if epoch not in known:
            raise CleanupError(f"epoch {epoch} is retained, and its manifest was not read")
    for item in observed.in_flight:
        if item.base is not None and item.base not in retained:
            raise CleanupError(f"epoch {item.epoch} is in flight on {item.base}, which the journal does not retain")
    return {epoch: known[epoch] for epoch in retained}


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str]:
    return frozenset().union(*(files for files in sets if files is not None))


def _named_by_removals(state: JournalState) -> dict[str, int]:
    """Return the paths that removals name, each with its place: files before manifests, as the journal has them."""
    paths = [path for removal in state.removals for path in (*removal.files, *removal.manifests)]
    return {path: place for place, path in enumerate(paths)}


_PAUSES: Final = (1.0, 10.0, 60.0, 600.0, 3600.0)
"""Seconds from the moment in which an attempt runs to the first look, from that to the second, and so on."""
_SHARE: Final = 20


class Sweeps:
    """Takes what happens, with the time in seconds, and says when to look next."""

    def __init__(self) -> None:
        self._runs = False
        self._began: float | None = None
        self._wanted = inf
        self._not_before = -inf
        self._done = 0
        """The number of times that the driver has looked since an attempt began to run."""

    @property
    def due(self) -> float | None:
        """Return when to begin; None if something else has to happen before."""
        due = max(self._wanted, self._not_before)
        return due if self._runs and self._began is None and due < inf else None

    def attempt_runs(self, now: float) -> None:
        """Note that all partitions are restored: what the attempts before left may be looked for."""
        self._runs, self._done = True, 0
        self._wanted = min(self._wanted, now + _PAUSES[0])

    def attempt_over(self) -> None:
        """Note that the attempt is over, and a recovery begins."""
        self._runs = False

    def began(self, now: float) -> None:
        """Note that the driver begins to look."""
        self._began, self._wanted = now, inf

    def ended(self, now: float) -> None:
        """Note that the driver has looked, and has deleted what it found, or failed to."""
        if self._began is None:
            raise ValueError("nothing was begun that could end")
        self._not_before = now + _SHARE * (now - self._began)
        self._began = None
        if self._wanted == inf:  # else another attempt runs by now
            self._done += 1
            self._wanted = now + _PAUSES[min(self._done, len(_PAUSES) - 1)]
