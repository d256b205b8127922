"""A tree of its own, as `fork`, `copy`, `move` and `bootstrap` make it: a job that is then started.

Invariant: of all the commands that ever begin a tree at a place, however long each of them pauses, one makes it, and
the tree is a job as a whole or none; a command that is told that it was made has made it, and all others are told that
the place is taken. What was interrupted can be done again.

Why that is so. Marks (see `tree_marks`) decide who makes the tree: a command that begins takes over from those that
began before, as long as none of them has made it. What is created after the mark that says so has one content only,
whichever command creates it: the journal's summary, whose number tells those who come late from those who are in time,
as everywhere in the journal, and at last `job.json`. So any command may carry that out, and the next one does. Marks go
when `job.json` is there, which stays until the job is moved away; the journal's number is then another. So a command
that creates a mark once more that was there before finds one of these two, and withdraws.

The files that are brought along have the names of their origin: every command that writes one, early or late, writes
the same, as the place is refused to files of another job. The others have names that are drawn at random. Nothing is
deleted until the tree is there; then what it does not refer to of all that was found when it was begun, and only of
generations that the new job never names. No command may begin with an older generation than one before.

What remains: a program that is started at the place looks for marks before it begins a new job there. If it pauses
between that and its `job.json`, and a tree is made meanwhile, it goes on as that job; if its own `job.json` comes
in the very moment in which the tree is made, both are refused, and the place has to be emptied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from secrets import randbits, token_hex
from typing import Final

from recovery.driver.tree.identity import Birth, bytes_of
from recovery.offline import fail_points
from recovery.offline.fail_points import reached
from recovery.offline.tree_marks import Made, Mark, first_number, is_mark, is_old_mark, mark_from, newest_mark
from snapshot.journal.entries import PinId, Pinner
from snapshot.journal.entry_json import encode_summary
from snapshot.journal.state import NO_OUTPUT, EpochRecord, EpochState, JournalState, OutputMade, Pin
from snapshot.journal.store import fresh_nonce
from snapshot.tree.layout import (
    ASIDE,
    JOB,
    JOURNAL,
    MOVED,
    UNFINISHED,
    Content,
    JournalSummary,
    ManifestFile,
    SharedFile,
    parse,
    path_of,
)
from snapshot.tree.manifest import Manifest
from snapshot.tree.manifest_json import digest, encode
from statebackend.errors import SavepointError
from statebackend.ids import Attempt, Generation, Incarnation, Partition
from statebackend.stores.fsspec_store import is_trial
from statebackend.stores.limited_store import find_limited, open_limited
from statebackend.stores.store import BlobNotFound, BlobStore, StoreUnavailable, UnknownOutcome, exists

_SECONDS: Final = 60.0


class TargetExists(SavepointError, ValueError):
    """The place for a new tree is not free; the message says what is there."""


@dataclass(frozen=True, slots=True)
class KeptEpoch:
    """An epoch that a new tree shall have. `output` is what its job had made up to it; a new job has made none."""

    manifest: Manifest
    state: EpochState = EpochState.COMPLETE
    pinned: bool = True
    output: OutputMade = NO_OUTPUT


class NewTree:
    """A tree that is being made, from `begin` to `finish`. A crash in between leaves no job, and `begin` goes on."""

    def __init__(self, uri: str, store: BlobStore, birth: Birth, mark: Mark, found: frozenset[str]) -> None:
        self.uri = uri
        self.store = store
        self.birth = birth
        self.generation = mark.generation
        self._mark = mark
        self._found = found

    def names(self, partition: Partition, content: Content = Content.STATE) -> Callable[[], str]:
        """Return a function that makes names never used in the tree; to be asked for once per partition and content."""
        incarnation, numbers = Incarnation(self.generation, Attempt(0)), count(randbits(48))
        return lambda: path_of(SharedFile(incarnation, partition, next(numbers), content))

    def finish(
        self, newest: KeptEpoch, before: Sequence[KeptEpoch] = (), made_elsewhere: OutputMade = NO_OUTPUT
    ) -> None:
        """Make the tree a job with this epoch; all files that the epoch refers to are there already.

        `before` are older epochs of the same job, oldest first; `made_elsewhere` is output that the job has made after
        this one. `TargetExists` if another command has begun a tree there since, or has made one.
        """
        kept, manifest = [*before, newest], newest.manifest
        records = tuple(map(self._write, kept))
        reached(fail_points.NEW_MANIFEST_WRITTEN)
        epochs = [one.manifest.epoch for one in kept if one.pinned]
        state = JournalState(
            number=self._mark.first,
            generation=self.generation,
            driver=f"recovery, at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
            newest_complete=manifest.epoch,
            epochs=records,
            pins=tuple(Pin(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT) for epoch in epochs),
            nonces=(fresh_nonce(),),
            made_elsewhere=made_elsewhere,
        )
        if exists(self.store, JOB):
            raise _taken(self.uri)
        last = replace(self._mark, number=self._mark.number + 1, made=Made(bytes_of(self.birth), encode_summary(state)))
        if not _created(self.store, last.path, last.encoded()):
            raise _taken(self.uri)
        reached(fail_points.TREE_DECIDED)
        try:
            _carry_out(self.store, self.uri, last)
        except TargetExists:
            self.store.delete(last.path)
            raise
        needed = {record.manifest for record in records}.union(*(one.manifest.references() for one in kept))
        self._clear(needed)

    def _write(self, kept: KeptEpoch) -> EpochRecord:
        manifest = kept.manifest if kept.manifest.journal is None else replace(kept.manifest, journal=None)
        data, epoch = encode(manifest), manifest.epoch  # how far another journal had come says nothing of this one
        path = path_of(ManifestFile(epoch, token_hex(8)))
        self.store.write(path, data)
        pending = any(one.committables for operator in kept.manifest.operators for one in operator.subtasks)
        return EpochRecord(epoch, path, digest(data), pending, kept.output, kept.state)

    def _clear(self, needed: set[str]) -> None:
        """Delete what earlier attempts to make the tree have left."""
        for path in sorted(self._found - needed):
            match parse(path):
                case SharedFile(incarnation=Incarnation(generation=made_by)) if made_by <= self.generation:
                    self.store.delete(path)
                case ManifestFile(epoch=epoch) if epoch.generation <= self.generation:
                    self.store.delete(path)
                case None if is_trial(path):
                    self.store.delete(path)
                case _:
                    pass
        if self._found:
            self.store.remove_leftovers()


def begin(uri: str, birth: Birth, generation: Generation, verb: str, of: str = "") -> NewTree:
    """Begin a tree at a place that is empty, or where the same was interrupted, or from where a job was moved away.

    `of` is the job whose files are brought there. The tree's journal begins with the generation, before which that job
    has named them. `TargetExists` if something else is there, a job above all.
    """
    store = open_limited(uri, _SECONDS)
    _make_whole(store, uri)
    place = _look(store, uri, of, generation)
    mark = Mark(place.first, place.marks + 1, verb, of, generation, token_hex(16))
    if not _created(store, mark.path, mark.encoded()):
        raise _taken(uri)
    if exists(store, JOB) or _first(store) != mark.first:
        store.delete(mark.path)
        raise _taken(uri)
    store.delete(MOVED)
    reached(fail_points.TREE_BEGUN)
    return NewTree(uri, store, birth, mark, place.found)


def make_whole(uri: str) -> None:
    """Write what is left to be written of a tree that was made, if that was interrupted just then."""
    store = _found_store(uri)
    if store is not None:
        _make_whole(store, uri)


def check_free(uri: str, of: str = "") -> None:
    """Raise `TargetExists` where `begin` would; nothing is made, for a dry run."""
    store = _found_store(uri)
    if store is not None:
        _look(store, uri, of)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place at which a tree may be begun: what is there, the number at which its journal begins, and its marks."""

    found: frozenset[str]
    first: int
    marks: int


