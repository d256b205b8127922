"""Going back in place: the state is what it was at the cut, and what follows builds on the files of that cut."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pytest

from statebackend import fail_points
from statebackend.backends.backend import LocalDiskFull
from statebackend.backends.heap_backend import HeapBackend
from statebackend.backends.overlay import Overlay
from statebackend.backends.row_store import Room, RowStore
from statebackend.files import FileSet, floors
from statebackend.ids import NO_EPOCH, Epoch, Generation
from statebackend.keyed_state import KeyedState
from statebackend.keys.columns import decode_keys, key_column
from statebackend.keys.types import KeyType
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.consolidation import Policy
from statebackend.snapshots.persister import EpochOrder
from statebackend.snapshots.uploads import Durable
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import Declaration, ListState, MapState, ValueState
from statebackend.states.key_context import NoKey
from statebackend.states.timer_state import Timers
from statebackend.states.ttl import Ttl
from statebackend.tables.memory.before_images import BeforeImages
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Count, Max, Sum
from statebackend.tables.values.spec import TableSpec
from statebackend.testing.faulty_store import FaultyStore
from statebackend.testing.keyed_state import Restless

STATES: Final[Mapping[str, Declaration[Any]]] = {
    "count": ValueState(int, default=0),
    "words": ListState(str),
    "shelf": MapState(str, int),
    "fading": ValueState(str, ttl=Ttl("10ms")),
    "alarms": Timers("event"),
    "table": AggregateTable({"number": int}, rows=Count(), total=Sum("number")),
}
OPERATOR: Final = Operator("shop", str, STATES, max_parallelism=8)
SUMS: Final = Operator("sums", str, {"table": AggregateTable({"number": int}, total=Sum("number"), most=Max("number"))})
KEYS: Final = [f"key-{number}" for number in range(100)]
BACKENDS: Final = pytest.mark.parametrize("backend", ["heap", "rocksdb"])

Kind = Literal["heap", "rocksdb"]


class Place:
    """A store, and folders for states; names say for which attempt they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FaultyStore(token_hex(8))
        self._numbers = count()
        self._open: list[KeyedState] = []

    def opened(
        self,
        files: FileSet | None = None,
        backend: Kind = "heap",
        operator: Operator = OPERATOR,
        memory: int = 256 << 20,
        policy: Policy | None = None,
    ) -> KeyedState:
        folder = self.folder / str(len(self._open))
        options = Options(backend=backend, memory=memory, policy=policy or Policy())
        self._open.append(KeyedState(operator, folder, self.store, lambda: self.name("first"), files, options))
        return self._open[-1]

    def name(self, attempt: str) -> str:
        return f"shared/{attempt}-{next(self._numbers)}.sst"

    def again(self) -> str:
        return self.name("again")

    def links(self, state: int = 0) -> int:
        """How many files are linked locally."""
        return sum(1 for _ in (self.folder / str(state) / "links").iterdir())

    def close(self) -> None:
        self.store.go_on()
        for state in self._open:
            state.close()
        self.store.clear()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def epoch(number: int) -> Epoch:
    return Epoch(Generation(1), number)


def snapshot(state: KeyedState, number: int) -> FileSet:
    files = state.snapshot(epoch(number))
    state.completed(epoch(number))
    return files


def table_of(state: KeyedState) -> Table:
    table = state["table"]
    assert isinstance(table, Table)
    return table


def add(state: KeyedState, keys: Sequence[str], number: int, namespace: bytes = b"") -> None:
    column = state.keys(pa.array(keys, state.key_type.arrow))
    table_of(state).update(column, {"number": pa.array([number] * len(keys), pa.int64())}, namespace)


def remove(state: KeyedState, keys: Sequence[str]) -> None:
    table_of(state).remove(state.keys(pa.array(keys, state.key_type.arrow)))


def totals(state: KeyedState, namespace: bytes = b"") -> dict[str, int]:
    found = table_of(state).keys_and_results(namespace)
    return dict(
        zip(decode_keys(found.keys, state.key_type).to_pylist(), found.results.column("total").to_pylist(), strict=True)
    )


