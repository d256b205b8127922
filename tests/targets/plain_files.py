"""Files as a program without epochs would write them: what comes is in the file, and may come again.

What always holds: a partition, in one attempt, writes one file, whose rows readers see once it is closed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot.ids import JobId, TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, SinkContext
from snapshot.transaction_events import CommitOutcome
from statebackend.ids import Incarnation, Uid


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """Parquet files of a folder."""

    folder: str

    @property
    def exactly_once(self) -> bool:
        return False

    @property
    def abilities(self) -> Abilities:
        return Abilities()

    def check(self, schema: pa.Schema) -> Sequence[str]:
        return []

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:
        return []

    def open(self, context: SinkContext) -> _Writer:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        return _Writer(Path(self.folder) / f"plain-{token_hex(4)}.parquet", context.schema)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None: ...


class _Writer:
    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._file = pq.ParquetWriter(file, schema)

    def begin(self, transaction: TransactionId) -> None: ...

    def write(self, rows: Rows) -> None:
        self._file.write_batch(rows.batch)

    def seal(self) -> _Nothing:
        return _Nothing()

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        self._file.close()


class _Nothing:
    def prepare(self) -> CommitPayload | None:
        return None
