"""A job that is killed at any moment goes on from its newest complete snapshot, and nothing stays that nobody owns."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from statebackend import fail_points
from statebackend.files import FileSet
from statebackend.ids import NO_EPOCH, Epoch
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots.local_files import LocalFiles
from statebackend.stores.local_store import LocalStore
from tests.state_worker import (
    BORN,
    CHECKING,
    CLEANING,
    CLOSED,
    COMPLETED,
    COMPLETING,
    ENDED,
    OPENING,
    OPERATORS,
    READY,
    UPDATING,
    WAITING,
    Order,
)

_PATIENCE: Final = 60.0
_PARALLELISMS: Final = (1, 2, 3)
_MEMORY: Final = (8 << 20, 8 << 20, 16 << 10)
"""Enough; or so little that all of it is on its way to the disk all the time."""

DURING: Final = {
    "restore": (
        BORN,
        fail_points.RUN_BEGUN,
        OPENING,
        fail_points.RESTORE_DOWNLOADED,
        fail_points.RESTORE_FETCHED,
        fail_points.RESTORE_OPENED,
        CHECKING,
    ),
    "writing": (READY, UPDATING, fail_points.DELTA_FROZEN, fail_points.FILE_WRITTEN),
    "uploading": (fail_points.BLOB_UNFINISHED, fail_points.DELTA_WRITTEN, WAITING, fail_points.DELTA_UPLOADED),
    "completing": (COMPLETING, fail_points.SNAPSHOT_COMPLETED, COMPLETED),
    "ingesting": (fail_points.BEFORE_INGEST, fail_points.AFTER_INGEST, fail_points.LINKS_PRUNED),
    "consolidating": (fail_points.BASE_LINKED, fail_points.BASE_WRITTEN, fail_points.BASE_UPLOADED),
    "cleaning": (CLEANING, fail_points.SNAPSHOTS_REMOVED, fail_points.GARBAGE_DELETED),
}
"""What a life was doing, by what it came to last; other threads may have been doing other things."""

_ALL: Final = tuple(event for events in DURING.values() for event in events)


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill a life: so long after it came to something for that many times, or has completed that many."""

    event: str
    times: int
    delay: float
    completed: int

    @classmethod
    def drawn(cls, random: Random) -> Moment:
        """Just after something, or somewhere in the next few milliseconds."""
        delay = 0.0 if random.random() < 0.3 else random.expovariate(1 / 0.004)
        phase = random.choice(list(DURING))
        times = random.choice((1, 1, 2) if phase == "restore" else (1, 2, 3, 6))
        return cls(random.choice(DURING[phase]), times, delay, random.randint(3, 5))

    def has_come(self, heard: Counter[str]) -> bool:
        """Whether the delay begins now."""
        return heard[self.event] >= self.times or heard[COMPLETED] >= self.completed


@dataclass(frozen=True, slots=True)
class Course:
    """What was heard of a life."""

    events: list[tuple[str, str]]
    exit_code: int

    @property
    def completed(self) -> list[Epoch]:
        """The snapshots that it reported."""
        return [Epoch.parse(detail.split()[0]) for event, detail in self.events if event == COMPLETED]

    @property
    def rewritten(self) -> Counter[str]:
        """How many bases and merges its snapshots had."""
        last = [detail.split() for event, detail in self.events if event == COMPLETED][-1:]
        return Counter({"bases": int(last[0][1]), "merges": int(last[0][2])}) if last else Counter()

    def __contains__(self, event: str) -> bool:
        return any(known == event for known, _ in self.events)


class Lives:
    """The process whose children are lives; for one at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.state_worker"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent, env=environment
        )
        self._said = b""

    def live(self, order: Order, moment: Moment | None = None) -> Course:
        """One life, until it is killed, or kills itself, or ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()
        events: list[tuple[str, str]] = []
        heard = Counter[str]()
        pid, deadline = 0, None
        while True:
            line = self._line(_PATIENCE if deadline is None else max(0.0, deadline - time.monotonic()))
            if line is None:
                if pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                assert deadline is not None, f"nothing was heard for {_PATIENCE} s after {events[-20:]}"
                moment = deadline = None
                continue
            event, detail = line.split("\t")
            if event == ENDED:
                return Course(events, int(detail))
            events.append((event, detail))
            heard[event] += 1
            if event == BORN:
                pid = int(detail)
            if moment is not None and deadline is None and moment.has_come(heard):
                deadline = time.monotonic() + moment.delay

    def _line(self, timeout: float) -> str | None:
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                return None
            said = os.read(self._process.stdout.fileno(), 1 << 16)
            assert said, "the process whose children are lives has died"
            self._said += said
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """No more lives."""
        self._process.communicate(timeout=_PATIENCE)


