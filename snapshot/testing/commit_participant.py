"""The conformance kit for targets of a two-phase commit: every promise as a check that a target without it fails.

Invariant: a check works under a job of its own, so that it may run against a target that is in use.
`check_commit_target(open)` runs all of `CHECKS`; with pytest, parametrize over `CHECKS` to have one test for each. A
check that fails raises a `Violation` that names the promise. No threads run and no time passes: a commit is a generator
that stops after every request, and the kit lets it go on, crash there, or lets another committer come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from itertools import combinations
from secrets import token_hex
from typing import Any, Protocol, TypeAlias, TypeVar

from snapshot.epochs.transaction_events import CommitOutcome, Committable, transaction_id
from snapshot.ids import JobId, TransactionId
from snapshot.testing.history import Violation
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid

Payload = TypeVar("Payload")

Commit: TypeAlias = Generator[None, None, CommitOutcome]
"""One try to commit. It yields after every request to the target, before it looks at the answer."""

TRIES = 20


class CommitTarget(Protocol[Payload]):
    """One process's connection to a target, as a sink uses it. A row is a string; equal rows are different rows."""

    def prepare(self, transaction: TransactionId, rows: Sequence[str]) -> Payload:
        """Make rows durable and leave them invisible; return the payload with which any process can commit them."""

    def commit(self, committable: Committable[Payload]) -> Commit:
        """Make the rows visible, unless that was done before; a failure of the target is `RETRY_LATER`."""

    def abort(self, committable: Committable[Payload]) -> None:
        """Drop a prepared transaction; one that was committed stays."""

    def recover(self, incarnation: Incarnation, named: Collection[TransactionId]) -> None:
        """Abort the transactions of earlier incarnations of this job, except those that the restored epoch names."""

    def pending(self) -> Collection[TransactionId]:
        """Return the prepared transactions of this job that the target holds; none if the snapshot holds them."""

    def visible(self) -> Sequence[str]:
        """Return the rows that readers see, of all jobs, in any order."""


OpenTarget = Callable[[JobId], CommitTarget[Any]]
"""Connects to the target, as a process does that has just been started. The target itself is the same each time."""


def check_commit_target(open_target: OpenTarget) -> None:
    """Check every promise; raise `Violation` that names the first broken one."""
    for check in CHECKS:
        check(open_target)


class _Bench:
    """A job under test: makes transactions, opens processes, and looks at the job's rows."""

    def __init__(self, open_target: OpenTarget) -> None:
        self.job = JobId(f"check-{token_hex(8)}")
        self._open = open_target
        self._made = 0

    def process(self) -> CommitTarget[Any]:
        return self._open(self.job)

    def prepared(self, *, attempt: int = 1) -> tuple[Committable[Any], list[str]]:
        """Prepare a transaction with rows, two of them equal, in a process that ends then; return it and its rows."""
        name = transaction_id(self.job, Uid("sink"), _attempt(attempt), Partition(0), self._made)
        self._made += 1
        rows = [f"{name}:{row}" for row in ("a", "b", "a")]
        payload = self.process().prepare(name, rows)
        return Committable(name, Epoch(Generation(1), self._made), payload), rows

    def expect(self, rows: Sequence[str], promise: str) -> None:
        """Check that readers see these rows of the job and no others, each as often."""
        seen = [row for row in self.process().visible() if row.startswith(f"{self.job}/")]
        if Counter(seen) != Counter(rows):
            raise Violation(f"{promise}; expected {sorted(rows)}, but readers see {sorted(seen)}")

    def settled(self, committable: Committable[Any], begun: Commit | None = None) -> None:
        """Commit until that is done, beginning with a try that may be under way."""
        for _ in range(TRIES):
            outcome = _outcome(begun or self.process().commit(committable))
            begun = None
            if outcome is CommitOutcome.FAILED:
                raise Violation("what is prepared and named by an epoch can be committed; but the target says FAILED")
            if outcome is not CommitOutcome.RETRY_LATER:
                return
        raise Violation(f"an undisturbed commit comes to an end; but it was put off {TRIES} times")


def _outcome(commit: Commit) -> CommitOutcome:
    while True:
        try:
            next(commit)
        except StopIteration as end:
            outcome: CommitOutcome = end.value
            return outcome


def _attempt(attempt: int) -> Incarnation:
    return Incarnation(Generation(1), Attempt(attempt))


def rows_are_seen_when_they_are_committed_and_not_before(open_target: OpenTarget) -> None:
    """Check that prepared rows are invisible, and that a commit shows all rows of its transaction and no others."""
    bench = _Bench(open_target)
    first, rows = bench.prepared()
    bench.prepared()
    bench.expect([], "what is prepared is not visible")
    bench.settled(first)
    bench.expect(rows, "a commit makes its rows visible, each as often as it was written")


def a_second_commit_changes_nothing(open_target: OpenTarget) -> None:
    """Check that a commit by this or another process is told that it is done already, and shows the rows once."""
    bench = _Bench(open_target)
    committable, rows = bench.prepared()
    process = bench.process()
    bench.settled(committable, process.commit(committable))
    bench.settled(committable, process.commit(committable))
    bench.settled(committable)
    bench.expect(rows, "a commit that is repeated writes nothing more")