def write(state: KeyedState, key: str, number: int) -> None:
    """Into every state that is used row by row."""
    state.set_key(key)
    state["count"].set(number)
    state["words"].add(str(number))
    state["shelf"].put(str(number), number)
    state["fading"].set(str(number))
    state["alarms"].register(number)


def read(state: KeyedState, key: str) -> tuple[object, ...]:
    state.set_key(key)
    return (
        state["count"].get(),
        state["words"].get(),
        list(state["shelf"].items()),
        state["fading"].get(),
        state["alarms"].next_time(),
    )


# --- rows -------------------------------------------------------------------------------------------------------------


@BACKENDS
def test_rows_of_all_kinds_are_again_what_they_were_at_the_cut(place: Place, backend: Kind) -> None:
    state = place.opened(backend=backend)
    write(state, "a", 1)
    write(state, "b", 2)
    files = snapshot(state, 1)
    before = read(state, "a"), read(state, "b"), read(state, "c")
    write(state, "a", 3)
    state.cut(epoch(2))
    write(state, "c", -1)
    state.set_key("b")
    for name in ("count", "words", "shelf"):
        state[name].clear()
    assert state.rewind(epoch(1), files, place.again)
    assert (read(state, "a"), read(state, "b"), read(state, "c")) == before


@BACKENDS
def test_what_is_cut_after_a_rewind_is_what_changes_from_then_on_on_top_of_its_files(
    place: Place, backend: Kind
) -> None:
    state = place.opened(backend=backend)
    write(state, "a", 1)
    files = snapshot(state, 1)
    write(state, "lost", 2)
    write(state, "a", 2)
    add(state, ["lost"], 2)
    snapshot_of_lost = state.snapshot(epoch(2))
    assert state.rewind(epoch(1), files, place.again)
    write(state, "b", 3)
    after = snapshot(state, 3)
    added = [file for file in after.files if file not in files.files]
    assert set(files.files) <= set(after.files)
    assert [file.path.split("-")[0] for file in added] == ["shared/again"]
    assert not {file.path for file in snapshot_of_lost.files} & {file.path for file in added}
    other = place.opened(after, backend)
    assert [read(other, key)[:4] for key in ("a", "b", "lost")] == [
        (1, ["1"], [("1", 1)], "1"),
        (3, ["3"], [("3", 3)], "3"),
        (0, [], [], None),
    ]
    assert totals(other) == {}


def test_of_many_values_that_are_kept_in_memory_the_few_that_were_written_are_as_they_were(place: Place) -> None:
    state = place.opened()
    for number, key in enumerate(KEYS):
        state.set_key(key)
        state["count"].set(number)
    files = snapshot(state, 1)
    for key in KEYS[:5]:
        state.set_key(key)
        state["count"].set(-1)
    state.cut(epoch(2))
    state.set_key(KEYS[7])
    state["count"].clear()
    assert state.rewind(epoch(1), files, place.again)
    for number, key in enumerate(KEYS):
        state.set_key(key)
        assert state["count"].get() == number


def test_values_that_went_into_rows_after_the_cut_hide_none_that_were_frozen_before(place: Place) -> None:
    state = place.opened()
    write(state, "a", 1)
    state.cut(epoch(1))
    files = {news.epoch: news.files for news in heard(state)}
    state.set_key("a")
    state["count"].set(2)
    state["count"].spill()
    assert read(state, "a")[0] == 2
    assert state.rewind(epoch(1), files[epoch(1)], place.again)
    assert read(state, "a")[0] == 1


def test_rows_that_went_to_the_disk_after_the_cut_are_gone(place: Place) -> None:
    state = place.opened(backend="rocksdb", memory=1 << 20)
    write(state, "a", 1)
    files = snapshot(state, 1)
    state.set_key("a")
    state["words"].extend([str(number) * 50 for number in range(3000)])
    assert state.rewind(epoch(1), files, place.again)
    assert read(state, "a")[1] == ["1"]


