"""Rows for the program that started the job: delivered when their epoch is complete, or at once.

Invariant: with `at_commit`, the rows of a transaction are stored in the job's tree before its epoch can be
complete, and are delivered in one piece under the transaction's id, by which the driver knows them if they come again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from snapshot.connectors.staging.payloads import MADE_BY, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, StagedRows, staged_batches, unreadable
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkWriter
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid


@dataclass(frozen=True, slots=True)
class ToDriver:
    """A sink whose rows the driver's program gets. It keeps an epoch's rows in memory: meant for results that a program
    looks at, not for bulk. Rows that the program does not take (`Run.batches`, `Run.rows`) wait in the driver's memory
    until it does, however many they are.

    With `at_commit` every row is delivered once, when its epoch is complete. Without, rows are delivered as soon as
    they are made, and those since the last complete epoch again after a rollback.
    """

    at_commit: bool = True

    @property
    def exactly_once(self) -> bool:
        """True if rows wait for their epoch."""
        return self.at_commit

    @property
    def takes_copies(self) -> bool:
        """True if rows are delivered at once: the driver knows each by its position."""
        return not self.at_commit

    @property
    def abilities(self) -> Abilities:
        """Declare that the job's tree keeps staged rows, and that the driver knows what was delivered."""
        return Abilities(keeps_prepared=True, reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Return no problem, as the sink takes every schema."""
        return []

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Return no problem, as there is no target to look at."""
        return []

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition."""
        return _Writer(context, self.at_commit)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Do nothing: leftovers are only in the job's tree, where the clean-up finds them."""


class _Writer:
    """Keeps the rows of the current transaction, or delivers them; commits what was prepared before in either case."""

    def __init__(self, context: SinkContext, at_commit: bool) -> None:
        self._context = context
        self._at_commit = at_commit
        self._rows = StagedRows(context.uid, context.staging)

    def begin(self, transaction: TransactionId) -> None:  # noqa: ARG002
        """Begin with no rows."""
        self._rows.begin()

    def write(self, rows: Rows) -> None:
        """Keep the rows, or deliver them at once."""
        if self._at_commit:
            self._rows.write(rows)
        elif len(rows):
            self._context.deliver(None, rows.batch)

    def seal(self) -> Sealed:
        """Hand over the rows that were kept."""
        return self._rows.seal({MADE_BY: ToDriver.__name__})

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Deliver the rows; the driver drops them if it has them."""
        rows = read_payload(
            ToDriver.__name__, self._context, transaction, payload, lambda fields: fields.number("rows", 1)
        )
        if isinstance(rows, CommitAnswer):
            return rows
        try:
            batches = list(staged_batches(payload, self._context.staging))
        except UNREADABLE as error:
            return unreadable(error)
        self._context.deliver(transaction, pa.concat_batches(batches))
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Forget what is not prepared."""
        self._rows.close()
