"""Both backends: the same entries come out of the same files, whatever they overlap, delete and hide."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.backends.backend import Backend, BackendError, DamagedFile, LocalDiskFull
from statebackend.backends.heap_backend import HeapBackend
from statebackend.backends.rocksdb_backend import RocksDBBackend
from statebackend.backends.sst import Compression, write_sst
from statebackend.entries import META_KEY, StateId, bounds, group_of, row
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange

GROUPS = 4
ALL = (b"", b"\xff")

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where searches put their folders: what they try a hundred times need not reach a disk."""


@dataclass(frozen=True)
class GivenFloors:
    numbers: tuple[int, ...] = (0,) * GROUPS

    def of(self, group: int) -> int:
        return self.numbers[group]


Opening = Callable[[Path, GivenFloors], Backend]


def rocksdb(folder: Path, floors: GivenFloors) -> Backend:
    return RocksDBBackend(folder, floors, memory=1 << 20)


def heap(folder: Path, floors: GivenFloors) -> Backend:
    return HeapBackend(folder, floors)


@pytest.fixture(params=[rocksdb, heap])
def opening(request: pytest.FixtureRequest) -> Opening:
    chosen: Opening = request.param
    return chosen


@pytest.fixture
def backend(opening: Opening, tmp_path: Path) -> Iterator[Backend]:
    opened = opening(tmp_path / "backend", GivenFloors())
    yield opened
    opened.close()


Changes = Mapping[bytes, bytes | None]


def name(group: int, key: str) -> bytes:
    return row(group, StateId(1), key.encode(), b"")


def file_of(folder: Path, epoch: int, changes: Changes, meta: bytes = b"") -> Path:
    path = folder / f"{epoch}-{len(list(folder.glob('*.sst')))}.sst"
    assert write_sst(path, sorted(changes.items()), epoch, meta, compression=Compression.ZSTD) is not None
    return path


def everything(backend: Backend) -> dict[bytes, bytes]:
    return dict(backend.scan(*ALL))


def groups(first: int, end: int) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


# --- reading


def test_a_new_backend_has_nothing(backend: Backend) -> None:
    assert backend.get_many([name(0, "a"), name(1, "b")]) == [None, None]
    assert everything(backend) == {}


def test_values_come_in_the_order_of_the_names_asked_for(backend: Backend, tmp_path: Path) -> None:
    a, b, c, d = (name(group, key) for group, key in ((0, "a"), (0, "b"), (1, "c"), (3, "d")))
    backend.ingest([file_of(tmp_path, 1, {a: b"1", b: b"", c: b"3"})])
    assert backend.get_many((c, d, a, c, b)) == [b"3", None, b"1", b"3", b""]
    assert backend.get_many(()) == []


def test_a_scan_holds_its_start_and_not_its_end(backend: Backend, tmp_path: Path) -> None:
    names = sorted(name(group, key) for group in range(3) for key in "abc")
    backend.ingest([file_of(tmp_path, 1, dict.fromkeys(names, b"v"))])
    for first in range(len(names)):
        for end in range(first, len(names)):
            assert [found for found, _ in backend.scan(names[first], names[end])] == names[first:end]
    assert [found for found, _ in backend.scan(*bounds(groups(1, 2)))] == names[3:6]


def test_later_files_win_also_of_one_call_and_deletions_delete(backend: Backend, tmp_path: Path) -> None:
    a, b, c = name(0, "a"), name(1, "b"), name(2, "c")
    backend.ingest([file_of(tmp_path, 1, {a: b"1", b: b"1", c: b"1"})])
    backend.ingest([file_of(tmp_path, 2, {a: b"2", b: None}), file_of(tmp_path, 3, {a: b"3", c: None})])
    backend.ingest([file_of(tmp_path, 4, {c: b"4"})])
    assert everything(backend) == {a: b"3", c: b"4"}
    assert backend.get_many([a, b, c]) == [b"3", None, b"4"]


