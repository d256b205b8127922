"""Rows for the driver come once, when their epoch is complete; or at once, and then again after a rollback."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from snapshot.connectors.memory.driver_sink import ToDriver
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import TransactionId
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkContext
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SinkBench, SinkEnvironment, SinkTrial, attempt, write
from snapshot.tree.manifest import CommitPayload
from statebackend.ids import Partition
from statebackend.stores.store import StoreUnavailable

TRIAL = SinkTrial(ToDriver(), lambda environment: environment.delivered)

TestToDriverMachine = sink_machine(TRIAL).TestCase


@pytest.mark.parametrize("check", CHECKS)
def test_to_driver_passes_the_kit(check: Callable[[SinkTrial], None]) -> None:
    check(TRIAL)


def test_without_commit_rows_are_delivered_in_the_call_that_brings_them() -> None:
    bench = SinkBench(SinkTrial(ToDriver(at_commit=False), lambda environment: environment.delivered))
    writer = bench.writer()
    writer.begin(bench.name())
    rows = bench.rows(3)
    write(writer, rows[:2])
    bench.expect(rows[:2], "rows are delivered at once")
    write(writer, rows[2:])
    assert writer.seal().prepare() is None
    bench.expect(rows, "rows are delivered once")
    assert not bench.sink().exactly_once


def test_a_transaction_is_delivered_in_one_piece_under_its_id() -> None:
    deliveries: list[tuple[TransactionId | None, list[str]]] = []

    class Recording(SinkEnvironment):
        def deliver(self, transaction: TransactionId | None, rows: pa.RecordBatch) -> None:
            deliveries.append((transaction, rows["row"].to_pylist()))

    bench = SinkBench(TRIAL)
    bench.environment = Recording()
    transaction, payload, rows = bench.prepared()
    bench.settle(transaction, payload)
    assert deliveries == [(transaction, rows)]


def test_what_was_prepared_is_committed_by_a_program_that_no_longer_waits_for_epochs() -> None:
    bench = SinkBench(TRIAL)
    transaction, payload, rows = bench.prepared()
    changed = SinkBench(SinkTrial(ToDriver(at_commit=False), lambda environment: environment.delivered))
    changed.environment, changed.job = bench.environment, bench.job
    changed.settle(transaction, payload)
    bench.expect(rows, "what an epoch names is committed")


def test_staged_rows_that_are_gone_stop_the_job_with_a_reason() -> None:
    bench = SinkBench(TRIAL)
    transaction, payload, _ = bench.prepared()
    bench.environment.stored.clear()
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "staged/0" in answer.reason


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    class Deaf(SinkEnvironment):
        def get(self, file: object) -> bytes:
            raise StoreUnavailable("no answer")

    bench = SinkBench(TRIAL)
    transaction, payload, _ = bench.prepared()
    bench.environment = Deaf()
    assert bench.writer().commit(transaction, payload).outcome is CommitOutcome.RETRY_LATER


def test_rows_of_any_schema_come_as_they_were() -> None:
    batch = pa.RecordBatch.from_pydict({"n": [1, None], "at": pa.array([1, 2], pa.timestamp("us", "UTC"))})
    bench = SinkBench(TRIAL)
    delivered: list[pa.RecordBatch] = []
    name = bench.name()
    context = SinkContext(
        bench.job,
        bench.uid,
        batch.schema,
        attempt(1),
        Partition(0),
        bench.environment,
        lambda _, rows: delivered.append(rows),
    )
    writer = ToDriver().open(context)
    writer.begin(name)
    writer.write(Rows(batch.slice(0, 1)))
    writer.write(Rows(batch.slice(1, 1)))
    payload = writer.seal().prepare()
    assert isinstance(payload, CommitPayload)
    writer.commit(name, payload)
    [rows] = delivered
    assert rows == batch
