"""What killed attempts have uploaded is deleted by the running job, and nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import recovery
from recovery.decisions import cleanup
from recovery.decisions.cleanup import ObservedTree
from recovery.driver.tree.owned import Tree
from recovery.events import AnyEvent, OrphansDeleted, Recovered, Running, Trouble
from recovery.offline.job_tree import open_tree
from snapshot import fail_points
from snapshot.host.faults.crash_points import VARIABLE
from snapshot.journal.state import EMPTY
from snapshot.journal.writer import JournalWriter
from statebackend import fail_points as of_state
from statebackend.ids import Attempt, Generation, Incarnation
from statebackend.stores.local_store import LocalStore
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobInfo, StoreUnavailable
from tests.job_soak import unreferenced
from tests.jobs.driver import Settings
from tests.jobs.running_job import RunningJob
from tests.scripted_workers import PATIENCE, ScriptedCluster
from tests.test_driver_runs import completed, of_kind, start
from tests.wrapped_store import WrappedStore

SECOND = Incarnation(Generation(1), Attempt(2))


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster()
    yield cluster
    cluster.stop(0)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks as often as it can."""
    monkeypatch.setattr(cleanup, "_PAUSES", (0.0, 0.05))
    monkeypatch.setattr(cleanup, "_SHARE", 0)


def told(run: recovery.Run, wanted: Callable[[AnyEvent], bool]) -> threading.Event:
    """Set as soon as there is such an event, from now on."""
    there = threading.Event()
    run.listen(lambda event: there.set() if wanted(event) else None)
    return there


def deleted(run: recovery.Run, files: int) -> threading.Event:
    """Set as soon as the run has deleted so many orphans since its start."""

    def enough(_: AnyEvent | None = None) -> bool:
        found: list[OrphansDeleted] = of_kind(run, OrphansDeleted)
        return sum(one.files for one in found) >= files

    there = told(run, enough)
    if enough():
        there.set()
    return there


def put(tree: Path, *paths: str) -> list[Path]:
    store = LocalStore(tree)
    for path in paths:
        store.write(path, b"what somebody has uploaded")
    return [tree / path for path in paths]


# --- a driver, and processes that only speak


