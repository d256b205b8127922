"""The sink of the simulated job: the two-phase commit carried out against a target, which keeps transactions or not.

Invariant: it decides nothing; it turns the instructions of `Transactions` into requests and the answers, or
their absence, into events.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from recovery.testing.messages import WINDOWS, Payload
from recovery.testing.requests import Requests
from recovery.testing.stream import Row
from recovery.testing.target import CommitStaged, Fence, Lease, ReadToken, Stage, WriteWithToken
from snapshot.epochs.token_commit import Ask, Outcome, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.transaction_events import (
    Begin,
    Commit,
    CommitAnswered,
    CommitOutcome,
    Committable,
    Prepare,
    Prepared,
    PrepareFailed,
    RetryLater,
    TransactionEvent,
)
from snapshot.ids import TransactionId
from snapshot.testing.process import Effect
from statebackend.ids import Partition


class TargetKind(Enum):
    """The abilities of the target."""

    STAGES = "keeps prepared transactions"
    TOKENS = "writes rows and a token in one transaction"


class Sink:
    """One partition's sink in one attempt; `happened` takes what the target has led to."""

    def __init__(
        self,
        kind: TargetKind,
        partition: Partition,
        target: Requests,
        effects: list[Effect],
        happened: Callable[[TransactionEvent[Payload]], None],
    ) -> None:
        self._kind = kind
        self._partition = partition
        self._target = target
        self._effects = effects
        self._happened = happened
        self._rows: dict[TransactionId, list[Row]] = {}
        self._open: list[Row] = []
        self.to_retry: list[TransactionId] = []

    def write(self, rows: list[Row]) -> None:
        """Add rows to the open transaction."""
        self._open.extend(rows)

    def begin(self, begin: Begin) -> None:
        """Put rows into a new transaction from now on."""
        self._open = self._rows[begin.transaction] = []

    def prepare(self, prepare: Prepare) -> None:
        """Make a sealed transaction durable: at the target, or as part of the snapshot."""
        transaction = prepare.transaction
        rows = tuple(self._rows[transaction])
        if not rows:
            self._happened(Prepared(transaction, None))
        elif self._kind is TargetKind.TOKENS:
            # The producer's name goes with the committable, so that every committer fences every other.
            self._happened(Prepared(transaction, Payload(f"{WINDOWS}/{self._partition}", rows)))
        else:
            self._ask(Stage(transaction, rows), lambda answer: self._staged(transaction, answer))

    def _staged(self, transaction: TransactionId, answer: object | None) -> None:
        if answer is None:
            self._happened(PrepareFailed(transaction, "the target did not answer"))
        else:
            self._happened(Prepared(transaction, Payload("", ())))

    def commit(self, commit: Commit[Payload]) -> None:
        """Ask the target to commit."""
        transaction = commit.committable.transaction
        if self._kind is TargetKind.STAGES:
            self._ask(CommitStaged(transaction), lambda answer: self._answered(transaction, answer))
        else:
            attempt = TokenCommit()
            self._step(commit.committable, attempt, attempt.begin(), None)

    def retry_later(self, retry: RetryLater) -> None:
        """Try again when the schedule says so."""
        self.to_retry.append(retry.transaction)

    def _step(
        self, committable: Committable[Payload], attempt: TokenCommit, step: Ask | Outcome, lease: Lease | None
    ) -> None:
        if isinstance(step, Outcome):
            self._answered(committable.transaction, step.outcome)
            return
        request: Fence | ReadToken | WriteWithToken
        match step.step:
            case TokenStep.FENCE:
                request = Fence(committable.payload.producer)
            case TokenStep.READ_TOKEN:
                request = ReadToken(committable.transaction)
            case TokenStep.WRITE:
                held = lease or Lease(committable.payload.producer, 0)
                request = WriteWithToken(held, committable.transaction, committable.payload.rows)

        def answered(answer: object | None) -> None:
            said = TargetAnswer.DONE if isinstance(answer, Lease) else answer
            said = said if isinstance(said, TargetAnswer) else TargetAnswer.UNKNOWN
            self._step(committable, attempt, attempt.handle(said), answer if isinstance(answer, Lease) else lease)

        self._ask(request, answered)

    def _answered(self, transaction: TransactionId, answer: object | None) -> None:
        outcome = answer if isinstance(answer, CommitOutcome) else CommitOutcome.RETRY_LATER
        self._happened(CommitAnswered(transaction, outcome, "the target said so, or nothing"))

    def _ask(self, request: object, answered: Callable[[object | None], None]) -> None:
        self._effects.append(self._target.ask(request, answered))
