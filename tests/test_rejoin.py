"""Two partitions of two members, in real processes: each that there was is lost, once the one before it is replaced."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from queue import Queue

import numpy as np

import recovery
from recovery import Active, AnyEvent, RedundancyRestored, ReplicaLost, Run
from snapshot import Generate, Program, Stream, ToFiles, Tumbling
from snapshot.connectors.memory.generate import Columns, Indices
from snapshot.ids import Member
from statebackend import Count, Sum
from statebackend.columns import schema_of
from tests.jobs.steady import Steady

ROWS, KEYS, SIZE = 20_000, 7, 250
SPLITS, RATE = 3, 600.0
PATIENCE = 60.0


def made(i: Indices) -> Columns:
    return {"k": i * 5 % KEYS, "v": i * 7919 % 1009, "t": i - i * 37 % 40}


def program(folder: Path) -> Program:
    """Return windows behind a rebalance, in files; the last tenth of the rows comes when the gate is open."""
    rows = Generate(made, schema_of({"k": int, "v": int, "t": int}), count=ROWS, splits=SPLITS)
    source = Steady(rows, RATE, ROWS * 9 // 10 // SPLITS, str(folder / "gate"))
    timed = Stream.read(source, uid="rows").with_event_time("t", out_of_order="40ms")
    windows = timed.rebalance(uid="dealt").key_by("k").window(Tumbling(f"{SIZE}ms"))
    counted = windows.aggregate(uid="windows", n=Count(), s=Sum("v"))
    return counted.write(ToFiles(str(folder / "out"), "jsonl"), uid="out")


def one_after_the_other() -> list[tuple[int, int, int]]:
    """Return the key, number of rows and sum of each window."""
    columns = made(np.arange(ROWS, dtype=np.int64))
    windows: dict[tuple[int, int], list[int]] = {}
    for key, value, at in zip(*(np.asarray(columns[name]).tolist() for name in ("k", "v", "t")), strict=True):
        windows.setdefault((key, at // SIZE), []).append(value)
    return [(key, len(values), sum(values)) for (key, _), values in windows.items()]


def written(folder: Path) -> list[tuple[int, int, int]]:
    """Return what is committed; in a folder beneath that are the files of transactions that never will be."""
    files = (folder / "out").glob("*.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [(row["k"], row["n"], row["s"]) for row in rows]


def process_of(run: Run, member: Member) -> int:
    status = run.status()
    (worker,) = (worker for worker, role in status.roles.items() if role == member)
    return int(status.pids[worker].rpartition(" ")[2])


def test_each_member_that_there_was_is_lost_one_after_the_other_and_every_row_is_written_once(tmp_path: Path) -> None:
    restored: Queue[RedundancyRestored] = Queue()

    def hear(event: AnyEvent) -> None:
        if isinstance(event, RedundancyRestored):
            restored.put(event)

    run = recovery.run(
        program(tmp_path),
        checkpoints=tmp_path / "tree",
        local=tmp_path / "local",
        launcher=recovery.LocalProcesses(),
        job="rejoin",
        scheme=Active(replicas=2),
        parallelism=2,
        every="200ms",
        progress=False,
    )
    try:
        run.listen(hear)
        members = await_members(run)
        for member in members:
            os.kill(process_of(run, member), signal.SIGKILL)
            joined = restored.get(timeout=PATIENCE)
            assert joined.member.partition == member.partition
            assert run.status().redundancy == 2
        (tmp_path / "gate").touch()
        run.wait(2 * PATIENCE)
        assert Counter(written(tmp_path)) == Counter(one_after_the_other())
        assert run.status().restarts == 0, "nothing has rolled back"
        assert [event.member for event in run.events if isinstance(event, ReplicaLost)] == list(members)
    finally:
        run.cancel()


def await_members(run: Run) -> Sequence[Member]:
    """Return all members when an epoch is complete."""
    complete: Queue[None] = Queue()
    stop = run.listen(lambda event: complete.put(None) if isinstance(event, recovery.EpochCompleted) else None)
    complete.get(timeout=PATIENCE)
    stop()
    return sorted(role for role in run.status().roles.values() if role is not None)
