"""A tree of its own, as `fork`, `copy` and `bootstrap` make it: a job with one epoch, which somebody then starts.

What always holds: `job.json` is written last, by one create, so a tree is a whole job or none. What an interrupted
command leaves is marked as unfinished; who does it again takes that away first, and nothing else is ever deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from secrets import token_hex
from typing import Final

from recovery.driver.birth import Birth, bytes_of
from recovery.savepoints import fail_points
from recovery.savepoints.fail_points import reached
from snapshot.journal_entries import PinId, Pinner
from snapshot.journal_json import encode_summary
from snapshot.journal_state import EpochRecord, EpochState, JournalState, Pin
from snapshot.journal_store import fresh_nonce
from snapshot.layout import JOB, MOVED, Content, JournalSummary, ManifestFile, SharedFile, parse, path_of
from snapshot.manifest import Manifest
from snapshot.manifest_json import digest, encode
from statebackend.ids import Attempt, Generation, Incarnation, Partition
from statebackend.stores.fsspec_store import is_trial
from statebackend.stores.limited_store import find_limited, open_limited
from statebackend.stores.store import BlobNotFound, BlobStore, Creation, StoreUnavailable

_SECONDS: Final = 60.0
_FIRST: Final = 1
"""The journal begins with a summary at this number."""

_UNFINISHED: Final = "unfinished"
"""The folder of what marks a tree that is being made. It is no part of the layout, so no clean-up touches it."""


class TargetExists(ValueError):
    """The place for a new tree is not free; the message says what is there."""


@dataclass(frozen=True, slots=True)
class KeptEpoch:
    """An epoch that a new tree shall have besides its newest."""

    manifest: Manifest
    state: EpochState
    pinned: bool


class NewTree:
    """A tree that is being made, from `begin` to `finish`. A crash in between leaves what the next `begin` removes."""

    def __init__(self, uri: str, store: BlobStore, birth: Birth, generation: Generation, mark: str) -> None:
        self.uri = uri
        self.store = store
        self.birth = birth
        self.generation = generation
        self._mark = mark

    def names(self, partition: Partition, content: Content = Content.STATE) -> Callable[[], str]:
        """Names in the tree that nobody has used or will; asked for once per partition and content."""
        incarnation, numbers = Incarnation(self.generation, Attempt(0)), count(1)
        return lambda: path_of(SharedFile(incarnation, partition, next(numbers), content))

    def finish(self, manifest: Manifest, before: Sequence[KeptEpoch] = ()) -> None:
        """Make it a job with this epoch, pinned as a savepoint. All files that the epoch refers to are there already.

        `before` are older epochs of the same job, oldest first. `TargetExists` if another command works here too: two
        at once at one place are not meant, and one of them fails.
        """
        newest = KeptEpoch(manifest, EpochState.COMPLETE, pinned=True)
        kept = [*before, newest]
        records = tuple(map(self._write, kept))
        reached(fail_points.NEW_MANIFEST_WRITTEN)
        epochs = [one.manifest.epoch for one in kept if one.pinned]
        state = JournalState(
            number=_FIRST,
            generation=self.generation,
            driver=f"recovery, at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
            newest_complete=manifest.epoch,
            epochs=records,
            pins=tuple(Pin(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT) for epoch in epochs),
            nonces=(fresh_nonce(),),
        )
        alone = self.store.create(path_of(JournalSummary(_FIRST)), encode_summary(state)) is Creation.CREATED
        if not alone or not _is_there(self.store, self._mark):
            raise TargetExists(f"{self.uri}: another command makes a tree there; give this one a place of its own")
        reached(fail_points.JOURNAL_BEGUN)
        self.store.create(JOB, bytes_of(self.birth))
        reached(fail_points.JOB_BORN)
        self.store.delete(MOVED)
        self.store.delete(self._mark)

    def _write(self, kept: KeptEpoch) -> EpochRecord:
        data, epoch = encode(kept.manifest), kept.manifest.epoch
        path = path_of(ManifestFile(epoch, token_hex(8)))
        self.store.write(path, data)
        pending = any(one.committables for operator in kept.manifest.operators for one in operator.subtasks)
        return EpochRecord(epoch, path, digest(data), pending, kept.state)


def begin(uri: str, birth: Birth, generation: Generation, verb: str) -> NewTree:
    """Begin a tree at a place where nothing is, or where the same was interrupted, or from where a job was moved away.

    `TargetExists` if something of somebody else is there, a job above all.
    """
    store = open_limited(uri, _SECONDS)
    found = _found_at(store, uri)
    mine = f"{_UNFINISHED}/{token_hex(8)}.json"
    store.write(mine, json.dumps({"format": "epochcut.unfinished", "version": 1, "by": verb}).encode())
    for path in (path for path in found if parse(path) is not None or _is_mark(path) or is_trial(path)):
        store.delete(path)
    if found:
        store.remove_leftovers()
    reached(fail_points.TREE_BEGUN)
    return NewTree(uri, store, birth, generation, mine)


def check_free(uri: str) -> None:
    """`TargetExists` where `begin` would raise it; nothing is made, for a dry run."""
    try:
        store = find_limited(uri, _SECONDS)
    except StoreUnavailable:
        if "://" in uri and not uri.startswith("file:"):
            raise
        return  # the folder will be made
    _found_at(store, uri)


def _found_at(store: BlobStore, uri: str) -> list[str]:
    found = [info.path for info in store.list()]
    if JOB in found:
        raise TargetExists(f"{uri}: there is a job already; give the new one a place of its own")
    others = [path for path in found if path != MOVED and not is_trial(path)]
    if others and not any(map(_is_mark, found)):
        raise TargetExists(f"{uri}: it is not empty, there is {others[0]}; give the new job a place of its own")
    return found


def _is_mark(path: str) -> bool:
    return path.startswith(f"{_UNFINISHED}/")


def is_unfinished(store: BlobStore) -> bool:
    """Whether a tree was begun there and is not finished."""
    return bool(store.list(_UNFINISHED))


def _is_there(store: BlobStore, path: str) -> bool:
    try:
        store.stat(path)
    except BlobNotFound:
        return False
    return True