def heard(state: KeyedState) -> list[Durable]:
    news = state.poll(timeout=30)
    while not any(isinstance(one, Durable) for one in news):
        news += state.poll(timeout=30)
    return [one for one in news if isinstance(one, Durable)]


def test_rows_of_layers_that_are_dropped_or_released_leave_the_disk(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path / "overlay", 0)
    backend = HeapBackend(tmp_path / "heap", floors(FileSet(OPERATOR.all_groups)))
    rows = RowStore(backend, Room(1 << 10, overlay))
    try:
        gone = []
        for layer in range(3):
            for number in range(1000):
                rows.put(b"row %d of %d" % (number, layer), b"")
            if layer < 2:
                gone.append(rows.freeze())
        rows.release(gone[0])
        gone.append(rows.rewind(gone[1:]))
        for frozen in gone:
            on_disk = frozen.on_disk(b"", b"\xff")
            assert on_disk is not None
            assert list(on_disk) == []
    finally:
        overlay.close()
        backend.close()


def test_a_timer_that_fired_after_the_cut_fires_again_and_one_that_was_registered_does_not(place: Place) -> None:
    state = place.opened()
    state.set_key("a")
    state["alarms"].register(5)
    files = snapshot(state, 1)
    state.advance(watermark=5)
    assert [fired.time for fired in state["alarms"].due()] == [5]
    state.set_key("b")
    state["alarms"].register(3)
    assert state.rewind(epoch(1), files, place.again)
    assert list(state["alarms"].due()) == []
    state.advance(watermark=9)
    assert [(fired.key, fired.time) for fired in state["alarms"].due()] == [("a", 5)]


def test_no_key_is_set_after_a_rewind_and_time_has_not_begun(place: Place) -> None:
    state = place.opened()
    files = snapshot(state, 1)
    state.advance(watermark=7, processing_time=50)
    state.set_namespace(b"window")
    state.set_key("a")
    assert state.rewind(epoch(1), files, place.again)
    with pytest.raises(NoKey):
        state["count"].get()
    state.set_key("a")
    state["fading"].set("now")
    state.advance(processing_time=9)
    assert state["fading"].get() == "now"
    state.advance(processing_time=10)
    assert state["fading"].get() is None


# --- tables -----------------------------------------------------------------------------------------------------------


@BACKENDS
def test_keys_of_a_table_that_were_changed_added_or_removed_are_as_they_were(place: Place, backend: Kind) -> None:
    state = place.opened(backend=backend, operator=SUMS)
    add(state, KEYS, 1)
    files = snapshot(state, 1)
    add(state, KEYS[:30], 5)
    state.cut(epoch(2))
    remove(state, KEYS[20:40])
    add(state, ["new", *KEYS[25:30]], 9)
    state.cut(epoch(3))
    add(state, KEYS[:50], 7)
    remove(state, ["new", *KEYS[:5]])
    assert state.rewind(epoch(1), files, place.again)
    assert totals(state) == dict.fromkeys(KEYS, 1)
    remove(state, KEYS[1:])
    add(state, ["later"], 4)
    assert totals(place.opened(snapshot(state, 4), backend, SUMS)) == {KEYS[0]: 1, "later": 4}


def test_a_table_goes_back_to_the_cut_that_is_asked_for_and_not_further(place: Place) -> None:
    state = place.opened(operator=SUMS)
    add(state, KEYS, 1)
    snapshot(state, 1)
    add(state, KEYS[:3], 1)
    files = state.snapshot(epoch(2))
    add(state, [*KEYS[:3], "new"], 1)
    state.snapshot(epoch(3))
    assert state.rewind(epoch(2), files, place.again)
    assert totals(state) == {**dict.fromkeys(KEYS, 1), **dict.fromkeys(KEYS[:3], 2)}


