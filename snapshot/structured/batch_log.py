"""The memory of a staging folder: the committed attempts of each micro-batch, and the writer of its batches.

Invariant: the first decision that is written down counts. When Spark runs a batch again, after a crash or because an
attempt failed, the transactions of one attempt are committed and no others, as one decision per batch is created, only
if absent. Nothing of a batch is dropped before its decision is there. A batch before the one that is decided is done:
Spark asks for one only after that.

Writes from functions of `foreachBatch` with one staging folder, in one query, have one identity, which the first of
them draws, and one target: with two, the second would find each batch decided by the first, and its rows would be lost.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from snapshot.program.sink import Sink, SinkError
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
    """The committed part of a batch: per partition, the transaction of the attempt that counts, if any. `run` is
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


_PATH: Final = "writes.json"
_PLACES: Final = ("path", "uri", "url", "table", "topic", "controller", "scope", "stream")
"""Fields of sinks that say where rows go, and hold no secret."""
_IDENTITY: Final = re.compile(r"[0-9a-f]{32}")


def target_of(name: str, sink: Sink) -> str:
    """Return words for the place to which a sink writes, the same for every batch."""
    places = [f"{place} {value}" for place in _PLACES if (value := getattr(sink, place, ""))]
    return f"{name}, {', '.join(places)}"


def identity_of(store: BlobStore, target: str) -> str:
    """Return the identity of these writes; draw it if they are the first.

    Raises `SinkError` if the folder is that of writes to another target; `UnknownOutcome` if the store does not say.
    """
    for _ in range(_TRIES + 1):
        try:
            found = _parsed(store.read(_PATH))
            break
        except BlobNotFound:
            drawn = json.dumps({"version": 1, "identity": token_hex(16), "target": target})
            try:
                store.create(_PATH, drawn.encode())  # of several that come at once one wins, which is read then
            except UnknownOutcome:
                continue
    else:
        raise UnknownOutcome(f"{_PATH} could not be made")
    identity, theirs = found
    if theirs != target:
        raise SinkError(
            f"the staging folder is that of batches written to {theirs}, and these are written to {target}; "
            f"give each write in a foreachBatch the option 'staging' with a folder of its own"
        )
    return identity


def _parsed(data: bytes) -> tuple[str, str]:
    """Return the identity that was drawn, and the target that it is for; raise `SinkError` if the bytes hold none."""
    try:
        match json.loads(data):
            case {"version": 1, "identity": str(identity), "target": str(target)} if _IDENTITY.fullmatch(identity):
                return identity, target
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    raise SinkError(
        f"{_PATH} of the staging folder is damaged: {data[:100]!r}; give the option 'staging' another folder"
    )
