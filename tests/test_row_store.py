"""Rows in layers: whatever is frozen, taken and released, the rows are those of a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from statebackend.backends.backend import Backend, LocalDiskError
from statebackend.backends.heap_backend import HeapBackend
from statebackend.backends.overlay import Overlay, OverlayLayer
from statebackend.backends.rocksdb_backend import RocksDBBackend
from statebackend.backends.row_layer import ENTRY_OVERHEAD, NameIndex, in_order, layered
from statebackend.backends.row_store import FrozenRows, LayerOrderError, Room, RowStore
from statebackend.backends.sst import Compression, write_sst
from statebackend.entries import StateId, after, bounds, head, row
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where searches put their folders: what they try a hundred times need not reach a disk."""


class NoFloors:
    def of(self, group: int) -> int:
        return 0


def rocksdb(folder: Path) -> Backend:
    return RocksDBBackend(folder, NoFloors(), memory=1 << 20)


def heap(folder: Path) -> Backend:
    return HeapBackend(folder, NoFloors())


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    opened = rocksdb(tmp_path / "backend")
    yield opened
    opened.close()


@pytest.fixture
def rows(backend: Backend) -> RowStore:
    return RowStore(backend)


def name(key: str, group: int = 0) -> bytes:
    return row(group, StateId(1), key.encode(), b"")


A, B, C, D = (name(key) for key in "abcd")


def settle(rows: RowStore, backend: Backend, frozen: FrozenRows, epoch: int, folder: Path) -> None:
    """What happens to a frozen layer in the end: it becomes a file, the backend takes it, it is released."""
    path = folder / f"{epoch}.sst"
    if write_sst(path, frozen.in_order(), epoch, b"", compression=Compression.ZSTD) is not None:
        backend.ingest([path])
    rows.release(frozen)


def everything(rows: RowStore) -> dict[bytes, bytes]:
    return dict(rows.scan(b"", b"\xff"))


# --- one thing at a time


def test_a_row_is_what_was_put_last(rows: RowStore) -> None:
    assert rows.get(A) is None
    rows.put(A, b"1")
    rows.put(A, b"2")
    assert rows.get(A) == b"2"
    rows.delete(A)
    assert rows.get(A) is None


def test_an_empty_row_is_a_row(rows: RowStore) -> None:
    rows.put(A, b"")
    assert rows.get(A) == b""
    assert everything(rows) == {A: b""}


def test_rows_are_found_in_whichever_layer_they_are(rows: RowStore, backend: Backend, tmp_path: Path) -> None:
    rows.put(A, b"1")
    rows.put(B, b"1")
    settle(rows, backend, rows.freeze(), 1, tmp_path)
    rows.put(B, b"2")
    rows.put(C, b"2")
    rows.freeze()
    rows.put(C, b"3")
    assert rows.get_many([D, C, B, A]) == [None, b"3", b"2", b"1"]
    assert [rows.get(asked) for asked in (D, C, B, A)] == [None, b"3", b"2", b"1"]
    assert list(rows.scan(A, D)) == [(A, b"1"), (B, b"2"), (C, b"3")]


def test_a_deletion_hides_what_lies_below_in_every_layer(rows: RowStore, backend: Backend, tmp_path: Path) -> None:
    for deleted in (A, B):
        rows.put(deleted, b"1")
    settle(rows, backend, rows.freeze(), 1, tmp_path)
    rows.put(C, b"2")
    rows.delete(A)
    rows.freeze()
    rows.delete(B)
    rows.delete(C)
    assert rows.get_many([A, B, C]) == [None, None, None]
    assert everything(rows) == {}


def test_what_is_frozen_does_not_change(rows: RowStore) -> None:
    rows.put(A, b"1")
    rows.delete(B)
    frozen = rows.freeze()
    rows.put(A, b"2")
    rows.put(B, b"2")
    assert dict(frozen.in_order()) == {A: b"1", B: None}


def test_a_deletion_outlives_the_layer_that_it_hides(rows: RowStore, backend: Backend, tmp_path: Path) -> None:
    rows.put(A, b"1")
    first = rows.freeze()
    rows.delete(A)
    second = rows.freeze()
    settle(rows, backend, first, 1, tmp_path)
    assert rows.get(A) is None
    settle(rows, backend, second, 2, tmp_path)
    assert rows.get(A) is None
    assert everything(rows) == {}


def test_what_is_set_and_deleted_between_two_cuts_leaves_nothing(rows: RowStore) -> None:
    rows.put_absent(A, b"1")
    rows.put_new(B, b"1")
    rows.put(A, b"2")
    size = rows.pending_bytes
    for deleted in (A, B):
        rows.delete(deleted)
    assert size > 0 == rows.pending_bytes
    assert dict(rows.freeze().in_order()) == {}


