"""A job that writes to a real target, while workers, drivers and the target's server are killed; every row is compared.

Invariant: while the job runs, somebody reads the target again and again, and sees no row twice, none that has
gone, and none of an epoch that was not complete; what is drawn follows from the seed alone.

    python -m tests.target_kills --targets sqlite postgres --kills 50 --restarts 20
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from snapshot.journal.store import StoredJournal
from snapshot.tree.frozen_json import Json
from snapshot.tree.manifest_json import decode
from statebackend import open_store
from statebackend.ids import Uid
from statebackend.stores.store import BlobStore, BlobStoreError
from tests.jobs.comparison import Comparison
from tests.jobs.driver import Settings
from tests.jobs.job import SPLITS
from tests.jobs.numbered import NUMBERED
from tests.jobs.running_job import RunningJob
from tests.targets import TARGETS
from tests.targets.target import Running, Target

_RATE: Final = 2_000
_ROWS_PER_FAULT: Final = 4_000
_LOOK: Final = 1.0
"""Seconds between two reads of the target."""
_DOWN: Final = 1.5
"""Seconds for which a server is down at most."""
_TOLD: Final = 10
"""How many faults lie between two words of it where nobody watches."""
_COMMIT: Final = 10.0
"""Seconds for which a commit is waited for before the next fault, if one is waited for."""


@dataclass(slots=True)
class Report:
    """What was done to one target, and what came of it."""

    target: str
    workers: int = 0
    drivers: int = 0
    restarts: int = 0
    reads: int = 0
    """By the reader beside the job, which found nothing to complain of."""
    seconds: float = 0.0
    compared: Comparison = field(default_factory=lambda: Comparison(0))
    seen: tuple[str, ...] = ()
    """What the reader complained of."""

    @property
    def exact(self) -> bool:
        return self.compared.exact and not self.seen

    def __str__(self) -> str:
        found = self.compared
        return (
            f"{self.target}: {self.workers} workers, {self.drivers} drivers killed, {self.restarts} restarts of the "
            f"server; {self.reads} reads meanwhile, {len(self.seen)} complaints; {found.rows} rows compared: "
            f"{found.lost} lost, {found.twice} twice, {found.wrong} wrong; {self.seconds:.0f} s"
        )


# --- who reads beside the job -----------------------------------------------------------------------------------------


class Reader:
    """Reads the target in a thread of its own, and holds what it sees against the epochs that were complete then."""

    def __init__(self, target: Target, tree: Path) -> None:
        self.reads = 0
        self.complaints: list[str] = []
        self._target = target
        self._tree = tree
        self._before: NDArray[np.int64] = np.zeros(0, np.int64)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._enough.wait(_LOOK):
            try:
                numbers = self._target.rows()["i"].to_numpy()
            except Exception:  # it is down, or in the middle of coming back
                continue
            try:
                positions = positions_of_newest(open_store(self._tree.as_uri()))
            except (BlobStoreError, KeyError):
                continue
            self._judge(np.sort(numbers), positions)

    def _judge(self, numbers: NDArray[np.int64], positions: Mapping[int, int]) -> None:
        self.reads += 1
        distinct = np.unique(numbers)
        if len(distinct) != len(numbers):
            self.complaints.append(f"{len(numbers) - len(distinct)} rows are there twice")
        if len(gone := np.setdiff1d(self._before, distinct)):
            self.complaints.append(f"{len(gone)} rows have gone, such as {gone[:3]}")
        for split in range(SPLITS):
            of_split = distinct[distinct % SPLITS == split]
            if len(of_split) and int(of_split[-1]) // SPLITS >= positions.get(split, 0):
                self.complaints.append(f"row {of_split[-1]} was seen before its epoch was complete: {positions}")
        self._before = distinct


def positions_of_newest(store: BlobStore) -> Mapping[int, int]:
    """How many rows of each split the newest complete epoch stands behind."""
    record = StoredJournal(store).read().usable[-1:]
    if not record:
        return {}
    manifest = decode(store.read(record[0].manifest), record[0].manifest)
    rows = next(operator for operator in manifest.operators if operator.uid == Uid("rows"))
    return {int(one.split.split()[0]): _count(one.position) for subtask in rows.subtasks for one in subtask.positions}


def _count(position: Json) -> int:
    """A split that was read to its end has no position any more."""
    value = position.value()
    if value is None:
        return sys.maxsize
    assert isinstance(value, dict)
    count = value["at"]
    return count if isinstance(count, int) else 0


# --- what is done to the job ------------------------------------------------------------------------------------------


def carry_out(name: str, running: Running, folder: Path, kills: int, restarts: int, seed: int) -> Report:
    """Kill so many processes of the job, and so often the target's server, in random order; read, and compare."""
    random, report, began = Random(seed), Report(name), time.monotonic()
    folder.mkdir(parents=True)
    with running(folder) as target:
        restarts = restarts if target.kill else 0
        settings = Settings(
            folder=str(folder / "job"),
            job=NUMBERED.name,
            rows=_ROWS_PER_FAULT * (kills + restarts + 1),
            rate=_RATE,
            sink="given",
            given=b64encode(pickle.dumps(target.sink)).decode(),
            parallelism=2,
            standbys=1,
        )
        reader = Reader(target, folder / "job" / "tree")
        with RunningJob(settings, target.environment) as job:
            job.start()
            job.wait_for_kind("Running")
            reader.start()
            faults = ["process"] * kills + ["server"] * restarts
            random.shuffle(faults)
            for number, fault in enumerate(faults):
                _progress(f"{name}: fault {number + 1} of {len(faults)}", told=(number + 1) % _TOLD == 0)
                job.listen(random.uniform(0.0, 1.0))
                if fault == "server":
                    _restart(target, job, random)
                    report.restarts += 1
                elif random.random() < 0.2:
                    _kill_driver(job, random)
                    report.drivers += 1
                else:
                    report.workers += _kill_worker(job, random)
                if not job.course.running:
                    job.wait_for_kind("Running")
                if random.random() < 0.5:  # else it could be that nothing is ever committed between two faults
                    _await_commit(job)
            job.open_gate()
            if (code := job.await_end()) != 0:
                raise AssertionError(f"the driver ended with {code}; {job.story()}")
            reader.stop()
        report.reads, report.seen = reader.reads, tuple(reader.complaints)
        report.compared = NUMBERED.judge(target.rows().to_pylist(), settings.rows)
    report.seconds = time.monotonic() - began
    return report


