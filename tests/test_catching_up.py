"""What has to be taken to get from one epoch's files to a later one's, and keyed state that does it."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Epoch, Generation, KeyGroup
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import KeyGroupRange
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshots.catching_up import Add, Replace, catching_up
from statebackend.snapshots.transfer import MissingFile
from statebackend.states.aggregates import AggregateTable
from statebackend.states.declarations import MapState, ValueState
from statebackend.stores.local_store import LocalStore
from statebackend.tables.table import Table
from statebackend.tables.values.aggregations import Sum
from statebackend.testing.keyed_state import Restless

MAX = 8
ALL = KeyGroupRange(KeyGroup(0), KeyGroup(MAX))


def groups(first: int, end: int) -> KeyGroupRange:
    return KeyGroupRange(KeyGroup(first), KeyGroup(end))


def file(number: int, kind: FileKind = FileKind.DELTA, part: KeyGroupRange = ALL, name: str = "") -> FileRef:
    return FileRef(f"shared/{kind.value}{number}{name}.sst", (part,), Epoch(Generation(1), number), kind, 1, "none:0")


def delta(number: int, part: KeyGroupRange = ALL) -> FileRef:
    return file(number, part=part)


def base(number: int, part: KeyGroupRange = ALL) -> FileRef:
    return file(number, FileKind.BASE, part)


BEFORE = FileSet(ALL, (delta(1), delta(2), delta(3)))


def test_new_deltas_are_taken_on_top() -> None:
    plan = catching_up(BEFORE, BEFORE.added(delta(4)).added(delta(5)))
    assert plan is not None
    assert plan.steps == (Add(delta(4)), Add(delta(5)))
    assert plan.is_news(delta(4))


def test_a_base_that_comes_late_takes_its_groups_and_what_is_younger_is_taken_once_more() -> None:
    part = groups(0, 3)
    after = BEFORE.consolidated(base(2, part)).added(delta(4))
    plan = catching_up(BEFORE, after)
    assert plan is not None
    assert plan.steps == (Replace((part,), base(2, part)), Add(delta(3)), Add(delta(4)))
    assert not plan.is_news(base(2, part))


def test_a_merge_of_what_is_there_is_not_taken() -> None:
    merged = file(2, name="merged")
    plan = catching_up(BEFORE, BEFORE.merged({delta(1).path, delta(2).path}, merged).added(delta(4)))
    assert plan is not None
    assert plan.steps == (Add(delta(4)),)


def test_groups_that_were_found_empty_are_cleared() -> None:
    part = groups(5, MAX)
    after = BEFORE.emptied((part,), Epoch(Generation(1), 3))
    plan = catching_up(BEFORE, after)
    assert plan is not None
    assert plan.steps == (Replace((part,)),)
    plan = catching_up(BEFORE, after.added(delta(4)))
    assert plan is not None
    assert plan.steps == (Replace((part,)), Add(delta(4)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEFORE, FileSet(ALL, (delta(1), delta(2)))),
        (FileSet(ALL), BEFORE),
        (BEFORE, FileSet(groups(0, 4), (delta(4, groups(0, 4)),))),
    ],
    ids=["back", "from nothing", "another range"],
)
def test_there_is_no_way_back_or_from_nothing_or_to_another_range(before: FileSet, after: FileSet) -> None:
    assert catching_up(before, after) is None


# --- keyed state

OPERATOR = Operator(
    "kept",
    int,
    {
        "value": ValueState(int, default=0),
        "map": MapState(int, int),
        "table": AggregateTable({"n": int}, total=Sum("n")),
    },
    MAX,
)
KEYS = range(40)


class Pair:
    """Who writes, and who follows."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "store")
        self._folder = folder
        self._paths = count()
        self.epoch = 0
        self.writer = self.opened("writer", None)
        self.change(range(40), 1)
        self.files = self.cut()
        self.follower = self.opened("follower", self.files)
        self.follower.load()

    def opened(self, name: str, files: FileSet | None) -> KeyedState:
        options = Options(backend="heap", policy=Restless())
        return KeyedState(OPERATOR, self._folder / "here" / name, self.store, self.name, files, options)

    def name(self) -> str:
        return f"shared/{next(self._paths)}.sst"

    def change(self, keys: range, number: int, *, remove: range = range(0), drop: bool = False) -> None:
        self.write(self.writer, keys, number, remove=remove, drop=drop)

    def write(
        self, state: KeyedState, keys: range, number: int, *, remove: range = range(0), drop: bool = False
    ) -> None:
        for key in keys:
            state.set_key(key)
            state["value"].set(number + key)
            state["map"].put(number, key)
        for key in remove:
            state.set_key(key)
            state["value"].clear()
            state["map"].clear()
        table = state["table"]
        if drop:
            table.drop(b"w")
        for namespace in (b"", b"w"):
            table.update(column(state, keys), {"n": pa.array([number] * len(keys), pa.int64())}, namespace)
            table.remove(column(state, remove), namespace)

    def cut(self) -> FileSet:
        self.epoch += 1
        epoch = Epoch(Generation(1), self.epoch)
        files = self.writer.snapshot(epoch)
        self.writer.completed(epoch)
        return files

    def close(self) -> None:
        self.writer.close()
        self.follower.close()


