"""Lists and maps that are changed over and over: each change costs what it writes, and they stay what a dict says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from statebackend.backends.backend import Backend, LocalDiskError
from statebackend.backends.heap_backend import HeapBackend
from statebackend.backends.rocksdb_backend import RocksDBBackend
from statebackend.backends.row_store import FrozenRows, RowStore
from statebackend.backends.sst import Compression, write_sst
from statebackend.states import known_parts
from statebackend.states.declarations import ListState, MapState, Place
from statebackend.states.list_state import ListHandle
from statebackend.states.map_state import MapHandle
from tests.rows_in_a_dict import RowsInADict, a_context
from tests.test_row_store import IN_MEMORY, NoFloors

KEYS, OPERATIONS, NEWEST = 10, 200, 5
AMPLE, NONE = 1 << 20, 0


class CountedRows(RowStore):
    """Rows that count what is gone through in all layers for scans."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.gone_through = 0

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        layers = (*self._frozen, self._active)
        self.gone_through += 1 + sum(len(layer.in_memory(start, end)) for layer in layers)
        self.gone_through += sum(1 for _ in self._backend.scan(start, end))
        return super().scan(start, end)


class Collections:
    """A list and a map for some keys above real layers, cut and taken as a partition does it."""

    def __init__(self, folder: Path, memory: int, backend: Backend | None = None) -> None:
        self.folder = folder
        self.backend = backend or HeapBackend(folder / "backend", NoFloors())
        self.rows = CountedRows(self.backend)
        self.context = a_context()
        self.frozen: list[FrozenRows] = []
        self.epoch = 0
        self.written = 0
        numbers, names = ListState(int), MapState(int, int)
        self.list: ListHandle[int] = numbers.open(Place(numbers.spec("list"), self.context, self.rows, memory))
        self.map: MapHandle[int, int] = names.open(Place(names.spec("map"), self.context, self.rows, memory))

    def cut(self) -> int:
        """How many entries the cut has."""
        self.frozen.append(self.rows.freeze())
        for state in (self.list, self.map):
            state.cut()
        return sum(1 for _ in self.frozen[-1].in_order())

    def take_oldest(self) -> None:
        """The epoch of the oldest cut is complete."""
        frozen = self.frozen.pop(0)
        self.epoch += 1
        path = self.folder / f"{self.epoch}.sst"
        if write_sst(path, frozen.in_order(), self.epoch, b"", compression=Compression.LZ4) is not None:
            self.backend.ingest([path])
        self.rows.release(frozen)

    def rewind(self, cuts: int) -> None:
        """Drop so many cuts and what came after them."""
        since = self.frozen[len(self.frozen) - cuts :]
        del self.frozen[len(self.frozen) - cuts :]
        self.rows.rewind(since)
        for state in (self.list, self.map):
            state.rewind(cuts)


Operation = Callable[[Collections, int], None]


def replace(state: Collections, number: int) -> None:
    state.list.replace([*state.list.get(), number][-NEWEST:])


def clear_and_extend(state: Collections, number: int) -> None:
    newest = [*state.list.get(), number][-NEWEST:]
    state.list.clear()
    state.list.extend(newest)


def put_and_remove(state: Collections, number: int) -> None:
    state.map.put(number, number)
    keys = list(state.map.keys())
    if len(keys) > NEWEST:
        state.map.remove(keys[0])


OPERATING = pytest.mark.parametrize("operation", [replace, clear_and_extend, put_and_remove])


@pytest.fixture(params=[HeapBackend, RocksDBBackend])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    folder = tmp_path / "backend"
    opened: Backend = (
        HeapBackend(folder, NoFloors())
        if request.param is HeapBackend
        else RocksDBBackend(folder, NoFloors(), memory=1 << 20)
    )
    yield opened
    opened.close()


class Run:
    """Operations in turns over all keys; how much each round has gone through."""

    def __init__(self, state: Collections, operation: Operation) -> None:
        self.state, self.operation, self._numbers = state, operation, count()

    def round(self) -> int:
        """Go through OPERATIONS more."""
        before = self.state.rows.gone_through
        for number in range(OPERATIONS):
            self.state.context.set_key(f"key {number % KEYS}")
            self.operation(self.state, next(self._numbers))
        return self.state.rows.gone_through - before


# --- what it costs ----------------------------------------------------------------------------------------------------


