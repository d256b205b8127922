"""Keyed state as a whole: the conformance kit on both backends, bad input, faults and a full disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import Any, Final, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statebackend.backends.backend import DamagedFile, LocalDiskFull
from statebackend.backends.sst import Entry, read_sst
from statebackend.entries import parse_head, state_id
from statebackend.files import FileKind, FileRef, FileSet, rescaled
from statebackend.ids import Attempt, Epoch, Generation, Partition
from statebackend.keyed_state import KeyedState, SnapshotFailed
from statebackend.keygroups import key_group_of, range_of
from statebackend.keys.types import KeyType, WrongKeyType
from statebackend.local_folder import FolderInUse
from statebackend.operator import Operator
from statebackend.options import Options
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots import state_files
from statebackend.snapshots.transfer import MissingFile
from statebackend.snapshots.uploads import Durable, NotDurable
from statebackend.states.aggregates import AggregateTable
from statebackend.states.codecs import Pickled
from statebackend.states.declarations import Declaration, ListState, MapState, ValueState
from statebackend.states.key_context import ForeignKey
from statebackend.states.schema import StateMismatch
from statebackend.states.ttl import Ttl
from statebackend.tables.values.aggregations import Count, Sum
from statebackend.testing.faulty_store import Fault, FaultyStore
from statebackend.testing.keyed_state import Restless, check_keyed_state

STATES: Final[Mapping[str, Declaration[Any]]] = {
    "count": ValueState(int, default=0),
    "words": ListState(str),
    "fading": ValueState(str, ttl=Ttl("10ms")),
    "table": AggregateTable({"number": int}, rows=Count(), total=Sum("number")),
}
OPERATOR: Final = Operator("shop", str, STATES, max_parallelism=8)
HEAP: Final = Options(backend="heap")


@pytest.fixture(autouse=True)
def _scratch_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit opens hundreds of databases; where there is a disk in memory, they need not be flushed."""
    if Path("/dev/shm").is_dir():
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    made = FaultyStore(token_hex(8))
    yield made
    made.clear()


class Opening:
    """Opens state in a folder of its own, with the same store and names for all."""

    def __init__(self, folder: Path, store: FaultyStore) -> None:
        self.folder = folder
        self.store = store
        self._numbers = count()
        self._open: list[KeyedState] = []

    def __call__(
        self,
        files: FileSet | None = None,
        options: Options = HEAP,
        operator: Operator = OPERATOR,
        folder: str = "local",
    ) -> KeyedState:
        state = KeyedState(operator, self.folder / folder, self.store, self._name, files, options)
        self._open.append(state)
        return state

    def _name(self) -> str:
        return f"shared/{next(self._numbers)}.sst"

    def close(self) -> None:
        self.store.go_on()
        for state in self._open:
            state.close()


@pytest.fixture
def opening(tmp_path: Path, store: FaultyStore) -> Iterator[Opening]:
    made = Opening(tmp_path, store)
    yield made
    made.close()


def epoch(number: int, generation: int = 1) -> Epoch:
    return Epoch(Generation(generation), number)


def set_count(state: KeyedState, key: str, value: int) -> None:
    state.set_key(key)
    state["count"].set(value)


def count_of(state: KeyedState, key: str) -> object:
    state.set_key(key)
    return state["count"].get()


def snapshot(state: KeyedState, number: int) -> FileSet:
    files = state.snapshot(epoch(number))
    state.completed(epoch(number))
    return files