def test_a_row_that_an_earlier_layer_has_is_deleted_by_an_entry_though_it_was_absent_for_a_while(
    rows: RowStore,
) -> None:
    rows.put_new(A, b"1")
    rows.freeze()
    rows.delete(A)
    rows.put_absent(A, b"2")
    rows.delete(A)
    assert rows.get(A) is None
    assert dict(rows.freeze().in_order()) == {A: None}


def test_deletions_that_hide_nothing_are_gone_through_once(rows: RowStore, backend: Backend, tmp_path: Path) -> None:
    rows.put(A, b"1")
    settle(rows, backend, rows.freeze(), 1, tmp_path)
    rows.put(B, b"2")
    rows.freeze()
    for deleted in (A, B, C):
        rows.put(deleted, b"3")
        rows.delete(deleted)
    rows.put(D, b"3")
    assert everything(rows) == {D: b"3"}
    assert dict(rows.freeze().in_order()) == {A: None, B: None, D: b"3"}


def test_only_the_oldest_layer_can_be_released(rows: RowStore) -> None:
    rows.put(A, b"1")
    first, second = rows.freeze(), rows.freeze()
    with pytest.raises(LayerOrderError, match="not the oldest of 2"):
        rows.release(second)
    rows.release(first)
    with pytest.raises(LayerOrderError):
        rows.release(first)
    rows.release(second)


def test_the_backend_is_asked_once_for_all_that_no_layer_knows() -> None:
    asked: list[list[bytes]] = []

    class Asked(NothingThere):
        def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
            asked.append(list(names))
            return [b"below"] * len(names)

    rows = RowStore(Asked())
    rows.put(B, b"1")
    rows.freeze()
    rows.delete(D)
    assert rows.get_many([A, B, C, D]) == [b"below", b"1", b"below", None]
    assert rows.get_many([B]) == [b"1"]
    assert asked == [[A, C]]


class NothingThere:
    """A backend that has nothing."""

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(names)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def ingest(self, files: Sequence[Path]) -> None:
        raise AssertionError("nothing is taken")

    def rebase(self, groups: Sequence[KeyGroupRange], base: Path | None) -> None:
        raise AssertionError("nothing is taken")

    def disk_bytes(self) -> int:
        return 0

    def memory_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


def test_pending_bytes_follow_what_is_not_in_the_backend(rows: RowStore) -> None:
    assert rows.pending_bytes == 0
    rows.put(A, b"12345")
    one = len(A) + 5 + ENTRY_OVERHEAD
    assert rows.pending_bytes == one
    rows.put(A, b"123")
    assert rows.pending_bytes == one - 2
    rows.delete(A)
    assert rows.pending_bytes == one - 5
    rows.put(A, b"12345")
    frozen = rows.freeze()
    rows.put(B, b"12345")
    assert rows.pending_bytes == 2 * one
    rows.release(frozen)
    assert rows.pending_bytes == one


def test_a_released_layer_can_be_emptied(rows: RowStore) -> None:
    rows.put(A, b"1")
    frozen = rows.freeze()
    rows.release(frozen)
    frozen.clear()
    assert dict(frozen.in_order()) == {}


def test_a_scan_shows_what_was_there_when_it_began(rows: RowStore, backend: Backend, tmp_path: Path) -> None:
    for key in (A, B):
        rows.put(key, b"1")
    settle(rows, backend, rows.freeze(), 1, tmp_path)
    rows.put(C, b"1")
    frozen = rows.freeze()
    rows.put(D, b"1")
    scan = rows.scan(b"", b"\xff")
    rows.put(A, b"2")
    seen = []
    for found, payload in scan:
        seen.append((found, payload))
        rows.delete(found)
        rows.put(found + b"more", b"2")
        if found == B:
            settle(rows, backend, frozen, 2, tmp_path)
            frozen.clear()
            rows.freeze()
    assert seen == [(A, b"1"), (B, b"1"), (C, b"1"), (D, b"1")]
    assert list(everything(rows)) == [found + b"more" for found in (A, B, C, D)]


# --- more rows than memory has room for

MANY = {name(f"{number:05}", number % 3): b"%d" % number for number in range(20_000)}


@pytest.fixture
def crowded(backend: Backend, tmp_path: Path) -> Iterator[RowStore]:
    overlay = Overlay(tmp_path / "overlay", 1 << 20)
    yield RowStore(backend, Room(100_000, overlay))
    overlay.close()


def test_rows_between_two_cuts_do_not_fill_memory(crowded: RowStore) -> None:
    for found, payload in MANY.items():
        crowded.put(found, payload)
        assert crowded.pending_bytes < 110_000
    names = list(MANY)
    assert crowded.get_many([*names, D]) == [*MANY.values(), None]
    assert [crowded.get(found) for found in names[::500]] == [MANY[found] for found in names[::500]]
    assert everything(crowded) == MANY


