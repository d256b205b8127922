"""Visitors of a running job's tree: a reader of its newest epoch, and a clean-up from outside.

Invariant: they do what the verbs of the product do, through the store that they are given. What a reader has pinned is
there until it lets go of it.
"""

from __future__ import annotations

from typing import Final

from recovery.driver.tree.identity import WrongJob, find_birth
from recovery.driver.tree.owned import JournalInDoubt
from recovery.offline.job_tree import JobTree, NoSuchEpoch, journal_of
from recovery.offline.reading import pinned
from recovery.savepoints.gc import clean_up, plan_cleanup
from snapshot.testing.history import Violation
from statebackend import means
from statebackend.errors import EpochcutError
from statebackend.stores.store import BlobNotFound, BlobStore, BlobStoreError

_LEISURE: Final = 0.05
"""Seconds between two reads, in which the job goes on."""


def read_newest(store: BlobStore, uri: str) -> bool:
    """Read all files of the newest epoch while it is pinned; return False if there was none, or the store failed."""
    try:
        tree = _tree(store, uri)
        found = tree.find()
        with pinned(tree, found.record.epoch):
            for path in sorted(found.manifest.references()):
                means.sleep(_LEISURE)
                _read(store, path, f"epoch {found.record.epoch}, which a reader has pinned")
    except (WrongJob, NoSuchEpoch, JournalInDoubt, BlobStoreError):
        return False
    return True


def clean(store: BlobStore, uri: str) -> bool:
    """Delete what nothing needs, beside the job; return False if there is no job yet, or the store failed."""
    try:
        tree = _tree(store, uri)
        clean_up(tree, plan_cleanup(tree))
    except (EpochcutError, BlobStoreError):
        return False
    return True


def _tree(store: BlobStore, uri: str) -> JobTree:
    return JobTree(uri, store, find_birth(store, uri), journal_of(store).read())


def _read(store: BlobStore, path: str, whose: str) -> bytes:
    try:
        return store.read(path)
    except BlobNotFound as error:
        raise Violation(f"{path} of {whose}, is gone") from error
