"""Tokens in a table of the target, which say what is committed there: their names, and how long they must live.

Invariant: a token is there as long as an epoch that may be restored names its transaction, and few are there
longer. A job does not take the tokens of a former life for its own, of which its tree knows nothing.

A token must live as long as the newest complete epoch names its transaction, as the commit may be asked for again.
`TokenLives` finds the end of that time. Commits of a sink are asked for one at a time, so when the second is asked for,
the two-phase commit has the answer to the first. From then on no epoch that is cut names the first transaction. When a
transaction that was sealed later is committed, its epoch is complete, and the commit deletes the token of the first.
Tokens that are left when an attempt ends are deleted when a later attempt begins: `to_forget`.

An error of the target is an answer of the protocol (`TokenCommit`), and never taken for success. A commit whose result
is unknown is asked for again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from snapshot.epochs.token_commit import Outcome, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.transaction_events import parse_transaction_id, transaction_id
from snapshot.ids import JobId, TransactionId, replica_of
from snapshot.program.sink import CommitAnswer, SinkContext
from statebackend import means
from statebackend.errors import JobError
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid


@dataclass(frozen=True, slots=True)
class Token:
    """A transaction, and what was drawn when it was begun: a job whose tree was put back from an older copy makes
    transactions of the same names again.
    """

    transaction: TransactionId
    nonce: str

    @classmethod
    def new(cls, transaction: TransactionId) -> Token:
        """Draw a nonce and return a token that the target does not have yet."""
        return cls(transaction, means.token_hex(8))

    @property
    def text(self) -> str:
        """Return the token's name among those of its job and sink: `<transaction's numbers>/<nonce>`."""
        return f"{self.transaction.rpartition('/')[2]}/{self.nonce}"

    @property
    def made_by(self) -> Incarnation:
        """Return the attempt that began the transaction."""
        return parse_transaction_id(self.transaction).incarnation


def token_of(job: JobId, uid: Uid, text: str) -> Token:
    """Return the token with this name among those of a job and sink; `ValueError` if `Token.text` did not make it."""
    numbers, _, nonce = text.partition("/")
    some = transaction_id(job, uid, Incarnation(Generation(0), Attempt(0)), Partition(0), 0)
    token = Token(TransactionId(f"{some.rpartition('/')[0]}/{numbers}"), nonce)
    parse_transaction_id(token.transaction)
    return token


def to_forget(tokens: Iterable[Token], older_than: Incarnation, named: Collection[TransactionId]) -> tuple[Token, ...]:
    """Return the tokens of a sink that may go when an attempt begins, from an epoch that names these transactions.

    Those of the last attempt before it that has committed anything stay. That it has means that one of its epochs was
    complete and had output, and no job goes back before such an epoch without being told that output may come twice.
    """
    older = [token for token in tokens if token.made_by < older_than]
    last = max((token.made_by for token in older), default=None)
    return tuple(token for token in older if token.made_by != last and token.transaction not in named)


class TokenLives:
    """The tokens of one sink in one partition that need not live any more. The loop and one thread may share it.

    If the sink was taken over from another process within the attempt, no fence stops that one: a token alone tells it
    that a transaction is committed. So only tokens of transactions that were begun here may go; `to_forget` has others.
    """

    def __init__(self, context: SinkContext) -> None:
        self._context = context
        self._lock = means.Lock()
        self._answered: set[str] = set()
        self._settled: set[str] = set()

    def asked(self) -> None:
        """Note that a commit is asked for, so that earlier commits have been answered."""
        with self._lock:
            self._settled |= self._answered
            self._answered = set()

    def committed(self, token: Token) -> None:
        """Note that the target has this token, and that the commit is about to be answered."""
        if self._may_go(token):
            with self._lock:
                self._answered.add(token.text)

    def _may_go(self, token: Token) -> bool:
        took_over, name = self._context.took_over, parse_transaction_id(token.transaction)
        return took_over is None or (name.incarnation == self._context.incarnation and replica_of(name.n) == took_over)

    @property
    def settled(self) -> list[str]:
        """Return the tokens that no epoch cut from now on names, to be deleted by the commit of what is sealed now."""
        with self._lock:
            return sorted(self._settled)

    def forgotten(self, tokens: Collection[str]) -> None:
        """Note that these tokens are deleted."""
        with self._lock:
            self._settled.difference_update(tokens)


def overtaken(fence: tuple[int, int] | None, ours: Incarnation, job: JobId, uid: Uid, table: str) -> str | None:
    """Return why an attempt may no longer commit; None if the target has heard of no later one.

    `fence` is the latest attempt that the target has.
    """
    if fence is None or fence <= (ours.generation, ours.attempt):
        return None
    return (
        f"attempt {fence[0]}.{fence[1]} of job {job!r} has taken the sink {uid} over from attempt {ours}. If instead "
        f"the job's tree was put back from an older copy, its output since then would be made once more; if that may "
        f"be, delete what the target knows of it: the rows of {table} with this job and sink"
    )


class TargetError(JobError):
    """A step that did not succeed: `answer` says what that means (UNKNOWN, FENCED or REFUSED), the message why."""

    def __init__(self, answer: TargetAnswer, reason: str) -> None:
        self.answer = answer
        super().__init__(reason)


class TokenTarget(Protocol):
    """One committable at its target. Every method raises `TargetError` if it did not do what it says."""

    def fence(self) -> None:
        """Stop every earlier holder of the committable's producer from committing anything with it."""

    def has_token(self) -> bool:
        """True if the committable's token is committed."""

    def write(self) -> None:
        """Write the rows and the token, and commit both in one transaction of the target."""


def commit_by_token(target: TokenTarget) -> CommitAnswer:
    """Try once to commit; the target's own words are the reason if that fails."""
    commit, reason = TokenCommit(), ""
    step = commit.begin()
    while True:
        try:
            answer = _carry_out(step.step, target)
        except TargetError as error:
            answer, reason = error.answer, str(error)
        following = commit.handle(answer)
        if isinstance(following, Outcome):
            return CommitAnswer(following.outcome, reason)
        step = following


def _carry_out(step: TokenStep, target: TokenTarget) -> TargetAnswer:
    match step:
        case TokenStep.FENCE:
            target.fence()
        case TokenStep.READ_TOKEN:
            return TargetAnswer.TOKEN_FOUND if target.has_token() else TargetAnswer.TOKEN_MISSING
        case TokenStep.WRITE:
            target.write()
    return TargetAnswer.DONE
