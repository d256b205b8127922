"""Committing what was staged for a topic: the records and a token in one transaction of Kafka, of one epoch or of many.

Invariant: rows are written only when it is known that they were not before. A token that the broker may have
forgotten is a failure that says so, never a reason to write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from snapshot.connectors.kafka.records import are_records
from snapshot.connectors.kafka.sink_client import KafkaClients, told_apart
from snapshot.connectors.kafka.slot import Slot, TokenPlace
from snapshot.connectors.kafka.tokens import (
    SHORTEST_MEMORY,
    About,
    group_of,
    may_be_forgotten,
    may_be_of_one_cluster,
)
from snapshot.connectors.staging.commit_tokens import TargetError, commit_by_token
from snapshot.connectors.staging.committed import Committed
from snapshot.connectors.staging.payloads import BadPayload, PayloadFields, for_another_place, read_payload
from snapshot.connectors.staging.staged_rows import UNREADABLE, staged_batches, unreadable
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome, Committable, parse_transaction_id
from snapshot.ids import TransactionId
from snapshot.program.sink import CommitAnswer, SinkContext, Staging
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload

_DONE: Final = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)
_AT_ONCE: Final = 16 << 20
"""Bytes of staged records that go into one transaction of Kafka if they are of several epochs."""


class KafkaCommits:
    """Commits transactions of a sink, one at a time, from any thread. `close` does not wait for one that is under way.

    `kind` is the class of the sink, which payloads name, and `topic` is the sink's. `tokens_kept` says for how many
    seconds the broker keeps committed offsets; None asks it.
    """

    def __init__(
        self,
        kind: str,
        topic: str,
        clients: KafkaClients,
        transaction_timeout: float,
        tokens_kept: float | None,
        context: SinkContext,
    ) -> None:
        self._kind = kind
        self._topic = topic
        self._context = context
        self.clients = clients
        self.transaction_timeout = transaction_timeout
        self._tokens_kept = tokens_kept
        self._slot: Slot | None = None
        self._one_at_a_time = threading.Lock()
        self._alone = False
        self._closed = False

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Commit, or find that it is committed.

        The producer is kept for the next commit if all went well.
        """
        staged = self._read(transaction, payload)
        return staged if isinstance(staged, CommitAnswer) else self._commit([staged])

    def commit_together(self, due: Sequence[Committable[CommitPayload]]) -> CommitAnswer:
        """Commit the first transaction, together with those after it that fit in the same transaction of Kafka.

        After a try that did not succeed, the first is tried alone, so that it does not answer for another.
        """
        staged: list[_Staged] = []
        for one in due:
            found = self._read(one.transaction, one.payload)
            if isinstance(found, CommitAnswer):
                if not staged:
                    return found
                break
            staged.append(found)
        together = staged[:1] if self._alone else _fitting(staged)
        self._alone = True  # whatever comes of it
        answer = self._commit(together)
        self._alone = answer.outcome not in _DONE
        if answer.outcome is CommitOutcome.FAILED and len(together) > 1:
            return CommitAnswer(CommitOutcome.RETRY_LATER, f"one of {len(together)} transactions: {answer.reason}")
        return answer

    def _read(self, transaction: TransactionId, payload: CommitPayload) -> _Staged | CommitAnswer:
        ours, topic = self.clients.bootstrap, self._topic

        def read(fields: PayloadFields) -> _Staged | CommitAnswer:
            here: dict[str, JsonLike] = {"bootstrap": ours, "topic": topic}
            theirs = str(fields.place_like(here)["bootstrap"])
            if not may_be_of_one_cluster(theirs, ours):
                advice = f"if it is the same cluster, give both lists: bootstrap='{ours},{theirs}'"
                return for_another_place(transaction, f"Kafka at {theirs}", f"Kafka at {ours}", advice)
            place = fields.own_object(here, lambda place: place["topic"] == topic)
            return _Staged(transaction, payload, About.read(transaction, place, fields))

        return read_payload(self._kind, self._context, transaction, payload, read)

    def _commit(self, staged: Sequence[_Staged]) -> CommitAnswer:
        with self._one_at_a_time:
            answer: CommitAnswer | None = None
            try:
                answer = commit_by_token(_Commit(self, staged))
            except UNREADABLE as error:
                answer = unreadable(error)
            finally:
                if self._closed or answer is None or answer.outcome not in _DONE:
                    self._let_go()
            return answer

    @property
    def staging(self) -> Staging:
        """Return where the staged records are read from."""
        return self._context.staging

    def close(self) -> None:
        """Let the producer go; the next process that commits takes over its transactional id."""
        self._closed = True
        if self._one_at_a_time.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._one_at_a_time.release()

    def slot(self, id: str) -> Slot:
        """Return the producer of a transactional id: the one that is kept, or a new one that fences all others."""
        if self._slot is None or self._slot.id != id:
            self._let_go()
            self._slot = Slot(self.clients, id, self.transaction_timeout)
        return self._slot

    def tokens_kept(self) -> float:
        """Return for how many seconds after its commit the broker keeps a token.

        Asks the broker, once, if the number was not given.
        """
        if self._tokens_kept is None:
            with told_apart("the broker does not say how long it keeps committed offsets; give tokens_kept"):
                self._tokens_kept = self.clients.offsets_kept()
        return self._tokens_kept

    def _let_go(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.close()


@dataclass(frozen=True, slots=True)
class _Staged:
    """A transaction of the sink."""

    transaction: TransactionId
    payload: CommitPayload
    about: About

    @property
    def number(self) -> int:
        return parse_transaction_id(self.transaction).n

    @property
    def place(self) -> TokenPlace:
        return TokenPlace(group_of(self.transaction, self.about.writer), self.about.topic)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.payload.staged)


