"""A file set becomes local files: from links where they are sound, else from the store, and only what is needed."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebackend.backends.backend import DamagedFile
from statebackend.files import FileKind, FileRef, FileSet, rescaled
from statebackend.ids import Epoch, Generation, KeyGroup, Partition
from statebackend.keygroups import KeyGroupRange, range_of
from statebackend.snapshots.local_files import LocalFiles
from statebackend.snapshots.restore import RestoreReport, fetch
from statebackend.snapshots.transfer import MissingFile
from statebackend.stores.memory_store import MemoryStore
from tests.wrapped_store import WrappedStore

MAX = 12
ALL = KeyGroupRange(KeyGroup(0), KeyGroup(MAX))


@pytest.fixture
def store() -> WrappedStore:
    return WrappedStore(MemoryStore(token_hex(8)))


@pytest.fixture
def local(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "links")


def stored(store: WrappedStore, groups: KeyGroupRange, count: int, *, partition: int = 0) -> FileSet:
    """A base and the deltas on it, for these key groups."""
    files = []
    for number in range(count):
        data = random.Random(f"{partition} {number}").randbytes(500 + number)
        path = f"shared/1-{partition}-0-{number}.sst"
        store.store.write(path, data)
        kind = FileKind.DELTA if number else FileKind.BASE
        checksum = f"sha256:{hashlib.sha256(data).hexdigest()}"
        files.append(FileRef(path, (groups,), Epoch(Generation(1), number + 1), kind, len(data), checksum))
    return FileSet(groups, tuple(files))


def contents(store: WrappedStore, files: FileSet) -> list[bytes]:
    return [store.store.read(file.path) for file in files.files]


def test_without_local_links_all_is_downloaded_in_restore_order(store: WrappedStore, tmp_path: Path) -> None:
    files = stored(store, ALL, 20)
    fetched = fetch(files, store, None, tmp_path / "a" / "folder")
    assert [path.read_bytes() for path in fetched.paths] == contents(store, files)
    assert fetched.report == RestoreReport(0, 0, 20, sum(file.size for file in files.files))


def test_what_was_downloaded_once_is_linked_the_next_time(
    store: WrappedStore, local: LocalFiles, tmp_path: Path
) -> None:
    files = stored(store, ALL, 20)
    for path in fetch(files, store, local, tmp_path / "first").paths:
        path.unlink()
    again = fetch(files, store, local, tmp_path / "second")
    assert [path.read_bytes() for path in again.paths] == contents(store, files)
    assert again.report == RestoreReport(20, sum(file.size for file in files.files), 0, 0)
    assert store.calls["download"] == 20


def test_only_what_has_no_sound_link_is_downloaded(store: WrappedStore, local: LocalFiles, tmp_path: Path) -> None:
    files = stored(store, ALL, 6)
    fetch(files, store, local, tmp_path / "first")
    damaged = local.find(files.files[2])
    assert damaged is not None
    damaged.write_bytes(b"cut")
    local.keep(file for number, file in enumerate(files.files) if number != 4)
    store.fetched.clear()
    fetched = fetch(files, store, local, tmp_path / "second")
    assert [path.read_bytes() for path in fetched.paths] == contents(store, files)
    assert sorted(store.fetched) == [files.files[2].path, files.files[4].path]
    assert (fetched.report.linked_files, fetched.report.downloaded_files) == (4, 2)


def test_consuming_what_was_fetched_leaves_the_local_links(
    store: WrappedStore, local: LocalFiles, tmp_path: Path
) -> None:
    files = stored(store, ALL, 3)
    for path in fetch(files, store, local, tmp_path / "first").paths:
        path.unlink()
    assert all(local.find(file) is not None for file in files.files)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 3), (3, 5), (4, 2), (1, 12)])
def test_at_another_parallelism_each_partition_reads_just_the_files_of_its_parents(
    store: WrappedStore, tmp_path: Path, before: int, after: int
) -> None:
    parents = [stored(store, range_of(Partition(number), before, MAX), 4, partition=number) for number in range(before)]
    for number in range(after):
        target = range_of(Partition(number), after, MAX)
        store.fetched.clear()
        fetched = fetch(rescaled(parents, target), store, None, tmp_path / str(number))
        needed = [parent for parent in parents if parent.range.intersection(target)]
        assert sorted(store.fetched) == sorted(file.path for parent in needed for file in parent.files)
        assert len(set(fetched.paths)) == 4 * len(needed)


def test_progress_is_told_from_the_links_to_the_last_download(
    store: WrappedStore, local: LocalFiles, tmp_path: Path
) -> None:
    files, heard = stored(store, ALL, 8), list[RestoreReport]()
    fetch(FileSet(ALL, files.files[:5]), store, local, tmp_path / "first")
    fetched = fetch(files, store, local, tmp_path / "second", on_progress=heard.append)
    assert [(report.linked_files, report.downloaded_files) for report in heard] == [(5, 0), (5, 1), (5, 2), (5, 3)]
    assert heard[-1] == fetched.report


def test_a_restore_that_fails_leaves_no_file_and_keeps_what_it_had_checked(
    store: WrappedStore, local: LocalFiles, tmp_path: Path
) -> None:
    files = stored(store, ALL, 8)
    fetch(FileSet(ALL, files.files[:3]), store, local, tmp_path / "first")
    store.delete(files.files[6].path)
    with pytest.raises(MissingFile):
        fetch(files, store, local, tmp_path / "second", threads=1)
    assert list((tmp_path / "second").iterdir()) == []
    kept = [file for file in files.files if local.find(file) is not None]
    assert len(kept) >= 4  # the largest is downloaded first
    for file, path in zip(kept, fetch(FileSet(ALL, tuple(kept)), store, local, tmp_path / "third").paths, strict=True):
        assert path.read_bytes() == store.store.read(file.path)


def test_damage_is_never_kept_locally(store: WrappedStore, local: LocalFiles, tmp_path: Path) -> None:
    files = stored(store, ALL, 1)
    store.write(files.files[0].path, b"\0" * files.files[0].size)
    with pytest.raises(DamagedFile):
        fetch(files, store, local, tmp_path / "first")
    assert local.find(files.files[0]) is None


def test_what_a_crash_left_in_the_folder_is_replaced(store: WrappedStore, local: LocalFiles, tmp_path: Path) -> None:
    files = stored(store, ALL, 2)
    for path in fetch(files, store, local, tmp_path / "folder").paths:
        path.unlink()
        path.write_bytes(b"half")
    assert [path.read_bytes() for path in fetch(files, store, local, tmp_path / "folder").paths] == contents(
        store, files
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.sampled_from(["sound", "cut", "gone", "never"]), max_size=6))
def test_whatever_became_of_the_links_the_files_are_right(
    tmp_path_factory: pytest.TempPathFactory, fates: list[str]
) -> None:
    store, folder = WrappedStore(MemoryStore(token_hex(8))), tmp_path_factory.mktemp("restore")
    files, local = stored(store, ALL, len(fates)), LocalFiles(folder / "links")
    before = FileSet(ALL, tuple(f for f, fate in zip(files.files, fates, strict=True) if fate != "never"))
    fetch(before, store, local, folder / "first")
    for file, fate in zip(files.files, fates, strict=True):
        link = local.find(file)
        if link is not None and fate == "cut":
            link.write_bytes(link.read_bytes()[:-1])
        elif link is not None and fate == "gone":
            link.unlink()
    fetched = fetch(files, store, local, folder / "second")
    assert [path.read_bytes() for path in fetched.paths] == contents(store, files)
    assert fetched.report.linked_files == fates.count("sound")