def _await_commit(job: RunningJob) -> None:
    with suppress(TimeoutError):  # the rows before the gate are over
        job.wait_for(lambda event: event["event"] == "EpochCommitted", _COMMIT)


def _restart(target: Target, job: RunningJob, random: Random) -> None:
    assert target.kill is not None
    assert target.start is not None
    target.kill()
    job.listen(random.uniform(0.0, _DOWN))
    target.start()


def _kill_driver(job: RunningJob, random: Random) -> None:
    job.kill_driver()
    if random.random() < 0.5:
        job.settings = replace(job.settings, parallelism=random.randint(1, 3))
    job.start()
    job.wait_for_kind("Running")


def _kill_worker(job: RunningJob, random: Random) -> int:
    """Kill one of the processes that have a partition, and wait until it is known."""
    placed = sorted(job.course.placed & job.course.workers.keys())
    if not placed:
        return 0
    victim = random.choice(placed)
    if not job.kill_worker(victim):
        return 0
    while victim in job.course.workers:
        job.wait_for_kind("WorkerLost")
    if job.course.running:
        job.wait_for_kind("AttemptFailed")
    return 1


def _progress(text: str, *, told: bool) -> None:
    if sys.stderr.isatty():
        print(f"\r{text} ", end="", file=sys.stderr, flush=True)
    elif told:
        print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Kill a job's processes and its target's server at random, and compare the output.",
        epilog="example: python -m tests.target_kills --targets postgres kafka --kills 50 --restarts 20",
    )
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), default=sorted(TARGETS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="epochcut-targets-"))
    exact = True
    for name in given.targets:
        report = carry_out(name, TARGETS[name], folder / name, given.kills, given.restarts, given.seed)
        print(report, flush=True)
        exact = exact and report.exact
        if not report.exact:
            print(*report.compared.examples, *report.seen[:5], f"see {folder / name}", sep="\n")
    if exact:
        shutil.rmtree(folder)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