def _found_store(uri: str) -> BlobStore | None:
    try:
        return find_limited(uri, _SECONDS)
    except StoreUnavailable:
        if "://" in uri and not uri.startswith("file:"):
            raise
        return None  # the folder will be made


def _look(store: BlobStore, uri: str, of: str, generation: Generation | None = None) -> _Place:
    found = frozenset(info.path for info in store.list())
    if JOB in found:
        raise TargetExists(f"{uri}: there is a job already; give the new one a place of its own")
    first = first_number(found)
    newest = newest_mark(found, first)
    if newest is not None:
        before = _read_mark(store, uri, newest)
        _refuse_to_follow(before, uri, of, generation)
        return _Place(found, first, before.number)
    if newest_mark(found, first - 1) is not None and MOVED not in found:  # its summary is there
        raise TargetExists(f"{uri}: there is a job already, but for its {JOB}")
    others = sorted(path for path in found if not _is_no_matter(path, moved=MOVED in found))
    if others and not any(map(is_old_mark, found)):
        raise TargetExists(f"{uri}: it is not empty, there is {others[0]}; give the new job a place of its own")
    return _Place(found, first, 0)


def _is_no_matter(path: str, *, moved: bool) -> bool:
    """True if the path is a trial of the store, or, if the job here was `moved`, something that it leaves.

    It leaves where it is, how far its journal came, and what repairs have put aside.
    """
    aside = path.startswith(f"{ASIDE}/")
    left = path == MOVED or aside or is_mark(path) or isinstance(parse(path), JournalSummary)
    return is_trial(path) or (moved and left)


