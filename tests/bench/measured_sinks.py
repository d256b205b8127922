"""Sinks that only measure: one that drops all rows, and one that notes when each row was scheduled, and when it came.

Invariant: both take rows where they are made, in the partition's own process, and neither has transactions.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, SinkContext
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid

SCHEDULED = "ts"
"""The column with a row's scheduled time, in microseconds since 1970; 0 for rows that were not scheduled."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Takes rows and does nothing with them."""

    @property
    def exactly_once(self) -> bool:
        """There is no output that could come twice."""
        return False

    @property
    def abilities(self) -> Abilities:
        """None."""
        return Abilities()

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """It takes everything."""
        return []

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        """There is nothing to look at."""
        return []

    def open(self, context: SinkContext) -> Dropping:
        """Open it in a partition."""
        return Dropping()

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Nothing is ever left."""


class Dropping:
    """A sink without transactions."""

    def begin(self, transaction: TransactionId) -> None:
        """There are no transactions."""

    def write(self, rows: Rows) -> None:
        """Forget them."""

    def seal(self) -> Nothing:
        """There is nothing to commit."""
        return Nothing()

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """It is never asked for, as nothing is prepared."""
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """A transaction without rows."""

    def prepare(self) -> CommitPayload | None:
        """There are no rows."""
        return None


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Notes when each scheduled row came, in files of the folder; at once, as the process may be killed."""

    folder: str

    @property
    def exactly_once(self) -> bool:
        """Rows count when they come."""
        return False

    @property
    def abilities(self) -> Abilities:
        """None."""
        return Abilities()

    def check(self, schema: pa.Schema) -> Sequence[str]:
        """It needs the scheduled time."""
        return [] if SCHEDULED in schema.names else [f"there is no column {SCHEDULED!r} with the scheduled time"]

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        """There is nothing to look at."""
        return []

    def open(self, context: SinkContext) -> _Noting:
        """Open it in a partition."""
        return _Noting(Path(self.folder) / f"{context.partition}-{token_hex(4)}")

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """The files of earlier attempts count as well."""


class _Noting(Dropping):
    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)

    def write(self, rows: Rows) -> None:
        """Note the time now beside the scheduled one."""
        now = time.time_ns() // 1_000
        scheduled = rows.batch.column(SCHEDULED).to_numpy()
        self._file.write(np.stack([scheduled, np.full(len(scheduled), now)], axis=1).tobytes())

    def close(self) -> None:
        """The file has everything."""
        self._file.close()


def noted(folder: Path) -> NDArray[np.int64]:
    """Of all rows that came and were scheduled: when they were scheduled, and when they came; microseconds."""
    found = [np.fromfile(file, np.int64).reshape(-1, 2).T for file in folder.iterdir()]
    both = np.concatenate(found, axis=1) if found else np.zeros((2, 0), np.int64)
    return both[:, both[0] > 0]
