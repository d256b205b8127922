"""One sink in one partition and attempt: its transactions' machine, carried out on the sink's writer.

Invariant: no rule of the two-phase commit is decided here. The writer is told what the machine says, in that
order; what takes time is done in the background, and its outcome is told to the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from snapshot import fail_points
from snapshot.epochs.transaction_events import (
    Begin,
    Commit,
    CommitAnswered,
    CommitOutcome,
    Committable,
    EpochCompleted,
    Prepare,
    Prepared,
    PrepareFailed,
    Refused,
    RetryDue,
    RetryLater,
    Seal,
    Settled,
    SinkCut,
    SinkNotReady,
    SinkReady,
    TransactionEvent,
    TransactionInstruction,
)
from snapshot.epochs.transactions import Transactions
from snapshot.fail_points import reached
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.protocol.messages import SinkFigures
from snapshot.ids import ONLY, JobId, Replica, TransactionId, numbered_from
from snapshot.operators.rows import Rows
from snapshot.program.sink import (
    CommitAnswer,
    CommitsTogether,
    HoldsRows,
    Sealed,
    SealsForEpochs,
    SinkWriter,
    UnusableOutput,
)
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import NO_EPOCH, Epoch, Incarnation, Partition, Uid

_PATIENCE: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds until a commit is tried again, by how often it was put off."""


_WORTH_TELLING: Final = 5
"""The tries after which the driver is told why a commit is put off."""
_TOLD_AGAIN: Final = 60
"""Tries between that being told again: at the longest pause, five minutes."""


SinkNews = SinkReady[CommitPayload] | SinkNotReady | RetryLater | Settled | Refused[CommitPayload]
"""The news of a sink's transactions, as far as its attempt has to know; a commit is put off only after a while."""


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """The owner of the transactions."""

    job: JobId
    uid: Uid
    incarnation: Incarnation
    partition: Partition
    replica: Replica = ONLY


class Output(Protocol):
    """The part of a sink in a partition: what becomes of its rows, from the start of an attempt to its end."""

    def begin(self) -> None:
        """Go on from the restored epoch; it comes first."""

    def rows(self, rows: Rows) -> None:
        """Take rows."""

    def cut(self, epoch: Epoch) -> None:
        """Let all that came until now belong to the epoch, whose state is being cut."""

    def completed(self, epoch: Epoch) -> None:
        """Take the coordinator's word that the epoch is complete."""

    def no_more_rows(self) -> None:
        """Take the word that the input has ended."""

    @property
    def figures(self) -> SinkFigures:
        """Return what was committed in this attempt, and what waits for that."""

    def close(self) -> None:
        """End the attempt."""


