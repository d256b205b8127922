"""What the local store does for a crash of a process or of the machine, step by step."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from statebackend.stores.fsspec_store import open_store
from statebackend.stores.local_store import LocalStore
from statebackend.stores.store import (
    BadBlobPath,
    BlobNotFound,
    Creation,
    StoreUnavailable,
    UnknownOutcome,
    UnsuitableStore,
)
from tests.survey import survey

_DIE_WHEN_LINKING = """
import os, sys
from pathlib import Path
from statebackend.stores.local_store import LocalStore
store = LocalStore(Path(sys.argv[1]))
os.link = lambda *_: os._exit(7)
store.create("journal/1.json", b"never linked")
"""


def _fails(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def test_a_writer_that_dies_before_its_link_leaves_what_is_not_listed_and_can_be_removed(store: LocalStore) -> None:
    died = subprocess.run([sys.executable, "-c", _DIE_WHEN_LINKING, str(store.root)], check=False)
    assert died.returncode == 7
    assert len(list((store.root / "journal").iterdir())) == 1
    assert store.list() == ()
    with pytest.raises(BlobNotFound):
        store.read("journal/1.json")
    assert store.remove_leftovers() == 1
    assert not list((store.root / "journal").iterdir())
    assert store.create("journal/1.json", b"new") is Creation.CREATED


def test_what_a_living_writer_has_not_finished_is_not_removed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, removed = os.link, list[int]()

    def tidy_up_and_link(source: Path, target: Path) -> None:
        removed.append(store.remove_leftovers())
        link(source, target)

    monkeypatch.setattr(os, "link", tidy_up_and_link)
    assert store.create("a", b"x") is Creation.CREATED
    assert removed == [0]


def test_a_writer_whose_file_is_removed_before_it_is_locked_takes_another(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, list[int]()

    def be_late(file: BinaryIO, operation: int) -> None:
        if not removed:
            removed.append(0)
            removed[0] = store.remove_leftovers()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", be_late)
    assert store.create("a", b"x") is Creation.CREATED
    assert removed == [1]
    assert [file.name for file in store.root.iterdir()] == ["a"]


def test_the_file_is_on_the_disk_before_its_name_and_the_name_before_the_answer(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    link, fsync = os.link, os.fsync

    def noted_fsync(descriptor: int) -> None:
        done.append(f"flush {Path(f'/proc/self/fd/{descriptor}').readlink().name.partition('-')[0]}")
        fsync(descriptor)

    def noted_link(source: Path, target: Path) -> None:
        done.append(f"link {target.name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    store.create("a/b/c", b"x")
    assert done == ["flush a", "flush root", "flush .unfinished", "link c", "flush b"]
    done.clear()
    assert store.create("a/b/c", b"y") is Creation.EXISTED
    assert done == ["flush .unfinished", "link c", "flush b"], "the loser sees to it as well: it will act on the entry"
    done.clear()
    store.write("a/b/d", b"x")
    assert done == ["flush .unfinished", "flush b"]


def test_folders_that_another_process_made_are_flushed_as_well(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / "a" / "b").mkdir(parents=True)
    flushed: list[str] = []
    monkeypatch.setattr("statebackend.stores.local_store._flush_folder", lambda folder: flushed.append(folder.name))
    store.create("a/b/c", b"x")
    assert flushed == ["a", "root", "b"]


def test_the_folders_above_a_new_root_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr("statebackend.stores.local_store._flush_folder", flushed.append)
    LocalStore(tmp_path / "x" / "y" / "z")
    assert flushed == [tmp_path / "x" / "y", tmp_path / "x", tmp_path]


def test_an_own_link_whose_answer_was_lost_is_recognised(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert store.create("a", b"mine") is Creation.CREATED


def _raise_from_link(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(source: Path, target: Path) -> None:
        raise _fails(number)

    monkeypatch.setattr(os, "link", fail)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_disk_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _raise_from_link(monkeypatch, number)
    with pytest.raises(UnsuitableStore, match=r"has no hard links.*use a folder on a POSIX file system"):
        open_store(str(tmp_path))


def test_a_link_that_fails_strangely_leaves_the_outcome_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _raise_from_link(monkeypatch, errno.EIO)
    with pytest.raises(UnknownOutcome, match="whether a was linked"):
        store.create("a", b"x")


def test_a_link_that_is_certainly_not_made_is_no_unknown_outcome(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _raise_from_link(monkeypatch, errno.ENOSPC)
    with pytest.raises(StoreUnavailable, match="could not create a"):
        store.create("a", b"x")


def test_a_folder_that_cannot_be_flushed_leaves_the_outcome_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("before", b"x")

    def fail(folder: Path) -> None:
        raise _fails(errno.EIO)

    monkeypatch.setattr("statebackend.stores.local_store._flush_folder", fail)
    with pytest.raises(UnknownOutcome, match="whether a is safe"):
        store.create("a", b"x")


def test_a_full_disk_makes_nothing_and_leaves_nothing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise _fails(errno.ENOSPC)

    monkeypatch.setattr(os, "fsync", fail)
    for make in (store.create, store.write):
        with pytest.raises(StoreUnavailable, match="No space left"):
            make("a", b"x")
    assert not list(store.root.iterdir())


def test_a_leftover_that_cannot_be_removed_does_not_undo_a_success(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, missing_ok: bool = False) -> None:
        raise _fails(errno.EIO)

    monkeypatch.setattr(Path, "unlink", fail)
    assert store.create("a", b"x") is Creation.CREATED


def test_a_folder_cannot_be_created_as_a_blob(store: LocalStore) -> None:
    store.create("a/b", b"x")
    with pytest.raises(BadBlobPath, match="a is a folder"):
        store.create("a", b"x")


def test_files_of_others_are_not_listed(store: LocalStore) -> None:
    for name in ("has space", ".hidden", "ümlaut"):
        (store.root / name).write_bytes(b"x")
    assert store.list() == ()


def test_a_folder_that_was_removed_is_made_again(store: LocalStore) -> None:
    store.create("a/b", b"x")
    (store.root / "a" / "b").unlink()
    (store.root / "a").rmdir()
    assert store.create("a/b", b"y") is Creation.CREATED


def test_folders_go_with_the_last_blob_in_them_and_no_others(store: LocalStore) -> None:
    for path in ("epochs/1/manifest.json", "epochs/2/manifest.json", "deep/er/blob"):
        store.write(path, b"x")
    store.delete("epochs/1/manifest.json")
    store.delete("deep/er/blob")
    assert sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*")) == [
        "epochs",
        "epochs/2",
        "epochs/2/manifest.json",
    ]
    store.write("deep/er/blob", b"again")
    assert store.read("deep/er/blob") == b"again"


def test_writers_and_those_who_delete_the_last_blob_of_a_folder_do_not_hinder_each_other(store: LocalStore) -> None:
    other = LocalStore(store.root)

    def write_and_delete(blobs: LocalStore, name: str) -> None:
        for number in range(200):
            path = f"a/b/{name}-{number}"
            assert blobs.create(path, b"x") is Creation.CREATED
            blobs.delete(path)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(write_and_delete, *one) for one in ((store, "mine"), (other, "yours"))]
        assert [done.result() for done in both] == [None, None]
    assert store.list() == ()


def test_links_pipes_and_what_they_lead_to_are_left_alone(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("mine")
    for path in ("deep/blob", "piped", "linked", "epochs"):
        store.write(f"{path}-too", b"x")
    (store.root / "shared").symlink_to(outside)
    (store.root / "deep/er").symlink_to(outside)
    (store.root / "linked").symlink_to(outside / "a")
    os.mkfifo(store.root / "piped")
    before = survey(outside)
    for path in ("shared/a", "shared/b", "deep/er/a", "deep/er/b"):
        for deed in (
            lambda path=path: store.create(path, b"y"),
            lambda path=path: store.write(path, b"y"),
            lambda path=path: store.read(path),
            lambda path=path: store.stat(path),
            lambda path=path: store.delete(path),
            lambda path=path: store.download(path, tmp_path / "copy"),
            lambda path=path: store.upload(Path(__file__), path),
            lambda: store.list("shared"),
        ):
            with pytest.raises(BadBlobPath, match=r"is a link, and those are not followed below the root"):
                deed()
    for path in ("linked", "piped"):
        for read in (store.read, store.stat, lambda path: store.download(path, tmp_path / "copy")):
            with pytest.raises(BadBlobPath, match="is a link, a pipe or a device; put a file there"):
                read(path)
    assert [blob.path for blob in store.list()] == ["deep/blob-too", "epochs-too", "linked-too", "piped-too"]
    (store.root / ".unfinished-0").symlink_to(outside / "a")
    assert store.remove_leftovers() == 0
    store.write("linked", b"a blob")
    store.delete("piped")
    assert store.read("linked") == b"a blob"
    assert survey(outside) == before
