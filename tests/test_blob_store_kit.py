"""The conformance kit has teeth: each of these stores breaks one promise, and the kit says which."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest

from statebackend.stores.local_store import LocalStore
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobInfo, BlobNotFound, BlobStoreError, Creation, check_path
from statebackend.testing.blob_race import race_for_one_name
from statebackend.testing.blob_store import READ_MEANWHILE, BrokenPromise, check_blob_store


class LooksThenWrites(MemoryStore):
    """Two that look at the same time both find nothing."""

    _both_looked = threading.Barrier(2)

    def create(self, path: str, data: bytes) -> Creation:
        try:
            self.stat(path)
        except BlobNotFound:
            try:
                self._both_looked.wait(0.05)
            except threading.BrokenBarrierError:
                self._both_looked.reset()
            self.write(path, data)
            return Creation.CREATED
        return Creation.EXISTED


class Overwrites(MemoryStore):
    def create(self, path: str, data: bytes) -> Creation:
        self.write(path, data)
        return Creation.CREATED


class TellsNobody(MemoryStore):
    def create(self, path: str, data: bytes) -> Creation:
        super().create(path, data)
        return Creation.CREATED


class TakesTheSameForItsOwn(MemoryStore):
    def create(self, path: str, data: bytes) -> Creation:
        answer = super().create(path, data)
        return Creation.CREATED if self.read(path) == data else answer


class WritesInPlace(MemoryStore):
    _half_was_seen = threading.Event()

    def create(self, path: str, data: bytes) -> Creation:
        return MemoryStore(self.root).create(path, data)

    def write(self, path: str, data: bytes) -> None:
        super().write(path, data[: len(data) // 2])
        if len(data) == READ_MEANWHILE:
            self._half_was_seen.wait(10)
        super().write(path, data)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        if len(data) == READ_MEANWHILE // 2:
            self._half_was_seen.set()
        return data

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        listed = super().list(folder)
        if any(info.size == READ_MEANWHILE // 2 for info in listed):
            self._half_was_seen.set()
        return listed


class RemembersListings(MemoryStore):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._remembered: dict[str, tuple[BlobInfo, ...]] = {}

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        return self._remembered.setdefault(folder, super().list(folder))


class ListsOnePage(MemoryStore):
    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        return super().list(folder)[:1000]


class ListsSiblings(MemoryStore):
    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        return tuple(info for info in super().list() if info.path.startswith(folder))


class ListsFolderByFolder(MemoryStore):
    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        return tuple(sorted(super().list(folder), key=lambda info: info.path.split("/")))


class MissesAtDeletion(MemoryStore):
    def delete(self, path: str) -> None:
        self.stat(path)
        super().delete(path)


class NeverDeletes(MemoryStore):
    def delete(self, path: str) -> None:
        check_path(path)


class ReadsNothingForMissing(MemoryStore):
    def read(self, path: str) -> bytes:
        try:
            return super().read(path)
        except BlobNotFound:
            return b""


class UploadsTheBeginning(MemoryStore):
    def upload(self, source: Path, path: str) -> None:
        self.write(path, source.read_bytes()[: 8 << 20])


class LeavesHalfADownload(MemoryStore):
    def download(self, path: str, target: Path) -> None:
        target.touch()
        super().download(path, target)


class LooksAnywhere(MemoryStore):
    def stat(self, path: str) -> BlobInfo:
        return super().stat(path) if path[:1].isalnum() else BlobInfo(path, 0)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (LooksThenWrites, "exactly one wins"),
        (Overwrites, "a path that is existed says so"),
        (TellsNobody, "a path that is existed says so"),
        (TakesTheSameForItsOwn, "a path that is existed says so"),
        (WritesInPlace, "never seen cut short|before it is whole"),
        (RemembersListings, "listed as soon as it is made"),
        (ListsOnePage, "is whole"),
        (ListsSiblings, "all below the folder"),
        (ListsFolderByFolder, "sorted by path"),
        (MissesAtDeletion, "there is no"),
        (NeverDeletes, "what is deleted is not listed"),
        (ReadsNothingForMissing, "BlobNotFound is raised"),
        (UploadsTheBeginning, "bytes goes up and down"),
        (LeavesHalfADownload, "leaves nothing"),
        (LooksAnywhere, "is refused with BadBlobPath"),
    ],
)
def test_a_store_that_breaks_a_promise_fails_the_kit(broken: type[MemoryStore], promise: str) -> None:
    with pytest.raises((BrokenPromise, BlobStoreError), match=promise):
        check_blob_store(partial(broken, f"kit-{token_hex(8)}"))


class LooksThenWritesToDisk(LocalStore):
    """Whoever finds nothing writes when somebody else has found nothing too, so that no round has one winner."""

    def create(self, path: str, data: bytes) -> Creation:
        if (self.root / path).exists():
            return Creation.EXISTED
        looked = self.root / "looked" / path
        looked.mkdir(parents=True, exist_ok=True)
        (looked / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while len(list(looked.iterdir())) < 2 and time.monotonic() < deadline:
            os.sched_yield()
        self.write(path, data)
        return Creation.CREATED


class OverwritesOnDisk(LocalStore):
    """Whoever loses writes nevertheless, and so reads another entry than the winner's."""

    def create(self, path: str, data: bytes) -> Creation:
        answer = super().create(path, data)
        if answer is Creation.EXISTED:
            self.write(path, data)
        return answer


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (LooksThenWritesToDisk, "exactly one creates the entry"),
        (OverwritesOnDisk, "all racers read the winner's entry"),
    ],
)
def test_a_store_that_breaks_a_promise_between_processes_loses_the_race(
    broken: type[LocalStore], promise: str, tmp_path: Path
) -> None:
    with pytest.raises(BrokenPromise, match=promise):
        race_for_one_name(partial(broken, tmp_path), processes=4, rounds=5)


class FailsInTheRace(LocalStore):
    def create(self, path: str, data: bytes) -> Creation:
        if path.endswith("0000000003.json"):
            raise BlobStoreError("the disk is on fire")
        return super().create(path, data)


def test_an_error_in_a_race_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(BlobStoreError, match="on fire"):
        race_for_one_name(partial(FailsInTheRace, tmp_path), processes=3, rounds=5)
