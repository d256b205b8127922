"""Rows and a token in one transaction: of all committers of one committable, in every interleaving, one writes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshot.epochs.token_commit import Ask, Outcome, TargetAnswer, TokenCommit, TokenStep
from snapshot.epochs.transaction_events import CommitOutcome

FENCE, READ, WRITE = TokenStep.FENCE, TokenStep.READ_TOKEN, TokenStep.WRITE
DONE, FOUND, MISSING = TargetAnswer.DONE, TargetAnswer.TOKEN_FOUND, TargetAnswer.TOKEN_MISSING
UNKNOWN, FENCED, REFUSED = TargetAnswer.UNKNOWN, TargetAnswer.FENCED, TargetAnswer.REFUSED


def outcome_of(*answers: TargetAnswer) -> list[Ask | Outcome]:
    commit = TokenCommit()
    return [commit.begin(), *(commit.handle(answer) for answer in answers)]


def test_the_others_are_fenced_then_the_token_is_read_and_then_rows_and_token_are_written() -> None:
    assert outcome_of(DONE, MISSING, DONE) == [Ask(FENCE), Ask(READ), Ask(WRITE), Outcome(CommitOutcome.COMMITTED)]


def test_who_finds_the_token_writes_nothing() -> None:
    assert outcome_of(DONE, FOUND) == [Ask(FENCE), Ask(READ), Outcome(CommitOutcome.ALREADY_COMMITTED)]


@pytest.mark.parametrize("before", [(), (DONE,), (DONE, MISSING)], ids=["fence", "read", "write"])
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (UNKNOWN, CommitOutcome.RETRY_LATER),
        (FENCED, CommitOutcome.RETRY_LATER),
        (REFUSED, CommitOutcome.FAILED),
    ],
)
def test_an_answer_that_says_nothing_is_no_success_and_a_refusal_is_one_for_good(
    before: tuple[TargetAnswer, ...], answer: TargetAnswer, outcome: CommitOutcome
) -> None:
    assert outcome_of(*before, answer)[-1] == Outcome(outcome)


@pytest.mark.parametrize(
    "answers", [(FOUND,), (MISSING,), (DONE, DONE), (DONE, MISSING, FOUND), (DONE, MISSING, MISSING)], ids=str
)
def test_an_answer_to_another_question_is_an_error(answers: tuple[TargetAnswer, ...]) -> None:
    with pytest.raises(ValueError, match=f"{answers[-1].name} is no answer to"):
        outcome_of(*answers)


class Target:
    """One producer, its lease, and what was written with the token."""

    def __init__(self) -> None:
        self.lease = 0
        self.writes = 0

    def serve(self, step: TokenStep, lease: int) -> TargetAnswer:
        match step:
            case TokenStep.FENCE:
                self.lease += 1
                return DONE
            case TokenStep.READ_TOKEN:
                return FOUND if self.writes else MISSING
            case TokenStep.WRITE:
                if lease != self.lease:
                    return FENCED
                self.writes += 1
                return DONE


class Committer:
    """Tries until the outcome is known. A request that it no longer waits for may still reach the target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.strays: list[tuple[TokenStep, int]] = []
        self.said: list[CommitOutcome] = []
        self._begin()

    def _begin(self) -> None:
        self.lease = 0
        self.commit = TokenCommit()
        self.step = self.commit.begin().step

    @property
    def is_done(self) -> bool:
        return bool(self.said)

    def ask(self) -> None:
        answer = self.target.serve(self.step, self.lease)
        if self.step is FENCE:
            self.lease = self.target.lease
        self._answered(answer)

    def lose_the_answer(self) -> None:
        self.target.serve(self.step, self.lease)
        self._answered(UNKNOWN)

    def give_up_waiting(self) -> None:
        self.strays.append((self.step, self.lease))
        self._answered(UNKNOWN)

    def stray_arrives(self) -> None:
        self.target.serve(*self.strays.pop(0))

    def crash(self) -> None:
        self.said.clear()
        self._begin()

    def _answered(self, answer: TargetAnswer) -> None:
        match self.commit.handle(answer):
            case Ask(step):
                self.step = step
            case Outcome(CommitOutcome.RETRY_LATER):
                self._begin()
            case Outcome(outcome):
                self.said.append(outcome)


ASK, LOSE, GIVE_UP, STRAY, CRASH = range(5)


def race(schedule: tuple[tuple[int, int], ...]) -> None:
    """Two committers of one committable take these steps, and then each goes on to its end."""
    target = Target()
    committers = (Committer(target), Committer(target))
    claims = 0

    def take(committer: Committer, action: int) -> None:
        nonlocal claims
        if action == STRAY:
            if committer.strays:
                committer.stray_arrives()
        elif action == CRASH:
            committer.crash()
        elif not committer.is_done:
            (committer.ask, committer.lose_the_answer, committer.give_up_waiting)[action]()
            claims += committer.said == [CommitOutcome.COMMITTED]
        assert target.writes <= 1, "the rows are written once"
        assert target.writes or not any(committer.is_done for committer in committers), "done means written"

    for who, action in schedule:
        take(committers[who], action)
    for committer in committers:
        while not committer.is_done:
            take(committer, ASK)
        while committer.strays:
            take(committer, STRAY)
    assert target.writes == 1
    assert claims <= 1, "at most one is told that it was the one"


def test_in_every_interleaving_of_two_committers_exactly_one_writes() -> None:
    for order in product((0, 1), repeat=12):
        race(tuple((who, ASK) for who in order))


def test_in_every_short_history_with_lost_answers_and_late_requests_exactly_one_writes() -> None:
    for schedule in product([(who, action) for who in (0, 1) for action in (ASK, LOSE, GIVE_UP, STRAY)], repeat=5):
        race(schedule)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([ASK, ASK, ASK, LOSE, GIVE_UP, STRAY, CRASH])), max_size=40)
)
def test_in_no_long_history_either_do_both_write(schedule: list[tuple[int, int]]) -> None:
    race(tuple(schedule))


def test_without_the_fence_there_is_an_interleaving_in_which_both_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A committer that reads the token, and writes if it is missing, looks right at first."""

    def read_first(commit: TokenCommit) -> Ask:
        asked = commit.handle(DONE)
        assert isinstance(asked, Ask)
        return asked

    monkeypatch.setattr(TokenCommit, "begin", read_first)
    with pytest.raises(AssertionError, match="the rows are written once"):
        race(((0, ASK), (1, ASK), (0, ASK), (1, ASK)))
