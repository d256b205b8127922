"""Repairing a tree whose journal has lost entries, or cannot be read, or whose `job.json` is lost.

Invariant: nothing is decided here (see `recovery.decisions.mending`). One create makes the new journal: a summary with
a number above all that were used, so all entries before it count no more, and a driver that still runs somewhere finds
itself fenced. From the mark that comes first to the end, no other process reads or writes the journal. What is replaced
is copied to `aside/<number>/` before. A crash leaves a tree that is refused as before, until the repair is done again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from recovery.decisions.losses import Unreadable
from recovery.decisions.mending import CannotMend, Damage, Found, FoundManifest, Mended, damage_of, mend, newest_claim
from recovery.driver.tree.identity import Birth, BirthLost, JobMoved, WrongJob, bytes_of, find_birth, name_in
from recovery.driver.tree.owned import FencedOff
from recovery.offline import fail_points
from recovery.offline.epoch_choice import OutputWouldRepeat
from recovery.offline.fail_points import reached
from recovery.offline.job_tree import JobTree
from recovery.offline.stopped_job import JobRuns, refuse_if_it_runs
from snapshot.ids import JobId
from snapshot.journal.entries import DamagedJournal
from snapshot.journal.entry_json import decode_entry, decode_summary, encode_summary
from snapshot.journal.state import EMPTY, JournalState
from snapshot.journal.store import fresh_nonce
from snapshot.tree.layout import (
    ASIDE,
    EPOCHS,
    JOB,
    JOURNAL,
    REPAIR,
    SHARED,
    JournalEntry,
    JournalSummary,
    ManifestFile,
    parse,
    path_of,
)
from snapshot.tree.manifest import DamagedManifest, Manifest
from snapshot.tree.manifest_json import decode, digest
from statebackend.errors import SavepointError
from statebackend.ids import Epoch
from statebackend.stores.fsspec_store import absolute
from statebackend.stores.limited_store import find_limited
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobNotFound, BlobStore, exists

_SECONDS: Final = 60.0
_PATIENCE: Final = 10.0
_Content = TypeVar("_Content")


class CannotRepair(SavepointError):
    """Nothing can be made of what is there; the message says why, and what would help. Nothing was done."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The repaired tree. `damages` is empty if nothing was damaged; then nothing is done.

    `epoch` is where the job goes on, None if at its beginning. `made_anew` are epochs whose entries in the journal were
    derived from their manifests, `given_up` those that may have been complete and cannot be used. `aside` is the folder
    in the tree with what was replaced, empty if nothing was. `named_anew`: `job.json` was made.
    """

    uri: str
    job: JobId
    damages: tuple[str, ...]
    epoch: Epoch | None
    made_anew: tuple[Epoch, ...]
    given_up: tuple[Epoch, ...]
    aside: str
    named_anew: bool
    done: bool


def repair(
    uri: str,
    *,
    accept_duplicates: bool = False,
    entries_lost: bool = False,
    dry_run: bool = False,
    job_folder: Path | None = None,
) -> Repaired:
    """Make of a damaged tree one from which its job goes on.

    `entries_lost`: take it that the journal has lost its newest entries, though nothing proves that. Raises
    `CannotRepair`, `OutputWouldRepeat` if that is not accepted, `JobRuns`, `FencedOff` if the job was started
    meanwhile, `WrongJob` where no job is, `NewerJournal` and `NewerManifest`. Then nothing was done. After a crash it
    can be done again, also by another process.
    """
    return _Repair(uri, accept_duplicates, entries_lost, job_folder).run(dry_run=dry_run)


class _Repair:
    """One repair. What others do meanwhile is noticed under the mark."""

    def __init__(self, uri: str, accept_duplicates: bool, entries_lost: bool, job_folder: Path | None) -> None:
        self._uri = absolute(uri)
        self._store = find_limited(uri, _SECONDS)
        self._accept_duplicates = accept_duplicates
        self._entries_lost = entries_lost
        self._job_folder = job_folder

    def run(self, *, dry_run: bool) -> Repaired:
        found = look(self._store)
        birth, lost_name = self._birth(found)
        if not dry_run:  # what is said of a job that runs is already something
            refuse_if_it_runs(JobTree(self._uri, self._store, birth, EMPTY), self._job_folder)
        begun = self._begun()
        damage = None if begun in found.summaries else damage_of(found, entries_lost=self._entries_lost)
        mended = None if damage is None else self._mended(found, damage)
        number = begun or (0 if mended is None else mended.number)
        damages = (*lost_name, *(() if damage is None else damage.sentences))
        if begun:
            damages = ("a repair was begun, and not ended", *damages)
        if not dry_run and (number or lost_name):
            self._carry_out(found, birth, number, named_anew=bool(lost_name))
        newest = found.summaries[begun].usable if begun in found.summaries else ()
        return Repaired(
            self._uri,
            birth.job,
            damages,
            mended.newest if mended is not None else (newest[-1].epoch if newest else None),
            () if mended is None else mended.made_anew,
            () if mended is None else mended.given_up,
            f"{ASIDE}/{number}" if number else "",
            bool(lost_name),
            bool(damages) and not dry_run,
        )

    def _begun(self) -> int:
        """Return the number of the journal that a repair has begun to make, 0 if none has."""
        try:
            data = self._store.read(REPAIR)
        except BlobNotFound:
            return 0
        try:
            mark = json.loads(data)
        except (ValueError, RecursionError):
            mark = None
        match mark:
            case {"format": "epochcut.repair", "number": int(number)} if 1 <= number < 10**10:
                return number
            case _:
                raise CannotRepair(f"{self._uri}: {REPAIR} cannot be understood; delete it, and do this again")

    def _mended(self, found: Found, damage: Damage) -> Mended:
        match mend(found, damage, accept_duplicates=self._accept_duplicates):
            case CannotMend(reason, accepting=True):
                raise OutputWouldRepeat(f"{self._uri}: {_listed(damage.sentences)}{reason}")
            case CannotMend(reason):
                raise CannotRepair(f"{self._uri}: {_listed(damage.sentences)}{reason}")
            case mended:
                return mended

    # --- the job's name -----------------------------------------------------------------------------------------------

    def _birth(self, found: Found) -> tuple[Birth, tuple[str, ...]]:
        """Return the job, and what is wrong with its `job.json`."""
        try:
            birth = find_birth(self._store, self._uri)
        except JobMoved:
            raise
        except BirthLost:
            return _derived(self._uri, found), (f"{JOB} is missing",)
        except WrongJob as error:
            if not exists(self._store, JOB):
                raise
            return _derived(self._uri, found), (str(error),)
        foreign = sorted({one.job for one in _readable(found)} - {birth.job})
        if foreign:
            raise CannotRepair(
                f"{self._uri}: {JOB} says {birth.job}, and there are manifests of {', '.join(foreign)}: put the {JOB} "
                "aside that is not theirs, and do this again"
            )
        return birth, ()

    # --- what is written ----------------------------------------------------------------------------------------------

    def _carry_out(self, found: Found, birth: Birth, number: int, *, named_anew: bool) -> None:
        store = self._store
        if number:
            mark = json.dumps({"format": "epochcut.repair", "number": number}).encode()
            store.create(REPAIR, mark)
            number = self._begun()
            reached(fail_points.REPAIR_BEGUN)
            self._replace_journal(found, number)
        if named_anew:
            if exists(store, JOB):
                self._put_aside([JOB], number or 1)
                store.delete(JOB)
            store.create(JOB, bytes_of(birth))
            reached(fail_points.NAME_MADE)
        if number:
            store.delete(REPAIR)

    def _replace_journal(self, found: Found, number: int) -> None:
        store, summary = self._store, JournalSummary(number)
        now = look(store)  # from here on nobody else writes
        if number in now.summaries:
            self._put_aside(_journal_files(store, summary), number)
            gone = tuple(path for path in _copies(store, number) if isinstance(parse(path), ManifestFile))
        else:
            try:
                self._refuse_if_it_went_on(found, now)
                damage = damage_of(now, entries_lost=self._entries_lost)
                mended = None if damage is None else self._mended(now, damage)
            except Exception:
                store.delete(REPAIR)
                raise
            if mended is None:  # of a repair that was begun, and is not wanted any more
                return
            gone = mended.aside
            self._put_aside((*_journal_files(store, summary), *gone), number)
            store.create(path_of(summary), encode_summary(_complete(mended.state, number)))
            reached(fail_points.JOURNAL_MADE)
        for path in (*_journal_files(store, summary), *gone):
            store.delete(path)
            reached(fail_points.REPLACED_GONE)

    def _refuse_if_it_went_on(self, found: Found, now: Found) -> None:
        """Raise `FencedOff` if a process that had the journal open has claimed the job since; the mark ends that."""
        if found.entries.keys() >= now.entries.keys():
            return
        if newest_claim(now) > newest_claim(found):
            raise FencedOff(newest_claim(now))
        raise JobRuns(f"{self._uri}: the journal was written to meanwhile: the job runs; stop it first")

    def _put_aside(self, paths: Iterable[str], number: int) -> None:
        for path in paths:
            self._store.write(f"{ASIDE}/{number}/{path}", self._store.read(path))
            reached(fail_points.PUT_ASIDE)


def look(store: BlobStore) -> Found:
    """Read all that a tree has, and name what cannot be read; nothing is written.

    `NewerJournal` or `NewerManifest` for what a newer program wrote: only that program can repair it.
    """
    patience = Patience(_PATIENCE)
    paths = [info.path for folder in (JOURNAL, EPOCHS, SHARED) for info in patience.ask(partial(store.list, folder))]

    def read(path: str) -> bytes:
        return patience.ask(lambda: store.read(path))

    items = [(path, parse(path)) for path in paths]
    numbered = [(item.number, path) for path, item in items if isinstance(item, JournalEntry)]
    floors = [(item.number, path) for path, item in items if isinstance(item, JournalSummary)]
    entries, torn = _decoded(numbered, read, decode_entry)
    summaries, torn_floors = _decoded(floors, read, decode_summary)
    manifests = tuple(_manifest(path, item, read(path)) for path, item in items if isinstance(item, ManifestFile))
    return Found(tuple(paths), entries, torn, summaries, torn_floors, manifests)


def _decoded(
    places: Iterable[tuple[int, str]], read: Callable[[str], bytes], decoded: Callable[[int, bytes], _Content]
) -> tuple[dict[int, _Content], dict[int, str]]:
    """Return the contents that can be read, and why the others cannot."""
    found: dict[int, _Content] = {}
    torn: dict[int, str] = {}
    for number, path in places:
        try:
            found[number] = decoded(number, read(path))
        except DamagedJournal as error:
            torn[number] = str(error)
    return found, torn


def _manifest(path: str, item: ManifestFile, data: bytes) -> FoundManifest:
    try:
        return FoundManifest(path, item, decode(data, path), digest(data))
    except DamagedManifest as error:
        return FoundManifest(path, item, Unreadable(str(error)))


def _derived(uri: str, found: Found) -> Birth:
    """Derive a job's birth from its manifests; its name is what its id begins with."""
    born = sorted({(one.job, one.max_parallelism) for one in _readable(found)})
    if not born:
        raise CannotRepair(
            f"{uri}: no manifest is there that could say whose tree this is, so no epoch was ever complete, or all "
            "manifests are lost; empty the place to begin a new job, or bring them back"
        )
    if len(born) > 1:
        jobs = ", ".join(sorted({job for job, _ in born}))
        raise CannotRepair(f"{uri}: there are manifests of several jobs, {jobs}; put those of all but one aside")
    [(job, most)] = born
    name = name_in(job)
    if name is None:
        raise CannotRepair(f"{uri}: the manifests are of job {job[:100]!r}, and no job was ever born with that id")
    return Birth(name, JobId(job), most)


def _readable(found: Found) -> list[Manifest]:
    return [one.content for one in found.manifests if isinstance(one.content, Manifest)]


def _complete(state: JournalState, number: int) -> JournalState:
    who = f"recovery repair, process {os.getpid()} on {socket.gethostname()}"
    return replace(state, number=number, driver=who, nonces=(fresh_nonce(),))


def _journal_files(store: BlobStore, but: JournalSummary) -> tuple[str, ...]:
    """Return all files of the journal that a summary takes the place of."""
    items = [(info.path, parse(info.path)) for info in store.list(JOURNAL)]
    return tuple(
        path
        for path, item in items
        if isinstance(item, JournalEntry | JournalSummary) and item != but and item.number <= but.number
    )


def _copies(store: BlobStore, number: int) -> tuple[str, ...]:
    """Return the original paths of what a repair has put aside."""
    folder = f"{ASIDE}/{number}"
    return tuple(info.path.removeprefix(f"{folder}/") for info in store.list(folder))


def _listed(sentences: Iterable[str]) -> str:
    return "".join(f"{sentence}; " for sentence in sentences)
