"""Rows in the memory of this process: the simplest target that keeps what is prepared, and the model of the others.

Invariant: a reader sees the rows of whole transactions, each once; what is prepared is a copy that no other code can
change, and is not seen until its commit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from snapshot.connectors.staging.commit_tokens import Token
from snapshot.connectors.staging.payloads import MADE_BY, NONCE, PLACE, read_payload
from snapshot.epochs.transaction_events import CommitOutcome, may_be_aborted, parse_transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Abilities, CommitAnswer, Sealed, SinkContext, SinkError, SinkWriter
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Incarnation, Uid


@dataclass(slots=True, eq=False)
class _Target:
    """The target that a name stands for. Writers change it one at a time; a reader takes `rows` as they are."""

    rows: tuple[pa.RecordBatch, ...] = ()
    prepared: dict[Token, tuple[pa.RecordBatch, ...]] = field(default_factory=dict)
    committed: set[Token] = field(default_factory=set)


_targets: dict[str, _Target] = {}
_one_at_a_time = threading.Lock()


def read_heap(name: str) -> pa.Table:
    """Return the rows committed under this name in this process; an empty table without columns if there are none."""
    rows = _targets.get(name, _Target()).rows
    return pa.Table.from_batches(rows) if rows else pa.table({})


def forget_heap(name: str) -> None:
    """Forget the rows under this name, prepared ones as well."""
    with _one_at_a_time:
        _targets.pop(name, None)


@dataclass(frozen=True, slots=True)
class ToHeap:
    """A sink that keeps rows under a name in the memory of the process that made it; `read_heap(name)` gives them.

    It ends with its process, and so do rows that were prepared: it is for those who drive a sink themselves, in tests
    and notebooks. The partitions of a job on Spark are processes of their own, which it refuses; there, `ToDriver`
    brings rows to the program.
    """

    name: str
    process: int = field(default_factory=os.getpid)

    @property
    def exactly_once(self) -> bool:
        """Return True: rows appear at commit."""
        return True

    @property
    def abilities(self) -> Abilities:
        """Declare that rows are kept and tokens can be read, as long as the process lives.

        No commit is needed after its end.
        """
        return Abilities(keeps_prepared=True, reads_tokens=True)

    def check(self, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Return no problem, as the sink takes every schema."""
        return []

    def examine(self, job: JobId, uid: Uid, schema: pa.Schema) -> Sequence[str]:  # noqa: ARG002
        """Report that this is another process than the sink's, or that its rows have other columns."""
        if self.process != os.getpid():
            return [self._elsewhere()]
        found = read_heap(self.name)
        if found.num_columns and not found.schema.equals(schema):
            return [f"the rows under {self.name!r} have the columns {found.schema.names}, and these {schema.names}"]
        return []

    def open(self, context: SinkContext) -> SinkWriter:
        """Open the sink in a partition; `SinkError` in another process than its own."""
        if self.process != os.getpid():
            raise SinkError(f"sink {context.uid}: {self._elsewhere()}")
        return _Writer(self.name, context)

    def recover(self, job: JobId, uid: Uid, older_than: Incarnation, named: Collection[TransactionId]) -> None:
        """Drop prepared rows that are leftovers."""
        with _one_at_a_time:
            prepared = _targets.get(self.name, _Target()).prepared
            for token in list(prepared):
                made = parse_transaction_id(token.transaction)
                if (made.job, made.sink) == (job, uid) and may_be_aborted(token.transaction, older_than, named):
                    del prepared[token]

    def _elsewhere(self) -> str:
        return (
            f"{self.name!r} is in the memory of process {self.process}, and this is process {os.getpid()}; use "
            f"ToDriver for rows that the program is to have"
        )


class _Writer:
    """The sink in a partition."""

    def __init__(self, name: str, context: SinkContext) -> None:
        self._name = name
        self._context = context
        self._token: Token | None = None
        self._batches: list[pa.RecordBatch] = []

    def begin(self, transaction: TransactionId) -> None:
        """Begin with no rows."""
        self._token, self._batches = Token.new(transaction), []

    def write(self, rows: Rows) -> None:
        """Keep the rows."""
        if len(rows):
            self._batches.append(rows.batch)

    def seal(self) -> Sealed:
        """Hand over the rows."""
        assert self._token is not None, "a transaction was begun"
        batches, self._batches = self._batches, []
        return _SealedRows(self._name, self._token, tuple(batches))

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Add the transaction's rows to those that readers see, in one step."""
        found = read_payload(
            ToHeap.__name__,
            self._context,
            transaction,
            payload,
            lambda fields: (fields.own_place(self._name), Token(transaction, fields.text("nonce", NONCE))),
        )
        if isinstance(found, CommitAnswer):
            return found
        name, token = found
        with _one_at_a_time:
            target = _targets.setdefault(name, _Target())
            if token in target.committed:
                return CommitAnswer(CommitOutcome.ALREADY_COMMITTED)
            rows = target.prepared.pop(token, None)
            if rows is None:
                reason = f"transaction {transaction} is not in the memory of this process; its own has ended"
                return CommitAnswer(CommitOutcome.FAILED, reason)
            target.committed.add(token)
            target.rows = (*target.rows, *rows)
        return CommitAnswer(CommitOutcome.COMMITTED)

    def close(self) -> None:
        """Forget what is not prepared."""
        self._batches = []


@dataclass(frozen=True, slots=True, eq=False)
class _SealedRows:
    """The rows of a sealed transaction."""

    name: str
    token: Token
    batches: Sequence[pa.RecordBatch]

    def prepare(self) -> CommitPayload | None:
        """Copy the rows."""
        if not self.batches:
            return None
        copied = tuple(_copy(batch) for batch in self.batches)
        with _one_at_a_time:
            target = _targets.setdefault(self.name, _Target())
            if self.token not in target.committed:
                target.prepared[self.token] = copied
        return CommitPayload(Json.of({MADE_BY: ToHeap.__name__, PLACE: self.name, "nonce": self.token.nonce}))


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the rows to memory of their own: a batch may be a view of memory that its owner uses again."""
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
