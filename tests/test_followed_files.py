"""Files of a state that others write are kept on this machine: linked where they lie, else downloaded and checked."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from statebackend.backends.backend import DamagedFile
from statebackend.files import FileSet
from statebackend.followed_files import FollowedFiles
from statebackend.ids import Epoch, Generation
from statebackend.keyed_state import KeyedState
from statebackend.local_folder import FolderInUse
from statebackend.operator import Operator
from statebackend.snapshots.local_files import LINKS
from statebackend.snapshots.transfer import MissingFile
from statebackend.states.declarations import ValueState
from statebackend.stores.local_store import LocalStore

OPERATOR = Operator("count", pa.int64(), {"number": ValueState(int, default=0)})


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def names(prefix: str = "a") -> Callable[[], str]:
    numbers = count()
    return lambda: f"shared/{prefix}{next(numbers)}.sst"


def state(folder: Path, store: LocalStore, files: FileSet | None = None, beside: Path | None = None) -> KeyedState:
    return KeyedState(OPERATOR, folder, store, names(folder.name), files, beside=beside)


def written(state: KeyedState, number: int) -> FileSet:
    epoch = Epoch(Generation(1), number)
    for key in range(5):
        state.set_key(key)
        state["number"].set(number)
    files = state.snapshot(epoch)
    state.completed(epoch)
    return files


def kept(folder: Path) -> int:
    return len(list((folder / LINKS).iterdir()))


def total(files: FileSet) -> int:
    return sum(file.size for file in files.files)


def test_what_lies_beside_is_linked_and_what_does_not_is_downloaded(tmp_path: Path, store: LocalStore) -> None:
    near, far = FollowedFiles(tmp_path / "here/0.1", tmp_path / "here"), tmp_path / "there"
    other = FollowedFiles(far / "0", far)
    with state(tmp_path / "here/0", store) as writer:
        for number in (1, 2):
            files = written(writer, number)
            near.follow(files, store)
            other.follow(files, store)
    assert near.brought.downloaded_bytes == 0
    assert other.brought.linked_bytes == 0
    assert near.brought.linked_bytes == other.brought.downloaded_bytes >= total(files)
    assert kept(tmp_path / "here/0.1") == kept(far / "0") == len(files.files)
    near.close()
    other.close()


def test_a_state_is_opened_from_what_was_followed_beside_it_without_a_download(
    tmp_path: Path, store: LocalStore
) -> None:
    there = tmp_path / "there"
    followed = FollowedFiles(there / "0", there)
    with state(tmp_path / "here/0", store) as writer:
        files = written(writer, 1)
        followed.follow(files, store)
    with state(there / "0.1", store, files, beside=there) as opened:
        assert opened.statistics().restored.downloaded_files == 0
        followed.close()
        opened.set_key(3)
        assert opened["number"].get() == 1


def test_when_nothing_is_followed_any_more_nothing_is_kept_and_the_folder_is_free(
    tmp_path: Path, store: LocalStore
) -> None:
    followed = FollowedFiles(tmp_path / "0", tmp_path)
    with state(tmp_path / "writer/0", store) as writer:
        followed.follow(written(writer, 1), store)
    with pytest.raises(FolderInUse):
        FollowedFiles(tmp_path / "0", tmp_path)
    followed.close()
    followed.close()
    assert kept(tmp_path / "0") == 0
    FollowedFiles(tmp_path / "0", tmp_path).close()


def test_a_file_that_is_gone_or_damaged_is_an_error_and_the_next_epoch_is_followed(
    tmp_path: Path, store: LocalStore
) -> None:
    followed = FollowedFiles(tmp_path / "0", tmp_path)
    with state(tmp_path / "writer/0", store) as writer:
        files = written(writer, 1)
        path = files.files[0].path
        data = store.read(path)
        store.delete(path)
        with pytest.raises(MissingFile):
            followed.follow(files, store)
        store.write(path, data[:-1] + b"?")
        with pytest.raises(DamagedFile):
            followed.follow(files, store)
        store.delete(path)
        store.write(path, data)
        followed.follow(written(writer, 2), store)
    assert kept(tmp_path / "0") == 2
    assert not list(tmp_path.glob("0/work-*"))
    followed.close()


def test_a_damaged_link_beside_is_not_taken(tmp_path: Path, store: LocalStore) -> None:
    followed = FollowedFiles(tmp_path / "0.1", tmp_path)
    with state(tmp_path / "0", store) as writer:
        files = written(writer, 1)
    (link,) = (tmp_path / "0" / LINKS).iterdir()
    content = link.read_bytes()
    link.unlink()
    link.write_bytes(content[:-1])
    followed.follow(files, store)
    assert followed.brought.linked_bytes == 0
    assert followed.brought.downloaded_bytes == total(files)
    followed.close()