def test_a_namespace_that_was_dropped_comes_back_and_what_was_put_into_it_since_does_not(place: Place) -> None:
    state = place.opened(operator=SUMS)
    add(state, KEYS[:5], 1, b"window")
    files = snapshot(state, 1)
    table_of(state).drop(b"window")
    state.cut(epoch(2))
    add(state, KEYS[3:9], 2, b"window")
    add(state, KEYS[3:9], 2, b"other")
    state.cut(epoch(3))
    table_of(state).drop(b"window")
    assert state.rewind(epoch(1), files, place.again)
    assert totals(state, b"window") == dict.fromkeys(KEYS[:5], 1)
    assert table_of(state).namespaces() == (b"window",)
    add(state, KEYS[:1], 1, b"window")
    assert totals(place.opened(snapshot(state, 4), operator=SUMS), b"window") == {
        **dict.fromkeys(KEYS[:5], 1),
        KEYS[0]: 2,
    }


def test_keys_that_are_loaded_from_files_after_the_cut_stay(place: Place) -> None:
    first = place.opened(operator=SUMS)
    add(first, KEYS, 1)
    files = snapshot(first, 1)
    state = place.opened(files, operator=SUMS)
    add(state, KEYS[:1], 1)
    later = snapshot(state, 2)
    remove(state, KEYS[:50])
    state.cut(epoch(3))
    assert totals(state) == dict.fromkeys(KEYS[50:], 1)
    assert state.rewind(epoch(2), later, place.again)
    assert totals(state) == {**dict.fromkeys(KEYS, 1), KEYS[0]: 2}


def test_where_all_keys_change_in_each_epoch_all_are_put_back(place: Place) -> None:
    state = place.opened(operator=SUMS)
    for number in range(1, 4):
        add(state, KEYS, number)
        files = state.snapshot(epoch(number))
    remove(state, KEYS[:10])
    add(state, [*KEYS[5:], "new"], 100)
    assert state.rewind(epoch(3), files, place.again)
    assert totals(state) == dict.fromkeys(KEYS, 6)
    add(state, KEYS[:10], 1)
    assert state.rewind(epoch(3), files, place.again)
    assert totals(state) == dict.fromkeys(KEYS, 6)


@pytest.mark.parametrize("changed", [3, len(KEYS)])
def test_what_all_was_copied_for_a_cut_is_put_back_from_that_copy_be_it_of_few_keys_or_of_all(
    place: Place, changed: int
) -> None:
    state = place.opened(operator=replace(SUMS, max_parallelism=8))
    assert totals(state) == {}  # and no key group is left to be loaded
    for number in (1, 2):
        add(state, KEYS, number)
        files = snapshot(state, number)
    noted = state.statistics().memory_bytes
    add(state, [*KEYS[:changed], "new"], 100)
    assert state.statistics().memory_bytes - noted < 16 * (changed + 1) + 1000  # slots alone, and a key
    state.cut(epoch(3))
    add(state, [*KEYS[:changed], "newer"], 100)
    remove(state, [*KEYS[:2], "new"])
    assert state.rewind(epoch(2), files, place.again)
    assert totals(state) == dict.fromkeys(KEYS, 3)
    add(state, ["new", KEYS[0]], 1)
    again = place.opened(snapshot(state, 4), operator=replace(SUMS, max_parallelism=8))
    assert totals(again) == {**dict.fromkeys(KEYS, 3), KEYS[0]: 4, "new": 1}


@pytest.mark.parametrize("together", [1, 1000])
def test_notes_say_how_much_memory_they_occupy_also_if_each_is_of_one_key(together: int) -> None:
    columns = {"count": np.zeros(8000, dtype=np.int64), "total": np.zeros(8000, dtype=np.int64)}
    tracemalloc.start()
    images = BeforeImages(0)
    for first in range(0, 8000, together):
        slots = np.arange(first, first + together)
        images.changing(slots, columns)
        images.born(slots.copy())
        images.died(slots.copy(), columns)
    occupied, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert occupied / 1.5 < images.nbytes < occupied * 1.5


def test_a_namespace_whose_keys_were_all_removed_stays_as_long_as_they_may_come_back(place: Place) -> None:
    state = place.opened(operator=SUMS)
    add(state, KEYS, 1)
    files = snapshot(state, 1)
    memory = state.statistics().memory_bytes
    remove(state, KEYS)
    add(state, KEYS[:1], 1, b"window")
    state.cut(epoch(2))
    assert state.rewind(epoch(1), files, place.again)
    assert totals(state) == dict.fromkeys(KEYS, 1)
    remove(state, KEYS)
    snapshot(state, 3)
    snapshot(state, 4)
    assert table_of(state).memory_bytes() == 0 < memory


