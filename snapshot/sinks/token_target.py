"""Carrying out a commit by token: the steps of `TokenCommit` against a real target.

What always holds: an error of the target is an answer of the protocol, never taken for success; what is not known to
have happened is asked for again.
"""

from __future__ import annotations

from typing import Protocol

from snapshot.program.sink import CommitAnswer
from snapshot.token_commit import Outcome, TargetAnswer, TokenCommit, TokenStep


class TargetError(Exception):
    """A step that did not succeed: `answer` says what that means (UNKNOWN, FENCED or REFUSED), the message why."""

    def __init__(self, answer: TargetAnswer, reason: str) -> None:
        self.answer = answer
        super().__init__(reason)


class TokenTarget(Protocol):
    """One committable at its target. Every method raises `TargetError` if it did not do what it says."""

    def fence(self) -> None:
        """From when this returns, whoever held the committable's producer before can commit nothing with it."""

    def has_token(self) -> bool:
        """Whether the committable's token is among what is committed."""

    def write(self) -> None:
        """Write the rows and the token, and commit both in one transaction of the target."""


def commit_by_token(target: TokenTarget) -> CommitAnswer:
    """One try to commit; the target's own words are the reason where it is not committed."""
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
