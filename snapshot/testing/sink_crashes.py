"""The promises of a sink when processes die and others take over, as checks that a sink without them fails.

Invariant: each check raises a `Violation` that names the promise. A process that dies in a check closes nothing, so it
may as well be one that is only believed dead; it is closed at the check's end, when that does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from snapshot.testing.sink_bench import PreparedRows, SinkBench, SinkTrial, settled, some, write


def a_crash_after_prepare_loses_nothing(trial: SinkTrial) -> None:
    """Check that another process commits what an epoch names, in any order, after any number of recoveries."""
    bench = SinkBench(trial)
    (one, first, rows), (other, second, others) = bench.prepared(), bench.prepared()
    for number in (2, 3):
        bench.recover(number, [one, other])
    bench.settle(other, second, 3)
    bench.expect(others, "a commit shows the rows of its own transaction only")
    bench.recover(4, [one, other])
    bench.settle(one, first, 4)
    bench.settle(other, second, 4)
    bench.expect(rows + others, "what was prepared survives its process")


def recovery_aborts_what_is_older_and_not_named(trial: SinkTrial) -> None:
    """Check that named transactions can still be committed after a recovery, and older others are never seen.

    Those of the new attempt and of other jobs can still be committed as well.
    """
    bench, foreign = SinkBench(trial), SinkBench(trial)
    (named, one, rows), _ = bench.prepared(), bench.prepared()
    (new, two, more), (other, three, others) = bench.prepared(2), foreign.prepared()
    bench.recover(2, [named])
    bench.expect([], "recovery makes nothing visible")
    bench.settle(named, one, 2)
    bench.settle(new, two, 2)
    bench.expect(rows + more, "recovery keeps what is named and what its own attempt has prepared")
    foreign.settle(other, three)
    foreign.expect(others, "recovery leaves other jobs alone")


def a_crash_after_any_step_shows_all_or_nothing(trial: SinkTrial) -> None:
    """Check that a crash after any step shows rows once if their epoch is complete, and else never.

    A process dies after it began, wrote, sealed, prepared or committed.
    """
    for steps, complete in ((1, False), (2, False), (3, False), (4, False), (4, True), (5, True)):
        bench = SinkBench(trial)
        writer, transaction, rows = bench.writer(), bench.name(), bench.rows(3)
        writer.begin(transaction)
        if steps >= 2:
            write(writer, rows)
        sealed = writer.seal() if steps >= 3 else None
        payload = some(sealed.prepare(), transaction) if sealed is not None and steps >= 4 else None
        if payload is not None and steps >= 5:
            settled(writer, transaction, payload)
        bench.recover(2, [transaction] if complete else [])
        if payload is not None and complete:
            bench.settle(transaction, payload, 2)
        expected = rows if complete else []
        bench.expect(expected, "a complete epoch's rows are there once after a crash, others never")
        following, second, more = bench.prepared(2)
        bench.settle(following, second, 2)
        bench.expect(expected + more, "an attempt after a crash writes as the first")
        writer.close()


def a_process_believed_dead_does_no_harm(trial: SinkTrial) -> None:
    """Check that rows prepared by an attempt that is over are never seen, and that a later recovery aborts them."""
    bench = SinkBench(trial)
    writer = bench.writer()
    writer.begin(bench.name())
    write(writer, bench.rows(2))
    sealed = writer.seal()
    bench.recover(2)
    with suppress(Exception):  # it may find out that its time is over
        sealed.prepare()
    transaction, payload, rows = bench.prepared(2)
    bench.settle(transaction, payload, 2)
    writer.close()
    bench.expect(rows, "what an attempt prepares that is over is never visible")
    bench.recover(3)
    bench.expect(rows, "what an attempt prepares that is over is never visible")
    bench.expect_pending(0, "what an attempt prepared that was over is aborted by a later recovery")


def recovery_keeps_what_is_committed(trial: SinkTrial) -> None:
    """Check that recovery keeps the rows of a transaction that it no longer names, as it was committed."""
    bench = SinkBench(trial)
    transaction, payload, rows = bench.prepared()
    bench.settle(transaction, payload)
    for number in (2, 3):
        bench.recover(number)
        bench.expect(rows, "recovery keeps what is committed")


def recovery_finds_the_leftovers_of_all_partitions(trial: SinkTrial) -> None:
    """Check that recovery aborts what several attempts left in several partitions, but for named transactions."""
    bench = SinkBench(trial)
    named = [bench.prepared_by(partition) for partition in range(3)]
    for number in (1, 2):
        for partition in range(3):
            bench.prepared_by(partition, number)
    for number in (3, 4):
        bench.recover(number, [prepared.transaction for prepared in named])
        bench.expect([], "recovery makes nothing visible")
        bench.expect_pending(len(named), "recovery aborts the leftovers of all partitions")
    _settle_all(bench, named, 4)
    bench.recover(5)
    bench.expect_pending(0, "nothing is left of what was committed")


def prepared_transactions_outlive_a_rescale(trial: SinkTrial) -> None:
    """Check that two partitions of a restarted driver commit what four partitions have prepared.

    No transaction is committed by the partition that prepared it; the two write transactions of their own meanwhile.
    """
    bench = SinkBench(trial)
    prepared = [bench.prepared_by(partition) for partition in range(4)]
    bench.recover(1, [one.transaction for one in prepared], generation=2)
    writers = [bench.writer(1, partition, generation=2) for partition in range(2)]
    own = []
    for partition, writer in enumerate(writers):
        transaction, rows = bench.name(1, partition, generation=2), bench.rows(2)
        writer.begin(transaction)
        write(writer, rows)
        own.append((writer, transaction, rows))
    for number, one in enumerate(prepared):
        settled(writers[(number + 1) % 2], one.transaction, one.payload)
    expected = [row for one in prepared for row in one.rows]
    bench.expect(expected, "what four partitions have prepared is committed by two")
    for writer, transaction, rows in own:
        settled(writer, transaction, some(writer.seal().prepare(), transaction))
        expected += rows
        writer.close()
    bench.expect(expected, "partitions that commit for others lose nothing of their own")


def the_last_epoch_may_be_committed_again(trial: SinkTrial) -> None:
    """Check that all that the last epoch names may be committed again, by any partition, without showing rows twice.

    A driver that starts again cannot know whether the last epoch was committed. It is committed again also when what
    came after it was committed as well.
    """
    bench = SinkBench(trial)
    last = [bench.prepared_by(partition) for partition in range(2)]
    _settle_all(bench, last, 1)
    later = [bench.prepared_by(partition) for partition in range(2)]
    for one in later:
        bench.settle(one.transaction, one.payload, 1)
    everything = [row for one in last + later for row in one.rows]
    for generation in (2, 3):
        bench.recover(1, [one.transaction for one in last + later], generation=generation)
        for number, one in enumerate(reversed(last + later)):
            writer = bench.writer(1, number % 2, generation)
            settled(writer, one.transaction, one.payload)
            writer.close()
        bench.expect(everything, "what was committed is not committed again")


def a_job_that_was_put_back_loses_nothing(trial: SinkTrial) -> None:
    """Check that a job whose tree was put back from an older copy loses no rows.

    It makes transactions again that have the names of those that it made since, with other rows: what the target has of
    the former ones is not taken for these, and stays.
    """
    bench = SinkBench(trial)
    committed, left = bench.prepared_by(0), bench.prepared_by(0)
    bench.settle(committed.transaction, committed.payload)
    bench.put_back()
    bench.recover(1)
    again = [bench.prepared_as(one.transaction) for one in (committed, left)]
    expected = committed.rows + [row for one in again for row in one.rows]
    for number in (1, 2):
        for one in again:
            bench.settle(one.transaction, one.payload, number)
        bench.expect(expected, "transactions that are made again under the same names are others")
        bench.recover(2, [one.transaction for one in again])
    bench.recover(3)
    bench.expect(expected, "recovery keeps what is committed")
    bench.expect_pending(0, "what was left under a name that was made again is aborted")


def _settle_all(bench: SinkBench, prepared: list[PreparedRows], number: int) -> None:
    for one in prepared:
        bench.settle(one.transaction, one.payload, number)
    bench.expect([row for one in prepared for row in one.rows], "what an epoch names is committed")


PROMISES: tuple[Callable[[SinkTrial], None], ...] = (
    a_crash_after_prepare_loses_nothing,
    a_crash_after_any_step_shows_all_or_nothing,
    recovery_aborts_what_is_older_and_not_named,
    recovery_keeps_what_is_committed,
    recovery_finds_the_leftovers_of_all_partitions,
    a_process_believed_dead_does_no_harm,
    prepared_transactions_outlive_a_rescale,
    the_last_epoch_may_be_committed_again,
    a_job_that_was_put_back_loses_nothing,
)
"""In the order in which it helps to know that one is broken."""