# --- the kit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", [("rocksdb",), ("heap",), ("rocksdb", "heap")], ids="-".join)
def test_keyed_state_is_what_dictionaries_say(
    backends: tuple[Literal["rocksdb", "heap"], ...], search_factor: int
) -> None:
    how_far = settings(max_examples=4 * search_factor, stateful_step_count=15, suppress_health_check=list(HealthCheck))
    check_keyed_state(*(Options(backend=backend) for backend in backends), how_far=how_far)


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_each_of_many_small_epochs_restores_while_files_are_rewritten_all_the_time(
    opening: Opening, backend: Literal["rocksdb", "heap"]
) -> None:
    options = Options(backend=backend, policy=Restless())
    state = opening(options=options)
    users = [f"user-{number}" for number in range(200)]
    rows: dict[str, int] = {}
    sets: dict[int, tuple[FileSet, dict[str, int]]] = {}
    for number in range(1, 61):
        some = users[number * 37 % 160 :][:40] if number > 1 else users
        gone = users[number * 53 % 190 :][:10]
        state["table"].update(state.keys(pa.array(some)), {"number": pa.array([1] * len(some))})
        state["table"].remove(state.keys(pa.array(gone)))
        rows = {user: rows.get(user, 0) + (user in some) for user in {*rows, *some} - {*gone}}
        for user in some:
            set_count(state, user, rows.get(user, 0))
        for user in gone:
            state.set_key(user)
            state["count"].clear()
        sets[number] = snapshot(state, number), rows
    done = state.statistics().background
    assert done.bases > 5
    assert done.merges > 2
    assert done.trouble is None
    for number in range(20, 61):
        files, expected = sets[number]
        restored = opening(files, options, folder="elsewhere")
        found = restored["table"].read(restored.keys(pa.array(users))).column("rows").to_pylist()
        assert found == [expected.get(user) for user in users], number
        assert [count_of(restored, user) for user in users] == [expected.get(user, 0) for user in users], number
        restored.close()


# --- declared otherwise -----------------------------------------------------------------------------------------------


def changed(**states: Declaration[Any]) -> Operator:
    return replace(OPERATOR, states={**STATES, **states})


def without_state(name: str) -> Operator:
    return replace(OPERATOR, states={known: declared for known, declared in STATES.items() if known != name})


@pytest.mark.parametrize(
    ("operator", "state", "reason"),
    [
        (changed(count=ListState(int)), "count", "kind"),
        (changed(count=ValueState(Pickled[int](), default=0)), "count", "codec"),
        (changed(count=ValueState(str)), "count", "codec"),
        (changed(fading=ValueState(str)), "fading", "time"),
        (changed(table=AggregateTable(rows=Count())), "table", "detail"),
        (changed(words=MapState(int, str)), "words", "kind"),
        (without_state("words"), "words", "declared no longer"),
        (replace(OPERATOR, key=int), None, "key type"),
        (replace(OPERATOR, max_parallelism=8, uid="other"), None, "uid"),
    ],
)
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_state_that_is_declared_otherwise_is_refused_by_name(
    opening: Opening, operator: Operator, state: str | None, reason: str, backend: Literal["rocksdb", "heap"]
) -> None:
    options = Options(backend=backend)
    before = opening(options=options)
    set_count(before, "a", 1)
    files = snapshot(before, 1)
    before.close()
    with pytest.raises(StateMismatch, match=reason) as refused:
        opening(files, options, operator)
    assert (refused.value.uid, refused.value.state) == (operator.uid, state)
    assert count_of(opening(files, options), "a") == 1


@given(users=st.lists(st.text(max_size=3) | st.none(), max_size=20), parallelism=st.integers(1, 16))
def test_each_key_goes_to_the_partition_that_has_its_key_group(users: list[str | None], parallelism: int) -> None:
    operator = Operator("visits", key=str, states={}, max_parallelism=16)
    owners = operator.owners_of(pa.array(users, pa.string()), parallelism)
    assert owners.type == pa.int32()
    for user, owner in zip(users, owners.to_pylist(), strict=True):
        group = key_group_of(KeyType.of(str).hash(user), 16)
        assert group in operator.groups_of(owner, parallelism)


def test_another_maximum_parallelism_is_refused(opening: Opening) -> None:
    before = opening()
    set_count(before, "a", 1)
    files = snapshot(before, 1)
    with pytest.raises(StateMismatch, match="maximum parallelism was 8"):
        opening(files, operator=replace(OPERATOR, max_parallelism=16), folder="other")


def test_a_state_is_dropped_or_renamed_if_one_says_so(opening: Opening) -> None:
    before = opening()
    set_count(before, "a", 1)
    before["words"].add("word")
    files = snapshot(before, 1)
    dropping = Options(backend="heap", allow_dropped=frozenset({"words"}))
    dropped = opening(files, dropping, without_state("words"), folder="dropped")
    assert count_of(dropped, "a") == 1
    states = {name: declared for name, declared in STATES.items() if name != "words"} | {"said": STATES["words"]}
    renaming = Options(backend="heap", renamed={"words": "said"})
    renamed = opening(files, renaming, replace(OPERATOR, states=states), folder="renamed")
    renamed.set_key("a")
    assert renamed["said"].get() == ["word"]


