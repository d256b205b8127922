"""A tree of its own, as `fork`, `copy` and `bootstrap` make it: a job with one epoch, which somebody then starts.

What always holds: `job.json` is written last, by one create, so a tree is a whole job or none. What an interrupted
command leaves is marked as unfinished; who does it again takes that away first, and nothing else is ever deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from secrets import token_hex
from typing import Final

from recovery.driver.birth import Birth, bytes_of
from recovery.savepoints import fail_points
from recovery.savepoints.fail_points import reached
from snapshot.journal_entries import PinId, Pinner
from snapshot.journal_json import encode_summary
from snapshot.journal_state import EpochRecord, JournalState, Pin
from snapshot.journal_store import fresh_nonce
from snapshot.layout import JOB, Content, JournalSummary, ManifestFile, SharedFile, parse, path_of
from snapshot.manifest import Manifest
from snapshot.manifest_json import digest, encode
from statebackend.ids import Attempt, Generation, Incarnation, Partition
from statebackend.stores.limited_store import open_limited
from statebackend.stores.store import BlobNotFound, BlobStore, Creation

_SECONDS: Final = 60.0
_FIRST: Final = 1
"""The journal begins with a summary at this number."""

_UNFINISHED: Final = "unfinished"
"""The folder of what marks a tree that is being made. It is no part of the layout, so no clean-up touches it."""


class TargetExists(ValueError):
    """The place for a new tree is not free; the message says what is there."""


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

    def finish(self, manifest: Manifest) -> None:
        """Make it a job with this epoch, pinned as a savepoint. All files that the epoch refers to are there already.

        The manifest is of this job and generation. `TargetExists` if another command works here too: two at once at
        one place are not meant, and one of them fails.
        """
        data, epoch = encode(manifest), manifest.epoch
        path = path_of(ManifestFile(epoch, token_hex(8)))
        self.store.write(path, data)
        reached(fail_points.NEW_MANIFEST_WRITTEN)
        pending = any(one.committables for operator in manifest.operators for one in operator.subtasks)
        state = JournalState(
            number=_FIRST,
            generation=self.generation,
            driver=f"recovery, at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}",
            newest_complete=epoch,
            epochs=(EpochRecord(epoch, path, digest(data), pending),),
            pins=(Pin(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT),),
            nonces=(fresh_nonce(),),
        )
        alone = self.store.create(path_of(JournalSummary(_FIRST)), encode_summary(state)) is Creation.CREATED
        if not alone or not _is_there(self.store, self._mark):
            raise TargetExists(f"{self.uri}: another command makes a tree there; give this one a place of its own")
        reached(fail_points.JOURNAL_BEGUN)
        self.store.create(JOB, bytes_of(self.birth))
        reached(fail_points.JOB_BORN)
        self.store.delete(self._mark)


def begin(uri: str, birth: Birth, generation: Generation, verb: str) -> NewTree:
    """Begin a tree at a place where nothing is, or where the same was interrupted.

    `TargetExists` if something of somebody else is there, a job above all.
    """
    store = open_limited(uri, _SECONDS)
    found = [info.path for info in store.list()]
    if JOB in found:
        raise TargetExists(f"{uri}: there is a job already; give the new one a place of its own")
    marks = [path for path in found if path.startswith(f"{_UNFINISHED}/")]
    if found and not marks:
        raise TargetExists(f"{uri}: it is not empty, there is {found[0]}; give the new job a place of its own")
    mine = f"{_UNFINISHED}/{token_hex(8)}.json"
    store.write(mine, json.dumps({"format": "epochcut.unfinished", "version": 1, "by": verb}).encode())
    for path in (*(path for path in found if parse(path) is not None), *marks):
        store.delete(path)
    reached(fail_points.TREE_BEGUN)
    return NewTree(uri, store, birth, generation, mine)


def is_unfinished(store: BlobStore) -> bool:
    """Whether a tree was begun there and is not finished."""
    return bool(store.list(_UNFINISHED))


def _is_there(store: BlobStore, path: str) -> bool:
    try:
        store.stat(path)
    except BlobNotFound:
        return False
    return True
