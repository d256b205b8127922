"""Files to and from a store: checked bit by bit, several at a time, and nothing left of what failed."""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from statebackend.backends.backend import DamagedFile, LocalDiskError, LocalDiskFull
from statebackend.files import FileKind, FileRef
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keygroups import KeyGroupRange
from statebackend.snapshots.transfer import (
    MissingFile,
    UnknownChecksum,
    Upload,
    checksum_of,
    download_all,
    target_in,
    upload_all,
)
from statebackend.stores.local_store import LocalStore
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobStore, StoreUnavailable
from tests.wrapped_store import WrappedStore

GROUPS = (KeyGroupRange(KeyGroup(0), KeyGroup(8)),)


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return LocalStore(tmp_path / "store") if request.param == "local" else MemoryStore(token_hex(8))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "downloaded"
    made.mkdir()
    return made


def stored(store: BlobStore, count: int, seed: int = 0) -> list[FileRef]:
    """Files of random size and content, and the references to them."""
    rng, files = random.Random(seed), []
    for number in range(count):
        data = rng.randbytes(rng.randrange(3000) + 1)
        path = f"shared/1-0-0-{number}.sst"
        store.write(path, data)
        files.append(ref(path, data, number + 1))
    return files


def ref(path: str, data: bytes, number: int = 1) -> FileRef:
    checksum = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return FileRef(path, GROUPS, Epoch(Generation(1), number), FileKind.DELTA, len(data), checksum)


def test_what_was_uploaded_is_downloaded(store: BlobStore, tmp_path: Path, folder: Path) -> None:
    uploads, files = [], []
    for number in range(20):
        local = tmp_path / str(number)
        data = random.Random(number).randbytes(number * 1000)
        local.write_bytes(data)
        uploads.append(Upload(local, f"shared/{number}.sst"))
        files.append(ref(f"shared/{number}.sst", data))
        assert files[-1].checksum == checksum_of(local)
    upload_all(store, uploads)
    paths = download_all(store, files, folder)
    assert [path.read_bytes() for path in paths] == [upload.local.read_bytes() for upload in uploads]
    assert sorted(paths) == sorted(folder.iterdir())


def test_files_of_one_name_in_two_folders_do_not_meet(store: BlobStore, folder: Path) -> None:
    files = [ref(f"{above}/1.sst", above.encode()) for above in ("a", "b")]
    for above in ("a", "b"):
        store.write(f"{above}/1.sst", above.encode())
    assert [path.read_bytes() for path in download_all(store, files, folder)] == [b"a", b"b"]
    assert target_in(folder, files[0]).name.endswith("-1.sst")


def test_nothing_to_do_is_done(store: BlobStore, folder: Path) -> None:
    upload_all(store, [])
    assert download_all(store, [], folder) == ()


def test_whoever_waits_hears_of_each_file_in_the_own_thread(store: BlobStore, folder: Path) -> None:
    files, heard = stored(store, 12), dict[str, bytes]()

    def hear(file: FileRef, path: Path) -> None:
        assert threading.current_thread() is threading.main_thread()
        heard[file.path] = path.read_bytes()

    download_all(store, files, folder, on_done=hear)
    assert heard == {file.path: store.read(file.path) for file in files}

    uploads, sent = [Upload(target_in(folder, file), f"again/{file.size}") for file in files], list[Upload]()
    upload_all(store, uploads, on_done=sent.append)
    assert sorted(sent, key=lambda item: item.path) == sorted(uploads, key=lambda item: item.path)


def test_several_are_under_way_at_once_and_no_more_than_told(store: BlobStore, folder: Path) -> None:
    everybody = threading.Barrier(3, timeout=20)

    class Meeting(WrappedStore):
        running = most = 0
        lock = threading.Lock()

        def download(self, path: str, target: Path) -> None:
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            everybody.wait()
            super().download(path, target)
            with self.lock:
                self.running -= 1

    meeting = Meeting(store)
    download_all(meeting, stored(store, 9), folder, threads=3)
    assert meeting.most == 3


@pytest.mark.parametrize("damage", ["cut short", "a bit flipped", "longer"])
def test_a_damaged_file_is_named_with_what_was_expected_and_nothing_is_left(
    store: BlobStore, folder: Path, damage: str
) -> None:
    files = stored(store, 10)
    bad = files[6]
    data = store.read(bad.path)
    match damage:
        case "cut short":
            data = data[:-1]
        case "longer":
            data += b"\0"
        case _:
            data = bytes([data[0] ^ 1]) + data[1:]
    store.write(bad.path, data)
    expected = f"{len(data)} bytes, and {bad.size} " if len(data) != bad.size else f"{bad.checksum} was written"
    with pytest.raises(DamagedFile, match=rf"^{bad.path} \(delta of epoch 7-1\) in .*{expected}"):
        download_all(store, files, folder)
    assert list(folder.iterdir()) == []


