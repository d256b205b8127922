"""A job's tree as it is found: its journal, its epochs, and their manifests, read and never written.

Invariant: a manifest that is given is the one that the journal names, byte by byte; what cannot be used is
named with its reason, and nothing takes its place unless the caller asked for that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from recovery.driver.tree.evidence import examine
from recovery.driver.tree.identity import Birth, find_birth
from snapshot.host.protocol.options import use_storage
from snapshot.journal.entries import Pinner
from snapshot.journal.state import EpochRecord, EpochState, JournalState
from snapshot.journal.store import StoredJournal
from snapshot.tree.layout import ASIDE, EPOCHS, JOB, JOURNAL, MOVED, UNFINISHED
from snapshot.tree.manifest import DamagedManifest, ForeignJob, Manifest, NewerManifest, check_job
from snapshot.tree.manifest_json import decode, digest
from statebackend.errors import SavepointError
from statebackend.ids import Epoch
from statebackend.stores.fsspec_store import absolute
from statebackend.stores.limited_store import find_limited
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobNotFound, BlobStore

_SECONDS: Final = 60.0
_PATIENCE: Final = 10.0

NEWEST: Final = "newest"
NEWEST_SAVEPOINT: Final = "newest-savepoint"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")
_LEFT: Final = re.compile(
    rf"((?:(?!{ASIDE}/)[^/]+/)*)(?:{JOURNAL}/(?:summary-)?[0-9]{{10}}|{EPOCHS}/[0-9]+-[0-9]+-[0-9a-z]+/manifest)\.json"
)


class NoSuchEpoch(SavepointError, ValueError):
    """The job has no such epoch, or has it no more; the message lists those that it has."""


class UnusableEpoch(SavepointError):
    """The epoch is complete, but its manifest cannot be used; the message says which one, and why."""

    def __init__(self, epoch: Epoch, reason: str) -> None:
        super().__init__(f"epoch {epoch} cannot be used: {reason}")
        self.epoch, self.reason = epoch, reason


@dataclass(frozen=True, slots=True)
class FoundEpoch:
    """An epoch that can be read. `passed_over` are newer ones that were meant and cannot be, newest first."""

    record: EpochRecord
    manifest: Manifest
    passed_over: tuple[UnusableEpoch, ...] = ()


class JobTree:
    """The tree of a job at one moment; `look_again` brings it to the present. Threads may share it."""

    def __init__(
        self, uri: str, store: BlobStore, birth: Birth, state: JournalState, doubtful: tuple[Epoch, ...] = ()
    ) -> None:
        """`doubtful` are epochs that have a manifest and no entry; see `recovery.decisions.losses`."""
        self.doubtful = doubtful
        self.uri = uri
        self.store = store
        self.birth = birth
        self.state = state

    def look_again(self) -> JobTree:
        """Return the same tree as it is now."""
        return JobTree(self.uri, self.store, self.birth, journal_of(self.store).read())

    @property
    def is_older_copy(self) -> bool:
        """True if the job has made output after this copy of it, and making it again is not yet accepted."""
        return self.state.made_elsewhere.epochs > 0

    @property
    def savepoints(self) -> frozenset[Epoch]:
        """Return the epochs that are pinned as savepoints."""
        return frozenset(pin.epoch for pin in self.state.pins if pin.pinner is Pinner.SAVEPOINT)

    def record(self, which: str = NEWEST, *, given_up: bool = False) -> EpochRecord:
        """Return the epoch that is named: `newest`, `newest-savepoint`, `17-2`, or `17` alone.

        `NoSuchEpoch` if there is none, if it was removed, or, unless it may be `given_up`, if the job gave it up when
        it went back.
        """
        usable = self.state.usable
        if which == NEWEST:
            found = usable[-1:]
        elif which == NEWEST_SAVEPOINT:
            found = tuple(record for record in usable if record.epoch in self.savepoints)[-1:]
        elif _NUMBER.fullmatch(which):
            found = tuple(record for record in self.state.epochs if record.epoch.number == int(which))[-1:]
        else:
            epoch = _parsed(which)
            found = tuple(record for record in self.state.epochs if record.epoch == epoch)
        if not found:
            raise NoSuchEpoch(f"{self.uri}: job {self.birth.job} has no epoch {which!r}; {self._listed()}")
        if not found[0].usable and not (given_up and found[0].state is EpochState.GIVEN_UP):
            what = "was removed" if found[0].state is EpochState.REMOVED else "was given up when the job went back"
            raise NoSuchEpoch(f"{self.uri}: epoch {found[0].epoch} of job {self.birth.job} {what}; {self._listed()}")
        return found[0]

    def manifest(self, record: EpochRecord) -> Manifest:
        """Return the epoch's manifest; `UnusableEpoch` if it is missing, damaged, newer, or not the one journalled."""
        epoch = record.epoch
        try:
            data = Patience(_PATIENCE).ask(lambda: self.store.read(record.manifest))
            manifest = decode(data, record.manifest)
            check_job(manifest, self.birth.job, record.manifest)
        except BlobNotFound as error:
            now = self.look_again()
            if all(one.epoch != epoch or one.state is EpochState.REMOVED for one in now.state.epochs):
                raise NoSuchEpoch(f"{self.uri}: epoch {epoch} was removed just now; {now._listed()}") from error
            raise UnusableEpoch(epoch, f"its manifest {record.manifest} is missing") from error
        except (DamagedManifest, NewerManifest, ForeignJob) as error:
            raise UnusableEpoch(epoch, str(error)) from error
        if digest(data) != record.digest:
            raise UnusableEpoch(
                epoch, f"{record.manifest} has digest {digest(data)}, and the journal says {record.digest}"
            )
        return manifest

    def find(self, which: str = NEWEST, *, fall_back: bool = False) -> FoundEpoch:
        """Return the named epoch, with its manifest.

        With `fall_back` the newest epoch that can be used takes the place of a newest one that cannot, and the result
        names those passed over; an epoch asked for by its number is never replaced. If a running job has removed the
        newest one meanwhile, the one that is newest now is returned. `UnusableEpoch` if nothing can be used.
        """
        record = self.record(which)
        candidates = [record]
        if fall_back and which in (NEWEST, NEWEST_SAVEPOINT):
            only = self.savepoints if which == NEWEST_SAVEPOINT else None
            candidates += [
                older
                for older in reversed(self.state.usable)
                if older.epoch < record.epoch and (only is None or older.epoch in only)
            ]
        passed_over: list[UnusableEpoch] = []
        for candidate in candidates:
            try:
                return FoundEpoch(candidate, self.manifest(candidate), tuple(passed_over))
            except UnusableEpoch as error:
                passed_over.append(error)
            except NoSuchEpoch:
                if which not in (NEWEST, NEWEST_SAVEPOINT):
                    raise
                return self.look_again().find(which, fall_back=fall_back)
        raise passed_over[0]

    def _listed(self) -> str:
        epochs = [str(record.epoch) for record in self.state.usable]
        more = f"{len(epochs) - 20} older ones and " if len(epochs) > 20 else ""
        return f"it has {more}{', '.join(epochs[-20:])}" if epochs else "it has no complete epoch"


