"""The log of the commits of one partition of a sink, whose last record says all: a stream of its own in Pravega.

Each record is complete in itself: the transactions of the job that are committed, writer by writer, and the transaction
of Pravega that is about to be committed for one of them, the intent. The rows are flushed when the intent is recorded.

Invariant: a record is appended only where the one before it ends, so that of several committers one succeeds. A
transaction of Pravega is committed only if a record has it as its intent, and the next record says what became of it.
So a committer that finds an intent has to do no more than to commit that transaction, or find that it was aborted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from hashlib import sha256
from typing import Final

from snapshot.connectors.staging.committed import Committed
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import TransactionId

MOST_WRITERS: Final = 64
"""Writers, the attempts of the job that have committed, that a record remembers."""
_NEVER: Final = -1
_NO_ATTEMPT: Final = (-1, -1)


class Known(Enum):
    """The answers that a record gives about a transaction of the job."""

    COMMITTED = auto()
    MISSING = auto()
    FORGOTTEN = auto()
    """It is so old that it may have been committed by a writer that is no longer in the record."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A transaction of the job: its number, the first one that it includes, its writer, and when it was sealed."""

    writer: str
    first: int
    number: int
    sealed_at: int


@dataclass(frozen=True, slots=True)
class Intent:
    """A piece whose rows are in this transaction of Pravega, whose outcome is not known yet."""

    piece: Piece
    transaction: int


@dataclass(frozen=True, slots=True)
class Commits:
    """The transactions that a writer has committed, and when the last of them was sealed."""

    committed: Committed
    sealed_at: int


@dataclass(frozen=True, slots=True)
class CommitLog:
    """A record. `writers` are in the order of their last commits. `forgotten` is when the last commit was sealed of
    those that are not among them any more, and `forgotten_attempt` their newest attempt, by generation and number.

    A transaction that was sealed later, or by a newer attempt, was committed by none of them. One of the two is enough,
    so that a worker whose clock was wrong by years stops nothing: attempts go on being newer.
    """

    writers: Mapping[str, Commits] = field(default_factory=dict)
    forgotten: int = _NEVER
    forgotten_attempt: tuple[int, int] = _NO_ATTEMPT
    intent: Intent | None = None

    def knows(self, piece: Piece) -> Known:
        """Return what is known of a piece, when there is no intent."""
        commits = self.writers.get(piece.writer)
        if commits is not None and piece.number in commits.committed:
            return Known.COMMITTED
        is_newer = piece.sealed_at > self.forgotten or _attempt_of(piece.writer) > self.forgotten_attempt
        return Known.MISSING if is_newer else Known.FORGOTTEN

    def begun(self, intent: Intent) -> CommitLog:
        """Return the record of an intent, when there is none yet."""
        assert self.intent is None, "the intent before was settled"
        return replace(self, intent=intent)

    def settled(self, committed: bool) -> CommitLog:
        """Return the record that says what became of the intent."""
        assert self.intent is not None, "there is an intent"
        if not committed:
            return replace(self, intent=None)
        piece = self.intent.piece
        writers = dict(self.writers)
        before = writers.pop(piece.writer, Commits(Committed(), _NEVER))
        ranges = before.committed.with_range(piece.first, piece.number)
        writers[piece.writer] = Commits(ranges, max(before.sealed_at, piece.sealed_at))
        forgotten, attempt = self.forgotten, self.forgotten_attempt
        while len(writers) > MOST_WRITERS:
            oldest = next(iter(writers))
            forgotten, attempt = max(forgotten, writers.pop(oldest).sealed_at), max(attempt, _attempt_of(oldest))
        return CommitLog(writers, forgotten, attempt)

    def encode(self) -> bytes:
        """Return the record as it stands in the stream."""
        value = {
            "writers": {name: [str(one.committed), one.sealed_at] for name, one in self.writers.items()},
            "forgotten": [self.forgotten, *self.forgotten_attempt],
            "intent": None if self.intent is None else _intent_json(self.intent),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> CommitLog:
        """Decode what `encode` gave; `ValueError` for anything else."""
        try:
            value = json.loads(data)
            writers = {
                str(name): Commits(Committed.parse(one), int(at)) for name, (one, at) in value["writers"].items()
            }
            intent = None if value["intent"] is None else _intent(value["intent"])
            for name in writers:
                _attempt_of(name)
            forgotten, generation, attempt = map(int, value["forgotten"])
            log = cls(writers, forgotten, (generation, attempt), intent)
        except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
            raise ValueError(f"a record of commits is not one: {error!r}") from error
        if log.encode() != data:
            raise ValueError("a record of commits is not in the form in which it was written")
        return log


def log_of(transaction: TransactionId, stream: str) -> str:
    """Return the name of the stream with the records for a transaction's partition, in the scope of its target.

    It is the same in every attempt, and different for every job, sink, partition and target stream.
    """
    name = parse_transaction_id(transaction)
    who = sha256(f"{transaction.rpartition('/')[0]}/{stream}".encode()).hexdigest()
    return f"epochcut-commits-{who[:24]}-{name.partition}"


def writer_of(transaction: TransactionId, nonce: str) -> str:
    """Return the name of a transaction's writer: a partition in an attempt, and what was drawn for it."""
    incarnation = parse_transaction_id(transaction).incarnation
    return f"{incarnation.generation}-{incarnation.attempt}/{nonce}"


def _attempt_of(writer: str) -> tuple[int, int]:
    """Return the generation and attempt in a writer's name; `ValueError` if it is none."""
    generation, _, attempt = writer.partition("/")[0].partition("-")
    return int(generation), int(attempt)


def _intent_json(intent: Intent) -> list[object]:
    piece = intent.piece
    return [piece.writer, piece.first, piece.number, piece.sealed_at, f"{intent.transaction:032x}"]


def _intent(value: list[object]) -> Intent:
    writer, first, number, sealed_at, transaction = value
    numbers = [int(str(one)) for one in (first, number, sealed_at)]
    _attempt_of(str(writer))
    return Intent(Piece(str(writer), *numbers), int(str(transaction), 16))
