"""Committing what was staged for a topic: the records and a token in one transaction of Kafka.

What always holds: rows are written only when it is known that they were not before. A token that the broker may have
forgotten is a failure that says so, never a reason to write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from snapshot.ids import TransactionId
from snapshot.manifest import CommitPayload
from snapshot.program.sink import CommitAnswer, Staging
from snapshot.sinks.kafka_client import KafkaClients, told_apart
from snapshot.sinks.kafka_slot import Slot, TokenPlace
from snapshot.sinks.kafka_tokens import SHORTEST_MEMORY, About, Committed, group_of, may_be_forgotten
from snapshot.sinks.staged_rows import UNREADABLE, staged_batches, unreadable
from snapshot.sinks.token_target import TargetError, commit_by_token
from snapshot.token_commit import TargetAnswer
from snapshot.transaction_events import CommitOutcome, parse_transaction_id

_DONE: Final = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)


class KafkaCommits:
    """Commits transactions of a sink, one at a time, from any thread. `close` does not wait for one that is under way.

    `tokens_kept` says for how many seconds the broker keeps committed offsets; None asks it.
    """

    def __init__(
        self, clients: KafkaClients, transaction_timeout: float, tokens_kept: float | None, staging: Staging
    ) -> None:
        self.clients = clients
        self.staging = staging
        self.transaction_timeout = transaction_timeout
        self._tokens_kept = tokens_kept
        self._slot: Slot | None = None
        self._one_at_a_time = threading.Lock()
        self._closed = False

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Commit, or find that it is committed. The producer is kept for the next commit if all went well."""
        with self._one_at_a_time:
            answer: CommitAnswer | None = None
            try:
                answer = commit_by_token(_Commit(self, transaction, payload))
            except UNREADABLE as error:
                answer = unreadable(error)
            finally:
                if self._closed or answer is None or answer.outcome not in _DONE:
                    self._let_go()
            return answer

    def close(self) -> None:
        """Let the producer go; whoever commits later takes over its transactional id."""
        self._closed = True
        if self._one_at_a_time.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._one_at_a_time.release()

    def slot(self, id: str) -> Slot:
        """The producer of a transactional id: the one that is kept, or a new one that fences all others."""
        if self._slot is None or self._slot.id != id:
            self._let_go()
            self._slot = Slot(self.clients, id, self.transaction_timeout)
        return self._slot

    def tokens_kept(self) -> float:
        """For how many seconds after its commit the broker knows a token."""
        if self._tokens_kept is None:
            with told_apart("the broker does not say how long it keeps committed offsets; give tokens_kept"):
                self._tokens_kept = self.clients.offsets_kept()
        return self._tokens_kept

    def _let_go(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.close()


class _Commit:
    """One transaction of the sink."""

    def __init__(self, commits: KafkaCommits, transaction: TransactionId, payload: CommitPayload) -> None:
        self._commits = commits
        self._transaction = transaction
        self._payload = payload
        self._about = About.read(payload.value.value())
        self._place = TokenPlace(group_of(transaction), self._about.topic)
        self._number = parse_transaction_id(transaction).n

    def fence(self) -> None:
        """Take over the transactional id, unless it is ours; somebody who took it since would find us fenced."""
        self._commits.slot(self._about.producer)

    def has_token(self) -> bool:
        """Whether the transaction is among those that its writer has committed."""
        if self._number in self._committed():
            return True
        now = int(time.time() * 1000)
        if may_be_forgotten(self._about.sealed_at, now, SHORTEST_MEMORY):
            kept = self._commits.tokens_kept()
            if may_be_forgotten(self._about.sealed_at, now, kept):
                raise TargetError(TargetAnswer.REFUSED, self._forgotten(kept))
        return False

    def write(self) -> None:
        """Write the records and the token."""
        began = time.monotonic()
        committed = self._committed().with_range(self._about.first, self._number)
        batches = staged_batches(self._payload, self._commits.staging)
        try:
            self._commits.slot(self._about.producer).commit(batches, self._place, committed)
        except TargetError as error:
            took, most = time.monotonic() - began, self._commits.transaction_timeout
            if took < most or error.answer is TargetAnswer.REFUSED:
                raise
            slow = f"it took {took:.1f} s, and the broker aborts what takes longer than transaction_timeout={most:g}"
            raise TargetError(error.answer, f"{error}; {slow}") from error

    def _committed(self) -> Committed:
        return self._commits.slot(self._about.producer).committed(self._place)

    def _forgotten(self, kept: float) -> str:
        value = self._payload.value.value()
        rows = value["rows"] if isinstance(value, Mapping) else "its"
        return (
            f"transaction {self._transaction} was sealed longer ago than the broker keeps the tokens of commits "
            f"({kept / 3600:g} h, offsets.retention.minutes), so it cannot be told whether its {rows} records are in "
            f"topic {self._about.topic!r}; they were not written. Look there; keep tokens longer for the next time"
        )
