"""Rows that wait in the job's tree for their commit: what sinks use whose target keeps nothing that is not committed.

Invariant: when a transaction is prepared, all its rows are stored in the tree; memory holds the rows of a
transaction until then, but for the parts that were full and are stored while further rows come.

Rows that replace each other stay in the order in which they came; of those whose keys are equal to Arrow, the last is
left. To a database more keys may be equal (texts without regard to case, 0.0 and -0.0), so the rows that are left
replace each other there as well, in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapshot.connectors.staging.payloads import BadPayload
from snapshot.connectors.staging.pieces import Pieces, SealedPieces
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, Staging
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload, StoredFile
from statebackend.backends.backend import DamagedFile
from statebackend.ids import Uid
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.store import BlobStoreError


class StagedRows:
    """The rows of a sink in one partition, transaction after transaction.

    `about` goes into each payload, beside the number of rows: what a committer has to know. The event loop calls
    everything here; `close` gives up what is not prepared.
    """

    def __init__(self, uid: Uid, staging: Staging, part_bytes: int = 32 << 20) -> None:
        self._store = partial(_store, staging)
        self._parts: Pieces[StoredFile] = Pieces(uid, part_bytes)

    def begin(self) -> None:
        """Begin another transaction, to which the following rows belong."""
        self._parts.begin(self._store)

    def write(self, rows: Rows) -> None:
        """Keep the rows; `SinkError` if full parts cannot be stored.

        Waits if they are stored more slowly than they fill.
        """
        self._parts.write(rows)

    def seal(self, about: dict[str, JsonLike] | None = None) -> Sealed:
        """Hand over the rows of the current transaction."""
        return _SealedRows(self._parts.seal(), about or {})

    def close(self) -> None:
        """Forget the rows that are not prepared, and store no more."""
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
    """Yield the rows of a prepared transaction, in order, with one part at a time in memory.

    Raises what `unreadable` understands; in the end also if there are more or fewer rows than the payload says.
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


UNREADABLE: Final = (MissingFile, DamagedFile, BadPayload, pa.ArrowInvalid, BlobStoreError)
"""The errors that reading staged rows may raise."""


def unreadable(error: Exception) -> CommitAnswer:
    """Turn one of the errors in `UNREADABLE` into the answer to a commit whose rows could not be read."""
    if isinstance(error, BlobStoreError):
        return CommitAnswer(CommitOutcome.RETRY_LATER, f"the rows that were staged could not be read: {error}")
    return CommitAnswer(CommitOutcome.FAILED, f"the rows that were staged in the job's tree cannot be had: {error}")


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last row of each key."""
    rows = rows.unify_dictionaries()  # each batch may have its own, which cannot be compared
    names = [str(place) for place in range(len(key))]
    columns = [rows.column(name) for name in key]
    keyed = pa.table([*columns, pa.array(np.arange(len(rows)))], names=[*names, "place"])
    places = keyed.group_by(names).aggregate([("place", "max")]).column("place_max")
    return rows.take(places.combine_chunks().sort())


def parted(rows: pa.Table, deleted: str) -> tuple[pa.Table, pa.ChunkedArray]:
    """Return the rows without the column `deleted`, and a mask of the rows that delete: those for which it is true.

    Without such a column, no row deletes.
    """
    if not deleted:
        return rows, pa.chunked_array([pa.array(np.zeros(len(rows), dtype=bool))])
    return rows.drop_columns([deleted]), pc.fill_null(rows.column(deleted), False)


def in_chunks(batches: Iterable[pa.RecordBatch], rows: int = 1 << 16) -> Iterator[pa.Table]:
    """Yield the same rows in tables of about `rows` rows, in order."""
    some: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        some.append(batch)
        count += len(batch)
        if count >= rows:
            yield pa.Table.from_batches(some)
            some, count = [], 0
    if count:
        yield pa.Table.from_batches(some)