def test_a_state_goes_back_to_what_it_was_opened_with_whatever_number_that_epoch_has(place: Place) -> None:
    first = place.opened()
    add(first, KEYS, 1)
    write(first, "a", 1)
    files = snapshot(first, 1)
    assert first.snapshot(epoch(2)) == files
    state = place.opened(files)
    add(state, KEYS, 1)
    write(state, "a", 2)
    state.cut(epoch(3))
    assert state.rewind(epoch(2), files, place.again)
    assert totals(state) == dict.fromkeys(KEYS, 1)
    assert read(state, "a")[0] == 1


def test_an_empty_state_goes_back_to_being_empty(place: Place) -> None:
    state = place.opened()
    add(state, KEYS, 1)
    write(state, "a", 1)
    state.cut(epoch(1))
    assert state.rewind(NO_EPOCH, FileSet(OPERATOR.all_groups), place.again)
    assert totals(state) == {}
    assert read(state, "a") == (0, [], [], None, None)
    assert snapshot(state, 2).files == ()


def test_an_epoch_without_changes_after_a_rewind_adds_no_file(place: Place) -> None:
    state = place.opened()
    add(state, KEYS, 1)
    files = snapshot(state, 1)
    remove(state, KEYS[:50])
    add(state, ["new"], 1)
    write(state, "a", 1)
    assert state.rewind(epoch(1), files, place.again)
    assert snapshot(state, 2) == files


# --- background -------------------------------------------------------------------------------------------------------


def test_a_rewind_does_not_wait_for_a_store_that_hangs_and_hears_nothing_of_what_it_gave_up(place: Place) -> None:
    state = place.opened()
    write(state, "a", 1)
    files = snapshot(state, 1)
    place.store.stall()
    write(state, "a", 2)
    state.cut(epoch(2))
    assert state.rewind(epoch(1), files, place.again)
    place.store.go_on()
    write(state, "b", 3)
    state.cut(epoch(3))
    assert [news.epoch for news in heard(state)] == [epoch(3)]


def test_no_base_is_made_of_a_backend_that_lacks_what_was_gone_back_to(place: Place) -> None:
    operator = replace(SUMS, max_parallelism=8)
    state = place.opened(operator=operator, policy=Restless())
    keys = [token_hex(200) for _ in range(200)]  # so many bytes that files are rewritten
    add(state, keys, 1)
    snapshot(state, 1)
    while state.statistics().background.epochs_pending:
        state.poll(timeout=30)

    def full() -> None:
        raise LocalDiskFull("there is no room")

    with fail_points.at(fail_points.BEFORE_INGEST, full):
        remove(state, keys[:50])
        snapshot(state, 2)
        add(state, keys[50:], 1)
        files = snapshot(state, 3)
        assert state.rewind(epoch(3), files, place.again)
        for number in range(4, 10):
            add(state, keys[50:150], 1)
            files = snapshot(state, number)
    assert totals(place.opened(files, operator=operator)) == totals(state)
    for number in range(10, 20):
        add(state, keys[50:150], 1)
        files = snapshot(state, number)
    assert state.statistics().background.bases
    assert totals(place.opened(files, operator=operator)) == totals(state)


def test_no_link_stays_to_a_file_that_nobody_refers_to(place: Place) -> None:
    state = place.opened()
    write(state, "a", 1)
    files = snapshot(state, 1)
    for number in range(2, 6):
        write(state, "a", number)
        state.snapshot(epoch(number))
    write(state, "a", 6)
    state.cut(epoch(6))
    assert place.links() > len(files.files)
    assert state.rewind(epoch(1), files, place.again)
    write(state, "b", 1)
    after = snapshot(state, 7)
    assert state.snapshot(epoch(8)) == after  # the thread for the disk has done what came before
    assert place.links() == len(after.files)


