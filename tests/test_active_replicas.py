"""Jobs whose partitions have two members, in real processes: one is killed, and the output is exact all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import pytest

import recovery
from recovery import Active, AnyEvent, Collapsed, PrimaryMoved, RedundancyRestored, ReplicaLost, Run
from recovery.inject.targets import Kind, Order, parse_target
from snapshot import PAUSE, Collection, Program, Stream, ToDriver
from snapshot.ids import Member
from statebackend.ids import Partition

KEYS, ROWS = 5, 400
NUMBERS = {"k": str, "n": int}


def program() -> Program:
    items: list[Any] = []
    for number in range(ROWS):
        items += [(f"k{number % KEYS}", number), PAUSE(0.01)]
    numbers = Stream.read(Collection(items, NUMBERS), uid="numbers")
    return numbers.key_by("k").count(uid="counts").write(ToDriver(), uid="out")


@contextmanager
def running(folder: Path, parallelism: int = 2) -> Iterator[Run]:
    run = recovery.run(
        program(),
        checkpoints=folder / "tree",
        local=folder / "local",
        launcher=recovery.LocalProcesses(),
        job="replicas",
        scheme=Active(replicas=2),
        parallelism=parallelism,
        every="150ms",
        progress=False,
    )
    try:
        yield run
    finally:
        run.cancel()


def processes(run: Run, partition: int) -> dict[Member, int]:
    """Return the processes of a partition's members."""
    status = run.status()
    return {
        member: int(status.pids[worker].rpartition(" ")[2])
        for worker, member in status.roles.items()
        if member is not None and member.partition == partition
    }


def inject(folder: Path, kind: str, target: str, lasting: int | None = None) -> None:
    with recovery.attach(job_folder=folder / "local") as attached:
        attached.inject(Order(Kind(kind), parse_target(target), lasting))


def counts_with(run: Run, at: int, fault: Callable[[], object]) -> list[tuple[str, int]]:
    """Return all counts that come out, while a fault happens when so many have."""
    found = []
    for row in run.rows("out"):
        found.append((row["k"], row["count"]))
        if len(found) == at:
            fault()
    return found


EXPECTED = sorted((f"k{number % KEYS}", number // KEYS + 1) for number in range(ROWS))


@pytest.mark.parametrize("victim", ["shadow", "primary"])
def test_the_loss_of_a_member_is_masked_and_every_row_comes_out_once(tmp_path: Path, victim: str) -> None:
    with running(tmp_path) as run:

        def kill() -> None:
            primary = run.status().primaries[Partition(0)]
            (shadow,) = processes(run, 0).keys() - {primary}
            inject(tmp_path, "kill", "primary:0" if victim == "primary" else f"replica:{shadow}")

        assert sorted(counts_with(run, ROWS // 4, kill)) == EXPECTED
        status = run.status()
        assert status.restarts == 0, "nothing has rolled back"
        (lost,) = (event for event in run.events if isinstance(event, ReplicaLost))
        moved = [event.member for event in run.events if isinstance(event, PrimaryMoved)]
        assert lost.left == 1
        assert moved == ([] if victim == "shadow" else [status.primaries[Partition(0)]])
        assert lost.member not in status.primaries.values()


def test_a_lost_member_is_replaced_and_the_loss_of_the_other_ones_is_masked_again(tmp_path: Path) -> None:
    with running(tmp_path, parallelism=1) as run:
        restored: Queue[RedundancyRestored] = Queue()
        joined, found = [], []

        def hear(event: AnyEvent) -> None:
            if isinstance(event, RedundancyRestored):
                restored.put(event)

        run.listen(hear)

        def kill_the_primary() -> None:
            os.kill(processes(run, 0)[run.status().primaries[Partition(0)]], signal.SIGKILL)

        for row in run.rows("out"):
            found.append((row["k"], row["count"]))
            if len(found) == 1:
                for _ in range(2):  # all members that there were at first
                    kill_the_primary()
                    joined.append(restored.get(timeout=60))
                    assert run.status().redundancy == 2
                kill_the_primary()
        assert sorted(found) == EXPECTED
        assert run.status().restarts == 0, "nothing has rolled back"
        assert [event.member.replica for event in joined] == sorted({event.member.replica for event in joined})
        assert min(event.member.replica for event in joined) >= 2, "no number is used twice"
        assert all(0 <= m.marks.connected <= m.marks.complete <= m.marks.joined for m in joined)


def test_a_member_that_hangs_is_replaced_and_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        restored = Event()
        run.listen(lambda event: restored.set() if isinstance(event, RedundancyRestored) else None)

        def hang() -> None:
            inject(tmp_path, "stop", "primary:0", 4_000)
            assert restored.wait(60)

        assert sorted(counts_with(run, 1, hang)) == EXPECTED
        assert run.status().restarts == 0


def test_the_loss_of_all_members_of_a_partition_rolls_back(tmp_path: Path) -> None:
    with running(tmp_path, parallelism=1) as run:

        def kill() -> None:
            inject(tmp_path, "kill", "partition:0")

        assert sorted(counts_with(run, ROWS // 4, kill)) == EXPECTED
        assert run.status().restarts == 1
        assert any(isinstance(event, Collapsed) for event in run.events)