def test_the_newest_file_says_whose_state_it_is(backend: Backend, tmp_path: Path) -> None:
    backend.ingest([file_of(tmp_path, 1, {name(0, "a"): b"1"}, b"one")])
    backend.ingest([file_of(tmp_path, 2, {name(0, "a"): b"2"}, b"two")])
    assert backend.get_many([META_KEY]) == [b"two"]


def test_what_is_older_than_its_floor_is_hidden(opening: Opening, tmp_path: Path) -> None:
    backend = opening(tmp_path / "backend", GivenFloors((0, 2, 3, 9)))
    old = {name(group, "old"): b"1" for group in range(GROUPS)}
    new = {name(group, "new"): b"2" for group in range(GROUPS)}
    backend.ingest([file_of(tmp_path, 1, old), file_of(tmp_path, 2, new)])
    expected = {name(0, "old"): b"1", name(0, "new"): b"2", name(1, "new"): b"2"}
    assert everything(backend) == expected
    assert backend.get_many([*old, *new]) == [expected.get(asked) for asked in (*old, *new)]
    backend.ingest([file_of(tmp_path, 9, {name(3, "old"): b"9"})])
    assert everything(backend) == {**expected, name(3, "old"): b"9"}
    backend.close()


def test_a_scan_shows_what_was_there_when_it_began(backend: Backend, tmp_path: Path) -> None:
    names = [name(0, f"{key:03}") for key in range(100)]
    backend.ingest([file_of(tmp_path, 1, dict.fromkeys(names, b"1"))])
    scan = backend.scan(*ALL)
    backend.ingest([file_of(tmp_path, 2, {names[5]: None, names[6]: b"2", name(0, "new"): b"2"})])
    assert dict(scan) == dict.fromkeys(names, b"1")


def test_files_are_consumed(backend: Backend, tmp_path: Path) -> None:
    path = file_of(tmp_path, 1, {name(0, "a"): b"1"})
    kept = tmp_path / "kept"
    kept.hardlink_to(path)
    content = kept.read_bytes()
    backend.ingest([path])
    backend.ingest([])
    assert not path.exists()
    backend.ingest([file_of(tmp_path, 2, {name(0, "a"): b"2"})])
    assert kept.read_bytes() == content


def test_all_files_of_a_call_are_taken_or_none(backend: Backend, tmp_path: Path) -> None:
    sound, broken = file_of(tmp_path, 1, {name(0, "a"): b"1"}), file_of(tmp_path, 2, {name(0, "b"): b"1"})
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(DamagedFile, match=broken.name):
        backend.ingest([sound, broken])
    assert everything(backend) == {}


def test_it_knows_what_it_occupies(backend: Backend, tmp_path: Path) -> None:
    payloads = {name(0, f"{key:05}"): Random(key).randbytes(100) for key in range(3000)}
    backend.ingest([file_of(tmp_path, 1, payloads)])
    assert everything(backend) == payloads
    assert backend.memory_bytes() > 200_000
    backend.ingest([file_of(tmp_path, 2, dict.fromkeys(payloads))])
    assert everything(backend) == {}


def test_memory_in_use_follows_what_is_kept(tmp_path: Path) -> None:
    backend = heap(tmp_path / "backend", GivenFloors())
    backend.ingest([file_of(tmp_path, 1, {name(0, "a"): b"123"})])
    one = backend.memory_bytes()
    backend.ingest([file_of(tmp_path, 2, {name(1, f"{key}"): bytes(1000) for key in range(10)})])
    backend.rebase([groups(1, 2)], file_of(tmp_path, 3, {name(1, "a"): b"123"}))
    assert backend.memory_bytes() == one + len(name(1, "a")) + 3 + 100
    backend.ingest([file_of(tmp_path, 4, {name(1, "a"): None})])
    assert backend.memory_bytes() == one
    backend.close()


