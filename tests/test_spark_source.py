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
from recovery.events import Deployed, WorkerJoined
from recovery.offline.job_tree import open_tree
from recovery.savepoints import read_rows
from snapshot import Program, SparkSource, Stream, ToDriver
from snapshot.structured.stream_log import LoggedBatch, StreamLog, open_log
from statebackend.ids import Partition
from tests.command_line import run_command

USERS, TASKS, ROWS = 7, 3, 8
SCHEMA = pa.schema([("user", pa.int64()), ("n", pa.int64())])
PATIENCE = 120.0
FOLDER = "SPARK_SOURCE_FOLDER"


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


def the_program() -> Program:
    """The program as the command finds it."""
    return program(Path(os.environ[FOLDER]))


def state(tree: Path) -> dict[int, int]:
    """The sums in the newest epoch."""
    found = read_rows(open_tree(str(tree)), "newest", "sums", "totals")
    return {row["key"]: row["n.value"] for some in found for row in some.rows.to_pylist()}


@pytest.mark.timeout(240)
def test_a_job_is_rescaled_forked_and_rewound_by_the_command_while_its_query_adds_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(verb: str, tree: Path, *arguments: object) -> None:
        done = run_command(capsys, verb, "--checkpoints", tree, *arguments)
        assert done.code == 0, done.err

    log, tree, fork = open_log(str(tmp_path / "log")), tmp_path / "tree", tmp_path / "fork"
    add(log, 0, 1)
    assert run_now(tmp_path, tree, 3) == truth(2)
    before = str(open_tree(str(tree)).find().record.epoch)
    command("rescale", tree, "--to", 5)
    add(log, 2, 3)
    assert run_now(tmp_path, tree, 5) == truth(4)
    command("fork", tree, "--epoch", before, "--into", fork, "--accept-duplicates")
    add(log, 4)
    for one in (fork, tree):
        command("rescale", one, "--to", 2)
        assert run_now(tmp_path, one, 2) == truth(5)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    restored = ("tests.test_spark_source:the_program", "--epoch", before, "--accept-duplicates")
    command("restore", tree, *restored, "--option", "available_now=true")
    assert state(tree) == truth(5), "each row counts once in the state"
    assert len(open_tree(str(tree)).find().manifest.operators[0].subtasks) == 3


def process_of(run: recovery.Run, partition: Partition) -> int:
    """Return the process that was given the partition last."""
    *_, last = (event for event in run.events if isinstance(event, Deployed))
    worker = last.workers[[member.partition for member in last.members].index(partition)]
    return next(event.pid for event in run.events if isinstance(event, WorkerJoined) and event.worker == worker)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("standbys", [0, 1])
def test_a_killed_partition_reads_its_batches_again_and_the_query_hears_nothing_of_it(
    standbys: int, tmp_path: Path
) -> None:
    log, batches = open_log(str(tmp_path / "log")), 12
    add(log, 0)
    run = recovery.run(
        program(tmp_path, per="record"),
        checkpoints=str(tmp_path / "tree"),
        local=tmp_path / "local",
        every="50ms",
        scheme=recovery.Passive(standbys=standbys),
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
            os.kill(process_of(run, Partition(batch % 2)), signal.SIGKILL)
    run.drain(PATIENCE)
    assert list(rows) == []
    assert found == {one: list(range(1, count + 1)) for one, count in truth(batches).items()}
    assert run.status().restarts >= 2
