"""The promises of a sink at the border to the target, as checks that a sink without them fails.

Invariant: each check raises a `Violation` that names the promise. What is about a part of the trial that was
not given is not checked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import TransactionId
from snapshot.program.sink import CommitAnswer, SinkWriter
from snapshot.testing.history import Violation
from snapshot.testing.sink_bench import SCHEMA, SinkBench, SinkTrial, settled, some, write
from snapshot.tree.manifest import CommitPayload

_ROUNDS = 3


def examine_finds_a_target_that_is_not_right(trial: SinkTrial) -> None:
    """Check that `examine` finds no problem with a good target, and one with each bad target."""
    bench = SinkBench(trial)
    for _ in range(2):
        if problems := bench.sink().examine(bench.job, bench.uid, SCHEMA):
            raise Violation(f"there is nothing to say of a good target; but the sink says {problems}")
    for sink in trial.bad:
        problems = sink.examine(bench.job, bench.uid, SCHEMA)
        if not problems:
            raise Violation(f"a target that is not right is found before anything starts; but not with {sink}")
        _holds_no_secret(trial, f"what is said of {sink}", "; ".join(problems))


def several_may_commit_at_once(trial: SinkTrial) -> None:
    """Check that rows are there once when several processes commit one transaction while recovery is under way.

    The committers may be living or believed dead.
    """
    for _ in range(_ROUNDS):
        bench = SinkBench(trial)
        transaction, payload, rows = bench.prepared()
        writers = [bench.writer(1), bench.writer(2), bench.writer(2, 1)]
        together = threading.Barrier(len(writers) + 1)

        def commit(writer: SinkWriter) -> None:
            together.wait()  # noqa: B023 (the round ends when its threads have ended)
            settled(writer, transaction, payload)  # noqa: B023

        def recover() -> None:
            together.wait()  # noqa: B023
            with suppress(Exception):  # the driver tries again
                bench.recover(2, [transaction])  # noqa: B023

        with ThreadPoolExecutor(len(writers) + 1) as threads:
            under_way = [threads.submit(recover), *(threads.submit(commit, writer) for writer in writers)]
            for one in under_way:
                one.result()
        bench.settle(transaction, payload, 2)
        bench.expect(rows, "what several commit at once is there once")
        for writer in writers:
            writer.close()


def a_target_out_of_reach_is_asked_again(trial: SinkTrial) -> None:
    """Check that commits are put off while the target is out of reach, whether they were done before or not.

    What could not be prepared is prepared later, and nothing is lost or there twice.
    """
    if trial.disturb is None:
        return
    bench = SinkBench(trial)
    (one, first, rows), (other, second, others) = bench.prepared(), bench.prepared()
    bench.settle(one, first)
    writer, transaction, more = bench.writer(2), bench.name(2), bench.rows(3)
    writer.begin(transaction)
    write(writer, more)
    sealed = writer.seal()
    writer.begin(bench.name(2))
    with trial.disturb():
        if not bench.sink().examine(bench.job, bench.uid, SCHEMA):
            raise Violation("a target that is out of reach is found before anything starts; but nothing is said")
        for known, payload in ((one, first), (other, second)):
            answer = _answer(writer, known, payload)
            if answer.outcome is not CommitOutcome.RETRY_LATER:
                raise Violation(f"an outcome that is not known says RETRY_LATER; but it was {answer}")
            _holds_no_secret(trial, "the reason of an answer", answer.reason)
        with suppress(Exception):  # its epoch is declined
            sealed.prepare()
        with suppress(Exception):  # the driver tries again
            bench.recover(2, [one, other])
    bench.recover(2, [one, other])
    for known, payload in ((one, first), (other, second), (transaction, some(sealed.prepare(), transaction))):
        settled(writer, known, payload)
    writer.close()
    bench.expect(rows + others + more, "when the target is back, all is committed once")


def no_secret_is_written_or_printed(trial: SinkTrial) -> None:
    """Check that no password is in payloads and staged rows, which are in the job's tree, or in a printed sink."""
    bench = SinkBench(trial)
    transaction, payload, _ = bench.prepared()
    _holds_no_secret(trial, "the sink as it is printed", f"{trial.sink!r} {trial.sink}")
    _holds_no_secret(trial, "a payload", f"{payload!r} {payload.value.text}")
    for file, content in bench.environment.stored.items():
        _holds_no_secret(trial, "a staged file", f"{file!r} {content.decode(errors='replace')}")
    bench.settle(transaction, payload)


def _answer(writer: SinkWriter, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
    try:
        return writer.commit(transaction, payload)
    except Exception as error:
        raise Violation(f"a commit that cannot be done answers RETRY_LATER; but it raised {error!r}") from error


def _holds_no_secret(trial: SinkTrial, what: str, text: str) -> None:
    if any(secret in text for secret in trial.secrets):
        raise Violation(f"no secret is written or printed; but one is in {what}")


PROMISES: tuple[Callable[[SinkTrial], None], ...] = (
    examine_finds_a_target_that_is_not_right,
    no_secret_is_written_or_printed,
    several_may_commit_at_once,
    a_target_out_of_reach_is_asked_again,
)
"""In the order in which it helps to know that one is broken."""