@OPERATING
@pytest.mark.parametrize("completed", [True, False])
def test_a_hundredth_round_of_changes_goes_through_no_more_than_the_second_and_cuts_no_more(
    tmp_path: Path, backend: Backend, operation: Operation, completed: bool
) -> None:
    state = Collections(tmp_path, AMPLE, backend)
    run, cuts = Run(state, operation), []
    assert run.round() <= 2 * KEYS
    for _ in range(20):
        cuts.append(state.cut())
        if completed:
            state.take_oldest()
        assert run.round() == 0
    # The newest of each key, and the deletions of those that the cut before had; and the first that was put into each
    # map, of which nothing was known then.
    assert cuts[0] <= KEYS * (NEWEST + 1)
    assert max(cuts) <= 2 * KEYS * NEWEST


@OPERATING
def test_without_cuts_nothing_is_left_of_what_was_written_and_is_gone(tmp_path: Path, operation: Operation) -> None:
    state = Collections(tmp_path, AMPLE)
    run = Run(state, operation)
    run.round()
    occupied = state.rows.pending_bytes
    for _ in range(5):
        assert run.round() == 0
        assert state.rows.pending_bytes <= 1.1 * occupied
    assert state.cut() <= KEYS * (NEWEST + 1)


@OPERATING
def test_after_a_rewind_each_key_that_was_changed_since_the_cut_is_looked_up_once(
    tmp_path: Path, backend: Backend, operation: Operation
) -> None:
    state = Collections(tmp_path, AMPLE, backend)
    run = Run(state, operation)
    run.round()
    for _ in range(3):
        state.cut()
        state.rewind(0)
        assert run.round() == 0
        state.cut()
        state.context.set_key("key 1")
        operation(state, 1)
        state.cut()
        state.rewind(1)
        assert run.round() <= 1 + 6 * 2 * NEWEST
        assert run.round() == 0


@OPERATING
def test_what_memory_has_no_room_to_know_costs_what_is_there_and_not_what_was_deleted(
    tmp_path: Path, operation: Operation
) -> None:
    state = Collections(tmp_path, NONE)
    run = Run(state, operation)
    run.round()
    second = run.round()
    assert second <= OPERATIONS * 3 * (2 * NEWEST + 3)
    for _ in range(5):
        assert run.round() <= 1.1 * second


def test_a_list_that_is_replaced_by_as_many_elements_deletes_nothing(tmp_path: Path) -> None:
    state = Collections(tmp_path, AMPLE)
    state.context.set_key("a")
    state.list.extend([1, 2, 3])
    state.cut()
    state.list.replace([4, 5, 6])
    state.cut()
    assert [payload is None for _, payload in state.frozen[-1].in_order()] == [False] * 3
    assert state.list.get() == [4, 5, 6]


def test_who_asks_for_the_first_of_many_parts_again_and_again_reads_few_of_them(tmp_path: Path) -> None:
    rows, context = RowsInADict(), a_context()
    declared = MapState(int, int)
    state = declared.open(Place(declared.spec("map"), context, rows, AMPLE))
    context.set_key("a")
    many = 3 * known_parts._MOST
    for number in range(many):
        state.put(number, number)
    rows.scan = watched = _Watched(rows.scan)  # type: ignore[method-assign]
    assert next(state.keys()) == 0
    assert watched.given <= known_parts._MOST + 1
    for _ in range(100):
        assert next(state.keys()) == 0
    assert watched.given <= known_parts._MOST + 101
    assert list(state.keys()) == list(range(many))
    for number in range(2, many):
        state.remove(number)
    for _ in range(10):
        assert list(state.keys()) == [0, 1]
    assert watched.scans == 1 + 100 + 1 + 2


