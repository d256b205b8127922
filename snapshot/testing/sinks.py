"""The conformance kit for sinks: what exactly-once output relies on, as checks that a sink without it fails.

Invariant: a check works under a job of its own, so that it may run against a target that is in use.
`check_sink(trial)` runs all of `CHECKS`; with pytest, parametrize over `CHECKS` to have one test for each.
`snapshot.testing.sink_machine.sink_machine(trial)`, which needs hypothesis, is a state machine that lets the real
two-phase commit drive the sink through any order of cuts, completions, lost answers and crashes. A check that fails
raises a `Violation` that names the promise.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from snapshot.epochs.transaction_events import CommitOutcome, Committable
from snapshot.program.sink import CommitsTogether
from snapshot.testing import sink_crashes, sink_payloads, sink_targets
from snapshot.testing.history import Violation
from snapshot.testing.sink_bench import (
    DONE,
    SCHEMA,
    PreparedRows,
    SinkBench,
    SinkEnvironment,
    SinkTrial,
    attempt,
    settled,
    some,
    write,
)
from statebackend.ids import Epoch, Generation

__all__ = [
    "CHECKS",
    "DONE",
    "SCHEMA",
    "PreparedRows",
    "SinkBench",
    "SinkEnvironment",
    "SinkTrial",
    "attempt",
    "check_sink",
    "settled",
    "some",
    "write",
]


def it_is_plain_data_without_a_fault(trial: SinkTrial) -> None:
    """Check that a sink can be pickled and compared, that its own check finds nothing, and that it is exactly-once."""
    sink = SinkBench(trial).sink()
    if sink != trial.sink:
        raise Violation(f"a sink is plain data; but {trial.sink} pickled is {sink}")
    if problems := sink.check(SCHEMA):
        raise Violation(f"a sink takes a column of texts; but it says {problems}")
    if not sink.exactly_once:
        raise Violation("only a sink that is exactly-once can be checked for it; but this one says it is not")


def rows_appear_at_commit_and_not_before(trial: SinkTrial) -> None:
    """Check that written, sealed and prepared rows are invisible, and that a commit shows those of its transaction."""
    bench = SinkBench(trial)
    writer, rows = bench.writer(), bench.rows(4)
    first = bench.name()
    writer.begin(first)
    write(writer, rows[:2])
    bench.expect([], "what is written is not visible")
    sealed = writer.seal()
    writer.begin(bench.name())
    write(writer, rows[2:])
    payload = some(sealed.prepare(), first)
    bench.expect([], "what is prepared is not visible")
    answer = writer.commit(first, payload)
    if answer.outcome is not CommitOutcome.COMMITTED:
        raise Violation(f"the first commit says COMMITTED; but this one said {answer}")
    bench.expect(rows[:2], "a commit shows the rows of its transaction, and not what was written after its seal")
    writer.close()


def a_second_commit_changes_nothing(trial: SinkTrial) -> None:
    """Check that a commit by this or another process is told that it is done already, and shows the rows once."""
    bench = SinkBench(trial)
    transaction, payload, rows = bench.prepared()
    for number in (1, 1, 2):
        bench.settle(transaction, payload, number)
        bench.expect(rows, "a commit that is repeated shows nothing more")


def a_transaction_without_rows_has_nothing_to_commit(trial: SinkTrial) -> None:
    """Check that a transaction without rows prepares nothing, and neither does one with an empty batch."""
    bench = SinkBench(trial)
    writer = bench.writer()
    for batches in (0, 1):
        writer.begin(bench.name())
        for _ in range(batches):
            write(writer, [])
        if (payload := writer.seal().prepare()) is not None:
            raise Violation(f"a transaction without rows has nothing to commit; but it has {payload}")
    writer.close()


def preparing_again_changes_nothing(trial: SinkTrial) -> None:
    """Check that a prepare may be repeated when its answer was lost, and that either answer commits the rows once."""
    for chosen in (0, 1):
        bench = SinkBench(trial)
        writer, transaction, rows = bench.writer(), bench.name(), bench.rows(2)
        writer.begin(transaction)
        write(writer, rows)
        sealed = writer.seal()
        answers = [sealed.prepare(), sealed.prepare()]
        bench.settle(transaction, some(answers[chosen], transaction))
        bench.expect(rows, "a transaction that was prepared twice is committed once")
        writer.close()


def epochs_are_committed_while_the_next_is_written(trial: SinkTrial) -> None:
    """Check that a thread may commit each transaction while rows of the next one are written."""
    bench, shown = SinkBench(trial), list[str]()
    writer, transaction = bench.writer(), bench.name()
    writer.begin(transaction)
    rows = bench.rows(3)
    write(writer, rows)
    with ThreadPoolExecutor(1) as background:
        for _ in range(4):
            sealed, following, more = writer.seal(), bench.name(), bench.rows(3)
            writer.begin(following)
            write(writer, more[:1])
            payload = some(sealed.prepare(), transaction)
            committing = background.submit(settled, writer, transaction, payload)
            write(writer, more[1:])
            committing.result()
            shown += rows
            bench.expect(shown, "readers see what is committed, and nothing of the epoch that is being written")
            transaction, rows = following, more
    writer.close()


def what_piled_up_is_committed_in_order_each_once(trial: SinkTrial) -> None:
    """Check that several complete transactions, offered together or one by one, are all visible at the end, once each.

    Commits that are asked for again change nothing.
    """
    bench = SinkBench(trial)
    prepared = bench.prepared_one_after_the_other(4)
    epoch = Epoch(Generation(1), 1)
    due = [Committable(one.transaction, epoch, one.payload) for one in prepared]
    writer = bench.writer()
    while due:
        if isinstance(writer, CommitsTogether):
            answer = writer.commit_together(due)
            if answer.outcome not in DONE:
                raise Violation(f"what is prepared can be committed; but the sink says {answer}")
        else:
            settled(writer, due[0].transaction, due[0].payload)
        del due[0]
    writer.close()
    rows = [row for one in prepared for row in one.rows]
    bench.expect(rows, "what piled up is visible when each transaction was asked for")
    for one in prepared:
        bench.settle(one.transaction, one.payload)
    bench.expect(rows, "a commit that is asked for again changes nothing")


CHECKS: tuple[Callable[[SinkTrial], None], ...] = (
    it_is_plain_data_without_a_fault,
    rows_appear_at_commit_and_not_before,
    a_second_commit_changes_nothing,
    a_transaction_without_rows_has_nothing_to_commit,
    preparing_again_changes_nothing,
    epochs_are_committed_while_the_next_is_written,
    what_piled_up_is_committed_in_order_each_once,
    *sink_crashes.PROMISES,
    *sink_targets.PROMISES,
    *sink_payloads.PROMISES,
)
"""Every promise of a sink in two phases, in the order in which it helps to know that it is broken."""


def check_sink(trial: SinkTrial) -> None:
    """Check every promise; raise `Violation` that names the first broken one."""
    for check in CHECKS:
        check(trial)
