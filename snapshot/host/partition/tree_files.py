"""The files that one partition writes into the job's tree: each under a name that was never used and never will be.

Invariant: names carry the incarnation and the partition, and a number that rises over all that one of its
replicas writes in it; so a process that wakes up late overwrites nothing.
"""

from __future__ import annotations

import hashlib
from typing import Final

import pyarrow as pa

from snapshot.ids import ONLY, Replica, numbered_from
from snapshot.tree.layout import Content, SharedFile, path_of
from snapshot.tree.manifest import StoredFile
from statebackend import means
from statebackend.backends.backend import DamagedFile
from statebackend.ids import Incarnation, Partition
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.store import BlobNotFound, BlobStore

_ALGORITHM: Final = "sha256"


class TreeFiles:
    """Names and storage for one member in one attempt. Threads may share it, as they may the store."""

    def __init__(
        self, store: BlobStore, incarnation: Incarnation, partition: Partition, replica: Replica = ONLY
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._partition = partition
        self._next = numbered_from(replica) + 1
        self._counting = means.Lock()

    @property
    def next_number(self) -> int:
        """Return the number that the next name will have."""
        with self._counting:
            return self._next

    def state_name(self) -> str:
        """Return a new path for a file of keyed state."""
        return self._name(Content.STATE)

    def put(self, data: pa.Buffer | bytes) -> StoredFile:
        """Store rows that wait for their commit."""
        return self._put(bytes(data), Content.STAGED)

    def put_channel(self, data: bytes) -> StoredFile:
        """Store in-flight data."""
        return self._put(data, Content.CHANNEL)

    def get(self, file: StoredFile) -> bytes:
        """Return what was stored; raise `MissingFile` or `DamagedFile` if it is not there as it was."""
        try:
            data = self._store.read(file.path)
        except BlobNotFound as error:
            raise MissingFile(f"{file.path} is named by an epoch and is not in the store") from error
        if _checksum(data) != file.checksum:
            raise DamagedFile(f"{file.path} has {len(data)} bytes that do not match the checksum {file.checksum}")
        return data

    def _put(self, data: bytes, content: Content) -> StoredFile:
        path = self._name(content)
        self._store.write(path, data)
        return StoredFile(path, len(data), _checksum(data))

    def _name(self, content: Content) -> str:
        with self._counting:
            number, self._next = self._next, self._next + 1
        return path_of(SharedFile(self._incarnation, self._partition, number, content))


def _checksum(data: bytes) -> str:
    return f"{_ALGORITHM}:{hashlib.sha256(data).hexdigest()}"