@pytest.mark.usefixtures("_often")
def test_files_of_an_attempt_that_was_rolled_back_are_deleted_and_those_of_the_present_one_stay(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    with start(tmp_path, cluster) as run:
        completed(cluster)
        lost = put(tmp_path / "tree", "shared/1-0-1-77.sst", "shared/1-1-1-5.channel", "shared/1-0-1-78.staged")
        [present] = put(tmp_path / "tree", "shared/1-0-2-1.sst")
        second = told(run, lambda event: isinstance(event, Running) and event.incarnation == SECOND)
        all_gone, another = deleted(run, 3), deleted(run, 4)
        assert all(file.exists() for file in lost)
        cluster.worker_of(1).die()
        assert second.wait(PATIENCE)
        assert all_gone.wait(PATIENCE)
        lost += put(tmp_path / "tree", "shared/1-0-1-80.sst")
        assert another.wait(PATIENCE)
        assert not any(file.exists() for file in lost)
        assert present.exists()
        assert (run.status().orphans, run.status().orphan_bytes) == (4, 4 * 26)


@pytest.mark.usefixtures("_often")
def test_a_file_that_a_late_process_uploads_when_others_are_deleted_already_goes_as_well(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    with start(tmp_path, cluster) as run:
        completed(cluster)
        lost = put(tmp_path / "tree", "shared/1-0-1-77.sst")
        first, all_gone = deleted(run, 1), deleted(run, 3)
        cluster.worker_of(1).die()
        assert first.wait(PATIENCE)
        assert not lost[0].exists()
        late = put(tmp_path / "tree", "shared/1-0-1-77.sst", "shared/1-0-1-79.sst")
        assert all_gone.wait(PATIENCE)
        assert not any(file.exists() for file in late)


@pytest.mark.usefixtures("_often")
def test_a_start_deletes_what_older_generations_have_left_files_and_manifests_and_unfinished_ones(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    with start(tmp_path, cluster):
        completed(cluster, 2)
    kept = (tmp_path / "tree" / open_tree(str(tmp_path / "tree")).state.retained[-1].manifest).parent
    left = put(tmp_path / "tree", "shared/1-0-1-77.sst", "epochs/1-1-lost/manifest.json")
    unfinished = tmp_path / "tree" / "shared" / ".unfinished-of-a-dead-writer"
    unfinished.touch()
    again = ScriptedCluster()
    with start(tmp_path, again, retain=100) as run:
        assert deleted(run, 2).wait(PATIENCE)
        assert not any(file.exists() for file in (*left, unfinished))
        assert kept.exists()
        assert sum(event.unfinished for event in of_kind(run, OrphansDeleted)) == 1


@pytest.mark.usefixtures("_often")
def test_a_file_of_the_present_attempt_goes_once_all_epochs_to_come_name_younger_ones_unless_a_sink_may_name_it(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    with start(tmp_path, cluster) as run:
        completed(cluster)
        left = put(tmp_path / "tree", "shared/1-0-1-77.sst", "shared/1-1-1-5.channel")
        kept = put(tmp_path / "tree", "shared/1-0-1-78.staged", "shared/1-0-1-80.sst", "shared/1-1-1-99.channel")
        all_gone = deleted(run, 2)
        cluster.habits.named_from = 80
        assert all_gone.wait(PATIENCE)
        assert not any(file.exists() for file in left)
        assert all(file.exists() for file in kept)
        assert not of_kind(run, Recovered), "the attempt runs all the time"


@pytest.mark.usefixtures("_often")
def test_nothing_goes_while_the_manifest_of_a_retained_epoch_cannot_be_read_and_that_is_told(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    with start(tmp_path, cluster) as run:
        savepoint = run.savepoint()
        completed(cluster, 2)
    tree = open_tree(str(tmp_path / "tree"))
    [record] = [record for record in tree.state.retained if record.epoch == savepoint]
    (tmp_path / "tree" / record.manifest).write_bytes(b"damaged")
    [left] = put(tmp_path / "tree", "shared/1-0-1-77.sst")
    again = ScriptedCluster()
    with start(tmp_path, again) as run:
        said = told(run, lambda event: isinstance(event, Trouble) and "cannot be read" in event.reason)
        completed(again)
        assert said.wait(PATIENCE)
        assert left.exists()


@pytest.mark.usefixtures("_often")
def test_a_store_that_does_not_list_its_files_is_told_and_asked_again(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, failures = LocalStore.list, [StoreUnavailable("the store has gone fishing")]

    def list_files(self: LocalStore, folder: str = "") -> tuple[BlobInfo, ...]:
        if folder == "shared" and failures:
            raise failures.pop()
        return right(self, folder)

    with start(tmp_path, cluster) as run:
        completed(cluster)
        put(tmp_path / "tree", "shared/1-0-1-77.sst")
        all_gone = deleted(run, 1)
        monkeypatch.setattr(LocalStore, "list", list_files)
        cluster.worker_of(1).die()
        assert all_gone.wait(PATIENCE)
        assert [event.reason for event in of_kind(run, Trouble) if "have left" in event.what] == [
            "StoreUnavailable: the store has gone fishing"
        ]


# --- the tree


class Pages(WrappedStore):
    """A store that is counted."""

    def __init__(self) -> None:
        super().__init__(MemoryStore("orphans"))
        self.listed: list[str] = []

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        self.listed.append(folder)
        return super().list(folder)


def test_a_sweep_lists_each_folder_once_and_ends_when_its_generation_does() -> None:
    store = Pages()
    paths = [f"shared/1-0-1-{number}.sst" for number in range(5)]
    for path in paths:
        store.write(path, b"12")
    tree = Tree(store, JournalWriter(EMPTY), Generation(1), {}, {})
    observed = tree.observed(replace(EMPTY, generation=Generation(1)), SECOND)
    assert observed == ObservedTree(replace(EMPTY, generation=Generation(1)), (), attempt=SECOND)
    answers = iter([True, True, False, False])
    swept = tree.sweep(observed, lambda: next(answers))
    assert (swept.files, swept.bytes, swept.unfinished, swept.unexplained) == (2, 4, 0, 0)
    assert store.listed == ["epochs", "shared"]
    assert tree.sweep(observed, lambda: True).files == 3
    assert tree.sweep(observed, lambda: True).files == 0


# --- whole jobs


def settings_for(folder: Path) -> Settings:
    return Settings(folder=str(folder / "job"), job="running", mode="unaligned", every="150ms", rows=16_000, standbys=1)


@pytest.mark.timeout(600)
def test_what_a_killed_process_has_uploaded_is_gone_soon_after_and_the_tree_holds_what_epochs_refer_to(
    tmp_path: Path,
) -> None:
    proof = tmp_path / "crashed"
    with RunningJob(settings_for(tmp_path), {VARIABLE: f"{of_state.DELTA_UPLOADED}:4:{proof}"}) as job:
        job.start()
        swept = job.wait_for_kind("OrphansDeleted")
        assert proof.exists()
        assert swept["files"]
        assert swept["bytes"]
        compared = job.finish()
    assert compared.exact, compared.examples
    assert unreferenced(tmp_path / "job" / "tree") == []


@pytest.mark.timeout(600)
def test_what_no_epoch_will_name_any_more_is_gone_soon_though_its_attempt_goes_on(tmp_path: Path) -> None:
    with RunningJob(settings_for(tmp_path)) as job:
        job.start()
        job.wait_for_kind("EpochCompleted")
        left = put(tmp_path / "job" / "tree", "shared/1-0-1-0.sst", "shared/1-1-1-0.channel")
        swept = job.wait_for_kind("OrphansDeleted")
        assert swept["files"] == 2
        assert not any(file.exists() for file in left)
        assert job.restarts == 0
        compared = job.finish()
    assert compared.exact, compared.examples


@pytest.mark.timeout(600)
def test_what_the_processes_of_a_killed_driver_have_uploaded_is_gone_soon_after_the_next_start(tmp_path: Path) -> None:
    proof = tmp_path / "crashed"
    with RunningJob(settings_for(tmp_path)) as job:
        job.set_crash(driver=f"{fail_points.BEFORE_PUBLISH}:3:{proof}")
        job.start()
        job.await_end()
        assert proof.exists()
        assert unreferenced(tmp_path / "job" / "tree"), "an epoch that all had acknowledged was never published"
        job.set_crash()
        job.start()
        job.wait_for_kind("OrphansDeleted")
        compared = job.finish()
    assert compared.exact, compared.examples
    assert unreferenced(tmp_path / "job" / "tree") == []
