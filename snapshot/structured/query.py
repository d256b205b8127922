"""A sink as a micro-batch query uses it: attempts prepare, one decision per batch says which of them are committed.

Invariant: each attempt at a partition of a batch has a transaction of its own, made by an incarnation that no other
has; each commit of a batch is made as its last incarnation. So what a sink promises of attempts of a job, with commits
that are asked for again and leftovers, holds for a query: batch n is generation n + 1, its commit an attempt that
begins from what was decided.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from secrets import randbelow
from typing import Final

import pyarrow as pa

from snapshot.epochs.transaction_events import CommitOutcome, Committable, transaction_id
from snapshot.host.partition.tree_files import TreeFiles
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import Sink, SinkContext, SinkError
from snapshot.structured.batch_log import BatchLog, Decision
from snapshot.tree.manifest import CommitPayload, SubtaskSnapshot
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from statebackend.stores.store import BlobStore

_COMMITS: Final = 2**53
"""The attempt that commits a batch; those that write it have lower numbers."""
_AT_ONCE: Final = 8
"""Partitions whose transactions are committed at the same time."""
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TIDY_EVERY: Final = 32
"""Batches between two looks for leftovers in a query that runs without trouble."""

_examined: set[tuple[JobId, str]] = set()
"""Queries and their starts for which this process has looked at the target."""


@dataclass(frozen=True, slots=True)
class Written:
    """The rows that an attempt at a partition of a batch has prepared; `again` if another attempt was made before."""

    query: str
    run: str
    again: bool
    part: SubtaskSnapshot


class SinkQuery:
    """One query and its sink. `store` is the query's tree; `patience` are seconds until a commit is given up."""

    def __init__(self, query: str, name: str, sink: Sink, store: BlobStore, patience: float, schema: pa.Schema) -> None:
        self._query = query
        self._job, self._uid = JobId(query), Uid(name)
        self._sink = sink
        self._store = store
        self._patience = patience
        self._schema = schema
        self._log = BatchLog(store)

    def write(self, batch: int, partition: int, run: str, again: bool, rows: Iterable[pa.RecordBatch]) -> Written:
        """Prepare the rows of a partition, in a transaction of this attempt. A crash leaves a leftover.

        Rows of a batch that is decided are read and dropped: the target refuses attempts that its commit has ended.
        """
        made_by = Incarnation(Generation(batch + 1), Attempt(1 + randbelow(_COMMITS - 1)))
        here = Partition(partition)
        transaction = transaction_id(self._job, self._uid, made_by, here, 0)
        if self._log.decision(batch) is not None:
            deque(rows, maxlen=0)  # all of them, as what makes them may have state of its own to write
            return Written(self._query, run, again, SubtaskSnapshot(here))
        payload = self._prepared(run, transaction, made_by, here, rows)
        sealed_in = Epoch(Generation(batch + 1), batch + 1)
        prepared = () if payload is None else (Committable(transaction, sealed_in, payload),)
        return Written(self._query, run, again, SubtaskSnapshot(here, committables=prepared))

    def commit(self, batch: int, written: Sequence[Written]) -> None:
        """Commit the transactions that the batch's decision names: those written, unless it was decided before.

        When this returns, readers see the rows of each partition once. Raises `SinkError` if the target refuses them,
        or could not be asked for as long as `patience`; then, and after a crash, it may be called again.
        """
        run = next((one.run for one in written), "")
        proposed = Decision(run, tuple(one.part for one in written))
        before = self._log.decision(batch - 1) if batch else None
        decision = self._log.decide(batch, proposed)
        as_usual = decision == proposed and before is not None and before.run == run
        if not as_usual or any(one.again for one in written) or batch % _TIDY_EVERY == 0:
            self._drop_leftovers(batch, decision)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="commit") as threads:
            for _ in threads.map(lambda part: self._commit_part(batch, part), decision.partitions):
                pass
        self._log.forget_before(batch)

    def _prepared(
        self,
        run: str,
        transaction: TransactionId,
        made_by: Incarnation,
        here: Partition,
        rows: Iterable[pa.RecordBatch],
    ) -> CommitPayload | None:
        batches = (batch for batch in rows if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return None
        if (self._job, run) not in _examined:
            self._examine(first.schema)
            _examined.add((self._job, run))
        writer = self._sink.open(self._context(first.schema, made_by, here))
        try:
            writer.begin(transaction)
            for batch in chain((first,), batches):
                writer.write(Rows(batch))
            return writer.seal().prepare()
        finally:
            writer.close()

    def _examine(self, schema: pa.Schema) -> None:
        problems = self._sink.examine(self._job, self._uid, schema)
        if problems:
            # Several partitions may have looked at once, and one of them have made what is missing.
            problems = self._sink.examine(self._job, self._uid, schema)
        refuse(self._uid, problems)

    def _commit_part(self, batch: int, part: SubtaskSnapshot) -> None:
        incarnation = _committing(batch)
        for committable in part.committables:
            writer = self._sink.open(self._context(self._schema, incarnation, part.partition))
            give_up = time.monotonic() + self._patience
            try:
                for pause in _endless(_PAUSES):
                    answer = writer.commit(committable.transaction, committable.payload)
                    if answer.outcome in (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED):
                        break
                    if answer.outcome is CommitOutcome.FAILED or time.monotonic() > give_up:
                        raise SinkError(
                            f"{self._uid}: partition {part.partition} of batch {batch} could not be committed: "
                            f"{answer.reason}. Its rows are kept; start the query again when this is put right"
                        )
                    time.sleep(pause)
            finally:
                writer.close()

    def _drop_leftovers(self, batch: int, decision: Decision) -> None:
        named = {one.transaction for part in decision.partitions for one in part.committables}
        give_up = time.monotonic() + self._patience
        for pause in _endless(_PAUSES):
            try:
                self._sink.recover(self._job, self._uid, _committing(batch), named)
                break
            except Exception:
                # If no batch had rows yet, nobody has made what the sink needs in the target.
                problems = self._sink.examine(self._job, self._uid, self._schema)
                if time.monotonic() > give_up:
                    refuse(self._uid, problems)
                    raise
                time.sleep(pause)

    def _context(self, schema: pa.Schema, incarnation: Incarnation, here: Partition) -> SinkContext:
        staging = TreeFiles(self._store, incarnation, here)
        return SinkContext(self._job, self._uid, schema, incarnation, here, staging, _no_program)


def refuse(name: str, problems: Sequence[str]) -> None:
    """Raise `SinkError` if there are problems."""
    if problems:
        raise SinkError(f"epochcut.{name}: {'; '.join(problems)}")


def _committing(batch: int) -> Incarnation:
    return Incarnation(Generation(batch + 1), Attempt(_COMMITS))


def _endless(pauses: Sequence[float]) -> Iterator[float]:
    yield from pauses
    while True:
        yield pauses[-1]


def _no_program(transaction: TransactionId | None, rows: pa.RecordBatch) -> None:  # noqa: ARG001
    raise SinkError("a query of Spark's has no program that rows could be delivered to")
