"""The two-phase commit of one sink in one partition: every transaction from its first row to its settlement.

Invariant: a transaction is sealed in the same step in which the state is cut, prepared before its epoch is
acknowledged, and committed only after that epoch, or a later one that carried it, is complete; commits go in the
order of the epochs, one at a time; and while the attempt runs on, nothing that was sealed is ever dropped. Rows that a
sink holds back are carried by each epoch once: by the last transaction that was sealed up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic

from snapshot.epochs.transaction_events import (
    Begin,
    Commit,
    CommitAnswered,
    CommitOutcome,
    Committable,
    EpochCompleted,
    Payload,
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
    transaction_id,
)
from snapshot.ids import JobId, TransactionId
from statebackend.ids import Epoch, Incarnation, Partition, Uid


class TransactionState(Enum):
    """The state of a transaction that is not settled."""

    OPEN = auto()
    """Rows are written to it."""
    SEALED = auto()
    """It takes no more rows, and is being prepared."""
    UNPREPARED = auto()
    """Preparing it failed; it is tried again with the next epoch."""
    HELD = auto()
    """It survives a crash, and is not committed: a later transaction takes its rows over."""
    PREPARED = auto()
    """It survives a crash, and waits for its epoch."""
    COMMITTING = auto()
    """The target has been asked; a process that crashes now asks again."""
    REFUSED = auto()
    """The target refuses it for good. It is kept; the job stops."""


@dataclass(slots=True)
class _Transaction(Generic[Payload]):
    id: TransactionId
    state: TransactionState
    committable: Committable[Payload] | None = None
    sealed_in: Epoch | None = None
    put_off: int = 0


class Transactions(Generic[Payload]):
    """The transactions of one sink in one partition, in one attempt.

    `restored` are the committables of the epoch that the attempt starts from: they are committed first. Held ones are
    not among them: the sink has taken these over, so that its first transaction has their rows. Before the
    attempt starts, recovery has aborted whatever else is left of the job. The caller owes: events in the order in
    which they happened, `begin` before all, and every instruction carried out. A crash loses this machine; the
    transactions that a complete epoch carries are committed by the next attempt, the others aborted.
    """

    def __init__(
        self,
        job: JobId,
        sink: Uid,
        incarnation: Incarnation,
        partition: Partition,
        *,
        restored: Sequence[Committable[Payload]] = (),
        restored_epoch: Epoch | None = None,
        first: int = 0,
    ) -> None:
        """Number transactions from `first` on."""
        self._name = (job, sink, incarnation, partition)
        self._n = first
        self._unsettled: dict[TransactionId, _Transaction[Payload]] = {
            committable.transaction: _Transaction(
                committable.transaction, TransactionState.PREPARED, committable, committable.sealed_in
            )
            for committable in sorted(restored, key=lambda committable: committable.sealed_in)
        }
        self._complete = restored_epoch
        self._untold = (
            [] if restored_epoch is None else [restored_epoch]
        )  # complete, not known to be settled; ascending
        self._unready: list[Epoch] = []  # cut, and something up to there is not prepared; ascending

    @property
    def unsettled(self) -> dict[TransactionId, TransactionState]:
        """Return the state of every transaction that is neither committed nor empty, in order."""
        return {transaction.id: transaction.state for transaction in self._unsettled.values()}

    @property
    def due(self) -> tuple[Committable[Payload], ...]:
        """Return what the newest complete epoch carries and is not known to be committed, in the order of commits."""
        due = () if self._complete is None else self._due(self._complete)
        return tuple(one.committable for one in due if one.committable is not None)

    def begin(self) -> list[TransactionInstruction[Payload]]:
        """Start the attempt: open the first transaction, and begin the commits that the restored epoch left to do."""
        return [self._open(), *self._commit_next()]

    def handle(self, event: TransactionEvent[Payload]) -> list[TransactionInstruction[Payload]]:
        """Take an event; return the instructions to carry out, in order."""
        match event:
            case SinkCut(epoch):
                return self._cut(epoch)
            case Prepared():
                return self._prepared(event)
            case PrepareFailed(transaction, reason):
                return self._prepare_failed(transaction, reason)
            case EpochCompleted(epoch):
                if epoch != self._complete:
                    self._untold.append(epoch)
                self._complete = epoch
                return self._commit_next()
            case CommitAnswered():
                return self._answered(event)
            case RetryDue(transaction):
                committing = self._committing(transaction)
                return [] if committing is None else self._commit(committing)

    # --- the first phase ------------------------------------------------------------------------------------------

    def _open(self) -> Begin:
        opened = transaction_id(*self._name, self._n)
        self._n += 1
        self._unsettled[opened] = _Transaction(opened, TransactionState.OPEN)
        return Begin(opened)

    def _cut(self, epoch: Epoch) -> list[TransactionInstruction[Payload]]:
        sealed = next(t for t in self._unsettled.values() if t.state is TransactionState.OPEN)
        sealed.state = TransactionState.UNPREPARED
        sealed.sealed_in = epoch
        self._unready.append(epoch)
        # What an earlier epoch could not prepare is carried by this one, and tried again.
        unprepared = [t for t in self._unsettled.values() if t.state is TransactionState.UNPREPARED]
        for transaction in unprepared:
            transaction.state = TransactionState.SEALED
        return [Seal(sealed.id), self._open(), *(Prepare(transaction.id) for transaction in unprepared)]

    def _prepared(self, event: Prepared[Payload]) -> list[TransactionInstruction[Payload]]:
        transaction = self._unsettled[event.transaction]
        assert transaction.sealed_in is not None
        if event.payload is None:
            del self._unsettled[event.transaction]
        else:
            transaction.state = TransactionState.HELD if event.held else TransactionState.PREPARED
            transaction.committable = Committable(transaction.id, transaction.sealed_in, event.payload)
        return self._report_ready()

    def _prepare_failed(self, id: TransactionId, reason: str) -> list[TransactionInstruction[Payload]]:
        transaction = self._unsettled[id]
        transaction.state = TransactionState.UNPREPARED
        assert transaction.sealed_in is not None
        declined = [epoch for epoch in self._unready if epoch >= transaction.sealed_in]
        self._unready = [epoch for epoch in self._unready if epoch < transaction.sealed_in]
        return [SinkNotReady(epoch, f"preparing transaction {id} failed: {reason}") for epoch in declined]

    def _report_ready(self) -> list[TransactionInstruction[Payload]]:
        instructions: list[TransactionInstruction[Payload]] = []
        while self._unready and self._is_prepared(self._unready[0]):
            epoch = self._unready.pop(0)
            self._forget_taken_over(epoch)
            instructions.append(SinkReady(epoch, self._carried(epoch)))
        return instructions

    def _forget_taken_over(self, epoch: Epoch) -> None:
        """Forget the held transactions before the last one up to this epoch, which has their rows."""
        for transaction in self._up_to(epoch)[:-1]:
            if transaction.state is TransactionState.HELD:
                del self._unsettled[transaction.id]

    def _up_to(self, epoch: Epoch) -> list[_Transaction[Payload]]:
        return [t for t in self._unsettled.values() if t.sealed_in is not None and t.sealed_in <= epoch]

    def _is_prepared(self, epoch: Epoch) -> bool:
        return all(transaction.committable is not None for transaction in self._up_to(epoch))

    def _carried(self, epoch: Epoch) -> tuple[Committable[Payload], ...]:
        """Return all committables up to this epoch that are not known to be committed, also of abandoned epochs."""
        return tuple(t.committable for t in self._up_to(epoch) if t.committable is not None)

    def _due(self, epoch: Epoch) -> list[_Transaction[Payload]]:
        """Return the transactions up to this epoch that are to be committed: all but the held ones."""
        return [t for t in self._up_to(epoch) if t.state is not TransactionState.HELD]

    # --- the second phase -----------------------------------------------------------------------------------------

    def _commit_next(self) -> list[TransactionInstruction[Payload]]:
        """Report what is settled; commit the oldest transaction of a complete epoch, if none is being committed.

        An epoch is settled when everything that it carries is, though later ones may be complete already.
        """
        if self._complete is None:
            return []
        due = self._due(self._complete)
        settled = [epoch for epoch in self._untold if not due or epoch < _sealed(due[0])]
        del self._untold[: len(settled)]
        commit = self._commit(due[0]) if due and due[0].state is TransactionState.PREPARED else []
        return [*(Settled(epoch) for epoch in settled[-1:]), *commit]

    def _commit(self, transaction: _Transaction[Payload]) -> list[TransactionInstruction[Payload]]:
        assert transaction.committable is not None
        transaction.state = TransactionState.COMMITTING
        return [Commit(transaction.committable)]

    def _committing(self, id: TransactionId) -> _Transaction[Payload] | None:
        """Return the transaction; None if its outcome is known: an answer may come after the commit was put off."""
        transaction = self._unsettled.get(id)
        return transaction if transaction is not None and transaction.state is TransactionState.COMMITTING else None

    def _answered(self, event: CommitAnswered) -> list[TransactionInstruction[Payload]]:
        transaction = self._committing(event.transaction)
        if transaction is None:
            return []
        assert transaction.committable is not None
        match event.outcome:
            case CommitOutcome.COMMITTED | CommitOutcome.ALREADY_COMMITTED:
                del self._unsettled[transaction.id]
                return self._commit_next()
            case CommitOutcome.RETRY_LATER:
                transaction.put_off += 1
                return [RetryLater(transaction.id, transaction.put_off, event.reason)]
            case CommitOutcome.FAILED:
                transaction.state = TransactionState.REFUSED
                return [Refused(transaction.committable, event.reason)]


def _sealed(transaction: _Transaction[Payload]) -> Epoch:
    assert transaction.sealed_in is not None
    return transaction.sealed_in