class SinkRun:
    """Writes: a sink from the start of an attempt to its end. `begin` comes first."""

    def __init__(
        self,
        identity: SinkIdentity,
        writer: SinkWriter,
        restored: Sequence[Committable[CommitPayload]],
        restored_epoch: Epoch | None,
        loop: EventLoop,
        background: Background,
        report: Callable[[Uid, SinkNews], object],
        on_first_rows: Callable[[], None],
    ) -> None:
        self._uid = identity.uid
        self._writer = writer
        self._loop = loop
        self._background = background
        self._report = report
        self._on_first_rows = on_first_rows
        self._has_rows = False
        self._sealed: dict[TransactionId, Sealed] = {}
        self._cutting = NO_EPOCH
        self._closed = False
        self._tried_at: dict[TransactionId, float] = {}
        """The times of the first tries of commits that are not done."""
        self._committed = SinkFigures()
        self._take_over([one.payload for one in restored if one.payload.held])
        self._transactions: Transactions[CommitPayload] = Transactions(
            identity.job,
            identity.uid,
            identity.incarnation,
            identity.partition,
            restored=[one for one in restored if not one.payload.held],
            restored_epoch=restored_epoch,
            first=numbered_from(identity.replica),
        )

    def begin(self) -> None:
        """Open the first transaction, and commit what the restored epoch carries."""
        self._carry_out(self._transactions.begin())

    def rows(self, rows: Rows) -> None:
        """Write to the open transaction."""
        if not self._has_rows and len(rows):
            self._has_rows = True
            self._on_first_rows()
        self._writer.write(rows)

    def cut(self, epoch: Epoch) -> None:
        """Seal all that was written until now for the epoch, whose state is being cut."""
        self._cutting = epoch
        self._tell(SinkCut(epoch))

    def completed(self, epoch: Epoch) -> None:
        """Commit what the epoch carries, as it is complete."""
        self._tell(EpochCompleted(epoch))

    def no_more_rows(self) -> None:
        """Tell a writer that holds rows back that the input has ended."""
        if isinstance(self._writer, HoldsRows):
            self._writer.no_more_rows()

    @property
    def figures(self) -> SinkFigures:
        """Return what was committed in this attempt, and what waits for that."""
        return replace(self._committed, pending=len(self._transactions.due))

    def _take_over(self, held: Sequence[CommitPayload]) -> None:
        if not held:
            return
        if not isinstance(self._writer, HoldsRows):
            raise UnusableOutput(
                f"sink {self._uid}: the epoch has rows that its former sink held back, which the present one cannot "
                f"take over. Start the job with the former one and drain it, and give the new sink a uid of its own"
            )
        self._writer.take_over(held)

    def close(self) -> None:
        """End the attempt: begin nothing more in the background, and ignore the outcome of what is under way there."""
        self._closed = True
        self._writer.close()

    def _tell(self, event: TransactionEvent[CommitPayload]) -> None:
        if not self._closed:
            self._carry_out(self._transactions.handle(event))

    def _carry_out(self, instructions: Sequence[TransactionInstruction[CommitPayload]]) -> None:
        for instruction in instructions:
            match instruction:
                case Begin(transaction):
                    self._writer.begin(transaction)
                case Seal(transaction):
                    self._sealed[transaction] = self._seal()
                case Prepare(transaction):
                    self._prepare(transaction)
                case Commit(committable):
                    self._commit(committable)
                case RetryLater(transaction, attempts):
                    self._retry_later(transaction, attempts)
                    if attempts % _TOLD_AGAIN == _WORTH_TELLING:
                        self._report(self._uid, instruction)
                case SinkReady() | SinkNotReady() | Settled() | Refused():
                    self._report(self._uid, instruction)

    def _seal(self) -> Sealed:
        return self._writer.seal_for(self._cutting) if isinstance(self._writer, SealsForEpochs) else self._writer.seal()

    def _prepare(self, transaction: TransactionId) -> None:
        sealed = self._sealed[transaction]

        def prepare() -> CommitPayload | None:
            if self._closed:  # nobody would commit it, and the next attempt's work waits for a thread
                return None
            reached(fail_points.BEFORE_PREPARE)
            payload = sealed.prepare()
            reached(fail_points.AFTER_PREPARE)
            return payload

        def prepared(outcome: CommitPayload | BaseException | None) -> None:
            if isinstance(outcome, BaseException):
                self._tell(PrepareFailed(transaction, f"{type(outcome).__name__}: {outcome}"))
            else:
                self._sealed.pop(transaction, None)
                self._tell(Prepared(transaction, outcome, held=outcome is not None and outcome.held))

        self._background.submit(prepare, prepared)

    def _commit(self, committable: Committable[CommitPayload]) -> None:
        transaction = committable.transaction
        due = self._transactions.due
        self._tried_at.setdefault(transaction, self._loop.now())

        def commit() -> CommitAnswer:
            if self._closed:
                return CommitAnswer(CommitOutcome.RETRY_LATER, "the attempt is over")
            reached(fail_points.BEFORE_COMMIT)
            if len(due) > 1 and isinstance(self._writer, CommitsTogether):
                answer = self._writer.commit_together(due)
            else:
                answer = self._writer.commit(transaction, committable.payload)
            reached(fail_points.AFTER_COMMIT)
            return answer

        def answered(outcome: CommitAnswer | BaseException) -> None:
            # An exception says nothing of whether it was committed, so it is asked again.
            if isinstance(outcome, BaseException):
                outcome = CommitAnswer(CommitOutcome.RETRY_LATER, f"{type(outcome).__name__}: {outcome}")
            self._count(transaction, outcome.outcome)
            self._tell(CommitAnswered(transaction, outcome.outcome, outcome.reason))

        self._background.submit(commit, answered)

    def _count(self, transaction: TransactionId, outcome: CommitOutcome) -> None:
        known = self._committed
        if outcome is CommitOutcome.RETRY_LATER:
            self._committed = replace(known, put_off=known.put_off + 1)
            return
        took = 1000 * (self._loop.now() - self._tried_at.pop(transaction))
        if outcome is not CommitOutcome.FAILED:
            self._committed = replace(known, commits=known.commits + 1, commit_ms=known.commit_ms + took)

    def _retry_later(self, transaction: TransactionId, attempts: int) -> None:
        pause = _PATIENCE[min(attempts, len(_PATIENCE)) - 1]
        self._loop.call_at(self._loop.now() + pause, lambda: self._tell(RetryDue(transaction)))
