"""Programs fed by a query's log: exact when partitions are killed, rewound, forked and at another parallelism."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recovery
from recovery.offline.job_tree import open_tree
from recovery.savepoints.restoring import restore
from snapshot import Program, SparkSource, Stream, ToDriver
from snapshot.structured.stream_log import LoggedBatch, StreamLog, open_log

USERS, TASKS, ROWS = 7, 3, 8
SCHEMA = pa.schema([("user", pa.int64()), ("n", pa.int64())])
PATIENCE = 120.0


def user(batch: int, task: int, row: int) -> int:
    return (batch * 5 + task * 3 + row) % USERS


def add(log: StreamLog, *batches: int) -> None:
    """What a query does in its tasks and at its commit."""
    for batch in batches:
        rows = [[{"user": user(batch, task, row), "n": 1} for row in range(ROWS)] for task in range(TASKS)]
        parts = [
            log.write(batch, task, SCHEMA, [pa.RecordBatch.from_pylist(rows[task], SCHEMA)]) for task in range(TASKS)
        ]
        log.add(batch, LoggedBatch("q", "", 0, tuple(part for some in parts for part in some)), SCHEMA)


def truth(batches: int) -> dict[int, int]:
    return dict(
        Counter(user(batch, task, row) for batch in range(batches) for task in range(TASKS) for row in range(ROWS))
    )


def program(folder: Path, per: Any = "end") -> Program:
    rows = Stream.read(SparkSource(SCHEMA, str(folder / "log"), splits=6), uid="clicks")
    return rows.key_by("user").sum("n", uid="sums", per=per).write(ToDriver(), uid="out")


def sums(run: recovery.Run) -> dict[int, int]:
    found = {int(str(row["user"])): int(str(row["n"])) for row in run.rows("out")}
    run.wait(PATIENCE)
    return found


def run_now(folder: Path, tree: Path, parallelism: int) -> dict[int, int]:
    return sums(
        recovery.run(
            program(folder),
            checkpoints=str(tree),
            parallelism=parallelism,
            available_now=True,
            retain=9,
            progress=False,
        )
    )


@pytest.mark.timeout(240)
def test_a_job_is_rescaled_forked_and_rewound_while_its_query_adds_batches(tmp_path: Path) -> None:
    log, tree = open_log(str(tmp_path / "log")), tmp_path / "tree"
    add(log, 0, 1)
    assert run_now(tmp_path, tree, 3) == truth(2)
    before = str(open_tree(str(tree)).find().record.epoch)
    add(log, 2, 3)
    assert run_now(tmp_path, tree, 5) == truth(4)
    recovery.fork(open_tree(str(tree)), before, str(tmp_path / "fork"), accept_duplicates=True)
    add(log, 4)
    assert run_now(tmp_path, tmp_path / "fork", 2) == truth(5)
    assert run_now(tmp_path, tree, 2) == truth(5)
    rewound = restore(
        open_tree(str(tree)), before, program(tmp_path), accept_duplicates=True, available_now=True, progress=False
    )
    assert sums(rewound) == truth(5), "each row counts once in the state"
    assert rewound.status().parallelism == 3


@pytest.mark.timeout(240)
def test_a_killed_partition_reads_its_batches_again_and_the_query_hears_nothing_of_it(tmp_path: Path) -> None:
    log, launcher, batches = open_log(str(tmp_path / "log")), recovery.LocalProcesses(), 12
    add(log, 0)
    run = recovery.run(
        program(tmp_path, per="record"),
        checkpoints=str(tmp_path / "tree"),
        launcher=launcher,
        local=tmp_path / "local",
        every="50ms",
        progress=False,
    )
    rows, found = run.rows("out"), dict[int, list[int]]()
    for batch in range(1, batches + 1):
        for _ in range(TASKS * ROWS):
            row = next(rows)
            found.setdefault(int(str(row["user"])), []).append(int(str(row["n"])))
        if batch < batches:
            add(log, batch)
        if batch in (3, 7):
            os.kill(launcher.pids[batch % 2], signal.SIGKILL)
    run.drain(PATIENCE)
    assert list(rows) == []
    assert found == {one: list(range(1, count + 1)) for one, count in truth(batches).items()}
    assert run.status().restarts >= 2