def _refuse_to_follow(before: Mark, uri: str, of: str, generation: Generation | None) -> None:
    if before.made is not None:
        raise TargetExists(f"{uri}: there is a job already, which a {before.verb} has made but for its {JOB}")
    if before.of != of:
        whose = f"with files of job {before.of}" if before.of else "without files of any job"
        raise TargetExists(
            f"{uri}: a {before.verb} was begun there, {whose}; do that again, or empty the place for anything else"
        )
    if generation is not None and before.generation > generation:
        raise TargetExists(f"{uri}: a later {before.verb} was begun there; do this again, or empty the place")


def _make_whole(store: BlobStore, uri: str) -> None:
    marks, first = [info.path for info in store.list(UNFINISHED)], _first(store)
    newest = newest_mark(marks, first) or newest_mark(marks, first - 1)  # its own summary may be there already
    if newest is None or exists(store, JOB) or exists(store, MOVED):
        return
    mark = _read_mark(store, uri, newest)
    if mark.made is not None:
        _carry_out(store, uri, mark)


def _carry_out(store: BlobStore, uri: str, last: Mark) -> None:
    """Write what is left of a tree that was made; any process may do so, at any time and repeatedly."""
    assert last.made is not None
    summary = path_of(JournalSummary(last.first))
    if not _created(store, summary, last.made.journal) or _first(store) != last.first + 1:
        raise _taken(uri)
    reached(fail_points.JOURNAL_BEGUN)
    if not _created(store, JOB, last.made.job):
        raise TargetExists(f"{uri}: another job was begun there in this very moment; empty the place, and do it again")
    reached(fail_points.JOB_BORN)
    for info in store.list(UNFINISHED):
        if info.path != last.path:
            store.delete(info.path)
    store.delete(last.path)


def _created(store: BlobStore, path: str, data: bytes) -> bool:
    """Create the blob with this content; return False if it has another content, or is gone again."""
    doubt: UnknownOutcome | None = None
    try:
        store.create(path, data)
    except UnknownOutcome as error:
        doubt = error
    try:
        return store.read(path) == data
    except BlobNotFound:
        if doubt is not None:
            raise doubt from None
        return False


def _read_mark(store: BlobStore, uri: str, path: str) -> Mark:
    try:
        return mark_from(path, store.read(path))
    except BlobNotFound:
        raise _taken(uri) from None
    except ValueError as error:
        raise TargetExists(f"{uri}: {path} cannot be understood ({error}); empty the place, or take another") from error


def _first(store: BlobStore) -> int:
    return first_number(info.path for info in store.list(JOURNAL))


def _taken(uri: str) -> TargetExists:
    return TargetExists(f"{uri}: another command makes a tree there; give this one a place of its own")
