"""A job in miniature that changes a table of a database; what the tests of SQLite and of PostgreSQL share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from snapshot.epochs.transaction_events import transaction_id
from snapshot.ids import JobId, Replica, TransactionId, numbered_from
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, Sink, SinkContext, SinkWriter
from snapshot.testing.sinks import SinkEnvironment, attempt, settled, some
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Partition, Uid

CHANGES = pa.schema({"k": pa.int64(), "v": pa.string(), "gone": pa.bool_()})
"""Rows of a table by key, and whether they delete."""

Row = Mapping[str, object]


def change(k: int, v: str | None = None, gone: bool | None = False) -> Row:
    return {"k": k, "v": v, "gone": gone}


class SqlBench:
    """One sink of one job."""

    def __init__(self, sink: Sink, schema: pa.Schema = CHANGES, job: str = "a job") -> None:
        self.sink = sink
        self.schema = schema
        self.job, self.uid = JobId(job), Uid("out")
        self.environment = SinkEnvironment()
        self.accept_places: frozenset[str] = frozenset()
        self._n = 0

    def examine(self) -> Sequence[str]:
        return [*self.sink.check(self.schema), *self.sink.examine(self.job, self.uid, self.schema)]

    def open(self, number: int = 1, partition: int = 0, took_over: Replica | None = None) -> SinkWriter:
        """Open the sink in an attempt; `took_over` makes transactions of its own numbers from then on."""
        self._n = self._n if took_over is None else numbered_from(took_over)
        environment, incarnation, places = self.environment, attempt(number), self.accept_places
        return self.sink.open(
            SinkContext(
                self.job,
                self.uid,
                self.schema,
                incarnation,
                Partition(partition),
                environment,
                environment.deliver,
                places,
                took_over,
            )
        )

    def begin(self, writer: SinkWriter, number: int = 1, partition: int = 0) -> TransactionId:
        self._n += 1
        transaction = transaction_id(self.job, self.uid, attempt(number), Partition(partition), self._n)
        writer.begin(transaction)
        return transaction

    def batch(self, rows: Sequence[Row]) -> Rows:
        return Rows(pa.RecordBatch.from_pylist(list(rows), self.schema))

    def sealed(self, writer: SinkWriter, *batches: Sequence[Row], number: int = 1) -> tuple[TransactionId, Sealed]:
        transaction = self.begin(writer, number)
        for rows in batches:
            writer.write(self.batch(rows))
        return transaction, writer.seal()

    def prepared(
        self, writer: SinkWriter, *batches: Sequence[Row], number: int = 1
    ) -> tuple[TransactionId, CommitPayload]:
        transaction, sealed = self.sealed(writer, *batches, number=number)
        return transaction, some(sealed.prepare(), transaction)

    def commit(self, writer: SinkWriter, *batches: Sequence[Row], number: int = 1) -> CommitAnswer:
        return settled(writer, *self.prepared(writer, *batches, number=number))

    def recover(self, number: int, named: Sequence[TransactionId] = ()) -> None:
        self.sink.recover(self.job, self.uid, attempt(number), frozenset(named))