def test_a_folder_with_anything_in_it_is_refused(opening: Opening, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(BackendError, match=r"is not empty\. A backend is never opened a second time"):
        opening(tmp_path, GivenFloors())
    assert (tmp_path / "something").exists()


def test_a_database_that_cannot_be_opened_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, options: object) -> None:
        Path(path).mkdir()
        raise Exception("IO error: No space left on device: while appending")

    monkeypatch.setattr("statebackend.backends.rocksdb_backend.Rdict", refused)
    with pytest.raises(LocalDiskFull, match=r"could not open a database in .*backend: the local disk is full"):
        rocksdb(tmp_path / "backend", GivenFloors())
    assert list(tmp_path.iterdir()) == []


def test_closing_removes_the_folder_and_not_what_was_linked_elsewhere(opening: Opening, tmp_path: Path) -> None:
    backend = opening(tmp_path / "backend", GivenFloors())
    path = file_of(tmp_path, 1, {name(0, "a"): b"1"})
    (tmp_path / "kept").hardlink_to(path)
    backend.ingest([path])
    backend.close()
    assert [left.name for left in tmp_path.iterdir()] == ["kept"]


def test_the_messages_of_a_backend_name_its_folder(backend: Backend, tmp_path: Path) -> None:
    assert str(tmp_path / "backend") in repr(backend)


# --- damage that is found only when a block is read


def test_a_damaged_block_is_an_error_to_whoever_reads_it_and_never_an_end(tmp_path: Path) -> None:
    backend = rocksdb(tmp_path / "backend", GivenFloors())
    payloads = {name(0, f"{key:06}"): Random(key).randbytes(100) for key in range(5000)}
    path = file_of(tmp_path, 1, payloads)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    backend.ingest([path])
    found: dict[bytes, bytes] = {}
    with pytest.raises(DamagedFile, match="could not read entries of RocksDBBackend"):
        found.update(backend.scan(*ALL))
    with pytest.raises(DamagedFile, match="could not read entries of RocksDBBackend"):
        backend.get_many(list(payloads))
    backend.close()


# --- putting a base in the place of all that is there


def test_after_a_rebase_all_is_as_before_and_what_was_hidden_is_gone(backend: Backend, tmp_path: Path) -> None:
    everywhere = {name(group, key): b"1" for group in range(GROUPS) for key in "abc"}
    backend.ingest([file_of(tmp_path, 1, everywhere, b"one")])
    backend.ingest([file_of(tmp_path, 2, {name(1, "a"): None, name(2, "b"): b"2"})])
    before = everything(backend)
    base = {found: payload for found, payload in before.items() if group_of(found) in groups(1, 3)}
    backend.rebase([groups(1, 3)], file_of(tmp_path, 2, base, b"two"))
    assert everything(backend) == before
    assert backend.get_many([*everywhere, META_KEY]) == [*(before.get(asked) for asked in everywhere), b"two"]
    backend.ingest([file_of(tmp_path, 3, {name(1, "a"): b"3", name(1, "b"): None})])
    del before[name(1, "b")]
    assert everything(backend) == {**before, name(1, "a"): b"3"}


def test_what_a_base_does_not_repeat_is_gone(backend: Backend, tmp_path: Path) -> None:
    backend.ingest([file_of(tmp_path, 1, {name(1, "a"): b"1", name(1, "b"): b"1", name(2, "a"): b"1"})])
    backend.rebase([groups(1, 2)], file_of(tmp_path, 4, {name(1, "ab"): b"4"}))
    assert everything(backend) == {name(1, "ab"): b"4", name(2, "a"): b"1"}


def test_groups_of_which_nothing_is_worth_keeping_need_no_base(backend: Backend, tmp_path: Path) -> None:
    backend.rebase([groups(0, 1)], None)
    backend.ingest([file_of(tmp_path, 1, {name(1, "a"): b"1", name(2, "a"): b"1"})])
    backend.ingest([file_of(tmp_path, 2, {name(0, "a"): None}, b"two")])
    backend.rebase([groups(0, 2)], None)
    assert everything(backend) == {name(2, "a"): b"1"}
    assert backend.get_many([META_KEY]) == [b"two"]


