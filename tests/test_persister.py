"""The background of keyed state when something goes wrong in it: nothing is lost, hidden, left over or waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from secrets import token_hex
from threading import Event, get_native_id
from typing import Literal

import pyarrow as pa
import pytest

from statebackend import fail_points
from statebackend.backends.backend import Backend, Floors, LocalDiskFull
from statebackend.backends.heap_backend import HeapBackend
from statebackend.backends.sst import read_sst
from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Epoch, Generation
from statebackend.keyed_state import ForkedState, KeyedState, SnapshotFailed
from statebackend.keygroups import KeyGroupRange
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots import state_files
from statebackend.snapshots.consolidation import Consolidate, Merge, Planner
from statebackend.snapshots.local_files import LocalFiles
from statebackend.snapshots.persister import EpochOrder
from statebackend.snapshots.state_files import StateFiles
from statebackend.snapshots.uploads import Durable, NotDurable
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import ValueState
from statebackend.tables.values.aggregations import Count
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.thread_pool import ThreadPool

ROWS = Operator("shop", str, {"count": ValueState(int, default=0)}, max_parallelism=8)
TABLE = Operator("shop", str, {"table": AggregateTable(rows=Count())}, max_parallelism=8)
BackendName = Literal["heap", "rocksdb"]

Open = Callable[..., KeyedState]


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    made = FaultyStore(token_hex(8))
    yield made
    made.clear()


@pytest.fixture
def opened(tmp_path: Path, store: FaultyStore) -> Iterator[Open]:
    states: list[KeyedState] = []
    numbers = count()

    def new_name() -> str:
        return f"shared/{next(numbers)}.sst"

    def open_one(
        operator: Operator = ROWS,
        options: Options | None = None,
        files: FileSet | None = None,
        wake: Callable[[], None] | None = None,
    ) -> KeyedState:
        folder = tmp_path / str(len(states))
        options = options or Options(backend="heap")
        states.append(KeyedState(operator, folder, store, new_name, files, options, wake=wake))
        return states[-1]

    yield open_one
    for state in states:
        state.close()


def epoch(number: int, generation: int = 1) -> Epoch:
    return Epoch(Generation(generation), number)


def set_count(state: KeyedState, key: str, value: int) -> None:
    state.set_key(key)
    state["count"].set(value)


def count_of(state: KeyedState, key: str) -> object:
    state.set_key(key)
    return state["count"].get()


def polled_until(state: KeyedState, done: Callable[[], bool]) -> list[Durable | NotDurable]:
    news: list[Durable | NotDurable] = []
    for _ in range(100):
        if done():
            return news
        news += state.poll(timeout=0.1)
    raise AssertionError("it did not come to that")


def has_taken_all(state: KeyedState) -> Callable[[], bool]:
    return lambda: state.statistics().background.epochs_pending == 0


def raising_once(error: BaseException) -> Callable[[], None]:
    errors = [error]

    def hook() -> None:
        if errors:
            raise errors.pop()

    return hook


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_no_epoch_gets_into_the_backend_before_an_older_one_that_did_not(opened: Open, backend: BackendName) -> None:
    state = opened(options=Options(backend=backend))
    for number in (1, 2):
        set_count(state, "a", number)
        state.snapshot(epoch(number))
    with fail_points.at(fail_points.BEFORE_INGEST, raising_once(LocalDiskFull("there was no room"))):
        state.completed(epoch(1))
        state.completed(epoch(2))
        polled_until(state, has_taken_all(state))
    rows = state.contents.rows
    assert rows.pending_bytes == 0
    stored = list(rows.scan(b"\x00\x00", b"\x00\xff"))
    fresh = opened(files=state.snapshot(epoch(3)))
    assert stored == list(fresh.contents.rows.scan(b"\x00\x00", b"\x00\xff"))
    assert count_of(fresh, "a") == 2


def test_what_did_not_get_into_the_backend_is_tried_again_with_the_next_complete_epoch(opened: Open) -> None:
    state = opened()
    set_count(state, "a", 1)
    state.snapshot(epoch(1))
    with fail_points.at(fail_points.BEFORE_INGEST, raising_once(LocalDiskFull("there was no room"))):
        state.completed(epoch(1))
        polled_until(state, lambda: "no room" in (state.statistics().background.trouble or ""))
    assert state.statistics().background.epochs_pending == 1
    state.completed(epoch(1))
    polled_until(state, has_taken_all(state))
    assert count_of(state, "a") == 1


class _RefusingBackend(HeapBackend):
    """Refuses one of its rebases, the third."""

    rebases = 0

    def rebase(self, groups: Sequence[KeyGroupRange], base: Path | None) -> None:
        self.rebases += 1
        if self.rebases == 3:
            raise LocalDiskFull("there was no room")
        super().rebase(groups, base)


def test_what_is_all_there_is_gets_into_the_backend_whole_though_it_fails_in_between(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "LARGE", 1000)  # so that it is in several files

    def backend(folder: Path, floors: Floors, _: int) -> Backend:
        return _RefusingBackend(folder, floors)

    state = opened(TABLE, Options(backend=backend))
    everybody = [f"key {number}" for number in range(200)]
    state["table"].update(state.keys(pa.array(everybody)), {})
    first = state.snapshot(epoch(1))
    assert len(first.files) > 3
    assert {file.kind for file in first.files} == {FileKind.BASE}
    state.completed(epoch(1))
    for number in (2, 3):
        state["table"].update(state.keys(pa.array(everybody[:1])), {})
        state.snapshot(epoch(number))
        state.completed(epoch(number))
    polled_until(state, has_taken_all(state))
    assert state.statistics().background.trouble is not None
    groups = {name[:2] for name, _ in state.contents.rows.scan(b"\x00\x00", b"\x00\xff")}
    assert len(groups) == sum(len(part) for file in first.files for part in file.ranges)


def test_what_became_of_other_epochs_during_a_snapshot_is_said_afterwards(opened: Open) -> None:
    state = opened()
    state.cut(epoch(1))
    state.snapshot(epoch(2))
    assert [news.epoch for news in state.poll(timeout=10)] == [epoch(1)]


def test_cuts_that_change_nothing_leave_nothing_in_memory(opened: Open) -> None:
    state = opened()
    sizes = set()
    for number in range(1, 20):
        state.snapshot(epoch(number))
        state.completed(epoch(number))
        polled_until(state, has_taken_all(state))
        sizes.add(len(state.contents._times))
    assert sizes == {1}


@pytest.fixture
def rewriting(opened: Open, monkeypatch: pytest.MonkeyPatch) -> Callable[[], KeyedState]:
    """Opens a state; with its second epoch all is rewritten, in two slices."""
    halves = KeyGroupRange.of_all(8).divided(2)
    plans = iter([[], [Consolidate(half) for half in halves]])
    monkeypatch.setattr(Planner, "changed", lambda _self, _files, _size, _at: next(plans, []))

    def begin() -> KeyedState:
        state = opened()
        for number in (1, 2):
            for key in range(32):
                set_count(state, str(key), number)
            state.snapshot(epoch(number))
            state.completed(epoch(number))
        return state

    return begin


def test_what_an_epoch_has_changed_is_written_before_the_next_slice_is_rewritten(
    opened: Open, rewriting: Callable[[], KeyedState]
) -> None:
    written: list[str] = []
    first, cut = Event(), Event()

    def base() -> None:
        written.append("slice")
        first.set()
        assert cut.wait(60)

    with fail_points.at(fail_points.BASE_LINKED, base):
        state = rewriting()
        assert first.wait(60)
        with fail_points.at(fail_points.DELTA_WRITTEN, lambda: written.append("epoch")):
            set_count(state, "0", 3)
            state.cut(epoch(3))
            cut.set()
            polled_until(state, lambda: len(written) == 3)
    assert written == ["slice", "epoch", "slice"]
    numbers = count(4)
    files = state.snapshot(epoch(next(numbers)))
    while state.statistics().background.bases < 2:
        files = state.snapshot(epoch(next(numbers)))
    restored = opened(files=files)
    assert [count_of(restored, key) for key in ("0", "1")] == [3, 2]


def test_closing_waits_for_the_slice_that_is_being_rewritten_and_for_no_other(
    rewriting: Callable[[], KeyedState], monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, slices = Event(), list[None]()
    close = ThreadPool.close

    def begin_close(pool: ThreadPool, *, drop: bool = False, wait: bool = False) -> None:
        close(pool, drop=drop)
        closing.set()
        close(pool, wait=wait)

    def base() -> None:
        slices.append(None)
        assert closing.wait(60)

    with fail_points.at(fail_points.BASE_LINKED, base):
        state = rewriting()
        polled_until(state, lambda: bool(slices))
        monkeypatch.setattr(ThreadPool, "close", begin_close)
        state.close(leave_uploads=True)
    assert len(slices) == 1


class Panic(BaseException):
    """As what comes of a panic inside RocksDB's library: no `Exception`."""