def test_a_layer_that_lies_on_the_disk_comes_out_whole_and_in_order(
    crowded: RowStore, backend: Backend, tmp_path: Path
) -> None:
    for found in MANY:
        crowded.put(found, b"overwritten")
    for number, (found, payload) in enumerate(MANY.items()):
        if number % 2:
            crowded.put(found, payload)
        else:
            crowded.delete(found)
    expected = {found: None if number % 2 == 0 else MANY[found] for number, found in enumerate(MANY)}
    frozen = crowded.freeze()
    assert frozen.written_bytes > 100_000 > frozen.memory_bytes
    younger: dict[bytes, bytes | None] = {A: b"younger", min(MANY): b"younger"}
    assert list(frozen.in_order([younger])) == sorted({**expected, **younger}.items())
    settle(crowded, backend, frozen, 1, tmp_path)
    assert everything(crowded) == {found: payload for found, payload in expected.items() if payload is not None}
    assert list(frozen.in_order()) != sorted(expected.items()), "the disk was given back"


def test_who_goes_through_rows_on_the_disk_sees_them_as_they_were(
    crowded: RowStore, backend: Backend, tmp_path: Path
) -> None:
    for found, payload in MANY.items():
        crowded.put(found, payload)
    scan = crowded.scan(b"", b"\xff")
    first = next(scan)
    settle(crowded, backend, crowded.freeze(), 1, tmp_path)
    for found in MANY:
        crowded.put(found, b"younger")
    assert [first, *scan] == sorted(MANY.items())


def test_the_disk_holds_nothing_after_the_end_and_nothing_if_memory_was_enough(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path / "overlay", 1 << 20)
    rows = RowStore(NothingThere(), Room(2_000, overlay))
    rows.put(A, b"1")
    rows.freeze()
    assert overlay.memory_bytes() == 0
    assert list(tmp_path.iterdir()) == []
    for found, payload in list(MANY.items())[:50]:
        rows.put(found, payload)
    assert [path.name for path in tmp_path.iterdir()] == ["overlay"]
    overlay.close()
    assert list(tmp_path.iterdir()) == []


def test_rows_that_the_disk_refuses_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "overlay").touch()
    rows = RowStore(NothingThere(), Room(900, Overlay(tmp_path / "overlay", 1 << 20)))
    few = dict(list(MANY.items())[:6])
    *most, last = few.items()
    for found, payload in most:
        rows.put(found, payload)
    with pytest.raises(LocalDiskError, match=r"could not make .*overlay"):
        rows.put(*last)
    assert everything(rows) == few


