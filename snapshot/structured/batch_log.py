"""What is to be committed of each micro-batch: the first decision that is written down counts, whoever comes later.

What always holds: of a batch that Spark runs again, after a crash or because an attempt failed, the transactions of one
attempt are committed and no others, as one decision per batch is created, only if absent. Nothing of a batch is dropped
before its decision is there. A batch before the one that is decided is done: Spark asks for one only after that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from snapshot.tree.layout import SharedFile, parse
from snapshot.tree.manifest import DamagedManifest, SubtaskSnapshot
from snapshot.tree.manifest_json import decode_subtask, encode_subtask
from statebackend.stores.store import BlobNotFound, BlobStore, Creation, UnknownOutcome

_FOLDER: Final = "batches"
_KEPT: Final = 100
"""Decisions that stay behind the newest, for people who look for what became of a batch."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """What is committed of a batch: per partition, the transaction of the attempt that counts, if it has rows. `run` is
    the start of the query that decided.
    """

    run: str
    partitions: tuple[SubtaskSnapshot, ...]


class BatchLog:
    """The decisions of one query, in a tree of its own, beside the rows that wait for their commit."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    def decide(self, batch: int, proposed: Decision) -> Decision:
        """Create the decision for a batch, unless there is one; return the one that counts.

        A crash inside leaves a decision or none. Raises `UnknownOutcome` if it cannot be told which; then the caller
        asks again.
        """
        path, data = _path(batch), _encoded(proposed)
        for _ in range(_TRIES - 1):
            try:
                return self._decided(path, data, proposed)
            except UnknownOutcome:
                continue
        return self._decided(path, data, proposed)

    def decision(self, batch: int) -> Decision | None:
        """Return the decision for a batch; None if there is none."""
        try:
            return _decoded(self._store.read(_path(batch)), _path(batch))
        except BlobNotFound:
            return None

    def forget_before(self, batch: int) -> None:
        """Delete the rows of earlier batches, which are committed, and decisions that are long past."""
        for blob in self._store.list("shared"):
            item = parse(blob.path)
            if isinstance(item, SharedFile) and item.incarnation.generation < batch + 1:
                self._store.delete(blob.path)
        if batch % _KEPT == 0:
            for blob in self._store.list(_FOLDER):
                if blob.path < _path(max(batch - _KEPT, 0)):
                    self._store.delete(blob.path)

    def _decided(self, path: str, data: bytes, proposed: Decision) -> Decision:
        if self._store.create(path, data) is Creation.CREATED:
            return proposed
        return _decoded(self._store.read(path), path)


def _path(batch: int) -> str:
    return f"{_FOLDER}/{batch:020}.json"


def _encoded(decision: Decision) -> bytes:
    partitions = [encode_subtask(partition).decode() for partition in decision.partitions]
    return json.dumps({"version": 1, "run": decision.run, "partitions": partitions}).encode()


def _decoded(data: bytes, path: str) -> Decision:
    """Return the decision with these bytes; raise `DamagedManifest` if they are none."""
    try:
        match json.loads(data):
            case {"version": 1, "run": str(run), "partitions": [*parts]}:
                return Decision(run, tuple(decode_subtask(str(part).encode(), path) for part in parts))
            case _:
                pass
    except (ValueError, RecursionError) as error:
        if isinstance(error, DamagedManifest):
            raise
        raise DamagedManifest(f"{path} is damaged: {error}") from error
    raise DamagedManifest(f"{path} is no decision for a batch: {data[:100]!r}")