def test_a_rebase_frees_the_disk_of_what_it_hides(tmp_path: Path) -> None:
    backend = RocksDBBackend(tmp_path / "backend", GivenFloors(), memory=1 << 20)
    for epoch in range(1, 5):
        blocks = {name(0, f"{epoch}-{block}"): Random(block).randbytes(50_000) for block in range(10)}
        backend.ingest([file_of(tmp_path, epoch, blocks)])
    whole = {name(0, "whole"): Random(0).randbytes(50_000)}
    backend.rebase([groups(0, 1)], file_of(tmp_path, 4, whole))
    assert everything(backend) == whole
    backend._database.compact_range(None, None)
    assert backend.disk_bytes() < 100_000
    backend.close()


@pytest.mark.timeout(60)
def test_who_reads_during_a_rebase_sees_every_entry_all_the_time(backend: Backend, tmp_path: Path) -> None:
    expected = {name(group, f"{key:03}"): b"v" for group in range(GROUPS) for key in range(50)}
    backend.ingest([file_of(tmp_path, 1, expected)])
    asked, wrong, done = list(expected), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            if None in backend.get_many(asked) or everything(backend) != expected:
                wrong.append("an entry was missing")

    reader = threading.Thread(target=read)
    reader.start()
    for epoch in range(2, 12):
        backend.rebase([groups(0, GROUPS)], file_of(tmp_path, epoch, expected))
    done.set()
    reader.join()
    assert wrong == []


# --- against a model


@dataclass(frozen=True)
class Rebase:
    groups: KeyGroupRange


Step = Sequence[Changes] | Rebase

NAMES = [name(group, key) for group in range(GROUPS) for key in ("", "a", "b")]
CHANGES = st.dictionaries(st.sampled_from(NAMES), st.none() | st.binary(max_size=3), min_size=1)
RANGES = st.tuples(st.integers(0, GROUPS - 1), st.integers(1, GROUPS)).filter(lambda ends: ends[0] < ends[1])
STEPS = st.lists(st.lists(CHANGES, min_size=1, max_size=3) | RANGES.map(lambda ends: Rebase(groups(*ends))), max_size=4)


@contextmanager
def both(floors: GivenFloors) -> Iterator[tuple[Path, list[Backend]]]:
    """Both backends, and a folder for files."""
    with TemporaryDirectory(prefix="backends-", dir=IN_MEMORY) as folder:
        backends = [rocksdb(Path(folder, "rocksdb"), floors), heap(Path(folder, "heap"), floors)]
        try:
            yield Path(folder), backends
        finally:
            for backend in backends:
                backend.close()


@given(STEPS, st.lists(st.integers(0, 5), min_size=GROUPS, max_size=GROUPS))
def test_both_backends_agree_with_a_dictionary(steps: list[Step], numbers: list[int]) -> None:
    model: dict[bytes, bytes] = {}
    epoch = 0
    with both(GivenFloors(tuple(numbers))) as (folder, backends):
        for step in steps:
            if isinstance(step, Rebase):
                base = {found: payload for found, payload in model.items() if group_of(found) in step.groups}
                for backend in backends:
                    backend.rebase([step.groups], file_of(folder, max(epoch, *numbers), base) if base else None)
            else:
                first = epoch
                for backend in backends:
                    files = [file_of(folder, first + 1 + place, changes) for place, changes in enumerate(step)]
                    backend.ingest(files)
                for changes in step:
                    epoch += 1
                    apply(model, changes, epoch, numbers)
            for backend in backends:
                check(backend, model)


def apply(model: dict[bytes, bytes], changes: Changes, epoch: int, floors: Sequence[int]) -> None:
    for changed, payload in changes.items():
        if epoch < floors[group_of(changed)]:
            continue
        if payload is None:
            model.pop(changed, None)
        else:
            model[changed] = payload


def check(backend: Backend, model: Mapping[bytes, bytes]) -> None:
    assert backend.get_many(NAMES) == [model.get(asked) for asked in NAMES]
    assert list(backend.scan(*ALL)) == sorted(model.items())
    start, end = name(1, "a"), name(2, "a")
    assert list(backend.scan(start, end)) == [entry for entry in sorted(model.items()) if start <= entry[0] < end]
