"""Real processes: a shadow that has taken over stands for its partition in all, until it is lost as well."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import recovery
from recovery import Active, EpochCompleted, PrimaryMoved, Run
from snapshot import PAUSE, Collection, Program, Stream, ToDriver
from statebackend.ids import Partition

KEYS, ROWS = 40, 500
ONLY = Partition(0)
EXPECTED = sorted((f"k{number % KEYS}", number // KEYS + 1) for number in range(ROWS))


def program(*, at_commit: bool) -> Program:
    items: list[Any] = []
    for number in range(ROWS):
        items += [(f"k{number % KEYS}", number), PAUSE(0.01)]
    numbers = Stream.read(Collection(items, {"k": str, "n": int}), uid="numbers")
    return numbers.key_by("k").count(uid="counts").write(ToDriver(at_commit=at_commit), uid="out")


def begun(folder: Path, *, at_commit: bool = True) -> Run:
    return recovery.run(
        program(at_commit=at_commit),
        checkpoints=folder / "tree",
        local=folder / "local",
        launcher=recovery.LocalProcesses(),
        job="taken-over",
        scheme=Active(replicas=2),
        parallelism=1,
        every="150ms",
        progress=False,
        advanced={"state_backend": "rocksdb"},
    )


def kill_primary(run: Run) -> None:
    status = run.status()
    (worker,) = (worker for worker, member in status.roles.items() if member == status.primaries[ONLY])
    os.kill(int(status.pids[worker].rpartition(" ")[2]), signal.SIGKILL)


def kill_all(run: Run) -> None:
    status = run.status()
    for worker, member in status.roles.items():
        if member is not None:
            os.kill(int(status.pids[worker].rpartition(" ")[2]), signal.SIGKILL)


def test_all_go_back_to_what_a_new_primary_has_written(tmp_path: Path) -> None:
    run = begun(tmp_path)
    try:
        found: list[tuple[str, int]] = []
        kills: list[tuple[int, Callable[[Run], None]]] = [(ROWS // 5, kill_primary), (ROWS // 2, kill_all)]
        for row in run.rows("out"):
            found.append((row["k"], row["count"]))
            if kills and len(found) >= kills[0][0]:
                _, kill = kills.pop(0)
                kill(run)
        assert sorted(found) == EXPECTED
        assert run.status().restarts == 1, "the first loss is masked, the second one leaves nobody"
        events = list(run.events)
        moved = next(place for place, event in enumerate(events) if isinstance(event, PrimaryMoved))
        assert any(isinstance(event, EpochCompleted) for event in events[moved:])
    finally:
        run.cancel()


def test_rows_that_the_driver_takes_from_all_members_come_once_though_the_primary_is_lost(tmp_path: Path) -> None:
    run = begun(tmp_path, at_commit=False)
    try:
        found: list[tuple[str, int]] = []
        for row in run.rows("out"):
            found.append((row["k"], row["count"]))
            if len(found) == ROWS // 4:
                kill_primary(run)
        assert sorted(found) == EXPECTED
        assert run.status().restarts == 0
    finally:
        run.cancel()