def open_tree(uri: str, storage_options: Mapping[str, Mapping[str, object]] | None = None) -> JobTree:
    """Open the tree of the job at this folder or URI, as it is now.

    Raises `WrongJob` where there is none, `DamagedTree` for a journal that is damaged or has lost entries,
    `NewerJournal` for one that cannot be read, and what the store raises. `storage_options`: those of `recovery.run`.
    """
    use_storage(storage_options or {})
    store = find_limited(uri, _SECONDS)
    birth = find_birth(store, uri)
    found = examine(store, absolute(uri), journal_of(store), Patience(_PATIENCE))
    return JobTree(absolute(uri), store, birth, found.state, found.doubtful)


def find_jobs(uri: str, storage_options: Mapping[str, Mapping[str, object]] | None = None) -> tuple[str, ...]:
    """Return the places of all jobs at a folder or URI, itself and at any depth below it, in order.

    A place with a journal or manifests counts as a job even if the job's name is lost there, unless a job was moved
    away from it or is being made there.
    """
    use_storage(storage_options or {})
    paths = [info.path for info in find_limited(uri, _SECONDS).list()]
    named = {folder for path in paths if (folder := _folder_of(path, JOB)) is not None}
    moved = {folder for path in paths if (folder := _folder_of(path, MOVED)) is not None}
    making = {path.split(f"{UNFINISHED}/")[0].rstrip("/") for path in paths if f"{UNFINISHED}/" in path}
    left = {match[1].rstrip("/") for path in paths if (match := _LEFT.fullmatch(path))}
    folders = sorted(named | (left - moved - making))
    return tuple(f"{uri.rstrip('/')}/{folder}" if folder else uri for folder in folders)


def _folder_of(path: str, name: str) -> str | None:
    return path.removesuffix(name).rstrip("/") if path == name or path.endswith(f"/{name}") else None


def journal_of(store: BlobStore) -> StoredJournal:
    """Return the store's journal, with a little patience for a store that fails."""
    return StoredJournal(store, Patience(_PATIENCE))


def _parsed(which: str) -> Epoch:
    try:
        return Epoch.parse(which)
    except ValueError:
        raise NoSuchEpoch(
            f"{which!r} names no epoch; give {NEWEST}, {NEWEST_SAVEPOINT}, a number as 17, or an epoch as 17-2"
        ) from None
