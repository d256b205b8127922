"""Committing rows once to a target that cannot keep a prepared transaction: rows and a token in one transaction.

Invariant: of any number of committers of one committable, living or believed dead, one writes its rows. A
token that is read and found missing proves nothing while another committer may still be writing, so the others are
fenced first; only then is the token read, and only after that are rows and token written together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from snapshot.epochs.transaction_events import CommitOutcome


class TokenStep(Enum):
    """The next question to the target."""

    FENCE = auto()
    """Take over the committable's producer: every earlier holder can write no more (`init_transactions`)."""
    READ_TOKEN = auto()
    """Look for the committable's token among what is committed."""
    WRITE = auto()
    """Write the rows and the token in one transaction."""


class TargetAnswer(Enum):
    """The answer of the target to the last step."""

    DONE = auto()
    TOKEN_FOUND = auto()
    TOKEN_MISSING = auto()
    FENCED = auto()
    """Another committer has taken over the producer."""
    UNKNOWN = auto()
    """No answer, or one that does not say what happened."""
    REFUSED = auto()
    """The target will never take these rows."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Carry out this step at the target and report its answer."""

    step: TokenStep


@dataclass(frozen=True, slots=True)
class Outcome:
    """The commit is over, for this time; `RETRY_LATER` begins again from the start."""

    outcome: CommitOutcome


class TokenCommit:
    """One try to commit one committable. The producer's name is stored in the committable, the same for all committers.

    The caller owes one answer to each `Ask`. A crash at any point is answered by a new try from the start.
    """

    def __init__(self) -> None:
        self._step = TokenStep.FENCE

    def begin(self) -> Ask:
        """Return the first step."""
        return Ask(self._step)

    def handle(self, answer: TargetAnswer) -> Ask | Outcome:
        """Take the target's answer; return the next step, or the outcome."""
        match self._step, answer:
            case (TokenStep.FENCE, TargetAnswer.DONE):
                return self._ask(TokenStep.READ_TOKEN)
            case (TokenStep.READ_TOKEN, TargetAnswer.TOKEN_FOUND):
                return Outcome(CommitOutcome.ALREADY_COMMITTED)
            case (TokenStep.READ_TOKEN, TargetAnswer.TOKEN_MISSING):
                return self._ask(TokenStep.WRITE)
            case (TokenStep.WRITE, TargetAnswer.DONE):
                return Outcome(CommitOutcome.COMMITTED)
            case (_, TargetAnswer.UNKNOWN | TargetAnswer.FENCED):
                return Outcome(CommitOutcome.RETRY_LATER)
            case (_, TargetAnswer.REFUSED):
                return Outcome(CommitOutcome.FAILED)
            case _:
                raise ValueError(f"{answer.name} is no answer to {self._step.name}")

    def _ask(self, step: TokenStep) -> Ask:
        self._step = step
        return Ask(step)