def test_going_back_to_an_epoch_completes_it(place: Place) -> None:
    state = place.opened()
    write(state, "a", 1)
    files = state.snapshot(epoch(1))
    assert state.statistics().background.epochs_pending == 1
    assert state.rewind(epoch(1), files, place.again)
    while state.statistics().background.epochs_pending:
        state.poll(timeout=30)
    assert read(state, "a")[0] == 1


def test_numbers_of_epochs_that_were_given_up_are_not_used_again(place: Place) -> None:
    state = place.opened()
    files = snapshot(state, 1)
    state.cut(epoch(2))
    assert state.rewind(epoch(1), files, place.again)
    with pytest.raises(EpochOrder):
        state.cut(epoch(2))
    state.cut(epoch(3))


# --- when it cannot ---------------------------------------------------------------------------------------------------


def test_a_state_says_that_it_cannot_go_back_behind_a_complete_epoch(place: Place) -> None:
    state = place.opened()
    write(state, "a", 1)
    files = snapshot(state, 1)
    write(state, "a", 2)
    snapshot(state, 2)
    assert not state.rewind(epoch(1), files, place.again)


def test_a_state_says_that_it_cannot_be_what_others_have_written(place: Place) -> None:
    one, other = place.opened(), place.opened()
    write(one, "a", 1)
    write(other, "a", 1)
    snapshot(one, 1)
    assert not one.rewind(epoch(1), snapshot(other, 1), place.again)


def test_a_state_says_that_it_does_not_know_an_epoch_that_it_did_not_report(place: Place) -> None:
    state = place.opened()
    files = snapshot(state, 1)
    state.cut(epoch(2))
    assert not state.rewind(epoch(2), files, place.again)


def test_a_state_says_that_it_cannot_go_back_behind_what_its_backend_took_early_and_is_done_with(place: Place) -> None:
    state = place.opened(memory=1 << 16)
    write(state, "a", 1)
    files = snapshot(state, 1)
    for number, key in enumerate(KEYS):
        state.set_key(key)
        state["count"].set(number)
    state.snapshot(epoch(2))
    while state.statistics().background.epochs_pending:
        state.poll(timeout=30)
    assert not state.rewind(epoch(1), files, place.again)


def test_a_table_whose_keys_went_to_the_disk_since_the_cut_says_that_it_cannot_go_back(place: Place) -> None:
    state = place.opened(operator=SUMS, memory=1 << 19)
    add(state, KEYS, 1)
    files = snapshot(state, 1)
    for first in range(0, 20_000, 1000):
        add(state, [f"more-{number}" for number in range(first, first + 1000)], 1)
    assert len(table_of(state)) < 20_000
    assert not state.rewind(epoch(1), files, place.again)


def test_a_table_whose_keys_leave_memory_forgets_how_to_go_back_whoever_bounds_it(tmp_path: Path) -> None:
    spec = TableSpec("few", {"rows": Count()})
    key_type = KeyType.of(str)
    table = Table(
        spec,
        key_type,
        SUMS.all_groups,
        SUMS.max_parallelism,
        RowStore(HeapBackend(tmp_path / "heap", floors(FileSet(SUMS.all_groups)))),
        4,
    )
    table.update(key_column(pa.array(KEYS[:8]), key_type), {})
    table.freeze(1)
    table.read(key_column(pa.array(KEYS[:1]), key_type))
    assert len(table) < 8
    assert not table.rewind(1)


def test_a_table_goes_back_to_a_cut_that_was_made_after_keys_went_to_the_disk(place: Place) -> None:
    state = place.opened(operator=SUMS, memory=32 << 20)
    many = [f"more-{number}" for number in range(20_000)]
    for first in range(0, len(many), 1000):
        add(state, many[first : first + 1000], 1)
    assert len(table_of(state)) < len(many)
    files = snapshot(state, 1)
    add(state, many[-50:], 1)
    assert state.rewind(epoch(1), files, place.again)
    assert totals(state) == dict.fromkeys(many, 1)
