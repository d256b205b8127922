"""A sink in an attempt: what its host is told of commits that come to nothing for a while."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from snapshot.connectors.memory.heap_sink import ToHeap
from snapshot.epochs.transaction_events import CommitOutcome, Committable, RetryLater, Settled, transaction_id
from snapshot.host.net.event_loop import Background, EventLoop
from snapshot.host.partition import sink_run
from snapshot.host.partition.sink_run import SinkIdentity, SinkNews, SinkRun
from snapshot.ids import JobId, TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import CommitAnswer, Sealed, SinkContext
from snapshot.testing.sinks import SinkEnvironment
from snapshot.tree.frozen_json import NULL
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Attempt, Epoch, Generation, Incarnation, Partition, Uid
from tests.scripted_workers import PATIENCE

JOB, OUT, HERE = JobId("job"), Uid("out"), Partition(0)
INCARNATION = Incarnation(Generation(2), Attempt(1))
EPOCH = Epoch(Generation(1), 7)


class Heard:
    """What a sink says, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, uid: Uid, news: SinkNews) -> None:
        match news:
            case Settled(epoch):
                self.said.append(f"{epoch} is settled")
            case RetryLater(transaction, reason=reason):
                self.said.append(f"{uid} is put off: transaction {transaction}: {reason}")
            case other:
                self.said.append(f"{other}")


def test_a_commit_that_is_put_off_again_and_again_is_told_with_its_reason_and_not_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_run, "_PATIENCE", (0.0,))
    tried: list[TransactionId] = []

    def commit(transaction: TransactionId, _payload: CommitPayload) -> CommitAnswer:
        tried.append(transaction)
        if len(tried) % 2:
            raise OSError("nobody is there")
        done = len(tried) > 66
        return CommitAnswer(CommitOutcome.COMMITTED if done else CommitOutcome.RETRY_LATER, "others are there")

    loop, heard, environment = EventLoop(), Heard(), SinkEnvironment()
    background = Background(loop, 1)
    schema = pa.schema({"row": pa.string()})
    writer = ToHeap("put off").open(SinkContext(JOB, OUT, schema, INCARNATION, HERE, environment, environment.deliver))
    monkeypatch.setattr(writer, "commit", commit)
    transaction = transaction_id(JOB, OUT, Incarnation(Generation(1), Attempt(1)), HERE, 3)
    left = Committable(transaction, EPOCH, CommitPayload(NULL))
    run = SinkRun(
        SinkIdentity(JOB, OUT, INCARNATION, HERE), writer, (left,), EPOCH, loop, background, heard, lambda: None
    )
    run.begin()
    assert loop.run(lambda: f"{EPOCH} is settled" in heard.said, PATIENCE)
    why = f"out is put off: transaction {transaction}: OSError: nobody is there"
    assert heard.said == [why, why, f"{EPOCH} is settled"]
    assert (run.figures.pending, run.figures.commits, run.figures.put_off) == (0, 1, 67)
    assert run.figures.commit_ms > 0
    run.close()
    background.close()
    loop.close()


class Together:
    """A writer to which all that is due is offered, and which takes it at once."""

    def __init__(self) -> None:
        self.offered: list[list[TransactionId]] = []
        self.done: set[TransactionId] = set()

    def begin(self, transaction: TransactionId) -> None:
        pass

    def write(self, rows: Rows) -> None:
        pass

    def seal(self) -> Sealed:
        raise NotImplementedError

    def commit(self, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
        return self._asked([transaction])

    def commit_together(self, due: Sequence[Committable[CommitPayload]]) -> CommitAnswer:
        return self._asked([one.transaction for one in due])

    def close(self) -> None:
        pass

    def _asked(self, due: list[TransactionId]) -> CommitAnswer:
        self.offered.append(due)
        known = due[0] in self.done
        self.done.update(due)
        return CommitAnswer(CommitOutcome.ALREADY_COMMITTED if known else CommitOutcome.COMMITTED)


def test_a_writer_that_can_is_offered_all_that_is_due_and_asked_for_each() -> None:
    loop, heard, writer = EventLoop(), Heard(), Together()
    background = Background(loop, 1)
    dead = Incarnation(Generation(1), Attempt(1))
    left = [
        Committable(transaction_id(JOB, OUT, dead, HERE, n), Epoch(Generation(1), n), CommitPayload(NULL))
        for n in (5, 6, 7)
    ]
    run = SinkRun(SinkIdentity(JOB, OUT, INCARNATION, HERE), writer, left, EPOCH, loop, background, heard, lambda: None)
    run.begin()
    assert loop.run(lambda: f"{EPOCH} is settled" in heard.said, PATIENCE)
    names = [one.transaction for one in left]
    assert writer.offered == [names, names[1:], names[2:]]
    run.close()
    background.close()
    loop.close()