def column(state: KeyedState, keys: range) -> object:
    return state.keys(pa.array(list(keys), pa.int64()))


def content(state: KeyedState) -> list[object]:
    found: list[object] = []
    for key in KEYS:
        state.set_key(key)
        found.append((state["value"].get(), sorted(state["map"].items())))
    for namespace in (b"", b"w"):
        found.append(state["table"].read(column(state, KEYS), namespace).to_pylist())
        found.append(len(state["table"].keys_and_results(namespace).results))
    return found


CHANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10), st.integers(0, 30), st.integers(0, 10), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=8, deadline=None)
@given(changes=CHANGES, every=st.integers(1, 4))
def test_who_follows_has_what_a_restore_would_have_and_cuts_what_it_would_cut(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, int, int, bool]], every: int
) -> None:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    try:
        files = pair.files
        for number, (first, width, gone, few, drop) in enumerate(changes, 2):
            pair.change(range(first, first + width), number, remove=range(gone, gone + few), drop=drop)
            files = pair.cut()
            if number % every == 0:
                assert pair.follower.catch_up(files, pair.name)
        assert pair.follower.catch_up(files, pair.name)
        assert pair.follower.is_untouched
        with pair.opened("anew", files) as anew:
            assert content(pair.follower) == content(anew) == content(pair.writer)
        pair.write(pair.follower, range(5, 25), 99, remove=range(20, 30), drop=True)
        expected = content(pair.follower)
        cut = pair.follower.snapshot(Epoch(Generation(2), pair.epoch + 1))
        with pair.opened("after", cut) as after:
            assert content(after) == expected
    finally:
        pair.close()


def test_who_has_caught_up_has_its_table_in_memory_and_reads_no_block_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.change(range(10), 2)
    assert pair.follower.catch_up(pair.cut(), pair.name)
    before = pair.follower.statistics().memory_bytes
    assert len(pair.follower["table"]) == 2 * len(KEYS)
    content(pair.follower)
    assert pair.follower.statistics().memory_bytes >= before
    pair.close()