def a_crash_between_prepare_and_commit_loses_nothing(open_target: OpenTarget) -> None:
    """Check that another process can commit a prepared transaction, also after a later one."""
    bench = _Bench(open_target)
    (one, rows), (other, others) = bench.prepared(), bench.prepared()
    bench.settled(other)
    bench.expect(others, "a commit shows the rows of its own transaction only")
    bench.settled(one)
    bench.expect(rows + others, "what was prepared survives its process")


def an_unknown_outcome_is_found_out_by_asking_again(open_target: OpenTarget) -> None:
    """Check that when a committer dies, or loses an answer, after any of its requests, the next one commits once."""
    for requests in range(1, _requests(open_target) + 1):
        bench = _Bench(open_target)
        committable, rows = bench.prepared()
        dying = bench.process().commit(committable)
        for _ in range(requests):
            next(dying)
        dying.close()
        bench.settled(committable)
        bench.expect(rows, f"when a committer dies after {requests} requests, the next one commits once")


def of_two_committers_one_writes(open_target: OpenTarget) -> None:
    """Check that two committers, request by request in any order, write once, and say that it is done when it is."""
    steps = _requests(open_target) + 1  # the last one looks at the last answer
    for firsts in combinations(range(2 * steps), steps):
        _race(open_target, [0 if step in firsts else 1 for step in range(2 * steps)])


def _race(open_target: OpenTarget, order: Sequence[int]) -> None:
    bench = _Bench(open_target)
    committable, rows = bench.prepared()
    promise = f"of two committers one writes, before either says that it is done; they went on in the order {order}"
    commits: list[Commit | None] = [bench.process().commit(committable) for _ in range(2)]
    for who in order:
        commit = commits[who]
        if commit is None:
            continue
        try:
            next(commit)
        except StopIteration as end:
            again = end.value is CommitOutcome.RETRY_LATER
            commits[who] = bench.process().commit(committable) if again else None
            if not again:
                bench.expect(rows, promise)
    for commit in commits:
        if commit is not None:
            bench.settled(committable, commit)
        bench.expect(rows, promise)


def _requests(open_target: OpenTarget) -> int:
    """Return how many requests an undisturbed commit takes; raise `Violation` if it takes none."""
    bench = _Bench(open_target)
    committable, _ = bench.prepared()
    requests = sum(1 for _ in bench.process().commit(committable))
    if not requests:
        raise Violation("a commit makes at least one request to the target; but this one never yielded")
    return requests


def what_is_aborted_is_never_seen(open_target: OpenTarget) -> None:
    """Check that an abort leaves nothing in the target, and may be repeated."""
    bench = _Bench(open_target)
    committable, _ = bench.prepared()
    bench.process().abort(committable)
    bench.process().abort(committable)
    bench.expect([], "what is aborted is not visible")
    left = set(bench.process().pending())
    if committable.transaction in left:
        raise Violation(f"what is aborted is no longer held by the target; but it holds {sorted(left)}")


def an_abort_after_the_commit_changes_nothing(open_target: OpenTarget) -> None:
    """Check that committed rows stay after an abort, and that a repeated commit still says that it is done."""
    bench = _Bench(open_target)
    committable, rows = bench.prepared()
    bench.settled(committable)
    bench.process().abort(committable)
    bench.expect(rows, "an abort after the commit changes nothing")
    bench.settled(committable)
    bench.expect(rows, "a commit after an abort after the commit changes nothing")


def recovery_aborts_what_older_attempts_left_and_no_epoch_names(open_target: OpenTarget) -> None:
    """Check that recovery aborts leftovers alone, and nothing of the restored epoch, the new attempt or other jobs."""
    bench, foreign = _Bench(open_target), _Bench(open_target)
    (named, rows), (leftover, _) = bench.prepared(), bench.prepared()
    (new, more), (other, others) = bench.prepared(attempt=2), foreign.prepared()
    bench.process().recover(_attempt(2), frozenset({named.transaction}))
    left = set(bench.process().pending())
    if leftover.transaction in left:
        raise Violation(f"recovery aborts what no epoch names; but the target still holds {sorted(left)}")
    bench.expect([], "recovery makes nothing visible")
    bench.settled(named)
    bench.settled(new)
    bench.expect(rows + more, "recovery keeps what the epoch names and what its own attempt has prepared")
    foreign.settled(other)
    foreign.expect(others, "recovery leaves other jobs alone")


def recovery_may_be_repeated(open_target: OpenTarget) -> None:
    """Check that recovery can be done again, also when some transactions of the epoch are committed by then."""
    bench = _Bench(open_target)
    (one, rows), (other, others) = bench.prepared(), bench.prepared()
    named = frozenset({one.transaction, other.transaction})
    bench.process().recover(_attempt(2), named)
    bench.settled(one)
    bench.process().recover(_attempt(3), named)
    bench.settled(one)
    bench.settled(other)
    bench.expect(rows + others, "recovery may be repeated")


CHECKS: tuple[Callable[[OpenTarget], None], ...] = (
    rows_are_seen_when_they_are_committed_and_not_before,
    a_second_commit_changes_nothing,
    a_crash_between_prepare_and_commit_loses_nothing,
    an_unknown_outcome_is_found_out_by_asking_again,
    of_two_committers_one_writes,
    what_is_aborted_is_never_seen,
    an_abort_after_the_commit_changes_nothing,
    recovery_aborts_what_older_attempts_left_and_no_epoch_names,
    recovery_may_be_repeated,
)
"""Every promise of `CommitTarget`, in the order in which it helps to know that it is broken."""