# --- keys and folders -------------------------------------------------------------------------------------------------


def test_a_key_of_the_wrong_type_is_refused(opening: Opening) -> None:
    state = opening()
    for key in (1, b"a", True, 1.0):
        with pytest.raises(WrongKeyType):
            state.set_key(key)
    with pytest.raises(WrongKeyType):
        state.keys(pa.array([1]))


@pytest.mark.parametrize("name", ["count", "words", "fading"])
def test_a_key_of_another_partition_is_refused(tmp_path: Path, store: FaultyStore, name: str) -> None:
    groups = range_of(Partition(0), 8, 8)
    with KeyedState(OPERATOR, tmp_path, store, str, groups=groups, options=HEAP) as state:
        refused = 0
        for number in range(50):
            state.set_key(f"key-{number}")
            try:
                state[name].get()
            except ForeignKey:
                refused += 1
        assert 25 < refused < 50


def test_a_folder_is_used_by_one_state_at_a_time(opening: Opening) -> None:
    first = opening()
    with pytest.raises(FolderInUse, match="in use"):
        opening()
    set_count(first, "a", 1)
    first.close()
    assert count_of(opening(), "a") == 0


def test_scratch_of_a_process_that_was_killed_is_removed(opening: Opening, tmp_path: Path) -> None:
    remains = tmp_path / "local" / "work-0123" / "backend"
    remains.mkdir(parents=True)
    (remains / "file").write_bytes(b"remains")
    opening()
    assert not remains.parent.exists()


# --- damaged files ----------------------------------------------------------------------------------------------------


def flipped(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-7], flipped, lambda data: b"", lambda data: b"foreign" * 300],
    ids=["truncated", "flipped", "empty", "foreign"],
)
def test_a_damaged_file_is_named(
    opening: Opening, damage: Callable[[bytes], bytes], backend: Literal["rocksdb", "heap"]
) -> None:
    files = two_epochs(opening)
    bad = files.files[0]
    sound = opening.store.read(bad.path)
    opening.store.write(bad.path, damage(sound))
    with pytest.raises(DamagedFile) as damaged:
        opening(files, Options(backend=backend), folder="elsewhere")
    assert bad.path in str(damaged.value)
    assert str(bad.epoch) in str(damaged.value)
    opening.store.write(bad.path, sound)
    assert count_of(opening(files, Options(backend=backend), folder="elsewhere"), "a") == 1


def test_a_missing_file_is_named(opening: Opening) -> None:
    files = two_epochs(opening)
    opening.store.delete(files.files[1].path)
    with pytest.raises(MissingFile, match=rf"{files.files[1].path} .*epoch 2-1"):
        opening(files, folder="elsewhere")


def test_a_local_link_of_another_size_is_downloaded_again(opening: Opening, tmp_path: Path) -> None:
    files = two_epochs(opening)
    links = sorted((tmp_path / "local" / "links").iterdir())
    assert len(links) == 2
    links[0].write_bytes(links[0].read_bytes()[:-1])
    restored = opening(files)
    assert (count_of(restored, "a"), count_of(restored, "b")) == (1, 2)
    report = restored.statistics().restored
    assert (report.linked_files, report.downloaded_files) == (1, 1)


def test_a_local_link_that_is_gone_is_downloaded_again(opening: Opening, tmp_path: Path) -> None:
    files = two_epochs(opening)
    for link in (tmp_path / "local" / "links").iterdir():
        link.unlink()
    restored = opening(files)
    assert (count_of(restored, "a"), count_of(restored, "b")) == (1, 2)
    assert restored.statistics().restored.downloaded_files == 2


def two_epochs(opening: Opening) -> FileSet:
    state = opening()
    set_count(state, "a", 1)
    snapshot(state, 1)
    set_count(state, "b", 2)
    files = snapshot(state, 2)
    state.close()
    return files


# --- a store that is late or fails ------------------------------------------------------------------------------------