def test_windows_that_others_have_dropped_leave_memory(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    table, keys = pair.writer["table"], column(pair.writer, KEYS)
    for number in range(30):
        table.update(keys, {"n": pa.array(list(KEYS), pa.int64())}, b"window %d" % number)
        table.drop(b"window %d" % (number - 1))
        assert pair.follower.catch_up(pair.cut(), pair.name)
        pair.follower.load()
    with pair.opened("anew", pair.cut()) as anew:
        anew.load()
        memory = [cast("Table", state.contents.states["table"]).memory_bytes() for state in (pair.follower, anew)]
        assert memory[0] < 3 * memory[1]
    pair.close()


@settings(max_examples=8, deadline=None)
@given(caught_up=st.integers(0, 6), epochs=st.integers(0, 12), lost=st.integers(0, 3), number=st.integers(1, 9))
def test_who_has_taken_over_goes_back_to_its_own_cuts_and_to_what_it_has_caught_up_with(
    tmp_path_factory: pytest.TempPathFactory, caught_up: int, epochs: int, lost: int, number: int
) -> None:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    try:
        files, epoch = pair.files, Epoch(Generation(1), pair.epoch)
        for step in range(caught_up):
            pair.change(range(step, 30), step, remove=range(30, 33 + step), drop=step == 3)
            files, epoch = pair.cut(), Epoch(Generation(1), pair.epoch)
            assert pair.follower.catch_up(files, pair.name)
        state, newest = pair.follower, epoch.number
        with pair.opened("expected", files) as opened:
            expected = content(opened)
        for step in range(epochs):
            pair.write(state, range(step, 20), number + step, remove=range(10, 10 + step), drop=step % 4 == 1)
            newest += 1
            epoch = Epoch(Generation(2), newest)
            expected, files = content(state), state.snapshot(epoch)
            state.completed(epoch)
        for step in range(lost):
            newest += 1
            pair.write(state, range(35), 50, remove=range(5, 15), drop=step == 1)
            state.cut(Epoch(Generation(2), newest))
        pair.write(state, range(3, 9), 60, remove=range(20, 40), drop=True)
        assert state.rewind(epoch, files, pair.name)
        assert content(state) == expected
        pair.write(state, range(4), 70, remove=range(20, 23))
        expected, files = content(state), state.snapshot(Epoch(Generation(3), newest + 1))
        assert content(state) == expected
        with pair.opened("after", files) as after:
            assert content(after) == expected
    finally:
        pair.close()


def test_what_somebody_has_used_does_not_catch_up(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content(pair.follower)
    assert not pair.follower.is_untouched
    assert not pair.follower.catch_up(pair.files, pair.name)
    pair.close()


def test_a_file_that_is_gone_leaves_all_as_it_was_and_the_next_epoch_is_caught_up_with(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.change(range(10), 2)
    files = pair.cut()
    missing = next(one.path for one in files.files if one.path not in {old.path for old in pair.files.files})
    data = pair.store.read(missing)
    pair.store.delete(missing)
    before = pair.follower.restored
    with pytest.raises(MissingFile):
        pair.follower.catch_up(files, pair.name)
    assert pair.follower.restored == before
    pair.store.write(missing, data)
    pair.change(range(20), 3)
    assert pair.follower.catch_up(pair.cut(), pair.name)
    assert content(pair.follower) == content(pair.writer)
    pair.close()


def test_loading_stops_when_it_is_told_and_what_is_left_is_loaded_when_it_is_used(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.opened("other", pair.files) as other:
        other.load(lambda: False)
        assert len(cast("Table", other.contents.states["table"])) == 0
        assert content(other) == content(pair.writer)
    pair.close()


def test_what_a_cut_of_all_there_is_does_not_say_is_gone_from_memory_as_well(tmp_path: Path) -> None:
    operator = Operator("kept", int, {"table": AggregateTable({"n": int}, total=Sum("n"))}, MAX)
    store, paths = LocalStore(tmp_path / "store"), count()

    def opened(name: str, files: FileSet | None) -> KeyedState:
        return KeyedState(operator, tmp_path / name, store, lambda: f"shared/{next(paths)}.sst", files)

    def cut(state: KeyedState, number: int, keys: range) -> FileSet:
        state["table"].update(column(state, keys), {"n": pa.array([number] * len(keys), pa.int64())})
        epoch = Epoch(Generation(1), number)
        files = state.snapshot(epoch)
        state.completed(epoch)
        return files

    with opened("writer", None) as writer, opened("follower", cut(writer, 1, range(40))) as follower:
        follower.load()
        writer["table"].remove(column(writer, range(30, 40)))
        cut(writer, 2, range(3))
        files = cut(writer, 3, range(30))
        assert [file.kind for file in files.files] == [FileKind.BASE]
        assert follower.catch_up(files, lambda: "shared/mine.sst")
        follower.load()
        found = [state["table"].read(column(state, KEYS)) for state in (writer, follower)]
        assert found[0].equals(found[1])