@pytest.mark.parametrize("point", [fail_points.DELTA_WRITTEN, fail_points.DELTA_UPLOADED])
def test_an_epoch_does_not_wait_for_ever_for_a_thread_that_panicked(opened: Open, point: str) -> None:
    state = opened()
    set_count(state, "a", 1)
    with (
        fail_points.at(point, raising_once(Panic())),
        pytest.raises(SnapshotFailed, match=r"Panic"),
    ):
        state.snapshot(epoch(1))
    assert count_of(opened(files=state.snapshot(epoch(2))), "a") == 1


def test_an_epoch_becomes_durable_though_nobody_can_be_woken(opened: Open) -> None:
    def wake() -> None:
        raise RuntimeError("the loop is closed")

    state = opened(wake=wake)
    set_count(state, "a", 1)
    assert count_of(opened(files=state.snapshot(epoch(1))), "a") == 1


@pytest.mark.parametrize("again", [epoch(1), epoch(2), epoch(1, generation=2), epoch(2, generation=2)])
def test_an_epoch_that_does_not_follow_on_the_last_one_is_not_cut(
    opened: Open, store: FaultyStore, again: Epoch
) -> None:
    state = opened()
    set_count(state, "a", 1)
    state.snapshot(epoch(1))
    store.fault = Fault.REFUSED
    set_count(state, "a", 2)
    with pytest.raises(SnapshotFailed):
        state.snapshot(epoch(2))
    store.fault = Fault.NONE
    with pytest.raises(EpochOrder, match="cannot be cut after 2-1"):
        state.snapshot(again)
    set_count(state, "b", 3)
    restored = opened(files=state.snapshot(epoch(3, generation=2)))
    assert (count_of(restored, "a"), count_of(restored, "b")) == (2, 3)
    with pytest.raises(EpochOrder, match="cannot be cut after 3-2"):
        restored.cut(epoch(3, generation=3))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_forked_process_neither_cuts_the_state_nor_takes_its_folder_away(opened: Open, backend: BackendName) -> None:
    state = opened(options=Options(backend=backend))
    set_count(state, "a", 1)
    state.snapshot(epoch(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with state, pytest.raises(ForkedState, match="shop"):
                state.cut(epoch(2))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    state.completed(epoch(1))
    polled_until(state, has_taken_all(state))
    set_count(state, "b", 2)
    restored = opened(files=state.snapshot(epoch(2)))
    assert (count_of(restored, "a"), count_of(restored, "b")) == (1, 2)


def test_a_merge_of_what_was_replaced_since_it_was_asked_for_is_left_out(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Merge] = []
    monkeypatch.setattr(Planner, "changed", lambda *_: [asked.pop()] if asked else [])
    state = opened(TABLE)
    keys = [str(number) for number in range(100)]

    def snapshot(number: int, some: list[str]) -> FileSet:
        state["table"].update(state.keys(pa.array(some)), {})
        files = state.snapshot(epoch(number))
        state.completed(epoch(number))
        return files

    snapshot(1, keys)
    snapshot(2, keys[:1])
    _, *run = snapshot(3, keys[:1]).files
    assert [file.kind for file in run] == [FileKind.DELTA, FileKind.DELTA]
    assert [file.kind for file in snapshot(4, keys).files] == [FileKind.BASE]
    polled_until(state, has_taken_all(state))
    snapshot(5, keys[:1])
    asked.append(Merge(tuple(run)))
    for number in range(6, 9):
        snapshot(number, keys[:1])
    background = state.statistics().background
    assert not asked
    assert (background.merges, background.trouble) == (0, None)


def test_a_merge_leaves_no_links_behind(tmp_path: Path) -> None:
    local, folder = LocalFiles(tmp_path / "links"), tmp_path / "made"
    folder.mkdir()
    numbers = count()
    files = StateFiles(folder, local, lambda: f"shared/{next(numbers)}.sst", b"meta")
    name = b"\x00\x00some name"
    deltas = [files.write([(name, b"%d" % at)], epoch(at), FileKind.DELTA, 0) for at in (1, 2, 3)]
    run: list[FileRef] = [file for file in deltas if file is not None]
    merged = files.merged(run)
    assert merged is not None
    link = local.find(merged)
    assert link is not None
    with read_sst(link, tmp_path) as content:
        assert list(content.entries) == [(name, b"3")]
    assert list(folder.iterdir()) == []


def test_links_that_a_backend_did_not_take_are_removed(tmp_path: Path) -> None:
    local, folder = LocalFiles(tmp_path / "links"), tmp_path / "made"
    folder.mkdir()
    files = StateFiles(folder, local, lambda: "shared/1.sst", b"meta")
    file = files.write([(b"\x00\x00some name", b"1")], epoch(1), FileKind.DELTA, 0)
    assert file is not None
    with files.links([file]) as links:
        assert list(folder.iterdir()) == links
    assert list(folder.iterdir()) == []
    assert local.find(file) is not None


def test_a_large_file_is_written_by_another_process_that_ends_with_the_files(tmp_path: Path) -> None:
    local, folder = LocalFiles(tmp_path / "links"), tmp_path / "made"
    folder.mkdir()
    files = StateFiles(folder, local, lambda: "shared/1.sst", b"meta")
    before = children()
    file = files.write([(b"\x00\x00some name", b"1")], epoch(1), FileKind.DELTA, 1 << 30)
    assert file is not None
    assert len(children() - before) == 1
    assert local.find(file) is not None
    assert list(folder.iterdir()) == []
    files.close()
    assert children() == before


def children() -> set[str]:
    """The processes that this thread has started."""
    return set(Path(f"/proc/self/task/{get_native_id()}/children").read_text().split())
