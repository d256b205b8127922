"""The conformance kit for two-phase commits: right targets of both kinds pass it, and each wrong one fails by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from snapshot.epochs.token_commit import Ask, Outcome, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.transaction_events import CommitOutcome, Committable
from snapshot.ids import JobId, TransactionId
from snapshot.testing import Violation
from snapshot.testing.commit_participant import CHECKS, Commit, OpenTarget, check_commit_target
from statebackend.ids import Attempt, Generation, Incarnation

COMMITTED, ALREADY, FAILED = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED, CommitOutcome.FAILED


@dataclass
class Database:
    """What survives every process: rows, tokens, staged transactions, leases."""

    rows: list[str] = field(default_factory=list)
    tokens: set[TransactionId] = field(default_factory=set)
    staged: dict[TransactionId, tuple[str, ...]] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)

    def write(self, token: TransactionId, rows: Sequence[str]) -> None:
        self.rows += rows
        self.tokens.add(token)


def made_by(transaction: TransactionId) -> Incarnation:
    generation, attempt, _, _ = transaction.rpartition("/")[2].split("-")
    return Incarnation(Generation(int(generation)), Attempt(int(attempt)))


class Staged:
    """A target that keeps prepared transactions, as PostgreSQL does."""

    def __init__(self, database: Database, job: JobId) -> None:
        self.database = database
        self.job = job

    def prepare(self, transaction: TransactionId, rows: Sequence[str]) -> None:
        self.database.staged[transaction] = tuple(rows)

    def commit(self, committable: Committable[None]) -> Commit:
        outcome = self.commit_staged(committable.transaction)
        yield
        return outcome

    def commit_staged(self, transaction: TransactionId) -> CommitOutcome:
        if transaction in self.database.tokens:
            return ALREADY
        if transaction not in self.database.staged:
            return FAILED
        self.database.write(transaction, self.database.staged.pop(transaction))
        return COMMITTED

    def abort(self, committable: Committable[None]) -> None:
        self.database.staged.pop(committable.transaction, None)

    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        for transaction in self.pending():
            if made_by(transaction) < incarnation and transaction not in named:
                del self.database.staged[transaction]

    def pending(self) -> Collection[TransactionId]:
        return [transaction for transaction in self.database.staged if transaction.startswith(f"{self.job}/")]

    def visible(self) -> Sequence[str]:
        return list(self.database.rows)


class Tokens:
    """A target that keeps nothing prepared: the snapshot has the rows, and a token goes with them, as with Kafka."""

    def __init__(self, database: Database, job: JobId) -> None:
        self.database = database
        self.job = job

    def prepare(self, transaction: TransactionId, rows: Sequence[str]) -> Sequence[str]:
        return tuple(rows)

    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        attempt, lease = TokenCommit(), 0
        step: Ask | Outcome = attempt.begin()
        while isinstance(step, Ask):
            answer, lease = self.ask(step.step, lease, committable)
            yield
            step = attempt.handle(answer)
        return step.outcome

    def ask(self, step: TokenStep, lease: int, committable: Committable[Sequence[str]]) -> tuple[TargetAnswer, int]:
        database, producer = self.database, f"{self.job}/sink"
        match step:
            case TokenStep.FENCE:
                database.leases[producer] = database.leases.get(producer, 0) + 1
                return TargetAnswer.DONE, database.leases[producer]
            case TokenStep.READ_TOKEN:
                found = committable.transaction in database.tokens
                return TargetAnswer.TOKEN_FOUND if found else TargetAnswer.TOKEN_MISSING, lease
            case TokenStep.WRITE:
                if lease != database.leases[producer]:
                    return TargetAnswer.FENCED, lease
                database.write(committable.transaction, committable.payload)
                return TargetAnswer.DONE, lease

    def abort(self, committable: Committable[Sequence[str]]) -> None:
        pass

    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        pass

    def pending(self) -> Collection[TransactionId]:
        return ()

    def visible(self) -> Sequence[str]:
        return list(self.database.rows)


Target = type[Staged] | type[Tokens]


def opener(target: Target) -> OpenTarget:
    return partial(target, Database())


@pytest.mark.parametrize("target", [Staged, Tokens])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_right_target_passes(target: Target, check: Callable[[OpenTarget], None]) -> None:
    check(opener(target))


class ShowsWhatIsPrepared(Staged):
    def visible(self) -> Sequence[str]:
        return [*self.database.rows, *(row for rows in self.database.staged.values() for row in rows)]


class WritesWheneverItIsAsked(Staged):
    def commit_staged(self, transaction: TransactionId) -> CommitOutcome:
        self.database.write(transaction, self.database.staged[transaction])
        return COMMITTED


class FailsWhenItIsAskedAgain(Staged):
    def commit_staged(self, transaction: TransactionId) -> CommitOutcome:
        return FAILED if transaction in self.database.tokens else super().commit_staged(transaction)


class TakesEqualRowsForOne(Staged):
    def prepare(self, transaction: TransactionId, rows: Sequence[str]) -> None:
        super().prepare(transaction, sorted(set(rows)))


class ForgetsWhenItsProcessEnds(Staged):
    def __init__(self, database: Database, job: JobId) -> None:
        super().__init__(database, job)
        database.staged.clear()


class CommitsWhateverIsStaged(Staged):
    def commit_staged(self, transaction: TransactionId) -> CommitOutcome:
        for staged in self.pending():
            super().commit_staged(staged)
        return super().commit_staged(transaction)


class AbortsWhatIsCommitted(Staged):
    def abort(self, committable: Committable[None]) -> None:
        super().abort(committable)
        self.database.rows[:] = [row for row in self.database.rows if committable.transaction not in row]


class NeverAborts(Staged):
    def abort(self, committable: Committable[None]) -> None:
        pass


class NeverCleansUp(Staged):
    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        pass


class AbortsWhatTheEpochNames(Staged):
    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        super().recover(incarnation, ())


class AbortsItsOwnAttempt(Staged):
    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        super().recover(Incarnation(Generation(9), Attempt(9)), named)


class AbortsOtherJobs(Staged):
    def pending(self) -> Collection[TransactionId]:
        return list(self.database.staged)


class CommitsInRecovery(Staged):
    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        super().recover(incarnation, named)
        for transaction in named:
            self.commit_staged(transaction)


class ReadsThenWrites(Tokens):
    """Without fencing, two that look at the same time both find no token."""

    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        found = committable.transaction in self.database.tokens
        yield
        if found:
            return ALREADY
        self.database.write(committable.transaction, committable.payload)
        yield
        return COMMITTED


class WritesTheTokenAfterTheRows(Tokens):
    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        if committable.transaction in self.database.tokens:
            yield
            return ALREADY
        self.database.rows += committable.payload
        yield
        self.database.tokens.add(committable.transaction)
        yield
        return COMMITTED


class WritesTheTokenBeforeTheRows(Tokens):
    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        if committable.transaction in self.database.tokens:
            yield
            return ALREADY
        self.database.tokens.add(committable.transaction)
        yield
        self.database.rows += committable.payload
        yield
        return COMMITTED


class ReadsBeforeItFences(Tokens):
    """A token that is read before the others are fenced may be written in between."""

    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        found, _ = self.ask(TokenStep.READ_TOKEN, 0, committable)
        yield
        if found is TargetAnswer.TOKEN_FOUND:
            return ALREADY
        _, lease = self.ask(TokenStep.FENCE, 0, committable)
        yield
        written, _ = self.ask(TokenStep.WRITE, lease, committable)
        yield
        return COMMITTED if written is TargetAnswer.DONE else CommitOutcome.RETRY_LATER


class TakesBeingFencedForSuccess(Tokens):
    def ask(self, step: TokenStep, lease: int, committable: Committable[Sequence[str]]) -> tuple[TargetAnswer, int]:
        answer, lease = super().ask(step, lease, committable)
        return TargetAnswer.DONE if answer is TargetAnswer.FENCED else answer, lease


class PutsOffForEver(Tokens):
    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        yield
        return CommitOutcome.RETRY_LATER


class AsksNobody(Tokens):
    def commit(self, committable: Committable[Sequence[str]]) -> Commit:
        if committable.transaction not in self.database.tokens:
            self.database.write(committable.transaction, committable.payload)
        yield from ()
        return COMMITTED


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (ShowsWhatIsPrepared, "what is prepared is not visible"),
        (WritesWheneverItIsAsked, "a commit that is repeated writes nothing more"),
        (FailsWhenItIsAskedAgain, "can be committed; but the target says FAILED"),
        (TakesEqualRowsForOne, "each as often as it was written"),
        (ForgetsWhenItsProcessEnds, "can be committed; but the target says FAILED"),
        (CommitsWhateverIsStaged, "a commit makes its rows visible"),
        (AbortsWhatIsCommitted, "an abort after the commit changes nothing"),
        (NeverAborts, "what is aborted is no longer held"),
        (NeverCleansUp, "recovery aborts what no epoch names"),
        (AbortsWhatTheEpochNames, "can be committed; but the target says FAILED"),
        (AbortsItsOwnAttempt, "can be committed; but the target says FAILED"),
        (AbortsOtherJobs, "can be committed; but the target says FAILED"),
        (CommitsInRecovery, "recovery makes nothing visible"),
        (ReadsThenWrites, "of two committers one writes"),
        (WritesTheTokenAfterTheRows, "when a committer dies after 1 requests, the next one commits once"),
        (WritesTheTokenBeforeTheRows, "when a committer dies after 1 requests, the next one commits once"),
        (ReadsBeforeItFences, "of two committers one writes"),
        (TakesBeingFencedForSuccess, "of two committers one writes"),
        (PutsOffForEver, "an undisturbed commit comes to an end"),
        (AsksNobody, "a commit makes at least one request"),
    ],
)
def test_a_wrong_target_fails_and_the_promise_is_named(broken: Target, promise: str) -> None:
    with pytest.raises(Violation, match=promise):
        check_commit_target(opener(broken))
