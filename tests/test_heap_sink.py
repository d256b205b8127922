"""Rows in the memory of a process pass the kit, and no other process is told that it could have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from snapshot.connectors.memory.heap_sink import ToHeap, forget_heap, read_heap
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkError
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkBench, SinkEnvironment, SinkTrial


def visible(_: SinkEnvironment) -> list[str]:
    table = read_heap("kit")
    rows: list[str] = table.column("row").to_pylist() if table.num_columns else []
    return rows


ELSEWHERE = replace(ToHeap("kit"), process=1)
TRIAL = SinkTrial(ToHeap("kit"), visible, lambda: forget_heap("kit"), bad=[ELSEWHERE])

TestToHeapMachine = sink_machine(TRIAL).TestCase


@pytest.mark.parametrize("check", CHECKS)
def test_memory_passes_the_kit(check: Callable[[SinkTrial], None]) -> None:
    check(TRIAL)


def test_another_process_is_refused() -> None:
    bench = SinkBench(replace(TRIAL, sink=ELSEWHERE))
    with pytest.raises(SinkError, match=r"sink the/sink: 'kit' is in the memory of process 1, and this is process \d+"):
        bench.writer()


def test_what_is_prepared_does_not_change_with_the_memory_that_it_came_from() -> None:
    bench = SinkBench(TRIAL)
    writer, transaction = bench.writer(), bench.name()
    text = f"{bench.job}: first".encode()
    memory = bytearray(text)
    offsets = pa.py_buffer(pa.array([0, len(text)], pa.int32()).buffers()[1])
    column = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(memory)])
    writer.begin(transaction)
    writer.write(Rows(pa.RecordBatch.from_arrays([column], schema=SCHEMA)))
    payload = writer.seal().prepare()
    memory[-5:] = b"other"
    assert payload is not None
    assert writer.commit(transaction, payload).outcome is CommitOutcome.COMMITTED
    bench.expect([text.decode()], "rows are those that were prepared")
    forget_heap("kit")


def test_a_commit_in_a_process_that_has_not_prepared_it_fails_with_a_reason() -> None:
    bench = SinkBench(TRIAL)
    transaction, payload, _ = bench.prepared()
    forget_heap("kit")
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "not in the memory of this process" in answer.reason


def test_rows_of_other_columns_are_found_before_they_come() -> None:
    bench = SinkBench(TRIAL)
    transaction, payload, _ = bench.prepared()
    bench.settle(transaction, payload)
    [problem] = ToHeap("kit").examine(bench.job, bench.uid, pa.schema([("n", pa.int64())]))
    assert problem == "the rows under 'kit' have the columns ['row'], and these ['n']"
    forget_heap("kit")