def test_what_the_disk_refused_once_is_soon_moved_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [LocalDiskError("no space left")]
    write = OverlayLayer.write

    def scarce(layer: OverlayLayer, some: Iterable[tuple[bytes, bytes | None]]) -> None:
        if refusals:
            raise refusals.pop()
        write(layer, some)

    monkeypatch.setattr(OverlayLayer, "write", scarce)
    overlay, room = Overlay(tmp_path / "overlay", 1 << 20), 400_000
    rows, rest = RowStore(NothingThere(), Room(room, overlay)), iter(MANY.items())

    def fill() -> None:
        for found, payload in rest:
            rows.put(found, payload)

    with pytest.raises(LocalDiskError, match="no space left"):
        fill()
    for found, payload in islice(rest, 9 * room // 10 // (ENTRY_OVERHEAD + 20)):
        rows.put(found, payload)
    assert rows.pending_bytes < 1.2 * room
    overlay.close()


# --- names in order


def test_a_range_of_names_is_found_while_names_are_added() -> None:
    rng = Random(4)
    index, added = NameIndex(), set()
    for round_number in range(300):
        # Few at a time are put into their places; many at once are sorted in.
        for _ in range(rng.choice((1, 1, 1, 60))):
            new = row(rng.randrange(3), StateId(rng.randrange(2)), b"%d" % rng.randrange(500), b"", rng.randbytes(1))
            if new not in added:
                added.add(new)
                index.add(new)
        ends = sorted((rng.choice(sorted(added)), rng.choice(sorted(added))))
        prefix = head(rng.randrange(3), StateId(rng.randrange(2)), 1)
        for start, end in (
            (ends[0], ends[1]),
            (prefix, after(prefix)),
            bounds(KeyGroupRange(KeyGroup(1), KeyGroup(2))),
        ):
            assert index.between(start, end) == sorted(found for found in added if start <= found < end), round_number


@pytest.mark.parametrize("count", [0, 1, 1000, 40_000])
def test_layers_come_out_in_order_the_last_that_knows_a_name_says(count: int) -> None:
    rng = Random(count)
    older: dict[bytes, bytes | None] = {name(f"{rng.random()}", rng.randrange(2)): b"1" for _ in range(count)}
    younger: dict[bytes, bytes | None] = {found: None if rng.random() < 0.5 else b"2" for found in list(older)[::2]}
    younger[name("new")] = b"2"
    assert list(in_order([older, younger])) == sorted({**older, **younger}.items())


# --- against a dictionary

KEYS = [
    row(group, StateId(state), key, b"", rest)
    for group in (0, 1)
    for state in (1, 2)
    for key in (b"", b"k")
    for rest in (b"", b"\0", b"x")
]
NAMES = st.sampled_from(KEYS)


class Rows(RuleBasedStateMachine):
    """Everything that can be done with rows, next to a dictionary."""

    opening: Callable[[Path], Backend]
    memory = 1 << 30

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="rows-", dir=IN_MEMORY))
        self.backend = type(self).opening(self.folder / "backend")
        self.overlay = Overlay(self.folder / "overlay", 1 << 20)
        self.rows = RowStore(self.backend, Room(type(self).memory, self.overlay))
        self.model: dict[bytes, bytes] = {}
        self.frozen: list[FrozenRows] = []
        self.epoch = self.new = 0

    @rule(name=NAMES, payload=st.binary(max_size=3))
    def put_absent(self, name: bytes, payload: bytes) -> None:
        if name not in self.model:
            self.rows.put_absent(name, payload)
            self.model[name] = payload

    @rule(payload=st.binary(max_size=3))
    def put_new(self, payload: bytes) -> None:
        self.new += 1
        name = row(0, StateId(1), b"k", b"", self.new.to_bytes(4, "big"))
        self.rows.put_new(name, payload)
        self.model[name] = payload

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_one_that_is_there(self, data: st.DataObject) -> None:
        self.delete(data.draw(st.sampled_from(sorted(self.model))))

    @rule(name=NAMES, payload=st.binary(max_size=3))
    def put(self, name: bytes, payload: bytes) -> None:
        self.rows.put(name, payload)
        self.model[name] = payload

    @rule(name=NAMES)
    def delete(self, name: bytes) -> None:
        self.rows.delete(name)
        self.model.pop(name, None)

    @rule()
    def freeze(self) -> None:
        self.frozen.append(self.rows.freeze())

    @precondition(lambda self: self.frozen)
    @rule()
    def settle(self) -> None:
        self.epoch += 1
        settle(self.rows, self.backend, self.frozen.pop(0), self.epoch, self.folder)

    @precondition(lambda self: len(self.frozen) > 1)
    @rule()
    def settle_two_in_one_file(self) -> None:
        self.epoch += 1
        older, younger = self.frozen.pop(0), self.frozen.pop(0)
        path = self.folder / f"{self.epoch}.sst"
        both = layered(younger.in_order(), older.in_order())
        if write_sst(path, both, self.epoch, b"", compression=Compression.LZ4) is not None:
            self.backend.ingest([path])
        self.rows.release(older)
        self.rows.release(younger)

    @rule(ends=st.tuples(NAMES, NAMES))
    def scan(self, ends: tuple[bytes, bytes]) -> None:
        start, end = sorted(ends)
        expected = [entry for entry in sorted(self.model.items()) if start <= entry[0] < end]
        assert list(self.rows.scan(start, end)) == expected

    @rule(ends=st.tuples(NAMES, NAMES))
    def delete_while_scanning(self, ends: tuple[bytes, bytes]) -> None:
        start, end = sorted(ends)
        for found, _ in self.rows.scan(start, end):
            self.delete(found)
        assert list(self.rows.scan(start, end)) == []

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        assert self.rows.get_many(KEYS) == [self.model.get(key) for key in KEYS]
        assert self.rows.get(KEYS[3]) == self.model.get(KEYS[3])
        assert list(self.rows.scan(b"", b"\xff")) == sorted(self.model.items())

    def teardown(self) -> None:
        self.overlay.close()
        self.backend.close()
        rmtree(self.folder)


class RowsAboveRocksDB(Rows):
    opening = staticmethod(rocksdb)


class RowsAboveTheHeap(Rows):
    opening = staticmethod(heap)


class RowsWithoutRoom(Rows):
    opening = staticmethod(heap)
    memory = 3 * ENTRY_OVERHEAD


@pytest.mark.parametrize("machine", [RowsAboveRocksDB, RowsAboveTheHeap, RowsWithoutRoom])
def test_rows_are_those_of_a_dictionary_whatever_is_done(machine: type[Rows]) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=30))
