"""The two-phase commit of a sink: in order from the first row to the end, and nothing sealed is lost."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    TransactionName,
    may_be_aborted,
    parse_transaction_id,
    transaction_id,
)
from snapshot.epochs.transactions import Transactions, TransactionState
from snapshot.ids import JobId, TransactionId
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

JOB, SINK = JobId("job"), Uid("sink")
COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
LATER, FAILED = CommitOutcome.RETRY_LATER, CommitOutcome.FAILED
OPEN, SEALED, PREPARED = TransactionState.OPEN, TransactionState.SEALED, TransactionState.PREPARED


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def name(n: int, attempt: int = 2) -> TransactionId:
    return TransactionId(f"job/sink/1-{attempt}-3-{n}")


def committable(n: int, sealed_in: int, attempt: int = 2) -> Committable[str]:
    return Committable(name(n, attempt), epoch(sealed_in), f"rows of {n}")


def prepared(n: int) -> Prepared[str]:
    return Prepared(name(n), f"rows of {n}")


def empty(n: int) -> Prepared[str]:
    return Prepared(name(n), None)


def new(*restored: Committable[str], at: int | None = None) -> Transactions[str]:
    complete = None if at is None else epoch(at)
    incarnation = Incarnation(Generation(1), Attempt(2))
    return Transactions(JOB, SINK, incarnation, Partition(3), restored=restored, restored_epoch=complete)


def begun() -> Transactions[str]:
    transactions = new()
    assert transactions.begin() == [Begin(name(0))]
    return transactions


def cut(number: int, seals: int) -> list[TransactionInstruction[str]]:
    """What a cut leads to if nothing is left to prepare again."""
    return [Seal(name(seals)), Begin(name(seals + 1)), Prepare(name(seals))]


def after(transactions: Transactions[str], *events: TransactionEvent[str]) -> list[TransactionInstruction[str]]:
    return [instruction for event in events for instruction in transactions.handle(event)]


def answered(n: int, outcome: CommitOutcome = COMMITTED, attempt: int = 2) -> CommitAnswered:
    return CommitAnswered(name(n, attempt), outcome, "because")


# --- names


def test_a_transaction_is_named_for_its_job_sink_attempt_and_partition() -> None:
    incarnation = Incarnation(Generation(4), Attempt(5))
    assert transaction_id(JOB, SINK, incarnation, Partition(6), 7) == "job/sink/4-5-6-7"


# --- what is held back


def held(n: int) -> Prepared[str]:
    return Prepared(name(n), f"rows up to {n}", held=True)


def held_committable(n: int) -> Committable[str]:
    return Committable(name(n), epoch(n + 1), f"rows up to {n}")


def test_what_is_held_back_is_carried_once_and_never_committed() -> None:
    machine = begun()
    for n in range(3):
        machine.handle(SinkCut(epoch(n + 1)))
        assert machine.handle(held(n)) == [SinkReady(epoch(n + 1), (held_committable(n),))]
        assert machine.handle(EpochCompleted(epoch(n + 1))) == [Settled(epoch(n + 1))]
    machine.handle(SinkCut(epoch(4)))
    assert machine.handle(prepared(3)) == [SinkReady(epoch(4), (committable(3, 4),))]
    assert machine.handle(EpochCompleted(epoch(4))) == [Commit(committable(3, 4))]
    assert machine.handle(CommitAnswered(name(3), COMMITTED)) == [Settled(epoch(4))]


def test_an_epoch_that_is_ready_late_carries_what_was_held_back_up_to_it() -> None:
    machine = begun()
    machine.handle(SinkCut(epoch(1)))
    machine.handle(SinkCut(epoch(2)))
    assert machine.handle(held(1)) == []
    assert machine.handle(held(0)) == [
        SinkReady(epoch(1), (held_committable(0),)),
        SinkReady(epoch(2), (held_committable(1),)),
    ]


def test_what_an_abandoned_epoch_held_back_is_carried_by_the_next() -> None:
    machine = begun()
    machine.handle(SinkCut(epoch(1)))
    machine.handle(PrepareFailed(name(0), "no room"))
    machine.handle(SinkCut(epoch(2)))
    machine.handle(held(0))
    assert machine.handle(Prepared(name(1), None)) == [SinkReady(epoch(2), (held_committable(0),))]


def test_what_waits_for_its_commit_is_carried_beside_what_is_held_back_after_it() -> None:
    machine = begun()
    machine.handle(SinkCut(epoch(1)))
    machine.handle(prepared(0))
    machine.handle(EpochCompleted(epoch(1)))
    machine.handle(SinkCut(epoch(2)))
    assert machine.handle(held(1)) == [SinkReady(epoch(2), (committable(0, 1), held_committable(1)))]
    assert machine.handle(EpochCompleted(epoch(2))) == []
    assert machine.due == (committable(0, 1),)
    assert machine.handle(CommitAnswered(name(0), COMMITTED)) == [Settled(epoch(2))]


# --- the first phase


def test_the_cut_seals_the_open_transaction_and_opens_the_next() -> None:
    transactions = begun()
    assert transactions.handle(SinkCut(epoch(1))) == [Seal(name(0)), Begin(name(1)), Prepare(name(0))]
    assert transactions.unsettled == {name(0): SEALED, name(1): OPEN}


def test_an_epoch_carries_what_was_sealed_and_prepared_for_it() -> None:
    transactions = begun()
    transactions.handle(SinkCut(epoch(1)))
    assert transactions.handle(prepared(0)) == [SinkReady(epoch(1), (committable(0, 1),))]
    assert transactions.unsettled == {name(0): PREPARED, name(1): OPEN}


def test_a_transaction_without_rows_leaves_nothing_to_commit() -> None:
    transactions = begun()
    transactions.handle(SinkCut(epoch(1)))
    assert transactions.handle(empty(0)) == [SinkReady(epoch(1), ())]
    assert transactions.unsettled == {name(1): OPEN}
    assert transactions.handle(EpochCompleted(epoch(1))) == [Settled(epoch(1))]


def test_an_epoch_is_not_ready_before_everything_sealed_up_to_it_is_prepared() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), SinkCut(epoch(2)))
    assert transactions.handle(prepared(1)) == []
    assert transactions.handle(prepared(0)) == [
        SinkReady(epoch(1), (committable(0, 1),)),
        SinkReady(epoch(2), (committable(0, 1), committable(1, 2))),
    ]


def test_what_an_abandoned_epoch_prepared_is_carried_by_the_next() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0))
    assert transactions.handle(SinkCut(epoch(2))) == cut(2, seals=1)
    assert transactions.handle(prepared(1)) == [SinkReady(epoch(2), (committable(0, 1), committable(1, 2)))]


def test_what_is_known_to_be_committed_is_not_carried_on() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0), EpochCompleted(epoch(1)), answered(0), SinkCut(epoch(2)))
    assert transactions.handle(prepared(1)) == [SinkReady(epoch(2), (committable(1, 2),))]


def test_what_is_being_committed_is_carried_on_until_the_answer_is_known() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0), EpochCompleted(epoch(1)), SinkCut(epoch(2)))
    assert transactions.handle(prepared(1)) == [SinkReady(epoch(2), (committable(0, 1), committable(1, 2)))]


def test_an_epoch_whose_transaction_cannot_be_prepared_is_declined_and_so_are_those_after_it() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), SinkCut(epoch(2)))
    reason = f"preparing transaction {name(0)} failed: full"
    assert transactions.handle(PrepareFailed(name(0), "full")) == [
        SinkNotReady(epoch(1), reason),
        SinkNotReady(epoch(2), reason),
    ]
    assert transactions.handle(prepared(1)) == []


def test_a_failure_leaves_the_epochs_before_it_alone() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), SinkCut(epoch(2)))
    assert [type(i) for i in transactions.handle(PrepareFailed(name(1), "full"))] == [SinkNotReady]
    assert transactions.handle(prepared(0)) == [SinkReady(epoch(1), (committable(0, 1),))]


def test_what_could_not_be_prepared_is_tried_again_and_carried_by_the_next_epoch() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), PrepareFailed(name(0), "full"))
    assert transactions.unsettled[name(0)] is TransactionState.UNPREPARED
    assert transactions.handle(SinkCut(epoch(2))) == [
        Seal(name(1)),
        Begin(name(2)),
        Prepare(name(0)),
        Prepare(name(1)),
    ]
    assert transactions.handle(prepared(1)) == []
    assert transactions.handle(prepared(0)) == [SinkReady(epoch(2), (committable(0, 1), committable(1, 2)))]


# --- the second phase


def test_nothing_is_committed_before_its_epoch_is_complete() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0), SinkCut(epoch(2)))
    assert transactions.handle(EpochCompleted(epoch(1))) == [Commit(committable(0, 1))]
    assert transactions.handle(prepared(1)) == [SinkReady(epoch(2), (committable(0, 1), committable(1, 2)))]
    assert transactions.handle(answered(0)) == [Settled(epoch(1))]
    assert transactions.handle(EpochCompleted(epoch(2))) == [Commit(committable(1, 2))]
    assert transactions.unsettled == {name(1): TransactionState.COMMITTING, name(2): OPEN}


@pytest.mark.parametrize("outcome", [COMMITTED, ALREADY])
def test_commits_go_one_at_a_time_in_the_order_of_the_epochs(outcome: CommitOutcome) -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), SinkCut(epoch(2)), prepared(1), prepared(0))
    assert transactions.handle(EpochCompleted(epoch(2))) == [Commit(committable(0, 1))]
    assert transactions.handle(answered(0, outcome)) == [Commit(committable(1, 2))]
    assert transactions.handle(answered(1, outcome)) == [Settled(epoch(2))]
    assert transactions.unsettled == {name(2): OPEN}


def test_a_later_epoch_that_completes_meanwhile_waits_for_its_turn() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0), SinkCut(epoch(2)), prepared(1), SinkCut(epoch(3)), empty(2))
    assert transactions.handle(EpochCompleted(epoch(1))) == [Commit(committable(0, 1))]
    assert transactions.handle(EpochCompleted(epoch(2))) == []
    assert transactions.handle(EpochCompleted(epoch(3))) == []
    assert transactions.handle(answered(0)) == [Settled(epoch(1)), Commit(committable(1, 2))]
    assert transactions.handle(answered(1)) == [Settled(epoch(3))]


def test_a_commit_that_was_put_off_is_asked_again_and_nothing_overtakes_it() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), SinkCut(epoch(2)), prepared(0), prepared(1), EpochCompleted(epoch(2)))
    assert transactions.handle(answered(0, LATER)) == [RetryLater(name(0), 1, "because")]
    assert transactions.handle(RetryDue(name(0))) == [Commit(committable(0, 1))]
    assert transactions.handle(answered(0, LATER)) == [RetryLater(name(0), 2, "because")]
    assert transactions.handle(RetryDue(name(0))) == [Commit(committable(0, 1))]
    assert transactions.handle(answered(0, ALREADY)) == [Commit(committable(1, 2))]


@pytest.mark.parametrize("outcome", [COMMITTED, ALREADY])
def test_an_answer_that_comes_after_the_commit_was_put_off_counts_and_is_not_asked_for_again(
    outcome: CommitOutcome,
) -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0), EpochCompleted(epoch(1)), answered(0, LATER))
    assert transactions.handle(answered(0, outcome)) == [Settled(epoch(1))]
    assert transactions.handle(RetryDue(name(0))) == []
    assert transactions.handle(answered(0)) == []


def test_a_refusal_stops_all_further_commits_and_keeps_the_committable() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), prepared(0), EpochCompleted(epoch(1)))
    assert transactions.handle(answered(0, FAILED)) == [Refused(committable(0, 1), "because")]
    assert transactions.unsettled[name(0)] is TransactionState.REFUSED
    after(transactions, SinkCut(epoch(2)))
    assert transactions.handle(prepared(1)) == [SinkReady(epoch(2), (committable(0, 1), committable(1, 2)))]
    assert transactions.handle(EpochCompleted(epoch(2))) == []
    assert transactions.handle(RetryDue(name(0))) == []
    assert transactions.handle(answered(0)) == []


def test_every_complete_epoch_is_settled_once() -> None:
    transactions = begun()
    after(transactions, SinkCut(epoch(1)), empty(0))
    assert transactions.handle(EpochCompleted(epoch(1))) == [Settled(epoch(1))]
    assert transactions.handle(EpochCompleted(epoch(1))) == []
    after(transactions, SinkCut(epoch(2)), empty(1))
    assert transactions.handle(EpochCompleted(epoch(2))) == [Settled(epoch(2))]


# --- restore


def test_a_restored_attempt_first_commits_what_its_epoch_carries_in_order() -> None:
    transactions = new(committable(7, 4, attempt=1), committable(5, 3, attempt=1), at=4)
    assert transactions.begin() == [Begin(name(0)), Commit(committable(5, 3, attempt=1))]
    assert transactions.handle(answered(5, ALREADY, attempt=1)) == [Commit(committable(7, 4, attempt=1))]
    assert transactions.handle(answered(7, COMMITTED, attempt=1)) == [Settled(epoch(4))]


def test_a_restored_attempt_that_has_nothing_to_commit_says_so_at_once() -> None:
    assert new(at=4).begin() == [Begin(name(0)), Settled(epoch(4))]


def test_what_was_restored_and_not_yet_committed_is_carried_on() -> None:
    transactions = new(committable(5, 3, attempt=1), at=3)
    transactions.begin()
    transactions.handle(SinkCut(epoch(4)))
    assert transactions.handle(empty(0)) == [SinkReady(epoch(4), (committable(5, 3, attempt=1),))]


# --- any order of events

OUTCOMES = st.sampled_from([COMMITTED, ALREADY, LATER, LATER])
STEPS = st.lists(
    st.tuples(st.sampled_from(["cut", "cut", "prepare", "prepare", "fail", "complete", "answer", "retry"]), OUTCOMES),
    max_size=60,
)


class Host:
    """A sink, a target and a coordinator that abandons whatever it does not complete."""

    def __init__(self) -> None:
        self.transactions = new()
        self.epochs = 0
        self.sealed_in: dict[TransactionId, int] = {}
        self.preparing: list[TransactionId] = []
        self.prepared: set[TransactionId] = set()
        self.empty: set[TransactionId] = set()
        self.ready: dict[Epoch, tuple[TransactionId, ...]] = {}
        self.declined: set[Epoch] = set()
        self.complete = 0
        self.carried: set[TransactionId] = set()
        self.asked: deque[TransactionId] = deque()
        self.put_off: list[TransactionId] = []
        self.committed: list[TransactionId] = []
        self.settled: list[int] = []
        self.open = TransactionId("")
        self.do(self.transactions.begin())

    def tell(self, event: TransactionEvent[str]) -> None:
        self.do(self.transactions.handle(event))

    def do(self, instructions: list[TransactionInstruction[str]]) -> None:
        for instruction in instructions:
            match instruction:
                case Begin(opened):
                    assert opened not in self.sealed_in
                    self.open = opened
                case Seal(sealed):
                    assert sealed == self.open, "the open transaction is sealed in the step of the cut"
                    self.sealed_in[sealed] = self.epochs
                case Prepare(transaction):
                    assert transaction in self.sealed_in
                    assert transaction not in self.prepared | self.empty | set(self.preparing)
                    self.preparing.append(transaction)
                case SinkReady(at, committables):
                    self._ready(at, tuple(item.transaction for item in committables))
                case SinkNotReady(at):
                    assert at not in self.ready.keys() | self.declined
                    self.declined.add(at)
                case Commit(item):
                    assert item.transaction in self.carried, "only what a complete epoch carries is committed"
                    assert not self.asked, "one at a time"
                    self.asked.append(item.transaction)
                case RetryLater(transaction):
                    self.put_off.append(transaction)
                case Settled(at):
                    assert at in self.ready, "what is settled was complete"
                    assert self.settled[-1:] < [at.number] <= [self.complete]
                    due = {t for t, sealed in self.sealed_in.items() if sealed <= at.number} - self.empty
                    assert due <= set(self.committed)
                    self.settled.append(at.number)
                case Refused():
                    raise AssertionError("the target refuses nothing")

    def _ready(self, at: Epoch, carried: tuple[TransactionId, ...]) -> None:
        assert at not in self.ready.keys() | self.declined
        due = [t for t, sealed in self.sealed_in.items() if sealed <= at.number and t not in self.empty]
        assert self.prepared >= set(due), "prepared before acknowledged"
        assert list(carried) == [transaction for transaction in due if transaction not in self.committed]
        self.ready[at] = carried

    def step(self, kind: str, outcome: CommitOutcome) -> None:
        match kind:
            case "cut":
                self.epochs += 1
                self.tell(SinkCut(epoch(self.epochs)))
            case "prepare" if self.preparing:
                transaction = self.preparing.pop(0 if outcome is COMMITTED else -1)
                without_rows = outcome is ALREADY
                (self.empty if without_rows else self.prepared).add(transaction)
                self.tell(Prepared(transaction, None if without_rows else "rows"))
            case "fail" if self.preparing:
                self.tell(PrepareFailed(self.preparing.pop(), "full"))
            case "complete" if self.ready and max(self.ready).number > self.complete:
                self.complete = max(self.ready).number
                self.carried |= set(self.ready[epoch(self.complete)])
                self.tell(EpochCompleted(epoch(self.complete)))
            case "answer" if self.asked:
                transaction = self.asked.popleft()
                if outcome is not LATER:
                    self.committed.append(transaction)
                self.tell(CommitAnswered(transaction, outcome))
            case "retry" if self.put_off:
                self.tell(RetryDue(self.put_off.pop()))
            case _:
                pass


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(STEPS)
def test_whatever_fails_everything_that_was_sealed_is_committed_once_and_in_order(
    steps: list[tuple[str, CommitOutcome]],
) -> None:
    host = Host()
    for kind, outcome in steps:
        host.step(kind, outcome)
    host.step("cut", COMMITTED)
    while host.preparing:
        host.step("prepare", COMMITTED)
    host.step("complete", COMMITTED)
    while host.asked or host.put_off:
        host.step("answer", COMMITTED)
        host.step("retry", COMMITTED)
    assert host.committed == [transaction for transaction in host.sealed_in if transaction not in host.empty]
    assert host.settled[-1] == host.epochs
    assert host.settled == sorted(set(host.settled))
    assert list(host.transactions.unsettled) == [host.open]


def test_no_two_pairs_of_job_and_sink_share_a_transaction_id() -> None:
    names = [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "b%2Fc")]
    incarnation = Incarnation(Generation(1), Attempt(1))
    ids = {transaction_id(JobId(job), Uid(sink), incarnation, Partition(0), 0) for job, sink in names}
    assert len(ids) == len(names)


@given(st.text(), st.text(), st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_what_a_transaction_id_names_can_be_read_from_it(job: str, sink: str, numbers: list[int]) -> None:
    generation, attempt, partition, n = numbers
    incarnation = Incarnation(Generation(generation), Attempt(attempt))
    made = transaction_id(JobId(job), Uid(sink), incarnation, Partition(partition), n)
    assert parse_transaction_id(made) == TransactionName(JobId(job), Uid(sink), incarnation, Partition(partition), n)


@pytest.mark.parametrize(
    "text", ["", "job/sink", "job/sink/1-2-3", "a/b/c/1-2-3-4", "job/sink/1-2-3-04", "j%2f/s/1-2-3-4"]
)
def test_what_is_no_transaction_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no transaction's id"):
        parse_transaction_id(text)


def test_leftovers_are_of_an_older_incarnation_and_not_named() -> None:
    def made_in(generation: int, attempt: int) -> TransactionId:
        return transaction_id(JOB, SINK, Incarnation(Generation(generation), Attempt(attempt)), Partition(0), 0)

    now = Incarnation(Generation(2), Attempt(2))
    older, same, newer = [made_in(2, 1), made_in(1, 9)], made_in(2, 2), [made_in(2, 3), made_in(3, 1)]
    assert [one for one in (*older, same, *newer) if may_be_aborted(one, now, ())] == older
    assert [one for one in older if may_be_aborted(one, now, {older[0]})] == older[1:]