def heard(state: KeyedState, number: int) -> list[Durable | NotDurable]:
    """So many answers."""
    answers: list[Durable | NotDurable] = []
    while len(answers) < number:
        answers += state.poll(timeout=1.0)
    return answers


def test_work_and_cuts_go_on_while_the_store_does_not_answer(opening: Opening) -> None:
    state = opening()
    opening.store.stall()
    for number in range(1, 6):
        set_count(state, "a", number)
        state.cut(epoch(number))
        assert count_of(state, "a") == number
    assert state.poll() == []
    opening.store.go_on()
    answers = heard(state, 5)
    assert [answer.epoch for answer in answers] == [epoch(number) for number in range(1, 6)]
    for number, answer in enumerate(answers, start=1):
        assert isinstance(answer, Durable)
        restored = opening(answer.files, folder="elsewhere")
        assert count_of(restored, "a") == number
        restored.close()


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
def test_what_an_abandoned_epoch_changed_goes_with_the_next(opening: Opening, fault: Fault) -> None:
    state = opening()
    set_count(state, "a", 1)
    snapshot(state, 1)
    opening.store.fault = fault
    set_count(state, "a", 2)
    set_count(state, "b", 2)
    state.cut(epoch(2))
    (answer,) = heard(state, 1)
    assert isinstance(answer, NotDurable)
    assert "as it should be" in answer.reason
    opening.store.fault = Fault.NONE
    set_count(state, "a", 3)
    files = state.snapshot(epoch(3))
    restored = opening(files, folder="elsewhere")
    assert (count_of(restored, "a"), count_of(restored, "b")) == (3, 2)


def test_a_snapshot_says_why_it_failed(opening: Opening) -> None:
    state = opening()
    set_count(state, "a", 1)
    opening.store.fault = Fault.REFUSED
    with pytest.raises(SnapshotFailed, match=r"shop: epoch 1-1 .*refused"):
        state.snapshot(epoch(1))


def test_closing_ends_what_is_under_way_and_leaves_no_scratch(opening: Opening, tmp_path: Path) -> None:
    state = opening()
    set_count(state, "a", 1)
    files = snapshot(state, 1)
    opening.store.stall()
    for number in range(2, 9):
        set_count(state, "a", number)
        state.cut(epoch(number))
    closing = Thread(target=state.close)
    closing.start()
    opening.store.go_on()
    closing.join(30)
    assert not closing.is_alive()
    assert sorted(entry.name for entry in (tmp_path / "local").iterdir()) == ["links", "lock"]
    assert count_of(opening(files), "a") == 1


# --- what remains, and a full disk ------------------------------------------------------------------------------------


def test_nothing_unreferenced_remains(tmp_path: Path, store: FaultyStore) -> None:
    folder = SnapshotFolder(store, "shop")
    files: FileSet | None = None
    for run in range(3):
        generation = folder.begin()
        names = folder.names(generation, Partition(0), Attempt(run))
        options = Options(backend="heap", policy=Restless() if run == 1 else Options().policy)
        with KeyedState(OPERATOR, tmp_path, store, names, files, options) as state:
            for step in range(20):
                set_count(state, f"key-{step}", run)
                store.fault = Fault.ANSWER_LOST if run == 0 and step % 5 == 1 else Fault.NONE
                epoch = folder.next_epoch(generation)
                state.cut(epoch)
                (answer,) = heard(state, 1)
                if isinstance(answer, Durable):
                    files = answer.files
                    folder.complete(epoch, {Partition(0): files})
                    state.completed(epoch)
            store.fault = Fault.NONE
            # The last of these comes after all that was asked of the background has been done.
            files = state.snapshot(folder.next_epoch(generation))
            if run == 2:
                assert len(list((tmp_path / "links").iterdir())) == len(files.files)
                assert [entry for work in tmp_path.glob("work-*") for entry in (work / "made").iterdir()] == []
    folder.begin()
    folder.clean(keep=1)
    newest = folder.latest()
    assert newest is not None
    assert {info.path for info in store.list("shared")} == newest.paths