class _Watched:
    """Scans, and how many rows they have given."""

    def __init__(self, scan: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]]) -> None:
        self._scan = scan
        self.scans = self.given = 0

    def __call__(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return self._counted(self._scan(start, end))

    def _counted(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for row in rows:
            self.given += 1
            yield row


@pytest.mark.parametrize("memory", [3_000, 100_000])
def test_what_is_known_takes_no_more_memory_than_it_may(memory: int) -> None:
    rows, context = RowsInADict(), a_context()
    declared = ListState(str)
    state = declared.open(Place(declared.spec("list"), context, rows, memory))
    for number in range(500):
        context.set_key(f"key {number % 200}")
        state.add("x" * (number % 50))
        if number % 7 == 0:
            state.clear()
        assert len(state.get()) <= 3
        assert state.memory_bytes() <= memory
    assert state.memory_bytes() > memory // 3
    state.forget()
    assert state.memory_bytes() == 0


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_row_that_the_disk_refuses_is_known_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, context = RowsInADict(), a_context()
    declared = ListState(int)
    state = declared.open(Place(declared.spec("list"), context, rows, AMPLE))
    context.set_key("a")
    state.extend([1, 2, 3])
    assert state.get() == [1, 2, 3]
    delete, refused = rows.delete, iter([False, True])

    def refuses(name: bytes, /) -> None:
        delete(name)
        if next(refused, False):
            raise LocalDiskError("no room")

    monkeypatch.setattr(rows, "delete", refuses)
    with pytest.raises(LocalDiskError):
        state.clear()
    assert state.get() == [3]


NUMBERS = st.integers(min_value=0, max_value=6)


class Changes(RuleBasedStateMachine):
    """A list and a map of two keys, next to Python's, whatever is cut, taken and taken back."""

    memory = AMPLE

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(prefix="parts-", dir=IN_MEMORY))
        self.state = Collections(self.folder, type(self).memory)
        self.lists: dict[str, list[int]] = {"a": [], "b": []}
        self.maps: dict[str, dict[int, int]] = {"a": {}, "b": {}}
        self.cuts: list[tuple[dict[str, list[int]], dict[str, dict[int, int]]]] = [self._now()]
        self.key = "a"
        self.state.context.set_key("a")

    def _now(self) -> tuple[dict[str, list[int]], dict[str, dict[int, int]]]:
        return {key: list(of) for key, of in self.lists.items()}, {key: dict(of) for key, of in self.maps.items()}

    @rule(key=st.sampled_from("ab"))
    def go_to(self, key: str) -> None:
        self.key = key
        self.state.context.set_key(key)

    @rule(values=st.lists(NUMBERS, max_size=3))
    def extend(self, values: list[int]) -> None:
        self.state.list.extend(values)
        self.lists[self.key] += values

    @rule(values=st.lists(NUMBERS, max_size=5))
    def replace(self, values: list[int]) -> None:
        self.state.list.replace(values)
        self.lists[self.key] = values

    @rule()
    def clear(self) -> None:
        self.state.list.clear()
        self.state.map.clear()
        self.lists[self.key], self.maps[self.key] = [], {}

    @rule(key=NUMBERS, value=NUMBERS)
    def put(self, key: int, value: int) -> None:
        self.state.map.put(key, value)
        self.maps[self.key][key] = value

    @rule(key=NUMBERS)
    def remove(self, key: int) -> None:
        self.state.map.remove(key)
        self.maps[self.key].pop(key, None)

    @rule(least=NUMBERS)
    def remove_on_the_way(self, least: int) -> None:
        for key in self.state.map:
            if key >= least:
                self.remove(key)

    @rule()
    def read(self) -> None:
        assert self.state.list.get() == self.lists[self.key]
        assert list(self.state.map.items()) == sorted(self.maps[self.key].items())

    @rule(key=NUMBERS)
    def read_one(self, key: int) -> None:
        assert self.state.map.get(key) == self.maps[self.key].get(key)
        assert (key in self.state.map) == (key in self.maps[self.key])
        assert self.state.list.is_empty() == (not self.lists[self.key])

    @rule()
    def cut(self) -> None:
        self.state.cut()
        self.cuts.append(self._now())

    @precondition(lambda self: self.state.frozen)
    @rule()
    def take_oldest(self) -> None:
        self.state.take_oldest()
        del self.cuts[0]

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        cuts = data.draw(st.integers(min_value=0, max_value=len(self.state.frozen)))
        self.state.rewind(cuts)
        del self.cuts[len(self.cuts) - cuts :]
        lists, maps = self.cuts[-1]
        self.lists, self.maps = (
            {key: list(of) for key, of in lists.items()},
            {key: dict(of) for key, of in maps.items()},
        )

    @invariant()
    def rows_are_those_of_python(self) -> None:
        count = sum(map(len, self.lists.values())) + sum(map(len, self.maps.values()))
        assert len(list(RowStore.scan(self.state.rows, b"", b"\xff"))) == count

    def teardown(self) -> None:
        self.read()
        self.state.backend.close()
        rmtree(self.folder)


class ChangesOfWhatIsNotKnown(Changes):
    memory = NONE


class ChangesOfWhatIsKnownAtTimes(Changes):
    memory = 8 * 700


@pytest.mark.parametrize("machine", [Changes, ChangesOfWhatIsNotKnown, ChangesOfWhatIsKnownAtTimes])
def test_lists_and_maps_are_those_of_python_whatever_is_cut_and_taken_back(
    machine: type[Changes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40))
