"""The events and instructions of a sink's two-phase commit, and the names of transactions.

Invariant: a transaction's id is made once, in one attempt of one job; rewinds and forks make others. A job
whose tree was put back from an older copy makes the ids again that it made since, so a target tells transactions apart
by something more, which the sink draws.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from snapshot.ids import JobId, TransactionId
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

_NUMBER = "(0|[1-9][0-9]*)"
_TRANSACTION = re.compile(f"([^/]*)/([^/]*)/{_NUMBER}-{_NUMBER}-{_NUMBER}-{_NUMBER}")

Payload = TypeVar("Payload")
"""The data that a sink needs to commit a prepared transaction, from any process, after any crash."""


def transaction_id(job: JobId, sink: Uid, incarnation: Incarnation, partition: Partition, n: int) -> TransactionId:
    """Return the name of the n-th transaction of a sink in one attempt.

    No other attempt, rewind or fork makes it again, as long as the job's tree is not put back from an older copy.
    """
    job_part, sink_part = (name.replace("%", "%25").replace("/", "%2F") for name in (job, sink))
    return TransactionId(f"{job_part}/{sink_part}/{incarnation.generation}-{incarnation.attempt}-{partition}-{n}")


@dataclass(frozen=True, slots=True)
class TransactionName:
    """The transaction that an id names: the n-th of a sink, in one attempt and partition."""

    job: JobId
    sink: Uid
    incarnation: Incarnation
    partition: Partition
    n: int


def parse_transaction_id(text: str) -> TransactionName:
    """Parse an id that `transaction_id` made; raise `ValueError` for any other, which may not be ours."""
    match = _TRANSACTION.fullmatch(text)
    if match is not None:
        job, sink = (part.replace("%2F", "/").replace("%25", "%") for part in match.group(1, 2))
        generation, attempt, partition, n = map(int, match.group(3, 4, 5, 6))
        incarnation = Incarnation(Generation(generation), Attempt(attempt))
        name = TransactionName(JobId(job), Uid(sink), incarnation, Partition(partition), n)
        if transaction_id(name.job, name.sink, incarnation, name.partition, n) == text:
            return name
    raise ValueError(f"{text!r} is no transaction's id; expected <job>/<sink>/<generation>-<attempt>-<partition>-<n>")


def may_be_aborted(transaction: TransactionId, older_than: Incarnation, named: Collection[TransactionId]) -> bool:
    """True if a prepared transaction that a target holds is a leftover.

    An older incarnation made it, and no complete epoch whose commits are still to be done names it. Any other
    transaction may be committed yet.
    """
    return transaction not in named and parse_transaction_id(transaction).incarnation < older_than


@dataclass(frozen=True, slots=True)
class Committable(Generic[Payload]):
    """A prepared transaction, as an epoch carries it until it is known to be committed."""

    transaction: TransactionId
    sealed_in: Epoch
    payload: Payload


class CommitOutcome(Enum):
    """The answer of a target to a commit. An unknown outcome is none: the sink asks again, or says `RETRY_LATER`."""

    COMMITTED = auto()
    ALREADY_COMMITTED = auto()
    RETRY_LATER = auto()
    FAILED = auto()


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkCut:
    """The state is being cut for this epoch."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Prepared(Generic[Payload]):
    """A sealed transaction is durable. `payload` is None if it has no rows: then there is nothing to commit.

    With `held`, the payload is not to be committed: it has rows that the next transaction of this sink takes over.
    """

    transaction: TransactionId
    payload: Payload | None
    held: bool = False


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """A sealed transaction could not be made durable now."""

    transaction: TransactionId
    reason: str


@dataclass(frozen=True, slots=True)
class EpochCompleted:
    """The epoch is in the journal: what it carries is to be committed."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class CommitAnswered:
    """The target has answered."""

    transaction: TransactionId
    outcome: CommitOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """It is time to try a commit again."""

    transaction: TransactionId


TransactionEvent = SinkCut | Prepared[Payload] | PrepareFailed | EpochCompleted | CommitAnswered | RetryDue


# --- instructions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Write the following rows to this new transaction."""

    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class Seal:
    """Write nothing more to this transaction; O(1), inside the cut."""

    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make a sealed transaction durable, in the background; answer with `Prepared` or `PrepareFailed`."""

    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class SinkReady(Generic[Payload]):
    """All that was sealed up to this epoch is prepared: this is what its acknowledgement carries."""

    epoch: Epoch
    committables: tuple[Committable[Payload], ...]


@dataclass(frozen=True, slots=True)
class SinkNotReady:
    """The epoch must be declined; what it sealed goes with the next one."""

    epoch: Epoch
    reason: str


@dataclass(frozen=True, slots=True)
class Commit(Generic[Payload]):
    """Ask the target to commit; it may have done so already. Answer with `CommitAnswered`."""

    committable: Committable[Payload]


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Report `RetryDue` after a while; `attempts` commits of this transaction have been put off so far."""

    transaction: TransactionId
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Everything up to this complete epoch is committed here."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Refused(Generic[Payload]):
    """The target refuses a committable for good: stop the job. The committable stays in the epoch."""

    committable: Committable[Payload]
    reason: str


TransactionInstruction = (
    Begin
    | Seal
    | Prepare
    | SinkReady[Payload]
    | SinkNotReady
    | Commit[Payload]
    | RetryLater
    | Settled
    | Refused[Payload]
)
