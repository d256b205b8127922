"""Runs and clean-ups that are paused between any two calls of the store, for as long as others take, or that die."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import event, given, settings
from hypothesis import strategies as st

from statebackend.files import FileKind
from statebackend.ids import Epoch, Generation
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots.snapshot_log import FencedRun, NoSuchSnapshot, decode
from statebackend.stores.store import BlobInfo, BlobNotFound, Creation, UnknownOutcome
from tests.test_snapshot_folder import JOB, Run
from tests.wrapped_store import WrappedStore


class DictStore:
    """A `BlobStore` in a dictionary: the searches list it thousands of times."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def create(self, path: str, data: bytes) -> Creation:
        if path in self.blobs:
            return Creation.EXISTED
        self.blobs[path] = data
        return Creation.CREATED

    def write(self, path: str, data: bytes) -> None:
        self.blobs[path] = data

    def read(self, path: str) -> bytes:
        if path not in self.blobs:
            raise BlobNotFound(path)
        return self.blobs[path]

    def stat(self, path: str) -> BlobInfo:
        return BlobInfo(path, len(self.read(path)))

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        return tuple(self.stat(path) for path in sorted(self.blobs) if path.startswith(folder))

    def delete(self, path: str) -> None:
        self.blobs.pop(path, None)

    def remove_leftovers(self) -> int:
        return 0

    def upload(self, source: Path, path: str) -> None:
        self.write(path, source.read_bytes())

    def download(self, path: str, target: Path) -> None:
        target.write_bytes(self.read(path))


class Died(Exception):
    """The process was killed."""


@dataclass
class World:
    """A folder, all runs that ever began, and what happens next whenever somebody calls the store."""

    draw: Callable[[st.SearchStrategy[int]], int]
    store: DictStore = field(default_factory=DictStore)
    runs: list[Run] = field(default_factory=list)
    completed: list[Epoch] = field(default_factory=list)
    claimed: list[Generation] = field(default_factory=list)
    depth: int = 0
    left: int = 25

    def between(self) -> None:
        """Somebody is about to call the store: it dies, or others act first, or nothing happens."""
        if self.left <= 0:
            return
        self.left -= 1
        chance = self.draw(st.integers(0, 11))
        if chance == 0:
            raise Died
        if chance <= 3 and self.depth < 3:
            self.depth += 1
            with suppress(Died):
                self.act()
            self.depth -= 1

    def act(self) -> None:
        match self.draw(st.integers(0, 5)):
            case 0:
                self.begin()
            case 1:
                with suppress(UnknownOutcome):
                    SnapshotFolder(Interrupted(self), JOB).clean(keep=1 + self.draw(st.integers(0, 1)))
            case _ if self.runs:
                self.complete(self.runs[self.draw(st.integers(0, len(self.runs) - 1))])
            case _:
                self.begin()

    def begin(self) -> None:
        # What the newest run may restore from is deleted under its feet only if others complete; then it begins again.
        with suppress(UnknownOutcome, NoSuchSnapshot):
            run = Run(Interrupted(self))
            assert run.generation not in self.claimed
            self.claimed.append(run.generation)
            self.runs.append(run)

    def complete(self, run: Run) -> None:
        """A run that hears of a fence or of an error stops; one that is told so has completed its epoch."""
        self.runs.remove(run)
        kind = FileKind.BASE if self.draw(st.integers(0, 1)) else FileKind.DELTA
        try:
            self.completed.append(run.complete(kind))
        except FencedRun:
            event("fenced")
            newest = max(info.path for info in self.store.list("log"))
            assert decode(JOB, int(newest[4:14]), self.store.read(newest)).generation > run.generation
        except UnknownOutcome:
            event("unknown")
        else:
            self.runs.append(run)

    def check(self) -> None:
        """What is kept is whole; nothing completed is lost; an older run completes nothing after a newer one."""
        folder = SnapshotFolder(self.store, JOB)
        stored = {info.path for info in self.store.list("shared")}
        epochs = folder.epochs()
        for epoch in epochs:
            assert folder.read(epoch).paths <= stored
        assert list(epochs) == sorted(epochs, key=lambda epoch: epoch.number)
        assert list(epochs) == sorted(epochs)
        newest = max(self.completed, default=None)
        assert newest is None or max(epochs) >= newest


class Interrupted(WrappedStore):
    """Before and after every call that matters, others may act, the caller may die, or the answer may be lost."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self._world = world

    def create(self, path: str, data: bytes) -> Creation:
        self._world.between()
        answer = super().create(path, data)
        self._world.between()
        if self._world.left > 0 and self._world.draw(st.integers(0, 9)) == 0:
            raise UnknownOutcome("the answer was lost")
        return answer

    def read(self, path: str) -> bytes:
        self._world.between()
        return super().read(path)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        self._world.between()
        return super().list(folder)

    def delete(self, path: str) -> None:
        self._world.between()
        super().delete(path)


@settings(max_examples=settings().max_examples)
@given(st.data())
def test_however_runs_and_clean_ups_meet_the_newest_snapshot_is_whole(data: st.DataObject) -> None:
    world = World(data.draw)
    for _ in range(data.draw(st.integers(1, 12))):
        with suppress(Died):
            world.act()
        world.check()
    world.left = 0
    last = Run(world.store)
    epoch = last.complete(FileKind.BASE)
    for _ in range(2):
        last.folder.clean(keep=1)
    latest = last.folder.latest()
    assert latest is not None
    assert latest.epoch == epoch
    assert {info.path for info in world.store.list("shared")} == latest.paths