def test_a_full_disk_costs_an_epoch_and_nothing_else(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    state = opening()
    set_count(state, "a", 1)
    snapshot(state, 1)

    def full(path: Path, *arguments: object, **options: object) -> None:
        raise LocalDiskFull(f"could not write {path}: the local disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(state_files, "write_sst", full)
        set_count(state, "b", 2)
        state.cut(epoch(2))
        (answer,) = heard(state, 1)
        assert isinstance(answer, NotDurable)
        assert "the local disk is full" in answer.reason
        assert (count_of(state, "a"), count_of(state, "b")) == (1, 2)
    set_count(state, "c", 3)
    files = snapshot(state, 3)
    restored = opening(files, folder="elsewhere")
    assert [count_of(restored, key) for key in "abc"] == [1, 2, 3]


def test_what_has_expired_is_in_no_base(opening: Opening, tmp_path: Path) -> None:
    state = opening(options=Options(backend="heap", policy=Restless()))
    state.advance(processing_time=0)
    keys = [f"key-{number}" for number in range(50)]
    for key in keys:
        state.set_key(key)
        state["fading"].set("here")
    files = snapshot(state, 1)
    assert any(name_of_fading(opening, files, tmp_path))
    state.advance(processing_time=100)
    for number in range(2, 80):
        for key in keys:
            set_count(state, key, number)
        files = snapshot(state, number)
    assert {file.kind for file in files.files} >= {FileKind.BASE}
    assert state.statistics().background.bases > 5
    assert not any(name_of_fading(opening, files, tmp_path))


def name_of_fading(opening: Opening, files: FileSet, folder: Path) -> list[Entry]:
    found: list[Entry] = []
    for file in files.files:
        found += [entry for entry in entries_of(opening, file, folder) if parse_head(entry[0])[1] == state_id("fading")]
    return found


def entries_of(opening: Opening, file: FileRef, folder: Path) -> list[Entry]:
    path = folder / "one.sst"
    opening.store.download(file.path, path)
    with read_sst(path, folder) as content:
        return [(name, payload) for name, payload in content.entries if payload is not None]


def test_a_partition_reads_its_groups_and_no_others(opening: Opening) -> None:
    state = opening()
    keys = [f"key-{number}" for number in range(100)]
    for number, key in enumerate(keys):
        set_count(state, key, number + 1)
    files = snapshot(state, 1)
    found: dict[str, object] = {}
    for partition in range(3):
        part = opening(rescaled([files], range_of(Partition(partition), 3, 8)), folder=f"part-{partition}")
        for key in keys:
            part.set_key(key)
            try:
                value = part["count"].get()
            except ForeignKey:
                continue
            assert key not in found
            found[key] = value
    assert found == {key: number + 1 for number, key in enumerate(keys)}


def test_what_is_appended_after_a_restore_comes_behind_what_was_there(opening: Opening) -> None:
    files: FileSet | None = None
    for number in range(1, 4):
        state = opening(files)
        state.set_key("a")
        state["words"].add(str(number))
        files = snapshot(state, number)
        assert state["words"].get() == [str(known) for known in range(1, number + 1)]
        state.close()


# --- values that were evicted while cuts are on their way -------------------------------------------------------------

CRAMPED: Final = Options(backend="heap", memory=1)
"""So little memory that a value leaves the cache soon, and is spilled before its cut."""


def test_a_value_of_the_younger_of_two_cuts_on_their_way_is_read_when_the_cache_has_lost_it(opening: Opening) -> None:
    state = opening(options=CRAMPED)
    keys = [f"k{number}" for number in range(100)]
    for number in (1, 2):
        for key in keys:
            set_count(state, key, number)
        state.cut(epoch(number))
    for number in range(1000):
        assert count_of(state, f"other{number}") == 0
    assert [count_of(state, key) for key in keys] == [2] * len(keys)


def test_what_is_being_spilled_when_a_cut_is_made_is_in_the_cut(opening: Opening) -> None:
    for number in (129, 150, 200, 300, 500):
        state = opening(options=CRAMPED, folder=f"from{number}")
        for at in range(number):
            set_count(state, f"k{at}", at + 1)
        files = state.snapshot(epoch(1))
        again = opening(files, folder=f"again{number}")
        assert [count_of(again, f"k{at}") for at in range(number)] == list(range(1, number + 1))
