"""What a partition's process is: how long it takes from its loss to the next one's first word, and what it holds.

Invariant: processes are killed while a job runs, one after the other; what a process holds is read while all of
them run, the memory as its share of what it has in common with others.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import recovery
from recovery.comparison.machine import cpu_seconds_of_all
from recovery.events import AnyEvent, Running, WorkerJoined
from snapshot import Program, Stream, ToDriver
from tests.bench.figures import Figure, figure, progress
from tests.bench.workload_input import records

WORKLOAD: Final = "processes"
_PATIENCE: Final = 120.0
_RATE: Final = 2000.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many keys, how many processes are killed, and at which parallelisms processes are looked at."""

    keys: int
    kills: int
    parallelisms: tuple[int, ...]


FULL: Final = Sizes(10_000, 10, (1, 2, 4, 8))
SMALL: Final = Sizes(100, 1, (1, 2))


@dataclass(frozen=True, slots=True)
class Held:
    """What one process holds."""

    connections: int
    threads: int
    own_mb: float


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Of processes on this machine."""
    cpu = cpu_seconds_of_all()
    progress(f"{WORKLOAD}: {sizes.kills} processes are killed")
    with _Running(sizes, 2) as job:
        back = [job.milliseconds_to_hello() for _ in range(sizes.kills)]
    yield figure(WORKLOAD, "kill_to_hello_ms", "ms", back, cpu_seconds_of_all() - cpu)
    for parallelism in sizes.parallelisms:
        progress(f"{WORKLOAD}: {parallelism} partitions")
        cpu = cpu_seconds_of_all()
        with _Running(sizes, parallelism) as job:
            held = job.held()
        spent = cpu_seconds_of_all() - cpu
        for name, unit, runs in (
            ("connections", "sockets", [float(each.connections) for each in held]),
            ("threads", "threads", [float(each.threads) for each in held]),
            ("memory", "MB", [each.own_mb for each in held]),
        ):
            yield figure(WORKLOAD, f"{name}_of_a_partition_of_{parallelism}", unit, runs, spent)


class _Running:
    """A keyed job for as long as the context lasts."""

    def __init__(self, sizes: Sizes, parallelism: int) -> None:
        self._folder = TemporaryDirectory()
        self._launcher = recovery.LocalProcesses()
        folder = Path(self._folder.name)
        self._run = recovery.run(
            _program(sizes.keys),
            checkpoints=folder / "tree",
            local=folder / "local",
            launcher=self._launcher,
            parallelism=parallelism,
            every="500ms",
            progress=False,
        )

    def __enter__(self) -> _Running:
        self._until(lambda: len(self._events(Running)) > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._run.cancel()
        self._folder.cleanup()

    def milliseconds_to_hello(self) -> float:
        """Kill a process, and wait until the job has come back."""
        before, attempts = len(self._events(WorkerJoined)), len(self._events(Running))
        at = time.time()
        os.kill(self._launcher.pids[0], signal.SIGKILL)
        self._until(lambda: len(self._events(Running)) > attempts)
        return (self._events(WorkerJoined)[before].at - at) * 1000

    def held(self) -> Sequence[Held]:
        """By each process, when it has run for a while."""
        rows = 3 * _RATE
        self._until(lambda: sum(self._run.status().rows_in.values()) >= rows)
        return [_held(pid) for pid in self._launcher.pids.values()]

    def _events(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self._run.events if isinstance(event, kind)]

    def _until(self, done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + _PATIENCE
        while not done():
            if time.monotonic() > give_up or self._run.status().state.over:
                raise RuntimeError(f"the job has not come so far: {self._run.status().failure}")
            time.sleep(0.005)


def _program(keys: int) -> Program:
    numbers = Stream.read(records(keys, rate=_RATE), uid="numbers")
    return numbers.key_by("key").count(uid="count").filter(_nothing).write(ToDriver(), uid="out")


def _nothing(_row: object) -> bool:
    return False


def _held(pid: int) -> Held:
    process = Path(f"/proc/{pid}")
    links = [str(link.readlink()) for link in (process / "fd").iterdir()]
    memory = (process / "smaps_rollup").read_text()
    kilobytes = next(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Pss:"))
    connections = sum(link.startswith("socket:") for link in links)
    return Held(connections, len(list((process / "task").iterdir())), kilobytes / 1024)
