"""State alone: opened, used, saved, opened again, in plain Python and in the tasks of a job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from statebackend import (
    AggregateTable,
    Count,
    Epoch,
    Generation,
    KeyedState,
    Operator,
    Options,
    Snapshot,
    SnapshotFolder,
    ValueState,
    open_store,
)
from statebackend.keyed_state import Where
from statebackend.snapshots.snapshot_log import FencedRun, ForeignSnapshot
from statebackend.states.schema import StateMismatch
from statebackend.stores.local_store import LocalStore
from statebackend.stores.memory_store import MemoryStore

VISITS = Operator("visits", key=str, states={"count": ValueState(int, default=0)}, max_parallelism=16)
USERS = Operator("users", key=str, states={"users": AggregateTable(n=Count())}, max_parallelism=16)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test alone for what is temporary."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(params=["path", "text", "uri", "store"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    folder = tmp_path / "snapshots"
    places: dict[str, Where] = {"path": folder, "text": str(folder), "uri": folder.as_uri()}
    return places.get(request.param, MemoryStore(f"open-{tmp_path.name}"))


def visit(state: KeyedState, *users: str) -> None:
    for user in users:
        state.set_key(user)
        state["count"].set(state["count"].get() + 1)


def visits_of(state: KeyedState, *users: str) -> list[int]:
    counts = []
    for user in users:
        state.set_key(user)
        counts.append(state["count"].get())
    return counts


def test_what_was_saved_is_there_when_it_is_opened_again_and_nothing_else_is(where: Where) -> None:
    with KeyedState.open(VISITS, where) as state:
        visit(state, "ann", "bob", "ann")
        state.save()
        visit(state, "eve")
    with KeyedState.open(VISITS, where) as state:
        assert visits_of(state, "ann", "bob", "eve") == [2, 1, 0]
        visit(state, "ann")
        state.save()
        visit(state, "ann")
        state.save()
    with KeyedState.open(VISITS, where) as state:
        assert visits_of(state, "ann", "bob") == [4, 1]


def test_a_state_that_was_opened_again_elsewhere_saves_nothing_any_more(tmp_path: Path) -> None:
    with KeyedState.open(VISITS, tmp_path / "snapshots") as first:
        visit(first, "ann")
        first.save()
        with KeyedState.open(VISITS, tmp_path / "snapshots") as second:
            visit(first, "bob")
            with pytest.raises(FencedRun):
                first.save()
            visit(second, "eve")
            second.save()
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        assert visits_of(state, "ann", "bob", "eve") == [1, 0, 1]


def test_an_opening_that_is_refused_fences_the_states_before_it_as_well(tmp_path: Path) -> None:
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        other = Operator("visits", key=int, states=VISITS.states, max_parallelism=16)
        visit(state, "ann")
        state.save()
        with pytest.raises(StateMismatch):
            KeyedState.open(other, tmp_path / "snapshots")
        with pytest.raises(FencedRun):
            state.save()


def test_a_note_comes_back_with_what_was_saved_under_it(tmp_path: Path) -> None:
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        assert state.note == ""
        state.save(note="batch 6")
        state.save(note="batch 7")
        assert state.note == "batch 7"
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        assert state.note == "batch 7"


def test_as_many_snapshots_stay_as_are_kept(tmp_path: Path) -> None:
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        epochs = [state.save(keep=3) for _ in range(5)]
    kept = SnapshotFolder(open_store(str(tmp_path / "snapshots")), "visits").epochs()
    assert list(kept) == epochs[-3:]


def test_nothing_is_left_on_the_local_disk_but_in_a_folder_that_was_given(tmp_path: Path, temporary: Path) -> None:
    local = tmp_path / "local"
    with KeyedState.open(VISITS, tmp_path / "snapshots", folder=local) as state:
        visit(state, "ann")
        state.save()
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        assert list(temporary.iterdir()) != []
        assert state.restored.downloaded_bytes > 0
    assert list(temporary.iterdir()) == []
    with KeyedState.open(VISITS, tmp_path / "snapshots", folder=local) as state:
        assert state.restored.downloaded_bytes == 0
        assert visits_of(state, "ann") == [1]
    assert list(temporary.iterdir()) == []


def test_a_task_that_is_given_a_local_folder_finds_there_what_the_last_one_had(tmp_path: Path) -> None:
    where, local = tmp_path / "snapshots", tmp_path / "local"
    with KeyedState.open(VISITS, where) as state:
        visit(state, "ann")
        state.save()
    snapshots = SnapshotFolder(open_store(str(where)), "visits")
    before = snapshots.latest()
    downloaded = []
    for epoch in (snapshots.next_epoch(snapshots.begin()), snapshots.next_epoch(snapshots.begin())):
        with KeyedState.open_part(VISITS, where, epoch, before, 0, 1, folder=local) as state:
            downloaded.append(state.restored.downloaded_bytes > 0)
    assert downloaded == [True, False]


def test_a_state_is_kept_as_the_options_say(tmp_path: Path, temporary: Path) -> None:
    options = Options(backend="heap", memory=64 << 20)
    epoch = Epoch(Generation(1), 1)
    with (
        KeyedState.open(VISITS, tmp_path / "one", options=options) as state,
        KeyedState.open_part(VISITS, tmp_path / "other", epoch, None, 0, 1, options=options) as part,
    ):
        for one in (state, part):
            visit(one, "ann")
            assert one.statistics().disk_bytes == 0
        state.save()
        part.snapshot(epoch)
        databases = [path for path in temporary.glob("**/CURRENT") if "reading-" not in str(path)]  # of files, to merge
        assert databases == [], "which RocksDB has in its folder"


def test_nothing_is_left_on_the_local_disk_when_opening_fails(tmp_path: Path, temporary: Path) -> None:
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        visit(state, "ann")
        state.save()
    other = Operator("visits", key=int, states=VISITS.states, max_parallelism=16)
    with pytest.raises(StateMismatch):
        KeyedState.open(other, tmp_path / "snapshots")
    assert list(temporary.iterdir()) == []


def test_snapshots_of_another_operator_are_refused(tmp_path: Path) -> None:
    with KeyedState.open(VISITS, tmp_path / "snapshots") as state:
        state.save()
    with pytest.raises(ForeignSnapshot, match="visits"):
        KeyedState.open(USERS, tmp_path / "snapshots")


def test_a_state_that_a_host_opened_says_that_the_driver_completes_its_epochs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "snapshots")
    with (
        KeyedState(VISITS, tmp_path / "local", store, lambda: "shared/1-0-0-0.sst") as state,
        pytest.raises(ValueError, match=r"visits: this state was not opened with KeyedState.open; call snapshot\("),
    ):
        state.save()


# --- a job with tasks


def run(where: str, users: Iterable[str], parallelism: int, tries: int = 1) -> Epoch:
    """A driver, and its tasks one after the other, each tried so many times."""
    snapshots = SnapshotFolder(open_store(where), "users")
    before, epoch = snapshots.latest(), snapshots.next_epoch(snapshots.begin())
    keys = pa.array(list(users))
    owners = USERS.owners_of(keys, parallelism).to_pylist()
    parts = {}
    for partition in range(parallelism):
        mine = pa.array([key for key, owner in zip(keys.to_pylist(), owners, strict=True) if owner == partition])
        for _ in range(tries):
            with KeyedState.open_part(USERS, where, epoch, before, partition, parallelism) as state:
                state["users"].update(state.keys(mine.cast(pa.string())), {})
                parts[partition] = state.snapshot(epoch)
    snapshots.complete(epoch, parts)
    return epoch


def counts(state: KeyedState) -> dict[str, int]:
    found = state["users"].keys_and_results()
    return dict(zip(state.key_array(found.keys).to_pylist(), found.results.column("n").to_pylist(), strict=True))


def test_parts_of_any_number_of_tasks_are_one_snapshot_and_any_number_goes_on_from_it(tmp_path: Path) -> None:
    where = str(tmp_path / "snapshots")
    users = [f"user {number}" for number in range(50)]
    run(where, users, parallelism=3)
    run(where, users[:10], parallelism=5)
    with KeyedState.open(USERS, where) as state:
        assert counts(state) == dict.fromkeys(users, 1) | dict.fromkeys(users[:10], 2)
        state.save()
    run(where, users, parallelism=2)
    with KeyedState.open(USERS, where) as state:
        assert counts(state) == dict.fromkeys(users, 2) | dict.fromkeys(users[:10], 3)


def test_a_task_that_is_tried_again_counts_once(tmp_path: Path) -> None:
    where = str(tmp_path / "snapshots")
    run(where, ["ann", "bob", "eve"], parallelism=2, tries=3)
    with KeyedState.open(USERS, where) as state:
        assert counts(state) == {"ann": 1, "bob": 1, "eve": 1}


def test_of_two_tries_of_a_task_only_the_one_that_is_completed_counts(tmp_path: Path) -> None:
    where = str(tmp_path / "snapshots")
    snapshots = SnapshotFolder(open_store(where), "users")
    epoch = snapshots.next_epoch(snapshots.begin())
    parts = []
    for users in (["ann", "bob"], ["eve"]):  # as if the second had been given other rows
        with KeyedState.open_part(USERS, where, epoch, None, 0, 1) as state:
            state["users"].update(state.keys(pa.array(users)), {})
            parts.append(state.snapshot(epoch))
    snapshots.complete(epoch, {0: parts[0]})
    with KeyedState.open(USERS, where) as state:
        assert counts(state) == {"ann": 1, "bob": 1}


def test_a_partition_is_opened_to_be_read_as_it_was_in_any_kept_snapshot(tmp_path: Path) -> None:
    where = str(tmp_path / "snapshots")
    epochs = [run(where, ["ann", "bob"], parallelism=2) for _ in range(2)]
    snapshots = SnapshotFolder(open_store(where), "users")
    for times, snapshot in enumerate(map(snapshots.read, epochs), start=1):
        assert everything(where, snapshot) == {"ann": times, "bob": times}


def everything(where: str, snapshot: Snapshot) -> dict[str, int]:
    found: dict[str, int] = {}
    for partition in range(3):
        with KeyedState.open_part(USERS, where, snapshot.epoch, snapshot, partition, 3) as state:
            found |= counts(state)
    return found
