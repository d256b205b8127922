"""The simulated target of a sink: one that keeps staged transactions, and one that knows only tokens.

Invariant: a row is visible from the moment it is written by a commit, and never goes away. Answers may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recovery.testing.requests import Answer, Request
from recovery.testing.stream import Row
from snapshot.epochs.token_commit import TargetAnswer
from snapshot.epochs.transaction_events import CommitOutcome, may_be_aborted
from snapshot.ids import TransactionId
from snapshot.testing.process import Action, Effect, Event, Received, Send
from statebackend.ids import Incarnation


@dataclass(frozen=True, slots=True)
class Stage:
    """Keep these rows, invisible, across any crash; answered by the same."""

    transaction: TransactionId
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return f"stage {self.transaction}"


@dataclass(frozen=True, slots=True)
class CommitStaged:
    """Make staged rows visible; answered by a `CommitOutcome`."""

    transaction: TransactionId

    def __str__(self) -> str:
        return f"commit {self.transaction}"


@dataclass(frozen=True, slots=True)
class AbortOthers:
    """Drop all that was staged before this incarnation, but for what is named; answered by the same."""

    before: Incarnation
    keep: frozenset[TransactionId]

    def __str__(self) -> str:
        return f"abort all before {self.before} but {len(self.keep)}"


@dataclass(frozen=True, slots=True)
class Fence:
    """Take a producer over; answered by a `Lease`."""

    producer: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write as a producer, until another holder takes it over."""

    producer: str
    number: int


@dataclass(frozen=True, slots=True)
class ReadToken:
    """A question whether a token is committed; answered by a `TargetAnswer`."""

    token: TransactionId


@dataclass(frozen=True, slots=True)
class WriteWithToken:
    """Write rows and token in one transaction, if the lease still holds; answered by a `TargetAnswer`."""

    lease: Lease
    token: TransactionId
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return f"write {self.token}"


class TargetObserver(Protocol):
    """An observer that is told of every commit before it happens, and may object by raising a `Violation`."""

    def committing(self, transaction: TransactionId, rows: tuple[Row, ...]) -> None:
        """Observe that the rows of a transaction are about to become visible."""


class SimulatedTarget:
    """The target as a process; `rows` is what its readers see."""

    def __init__(self, rows: list[Row], observer: TargetObserver) -> None:
        self._rows = rows
        self._observer = observer
        self._staged: dict[TransactionId, Stage] = {}
        self._committed: set[TransactionId] = set()
        self._leases: dict[str, int] = {}

    def handle(self, event: Event) -> Iterable[Effect]:
        """Serve a request."""
        match event:
            case Received(sender, Request(id, body)):
                return [Send(sender, Answer(id, self._serve(body)))]
            case _:
                pass
        return []

    def actions(self) -> Sequence[Action]:
        """Return no actions: the target does nothing by itself."""
        return ()

    def _serve(self, body: object) -> object:
        match body:
            case Stage(transaction):
                self._staged[transaction] = body
                return body
            case CommitStaged(transaction):
                return self._commit_staged(transaction)
            case AbortOthers(before, keep):
                for staged in list(self._staged.values()):
                    if may_be_aborted(staged.transaction, before, keep):
                        del self._staged[staged.transaction]
                return body
            case Fence(producer):
                self._leases[producer] = self._leases.get(producer, 0) + 1
                return Lease(producer, self._leases[producer])
            case ReadToken(token):
                return TargetAnswer.TOKEN_FOUND if token in self._committed else TargetAnswer.TOKEN_MISSING
            case WriteWithToken(lease, token, rows):
                if lease.number != self._leases.get(lease.producer):
                    return TargetAnswer.FENCED
                self._commit(token, rows)
                return TargetAnswer.DONE
            case _:
                raise TypeError(f"{body} is no request to a target")

    def _commit_staged(self, transaction: TransactionId) -> CommitOutcome:
        if transaction in self._committed:
            return CommitOutcome.ALREADY_COMMITTED
        staged = self._staged.pop(transaction, None)
        if staged is None:
            return CommitOutcome.FAILED
        self._commit(transaction, staged.rows)
        return CommitOutcome.COMMITTED

    def _commit(self, transaction: TransactionId, rows: tuple[Row, ...]) -> None:
        self._observer.committing(transaction, rows)
        self._committed.add(transaction)
        self._rows.extend(rows)
