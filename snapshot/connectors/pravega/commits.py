"""Committing what was staged for a stream: the payload that says what, and the steps of a commit.

Invariant: rows are written only when it is known that they were not before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from snapshot.connectors.kafka.records import are_records
from snapshot.connectors.pravega.commit_log import Known, Piece, log_of, writer_of
from snapshot.connectors.pravega.slot import PravegaClients, Slot
from snapshot.connectors.staging.commit_tokens import TargetError, commit_by_token
from snapshot.connectors.staging.payloads import (
    NONCE,
    PLACE,
    BadPayload,
    PayloadFields,
    for_another_place,
    read_payload,
)
from snapshot.connectors.staging.staged_rows import UNREADABLE, staged_batches, unreadable
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome, parse_transaction_id
from snapshot.ids import TransactionId
from snapshot.program.sink import CommitAnswer, SinkContext
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload

_DONE: Final = (CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED)


@dataclass(frozen=True, slots=True)
class About:
    """The content of a transaction's committable beside its rows.

    Between `first` and the transaction itself there is none of its writer that has rows. `sealed_at` is in
    milliseconds, by the clock of its worker. `writer` was drawn when its writer was opened.
    """

    place: Mapping[str, JsonLike]
    first: int
    sealed_at: int
    writer: str

    def json(self) -> dict[str, JsonLike]:
        """Return what goes into the payload."""
        return {PLACE: dict(self.place), "first": self.first, "sealed_at": self.sealed_at, "writer": self.writer}

    @classmethod
    def read(cls, transaction: TransactionId, place: Mapping[str, JsonLike], fields: PayloadFields) -> About:
        """Read what `json` gave, for a place that was checked."""
        fields.number("rows", 1)
        first = fields.number("first", 0, parse_transaction_id(transaction).n)
        return cls(place, first, fields.number("sealed_at"), fields.text("writer", NONCE))


class PravegaCommits:
    """Commits transactions of a sink, one at a time, from any thread. `close` does not wait for one that is under way.

    `kind` is the class of the sink, which payloads name, and `place` is the sink's.
    """

    def __init__(
        self, kind: str, place: Mapping[str, JsonLike], clients: PravegaClients, lease: float, context: SinkContext
    ) -> None:
        self._kind = kind
        self.place = place
        self._clients = clients
        self._context = context
        self.lease = lease
        self._slot: Slot | None = None
        self._one_at_a_time = threading.Lock()
        self._closed = False

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        """Commit, or find that it is committed. The log is kept open for the next commit if all went well."""

        def read(fields: PayloadFields) -> About | CommitAnswer:
            theirs, ours = str(fields.place_like(self.place)["controller"]), str(self.place["controller"])
            if not _may_be_one_cluster(theirs, ours):
                advice = f"if it is the same cluster, name both: controller='{ours},{theirs.rpartition('://')[2]}'"
                return for_another_place(transaction, f"Pravega at {theirs}", f"Pravega at {ours}", advice)
            names = ("scope", "stream")
            place = fields.own_object(self.place, lambda place: all(place[one] == self.place[one] for one in names))
            return About.read(transaction, place, fields)

        about = read_payload(self._kind, self._context, transaction, payload, read)
        return about if isinstance(about, CommitAnswer) else self._commit(transaction, payload, about)

    def _commit(self, transaction: TransactionId, payload: CommitPayload, about: About) -> CommitAnswer:
        with self._one_at_a_time:
            answer: CommitAnswer | None = None
            try:
                answer = commit_by_token(_Commit(self, transaction, payload, about))
            except UNREADABLE as error:
                answer = unreadable(error)
            finally:
                if self._closed or answer is None or answer.outcome not in _DONE:
                    self._let_go()
            return answer

    def batches(self, payload: CommitPayload) -> Iterator[pa.RecordBatch]:
        """Yield the staged records of a payload."""
        for batch in staged_batches(payload, self._context.staging):
            if not are_records(batch.schema) or batch.column("value").null_count:
                raise BadPayload("what is staged are no records for a stream")
            yield batch

    def slot(self, place: Mapping[str, JsonLike], transaction: TransactionId) -> Slot:
        """Return the log of a transaction's partition: the one that is kept, or one that is read anew."""
        stream = str(place["stream"])
        log = log_of(transaction, stream)
        if self._slot is None or self._slot.log != log or not self._slot.is_fresh:
            self._let_go()
            clients = PravegaClients(self._clients.access, str(place["scope"]))
            self._slot = Slot(clients, stream, log)
        return self._slot

    def close(self) -> None:
        """Let the log go; the next process that commits reads it."""
        self._closed = True
        if self._one_at_a_time.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._one_at_a_time.release()

    def _let_go(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.close()


class _Commit:
    """A transaction of the sink at its target. The log is what fences: whoever adds to it stops all others."""

    def __init__(
        self, commits: PravegaCommits, transaction: TransactionId, payload: CommitPayload, about: About
    ) -> None:
        self._commits = commits
        self._transaction = transaction
        self._payload = payload
        self._about = about
        number = parse_transaction_id(transaction).n
        self._piece = Piece(writer_of(transaction, about.writer), about.first, number, about.sealed_at)

    def fence(self) -> None:
        """Read the log unless it is held here, and settle what others have left in it."""
        self._commits.slot(self._about.place, self._transaction)

    def has_token(self) -> bool:
        """True if the log says that the transaction is committed.

        Raises `TargetError` if the log is too short by now to tell.
        """
        known = self._slot.knows(self._piece)
        if known is Known.FORGOTTEN:
            raise TargetError(TargetAnswer.REFUSED, self._forgotten())
        return known is Known.COMMITTED

    def write(self) -> None:
        """Write the records in a transaction of Pravega, and commit it."""
        began = time.monotonic()
        try:
            self._slot.commit(self._piece, self._commits.batches(self._payload), self._commits.lease)
        except TargetError as error:
            took, most = time.monotonic() - began, self._commits.lease
            if took < most or error.answer is TargetAnswer.REFUSED:
                raise
            slow = f"it took {took:.1f} s, and Pravega aborts what takes longer than transaction_timeout={most:g}"
            raise TargetError(error.answer, f"{error}; {slow}") from error

    @property
    def _slot(self) -> Slot:
        return self._commits.slot(self._about.place, self._transaction)

    def _forgotten(self) -> str:
        return (
            f"the log {log_of(self._transaction, str(self._about.place['stream']))!r} remembers the last attempts that "
            f"have committed, and transaction {self._transaction} is of an earlier one, so it cannot be told whether "
            f"its rows are in stream {self._about.place['stream']!r}; they were not written. Look there"
        )


def _may_be_one_cluster(one: str, other: str) -> bool:
    """True if two addresses share a controller."""
    hosts = [set(address.rpartition("://")[2].rstrip("/").split(",")) for address in (one, other)]
    return not hosts[0].isdisjoint(hosts[1])
