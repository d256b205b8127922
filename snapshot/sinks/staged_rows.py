"""Rows that wait in the job's tree for their commit: what sinks use whose target keeps nothing that is not committed.

What always holds: when a transaction is prepared, all its rows are stored in the tree; memory holds the rows of a
transaction until then, but for the parts that were full and are stored while further rows come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from snapshot.frozen_json import Json, JsonLike
from snapshot.manifest import CommitPayload, StoredFile
from snapshot.program.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, Staging
from snapshot.sinks.payloads import BadPayload
from snapshot.sinks.pieces import Pieces, SealedPieces
from snapshot.transaction_events import CommitOutcome
from statebackend.backends.backend import DamagedFile
from statebackend.ids import Uid
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.store import StoreError


class StagedRows:
    """The rows of a sink in one partition, transaction after transaction.

    `about` goes into each payload, beside the number of rows: what a committer has to know. The event loop calls
    everything here; `close` gives up what is not prepared.
    """

    def __init__(self, uid: Uid, staging: Staging, part_bytes: int = 32 << 20) -> None:
        self._store = partial(_store, staging)
        self._parts: Pieces[StoredFile] = Pieces(uid, part_bytes)

    def begin(self) -> None:
        """The following rows are of another transaction."""
        self._parts.begin(self._store)

    def write(self, rows: Rows) -> None:
        """Keep the rows. Waits if full parts are stored more slowly than they fill; `SinkError` if they cannot be."""
        self._parts.write(rows)

    def seal(self, about: dict[str, JsonLike] | None = None) -> Sealed:
        """Hand over the rows of the current transaction."""
        return _SealedRows(self._parts.seal(), about or {})

    def close(self) -> None:
        """Forget what is not prepared, and store no more."""
        self._parts.close()


def _store(staging: Staging, _: int, batches: Sequence[pa.RecordBatch]) -> StoredFile:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return staging.put(buffer.getvalue())


@dataclass(frozen=True, slots=True, eq=False)
class _SealedRows:
    """The rows of a sealed transaction."""

    parts: SealedPieces[StoredFile]
    about: dict[str, JsonLike]

    def prepare(self) -> CommitPayload | None:
        """Store what is not stored yet; what was stored before keeps its name."""
        files = tuple(self.parts.stored())
        return CommitPayload(Json.of({"rows": self.parts.rows, **self.about}), files) if files else None


def staged_batches(payload: CommitPayload, staging: Staging) -> Iterator[pa.RecordBatch]:
    """The rows of a prepared transaction, in order, a part at a time in memory.

    Raises what `unreadable` understands, in the end also if these are not as many as the payload says.
    """
    said, count = payload.value.value(), 0
    for file in payload.staged:
        for batch in batches_in(file, staging.get(file)):
            count += len(batch)
            yield batch
    if not isinstance(said, Mapping) or said.get("rows") != count:
        raise BadPayload(f"{count} rows are staged, and the payload says {said}")


def batches_in(file: StoredFile, data: bytes) -> Sequence[pa.RecordBatch]:
    """Read rows that were stored as an Arrow stream; `BadPayload` for anything else."""
    try:
        with pa.ipc.open_stream(data) as stream:
            batches: list[pa.RecordBatch] = list(stream)
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise BadPayload(f"{file.path} does not have rows as they are staged: {error}") from error
    return batches


UNREADABLE: Final = (MissingFile, DamagedFile, BadPayload, pa.ArrowInvalid, StoreError)
"""What may be raised when staged rows are read."""


def unreadable(error: Exception) -> CommitAnswer:
    """What became of a commit whose rows could not be read, by one of the errors in `UNREADABLE`."""
    if isinstance(error, StoreError):
        return CommitAnswer(CommitOutcome.RETRY_LATER, f"the rows that were staged could not be read: {error}")
    return CommitAnswer(CommitOutcome.FAILED, f"the rows that were staged in the job's tree cannot be had: {error}")
