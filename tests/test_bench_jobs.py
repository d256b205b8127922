"""What the benchmarks of whole jobs measure with: the CPU time of all processes, and sinks that note when rows came."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from recovery.comparison.machine import cpu_seconds_of_all
from snapshot import Collection, Program, Stream
from snapshot.ids import JobId
from snapshot.operators.rows import Rows
from snapshot.program.sink import SinkContext, Staging
from statebackend.ids import Attempt, Generation, Incarnation, Partition, Uid
from tests.bench.measured_sinks import SCHEDULED, Drop, Stopwatch, noted
from tests.bench.running_job import Failed, running

BUSY = """
import sys, time
while time.process_time() < 0.5: pass
print(flush=True)
sys.stdin.read()
"""
SCHEMA = pa.schema([("key", pa.int64()), (SCHEDULED, pa.int64())])


def test_the_cpu_time_of_a_process_that_was_started_counts_while_it_runs_and_when_it_has_ended() -> None:
    before = cpu_seconds_of_all()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert cpu_seconds_of_all() - before >= 0.45
    assert cpu_seconds_of_all() - before >= 0.45


def test_a_stopwatch_notes_when_scheduled_rows_came_and_no_others(tmp_path: Path) -> None:
    began = time.time_ns() // 1_000
    for partition, scheduled in enumerate(([0, 0], [began - 7, 0, began - 5])):
        writer = Stopwatch(str(tmp_path)).open(_context(partition))
        writer.write(Rows(pa.record_batch([pa.array(range(len(scheduled))), pa.array(scheduled)], schema=SCHEMA)))
        writer.close()
    found = noted(tmp_path)
    assert found[0].tolist() == [began - 7, began - 5]
    assert (found[1] >= began).all()


def test_a_stopwatch_that_nobody_wrote_to_has_noted_nothing(tmp_path: Path) -> None:
    Stopwatch(str(tmp_path)).open(_context(0)).close()
    assert noted(tmp_path).shape == (2, 0)


def test_a_stopwatch_refuses_rows_without_a_scheduled_time() -> None:
    assert "no column 'ts'" in Stopwatch("anywhere").check(pa.schema([("key", pa.int64())]))[0]


def test_a_job_that_fails_is_not_measured() -> None:
    def broken(_row: object) -> object:
        raise ValueError("broken")

    rows = Collection([(number,) for number in range(10)], pa.schema([("key", pa.int64())]), splits=1)
    mapped = Stream.read(rows, uid="rows").filter(broken).key_by("key").count(uid="count")
    program: Program = mapped.write(Drop(), uid="out")
    with pytest.raises(Failed, match="broken"), running(program, None) as job:
        job.until_rows("count", 1)


def _context(partition: int) -> SinkContext:
    incarnation = Incarnation(Generation(1), Attempt(1))
    staging = cast("Staging", None)
    return SinkContext(
        JobId("job"), Uid("out"), SCHEMA, incarnation, Partition(partition), staging, lambda _transaction, _rows: None
    )
