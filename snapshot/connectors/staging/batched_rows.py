"""Rows of a sink that shows them at once, kept until their epoch is complete: at-least-once, batch by batch.

Invariant: the rows of a batch are in the job's tree before its epoch can be complete; the sink's writer gets them after
that, all of a batch in order, and again only if it was not known to have taken them all. What is kept can be written
by any process, also in a run whose rows are not kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from snapshot.connectors.staging.payloads import MADE_BY, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, StagedRows, staged_batches, unreadable
from snapshot.epochs.transaction_events import CommitOutcome, Committable
from snapshot.ids import TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import (
    CommitAnswer,
    Sealed,
    SealsForEpochs,
    Sink,
    SinkContext,
    SinkWriter,
    UnwritableRow,
    WaitsForEpochs,
)
from snapshot.tree.manifest import CommitPayload

_KIND: Final = "MicroBatch"
Committables = Collection[Committable[CommitPayload]]


def open_keeping(sink: Sink, context: SinkContext, restored: Committables) -> SinkWriter:
    """Open a sink so that its rows are shown when their epoch is complete, whatever it does by itself."""
    del restored
    if sink.exactly_once or (isinstance(sink, WaitsForEpochs) and sink.waits_for_epochs):
        return sink.open(context)
    return BatchedRows(sink, context)


def open_showing(sink: Sink, context: SinkContext, restored: Committables) -> SinkWriter:
    """Open a sink as it is; it also writes what was kept for it and is restored."""
    writer = sink.open(context)
    return AfterBatches(writer, sink, context) if any(_is_batch(one.payload) for one in restored) else writer


class BatchedRows:
    """The writer of a sink whose rows are kept."""

    def __init__(self, sink: Sink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._rows = StagedRows(context.uid, context.staging)
        self._writer: SinkWriter | None = sink.open(context)

    def begin(self, transaction: TransactionId) -> None:  # noqa: ARG002
        """Begin with no rows."""
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows."""
        self._rows.write(rows)

    def seal(self) -> Sealed:
        """Hand over the rows that were kept."""
        return self._rows.seal({MADE_BY: _KIND})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Have the sink's own writer take the rows; one that fails is not used again."""
        writer, self._writer = self._writer, None
        if writer is None:
            writer = self._sink.open(self._context)
        if not _is_batch(payload):  # of the sink itself, when it was another one
            self._writer = writer
            return writer.commit(transaction, payload)
        try:
            answer = _written(writer, self._context, transaction, payload)
        except BaseException:
            writer.close()
            raise
        if answer.outcome is CommitOutcome.COMMITTED:
            self._writer = writer
        else:
            writer.close()  # it may still have rows of this batch
        return answer

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows.close()
        if self._writer is not None:
            self._writer.close()


class AfterBatches:
    """The writer of a sink whose rows are shown at once, where some are left that were kept."""

    def __init__(self, writer: SinkWriter, sink: Sink, context: SinkContext) -> None:
        self._writer = writer
        self._sink = sink
        self._context = context
        self.begin, self.write, self.seal, self.close = writer.begin, writer.write, writer.seal, writer.close
        if isinstance(writer, SealsForEpochs):
            self.seal_for = writer.seal_for

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Write rows that were kept, by a writer of their own: the other one is in use."""
        if not _is_batch(payload):
            return self._writer.commit(transaction, payload)
        writer = self._sink.open(self._context)
        try:
            return _written(writer, self._context, transaction, payload)
        finally:
            writer.close()


def _is_batch(payload: CommitPayload) -> bool:
    said = payload.value.value()
    return isinstance(said, dict) and said.get(MADE_BY) == _KIND


def _written(
    writer: SinkWriter, context: SinkContext, transaction: TransactionId, payload: CommitPayload
) -> CommitAnswer:
    """Have a plain sink's writer take the rows of a batch, and wait until the target has them."""
    if isinstance(writer, SealsForEpochs):
        return CommitAnswer(
            CommitOutcome.FAILED,
            f"the rows of transaction {transaction} were kept for a former sink {context.uid}, and the present one "
            "takes no rows without their epoch. Start the job with the former sink and drain it, and give the new sink "
            "a uid of its own",
        )
    rows = read_payload(_KIND, context, transaction, payload, lambda fields: fields.number("rows", 1))
    if isinstance(rows, CommitAnswer):
        return rows
    writer.begin(transaction)
    try:
        try:
            for batch in staged_batches(payload, context.staging):
                writer.write(Rows(batch))
        except UNREADABLE as error:
            return unreadable(error)
        prepared = writer.seal().prepare()  # a writer with a thread says of its rows only now what is wrong with them
    except UnwritableRow as error:
        return CommitAnswer(CommitOutcome.FAILED, str(error))
    return CommitAnswer(CommitOutcome.COMMITTED) if prepared is None else writer.commit(transaction, prepared)
