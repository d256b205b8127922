"""Rows that wait in the job's tree for their commit: what sinks use whose target keeps nothing that is not committed.

What always holds: when a transaction is prepared, all its rows are stored in the tree; memory holds the rows of a
transaction until then, but for the parts that were full and are stored while further rows come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from snapshot.frozen_json import Json, JsonLike
from snapshot.manifest import CommitPayload, StoredFile
from snapshot.program.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkError, Staging
from snapshot.transaction_events import CommitOutcome
from statebackend.backends.backend import DamagedFile
from statebackend.ids import Uid
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.store import StoreError

_UNDER_WAY: Final = 2
"""Full parts that may wait to be stored before `write` waits with them."""


@dataclass(slots=True, eq=False)
class _Part:
    """Some rows of a transaction. They are kept until they are stored, so that storing may be tried again."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    stored: StoredFile | None = None
    storing: Future[None] | None = None

    def store(self, staging: Staging) -> StoredFile:
        """Store the rows, once."""
        if self.stored is None:
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_stream(buffer, self.batches[0].schema) as stream:
                for batch in self.batches:
                    stream.write_batch(batch)
            self.stored = staging.put(buffer.getvalue())
            self.batches = []
        return self.stored

    def store_ahead(self, staging: Staging) -> None:
        """The same in a thread."""
        self.store(staging)


class StagedRows:
    """The rows of a sink in one partition, transaction after transaction.

    `about` goes into each payload, beside the number of rows: what a committer has to know. The event loop calls
    everything here; `close` gives up what is not prepared.
    """

    def __init__(self, uid: Uid, staging: Staging, part_bytes: int = 32 << 20) -> None:
        self._uid = uid
        self._staging = staging
        self._part_bytes = part_bytes
        self._parts: list[_Part] = []
        self._thread: ThreadPoolExecutor | None = None

    def begin(self) -> None:
        """The following rows are of another transaction."""
        self._parts = []

    def write(self, rows: Rows) -> None:
        """Keep the rows. Waits if full parts are stored more slowly than they fill; `SinkError` if they cannot be."""
        if not len(rows):
            return
        if not self._parts or self._parts[-1].size >= self._part_bytes:
            self._parts.append(_Part())
        part = self._parts[-1]
        part.batches.append(rows.batch)
        part.size += rows.size
        part.rows += len(rows)
        if part.size >= self._part_bytes:
            self._store_ahead(part)

    def seal(self, about: dict[str, JsonLike] | None = None) -> Sealed:
        """Hand over the rows of the current transaction."""
        parts, self._parts = self._parts, []
        return _SealedRows(tuple(parts), self._staging, about or {})

    def close(self) -> None:
        """Forget what is not prepared, and store no more."""
        self._parts = []
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _store_ahead(self, full: _Part) -> None:
        under_way = [part for part in self._parts if part.storing is not None and part.stored is None]
        if len(under_way) >= _UNDER_WAY:
            storing = under_way[0].storing
            assert storing is not None
            if (error := storing.exception()) is not None:
                raise SinkError(f"sink {self._uid}: its rows could not be stored in the job's tree: {error}") from error
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix=f"rows-{self._uid}")
        full.storing = self._thread.submit(full.store_ahead, self._staging)


@dataclass(frozen=True, slots=True, eq=False)
class _SealedRows:
    """The rows of a sealed transaction."""

    parts: Sequence[_Part]
    staging: Staging
    about: dict[str, JsonLike]

    def prepare(self) -> CommitPayload | None:
        """Store what is not stored yet; what was stored before keeps its name."""
        if not self.parts:
            return None
        for part in self.parts:
            if part.storing is not None:
                part.storing.exception()  # if it failed, it is tried again here
        files = tuple(part.store(self.staging) for part in self.parts)
        return CommitPayload(Json.of({"rows": sum(part.rows for part in self.parts), **self.about}), files)


def staged_batches(payload: CommitPayload, staging: Staging) -> Iterator[pa.RecordBatch]:
    """The rows of a prepared transaction, in order, a part at a time in memory.

    Raises what `unreadable` understands.
    """
    for file in payload.staged:
        with pa.ipc.open_stream(staging.get(file)) as stream:
            yield from stream


UNREADABLE: Final = (MissingFile, DamagedFile, pa.ArrowInvalid, StoreError)
"""What may be raised when staged rows are read."""


def unreadable(error: Exception) -> CommitAnswer:
    """What became of a commit whose rows could not be read, by one of the errors in `UNREADABLE`."""
    if isinstance(error, StoreError):
        return CommitAnswer(CommitOutcome.RETRY_LATER, f"the rows that were staged could not be read: {error}")
    return CommitAnswer(CommitOutcome.FAILED, f"the rows that were staged in the job's tree are gone: {error}")