@dataclass(slots=True)
class Job:
    """What outlives lives: a store and a local folder; and what was heard of snapshots."""

    lives: Lives
    folder: Path
    operator: str
    reported: Epoch = NO_EPOCH
    rewritten: Counter[str] = field(default_factory=Counter)

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.folder / "store")

    @property
    def local(self) -> Path:
        return self.folder / "local"

    @property
    def snapshots(self) -> SnapshotFolder:
        return SnapshotFolder(self.store, OPERATORS[self.operator].uid)

    def live(self, moment: Moment | None = None, **order: object) -> Course:
        """Begin a life; it checks what it restores. Afterwards there is what it said is complete, or newer."""
        snapshot = self.snapshots.latest()
        common = {"store": str(self.folder / "store"), "local": str(self.local), "operator": self.operator}
        known = {**common, "snapshot": "" if snapshot is None else str(snapshot.epoch)}
        course = self.lives.live(Order(**known, **order), moment)  # type: ignore[arg-type]
        self.reported = max([self.reported, *course.completed])
        self.rewritten.update(course.rewritten)
        found = self.snapshots.latest()
        assert (NO_EPOCH if found is None else found.epoch) >= self.reported
        return course

    def disturb(self, random: Random) -> None:
        """Sometimes go on on a machine that has no links, or where links are not what they were."""
        what = random.random()
        if what < 0.15:
            shutil.rmtree(self.local, ignore_errors=True)
        links = sorted(self.local.glob("*/links/*"))
        if what > 0.85 and len(links) >= 2:
            cut, replaced = random.sample(links, 2)
            os.truncate(cut, cut.stat().st_size // 2)
            content = bytearray(replaced.read_bytes())
            content[len(content) // 2] ^= 1
            replaced.unlink()
            replaced.write_bytes(content)

    def end(self) -> None:
        """A last life that is not killed; then all that is left has an owner."""
        last = self.live(parallelism=max(_PARALLELISMS), space_amplification=100.0, last=True)
        assert CLOSED in last
        assert last.exit_code == 0
        folder, store = self.snapshots, self.store
        folder.begin()
        folder.clean(keep=2)
        snapshots = [folder.read(epoch) for epoch in folder.epochs()]
        assert snapshots[-1].epoch == self.reported
        needed = set[str]().union(*(snapshot.paths for snapshot in snapshots))
        assert {blob.path for blob in store.list("shared")} == needed
        everything = {file for file in store.root.rglob("*") if file.is_file() and file.parent.name != "log"}
        assert everything == {store.root / path for path in needed}
        for part in snapshots[-1].parts:
            check_local(self.local / str(part.partition), part.files)


def check_local(folder: Path, files: FileSet) -> None:
    """There are links to these files, and nothing else."""
    assert {entry.name for entry in folder.iterdir()} == {"lock", "links"}
    links = LocalFiles(folder / "links")
    found = {links.find(file) for file in files.files}
    assert None not in found
    assert found == set((folder / "links").iterdir())


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    lives = Lives()
    yield lives
    lives.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, if possible: to be flushed to a disk is most of what a life waits for, and no kill can tell."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def by_phase(killed: Counter[str]) -> dict[str, int]:
    """How many lives were killed while they were at what."""
    return {phase: sum(killed[event] for event in events) for phase, events in DURING.items()}


@pytest.mark.parametrize(("operator", "kills", "fewest"), [("all kinds", 60, 2), ("a table", 16, 0)])
def test_killed_at_random_moments_the_newest_complete_snapshot_is_always_restored_exactly(
    lives: Lives, folder: Path, operator: str, kills: int, fewest: int, search_factor: int
) -> None:
    """At so many in CI, and until enough were killed in each phase; the thorough profile kills four times as often."""
    kills *= min(search_factor, 4)
    random = Random(f"{operator} is killed")
    job = Job(lives, folder, operator)
    killed = Counter[str]()
    restored = 0
    while killed.total() < kills or min(by_phase(killed).values()) < fewest:
        number = killed.total()
        assert number < 4 * kills, by_phase(killed)
        job.disturb(random)
        amplification = 1.1 if number % 40 < 25 else 100.0  # deltas that are not consolidated are merged
        if operator == "a table" and number % 4:
            amplification = 2.5  # accumulators are stored without their keys
        course = job.live(
            Moment.drawn(random),
            parallelism=random.choice(_PARALLELISMS),
            space_amplification=amplification,
            memory=random.choice(_MEMORY),
        )
        assert course.exit_code == -signal.SIGKILL, course
        killed[course.events[-1][0]] += 1
        restored += READY in course
    print(f"{operator}: killed while {by_phase(killed)}, after {dict(killed)}")
    print(f"{restored} restored, {job.rewritten} in snapshots")
    assert set(killed) <= set(_ALL)
    assert restored >= killed.total() // 2
    job.end()


@pytest.mark.parametrize("point", fail_points.POINTS)
def test_killed_at_a_point_the_newest_complete_snapshot_is_restored_exactly(
    lives: Lives, folder: Path, point: str
) -> None:
    job = Job(lives, folder, "all kinds")
    begun = job.live(parallelism=2, kill_at=fail_points.SNAPSHOT_COMPLETED, kill_when=5)
    assert begun.exit_code == -signal.SIGKILL
    for times, parallelism in ((1, 3), (2, 2), (3, 3)):
        if point == fail_points.RESTORE_DOWNLOADED:
            shutil.rmtree(job.local)
        once = point == fail_points.RUN_BEGUN
        course = job.live(parallelism=parallelism, kill_at=point, kill_when=1 if once else times)
        assert course.exit_code == -signal.SIGKILL
        # More, if another thread came there before the process was dead.
        assert sum(event == point for event, _ in course.events) >= (1 if once else times)
    job.end()
