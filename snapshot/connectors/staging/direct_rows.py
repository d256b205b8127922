"""Rows that are written to a target at once, in batches, by a thread of their own: at-least-once.

Invariant: when a transaction is prepared, all its rows are in the target; a batch that failed is written again.
Memory holds the rows that wait, which are few, as `write` waits if the target is slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from snapshot.ids import TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkError, UnwritableRow
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Uid
from statebackend.thread_pool import Task, ThreadPool

BATCH: Final = 1 << 20
"""Bytes that are worth a write of their own before the epoch is over."""
WAITING: Final = 16 << 20
"""Bytes that may wait to be written before `write` waits with them."""


class DirectRows:
    """A writer that shows its rows at once. `put` writes rows, and raises if it cannot; `close` is called in the same
    thread in the end; `commit` is for transactions that were prepared when the sink was exactly-once.
    """

    def __init__(
        self,
        uid: Uid,
        put: Callable[[pa.Table], None],
        commit: Callable[[TransactionId, CommitPayload], CommitAnswer],
        close: Callable[[], None],
    ) -> None:
        self._uid = uid
        self._put = put
        self._commit = commit
        self._close = close
        self._waiting: deque[Rows] = deque()
        self._given = self._handed_over = 0
        """Bytes that were written here, and those of them that the thread was told of."""
        self._put_down = 0
        """Bytes that are in the target; the thread alone changes it."""
        self._thread = ThreadPool(1, f"rows-{uid}")
        self._writing: Task[None] | None = None
        self._closed = False

    def begin(self, transaction: TransactionId) -> None:
        """Do nothing, as rows are written without transactions."""

    def write(self, rows: Rows) -> None:
        """Hand the rows to the thread, when there are enough; wait with it if there are too many."""
        if not len(rows):
            return
        self._waiting.append(rows)
        self._given += rows.size
        if self._given - self._handed_over < BATCH:
            return
        if self._writing is None or self._writing.is_done:
            self._check()
            self._handed_over = self._given
            self._writing = self._thread.submit(self._drain)
        elif self._given - self._put_down >= WAITING:
            self._writing.error()

    def seal(self) -> Sealed:
        """Close the transaction; preparing it waits until what was written before is in the target."""
        return _Flush(self.flush)

    def flush(self) -> None:
        """Write all rows that wait; raises what the target raises."""
        self._thread.submit(self._drain).result()

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Commit what another program has prepared."""
        return self._commit(transaction, payload)

    def close(self) -> None:
        """Write nothing more."""
        self._closed = True
        self._thread.submit(self._close)
        self._thread.close()

    def _check(self) -> None:
        error = self._writing.error() if self._writing is not None else None
        if isinstance(error, UnwritableRow):
            raise error
        if error is not None and self._given - self._put_down >= WAITING:
            raise SinkError(f"sink {self._uid}: its rows could not be written: {error}") from error

    def _drain(self) -> None:
        count = len(self._waiting)
        if self._closed or not count:
            return
        self._put(pa.Table.from_batches([self._waiting[place].batch for place in range(count)]))
        for _ in range(count):
            self._put_down += self._waiting.popleft().size


@dataclass(frozen=True, slots=True, eq=False)
class _Flush:
    """The end of a transaction whose rows are not held back."""

    flush: Callable[[], None]

    def prepare(self) -> CommitPayload | None:
        """Wait until the rows are in the target."""
        self.flush()
        return None