def _fitting(staged: Sequence[_Staged]) -> Sequence[_Staged]:
    """Return the first, and as many of the following as have the same token and are not too large together."""
    first, size = staged[0], 0
    for number, one in enumerate(staged):
        size += one.size
        alike = one.place == first.place and one.about.producer == first.about.producer
        if number and (not alike or size > _AT_ONCE):
            return staged[:number]
    return staged


class _Commit:
    """Transactions of the sink that have one token; the first is asked for."""

    def __init__(self, commits: KafkaCommits, staged: Sequence[_Staged]) -> None:
        self._commits = commits
        self._staged = staged
        self._first = staged[0]

    def fence(self) -> None:
        """Take over the transactional id unless it is held here; a process that took it since has fenced this one."""
        self._commits.slot(self._first.about.producer)

    def has_token(self) -> bool:
        """True if the first transaction is among those that its writer has committed.

        Raises `TargetError` if it is not, but its token may have expired.
        """
        if self._first.number in self._committed():
            return True
        if self._is_forgettable(self._first):
            raise TargetError(TargetAnswer.REFUSED, self._forgotten())
        return False

    def write(self) -> None:
        """Write the records and the token of the first transaction, whose token is missing.

        Includes those after it that were certainly not committed.
        """
        began = time.monotonic()
        known = self._committed()
        others = (one for one in self._staged[1:] if one.number not in known and not self._is_forgettable(one))
        missing = [self._first, *others]
        committed = known
        for one in missing:
            committed = committed.with_range(one.about.first, one.number)
        try:
            self._commits.slot(self._first.about.producer).commit(self._batches(missing), self._first.place, committed)
        except TargetError as error:
            took, most = time.monotonic() - began, self._commits.transaction_timeout
            if took < most or error.answer is TargetAnswer.REFUSED:
                raise
            slow = f"it took {took:.1f} s, and the broker aborts what takes longer than transaction_timeout={most:g}"
            raise TargetError(error.answer, f"{error}; {slow}") from error

    def _batches(self, staged: Sequence[_Staged]) -> Iterator[pa.RecordBatch]:
        for one in staged:
            for batch in staged_batches(one.payload, self._commits.staging):
                if not are_records(batch.schema):
                    raise BadPayload(f"what is staged for transaction {one.transaction} are no records of Kafka")
                yield batch

    def _committed(self) -> Committed:
        return self._commits.slot(self._first.about.producer).committed(self._first.place)

    def _is_forgettable(self, one: _Staged) -> bool:
        now = int(time.time() * 1000)
        if not may_be_forgotten(one.about.sealed_at, now, SHORTEST_MEMORY):
            return False  # whatever the broker says
        return may_be_forgotten(one.about.sealed_at, now, self._commits.tokens_kept())

    def _forgotten(self) -> str:
        value = self._first.payload.value.value()
        rows = value["rows"] if isinstance(value, Mapping) else "its"
        return (
            f"transaction {self._first.transaction} was sealed longer ago than the broker keeps the tokens of commits "
            f"({self._commits.tokens_kept() / 3600:g} h, offsets.retention.minutes), so it cannot be told whether its "
            f"{rows} records are in topic {self._first.about.topic!r}; they were not written. Look there; keep tokens "
            "longer for the next time"
        )