def test_a_missing_file_is_named(store: BlobStore, folder: Path) -> None:
    files = stored(store, 10)
    store.delete(files[3].path)
    with pytest.raises(MissingFile, match=rf"^{files[3].path} \(delta of epoch 4-1\) is not in .*Store"):
        download_all(store, files, folder)
    assert list(folder.iterdir()) == []


def test_a_checksum_of_a_newer_kind_is_named(store: BlobStore, folder: Path) -> None:
    store.write("a.sst", b"x")
    file = FileRef("a.sst", GROUPS, Epoch(Generation(1), 1), FileKind.BASE, 1, "blake9:ab")
    with pytest.raises(UnknownChecksum, match=r"a\.sst \(base of epoch 1-1\) has the checksum 'blake9:ab'"):
        download_all(store, [file], folder)


class Failing(WrappedStore):
    """Refuses from a certain call on, after half of the work."""

    def __init__(self, store: BlobStore, after: int, cause: OSError) -> None:
        super().__init__(store)
        self._after = after
        self._cause = cause

    def download(self, path: str, target: Path) -> None:
        if len(self.fetched) >= self._after:
            target.write_bytes(b"half")
            raise StoreUnavailable("it is late, and the store is closed") from self._cause
        super().download(path, target)

    def upload(self, source: Path, path: str) -> None:
        super().upload(source, path)
        if self.calls["upload"] > self._after:
            raise StoreUnavailable("the answer never came") from self._cause


CLOSED = OSError(errno.ECONNREFUSED, "closed")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_the_store_raises_passes_with_a_note_on_the_file_and_nothing_is_left(
    store: BlobStore, folder: Path
) -> None:
    files = stored(store, 10)
    with pytest.raises(StoreUnavailable, match="the store is closed") as caught:
        download_all(Failing(store, 4, CLOSED), files, folder)
    (note,) = caught.value.__notes__
    assert note.startswith("while downloading shared/1-0-0-")
    assert "epoch" in note
    assert list(folder.iterdir()) == []


def test_no_file_is_begun_after_the_first_error(store: BlobStore, folder: Path) -> None:
    failing = Failing(store, 0, CLOSED)
    with pytest.raises(StoreUnavailable):
        download_all(failing, stored(store, 200), folder, threads=1)
    assert failing.fetched == []
    with pytest.raises(StoreUnavailable) as caught:
        upload_all(failing, [Upload(Path(__file__), f"{number}") for number in range(200)], threads=1)
    assert failing.calls["upload"] == 1
    assert caught.value.__notes__ == [f"while uploading {__file__} as 0"]


def test_an_upload_that_failed_may_be_done_again(store: BlobStore, tmp_path: Path) -> None:
    uploads = []
    for number in range(6):
        (tmp_path / str(number)).write_bytes(bytes([number]))
        uploads.append(Upload(tmp_path / str(number), f"shared/{number}"))
    with pytest.raises(StoreUnavailable):
        upload_all(Failing(store, 2, CLOSED), uploads)
    upload_all(store, uploads)
    assert [store.read(upload.path) for upload in uploads] == [bytes([number]) for number in range(6)]


def test_a_full_local_disk_is_named(store: BlobStore, folder: Path) -> None:
    with pytest.raises(LocalDiskFull, match=r"no room for shared/1-0-0-\d\.sst \(delta of epoch"):
        download_all(Failing(store, 2, FULL), stored(store, 5), folder)
    assert list(folder.iterdir()) == []


def test_an_error_of_whoever_is_told_ends_it_too(store: BlobStore, folder: Path) -> None:
    def refuse(_: FileRef, __: Path) -> None:
        raise RuntimeError("told too much")

    with pytest.raises(RuntimeError):
        download_all(store, stored(store, 30), folder, on_done=refuse)
    assert list(folder.iterdir()) == []


def test_an_interrupt_waits_for_what_runs_and_removes_it(
    store: BlobStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc, "callbacks", [])  # an interrupt inside one of them would be lost

    class Interrupting(WrappedStore):
        def download(self, path: str, target: Path) -> None:
            if len(self.fetched) == 5:
                signal.raise_signal(signal.SIGINT)
            super().download(path, target)

    interrupting = Interrupting(store)
    with pytest.raises(KeyboardInterrupt):
        download_all(interrupting, stored(store, 500), folder, threads=2)
    assert len(interrupting.fetched) < 500
    assert list(folder.iterdir()) == []


def test_a_file_that_cannot_be_read_has_no_checksum(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match=r"read .*absent"):
        checksum_of(tmp_path / "absent")
