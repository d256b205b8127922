"""Snapshots without a stream host: complete or not there, of the newest run alone, and nothing left of the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest

from statebackend.files import FileKind, FileRef, FileSet
from statebackend.ids import Attempt, Epoch, Generation, KeyGroup, Partition
from statebackend.keygroups import KeyGroupRange, range_of
from statebackend.snapshot_folder import SnapshotFolder
from statebackend.snapshots.file_set_json import from_json, to_json
from statebackend.snapshots.restore import fetch
from statebackend.snapshots.sealed_json import seal
from statebackend.snapshots.snapshot_log import (
    FORMAT,
    DamagedSnapshot,
    Entry,
    FencedRun,
    ForeignSnapshot,
    Kept,
    Kind,
    NewerSnapshot,
    NoSuchSnapshot,
    Part,
    RefusedSnapshot,
    decode,
    encode,
)
from statebackend.snapshots.transfer import Upload, checksum_of, upload_all
from statebackend.stores.local_store import LocalStore
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BlobStore, Creation, StoreUnavailable, UnknownOutcome
from tests.wrapped_store import WrappedStore

JOB = "counts"
MAX = 12
GOLDEN = Path(__file__).parent / "golden" / "snapshot-folder-1-completed.json"
GOLDEN_NOTED = Path(__file__).parent / "golden" / "snapshot-folder-2-completed.json"
PARALLELISM = 3


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return LocalStore(tmp_path / "store") if request.param == "local" else MemoryStore(token_hex(8))


class Run:
    """One run of a job, whose partitions add a file each per epoch."""

    def __init__(self, store: BlobStore, parallelism: int = PARALLELISM, job: str = JOB) -> None:
        self.store = store
        self.folder = SnapshotFolder(store, job)
        self.generation = self.folder.begin()
        latest = self.folder.latest()
        self.parts = {Partition(number): self._restored(number, parallelism) for number in range(parallelism)}
        if latest is not None:
            self.parts = {partition: latest.file_set(part.range) for partition, part in self.parts.items()}
        self._names = {
            partition: SnapshotFolder.names(self.generation, partition, Attempt(0)) for partition in self.parts
        }

    @staticmethod
    def _restored(number: int, parallelism: int) -> FileSet:
        return FileSet(range_of(Partition(number), parallelism, MAX))

    def work(self, kind: FileKind = FileKind.DELTA) -> Epoch:
        """Upload what an epoch changes; nothing is complete yet."""
        epoch = self.folder.next_epoch(self.generation)
        for partition, part in self.parts.items():
            path = self._names[partition]()
            self.store.write(path, path.encode())
            file = FileRef(path, (part.range,), epoch, kind, len(path), "sha256:ab")
            self.parts[partition] = part.consolidated(file) if kind is FileKind.BASE else part.added(file)
        return epoch

    def complete(self, kind: FileKind = FileKind.DELTA) -> Epoch:
        epoch = self.work(kind)
        self.folder.complete(epoch, self.parts)
        return epoch


def stored_state(store: BlobStore) -> set[str]:
    return {info.path for info in store.list("shared")}


def named(parts: Iterable[FileSet]) -> set[str]:
    return {file.path for part in parts for file in part.files}


def test_a_new_folder_has_no_snapshot(store: BlobStore) -> None:
    folder = SnapshotFolder(store, JOB)
    assert folder.latest() is None
    assert folder.epochs() == ()
    assert folder.begin() == 1
    assert folder.latest() is None
    assert folder.next_epoch(Generation(1)) == Epoch(Generation(1), 1)


def test_what_was_completed_is_read_by_another(store: BlobStore) -> None:
    run = Run(store)
    first, second = run.complete(), run.complete()
    other = SnapshotFolder(store, JOB)
    latest = other.latest()
    assert latest is not None
    assert latest.epoch == second
    assert latest.max_parallelism == MAX
    assert latest.parts == tuple(Part(partition, files) for partition, files in run.parts.items())
    assert other.epochs() == (first, second)
    assert len(other.read(first).paths) == PARALLELISM
    assert other.read(second) == latest


def test_a_snapshot_keeps_its_note_until_it_is_removed_and_hands_it_on_to_no_other(store: BlobStore) -> None:
    run = Run(store)
    first = run.work()
    run.folder.complete(first, run.parts, note="batch 7")
    run.folder.complete(first, run.parts, note="batch 7")
    with pytest.raises(RefusedSnapshot):
        run.folder.complete(first, run.parts, note="batch 8")
    second = run.complete()
    other = SnapshotFolder(store, JOB)
    other.begin()
    assert [other.read(epoch).note for epoch in (first, second)] == ["batch 7", ""]
    assert other.latest() == other.read(second)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 12])
def test_a_snapshot_is_restored_at_any_parallelism(store: BlobStore, parallelism: int) -> None:
    before = Run(store)
    before.complete()
    last = before.complete()
    run = Run(store, parallelism)
    assert named(run.parts.values()) == named(before.parts.values())
    assert [group for part in run.parts.values() for group in part.range] == list(range(MAX))
    epoch = run.complete()
    assert epoch == Epoch(Generation(2), last.number + 1)
    latest = run.folder.latest()
    assert latest is not None
    assert len(latest.parts) == parallelism


def test_files_travel_from_a_task_to_a_task_with_another_parallelism(store: BlobStore, tmp_path: Path) -> None:
    """As in a Spark job: parts come back from the tasks as text, and tasks fetch what they need."""
    folder = SnapshotFolder(store, JOB)
    generation = folder.begin()
    epoch = folder.next_epoch(generation)

    def write(partition: Partition) -> str:
        groups, path = range_of(partition, 4, MAX), SnapshotFolder.names(generation, partition, Attempt(partition))()
        local = tmp_path / str(partition)
        local.write_bytes(bytes(groups))
        upload_all(store, [Upload(local, path)])
        file = FileRef(path, (groups,), epoch, FileKind.DELTA, len(groups), checksum_of(local))
        return to_json(FileSet(groups, (file,)))

    rows = {Partition(number): write(Partition(number)) for number in range(4)}
    folder.complete(epoch, {partition: from_json(row) for partition, row in rows.items()})

    snapshot = SnapshotFolder(store, JOB).latest()
    assert snapshot is not None
    seen = []
    for number in range(3):
        groups = range_of(Partition(number), 3, MAX)
        fetched = fetch(snapshot.file_set(groups), store, None, tmp_path / f"restored-{number}")
        seen += [group for path in fetched.paths for group in path.read_bytes() if KeyGroup(group) in groups]
    assert sorted(seen) == list(range(MAX))


def test_the_names_of_a_task_never_come_again() -> None:
    names = SnapshotFolder.names(Generation(3), Partition(1), Attempt(7))
    assert [names(), names()] == ["shared/3-1-7-0.sst", "shared/3-1-7-1.sst"]


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_is_fenced_by_the_next_one(store: BlobStore) -> None:
    old = Run(store)
    first = old.complete()
    new = Run(store)
    stale = old.work()
    with pytest.raises(FencedRun, match=rf"epoch {stale} of counts cannot be completed: run 2 has begun since run 1"):
        old.folder.complete(stale, old.parts)
    assert new.folder.epochs() == (first,)
    second = new.complete()
    with pytest.raises(FencedRun):
        old.folder.complete(stale, old.parts)
    assert new.folder.epochs() == (first, second)


def test_what_a_fenced_run_completed_before_stays(store: BlobStore) -> None:
    epoch = Run(store).complete()
    assert Run(store).folder.epochs() == (epoch,)


def test_an_epoch_that_was_not_completed_is_never_given_out_again(store: BlobStore) -> None:
    run = Run(store)
    assert run.work() == Epoch(Generation(1), 1)
    assert run.complete() == Epoch(Generation(1), 2)
    assert Run(store).folder.next_epoch(Generation(2)) == Epoch(Generation(2), 3)


def test_completing_the_same_parts_again_is_harmless(store: BlobStore) -> None:
    run = Run(store)
    epoch = run.complete()
    run.folder.complete(epoch, run.parts)
    assert run.folder.epochs() == (epoch,)
    run.work()
    with pytest.raises(RefusedSnapshot, match=rf"epoch {epoch} of counts cannot be completed: .* completed last"):
        run.folder.complete(epoch, run.parts)


def test_an_epoch_of_a_run_that_never_began_is_refused(store: BlobStore) -> None:
    run = Run(store)
    with pytest.raises(RefusedSnapshot, match="run 1 is the newest"):
        run.folder.complete(Epoch(Generation(2), 1), run.parts)


def without_one(run: Run, epoch: Epoch) -> dict[Partition, FileSet]:
    return {partition: part for partition, part in run.parts.items() if partition != 1}


def without_the_first(run: Run, epoch: Epoch) -> dict[Partition, FileSet]:
    return {partition: part for partition, part in run.parts.items() if partition != 0}


def without_any(run: Run, epoch: Epoch) -> dict[Partition, FileSet]:
    return {}


def with_a_file(path: str) -> Callable[[Run, Epoch], dict[Partition, FileSet]]:
    def parts(run: Run, epoch: Epoch) -> dict[Partition, FileSet]:
        part = run.parts[Partition(0)]
        file = FileRef(path, (part.range,), epoch, FileKind.DELTA, 1, "sha256:ab")
        return {**run.parts, Partition(0): part.added(file)}

    return parts


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (without_one, r"do not fit together: key groups between 4 and 8 are missing"),
        (without_the_first, r"hold key groups \[4, 12\); expected all from 0 to 12"),
        (without_any, r"do not fit together: a union of no file sets"),
        (with_a_file("shared/9-0-0-0.sst"), r"names shared/9-0-0-0.sst, which its run cannot have made"),
        (with_a_file("elsewhere/0.sst"), r"names elsewhere/0.sst, which its run cannot have made"),
        (with_a_file("shared/1-7-0-0.sst"), r"shared/1-7-0-0.sst of an earlier run, which no kept snapshot needs"),
    ],
)
def test_parts_that_are_no_snapshot_are_refused(
    store: BlobStore, change: Callable[[Run, Epoch], dict[Partition, FileSet]], complaint: str
) -> None:
    first = Run(store).complete()
    run = Run(store)
    epoch = run.work()
    with pytest.raises(RefusedSnapshot, match=complaint):
        run.folder.complete(epoch, change(run, epoch))
    assert run.folder.epochs() == (first,)


def test_the_maximum_parallelism_stays_what_it_was(store: BlobStore) -> None:
    run = Run(store)
    run.complete()
    epoch, more = run.work(), FileSet(KeyGroupRange(KeyGroup(0), KeyGroup(24)))
    with pytest.raises(RefusedSnapshot, match=r"hold key groups \[0, 24\); expected all from 0 to 12"):
        run.folder.complete(epoch, {Partition(0): more})


# --- cleaning --------------------------------------------------------------------------------------------------------


def test_only_what_the_kept_snapshots_need_stays(store: BlobStore) -> None:
    run = Run(store)
    for number in range(6):
        run.complete(FileKind.BASE if number % 2 == 0 else FileKind.DELTA)
    kept = run.folder.epochs()[-2:]
    run.folder.clean(keep=2)
    assert run.folder.epochs() == kept
    assert stored_state(store) == run.folder.read(kept[0]).paths | run.folder.read(kept[1]).paths
    with pytest.raises(NoSuchSnapshot, match=r"no snapshot of epoch 1-1; kept are: 5-1, 6-1"):
        run.folder.read(Epoch(Generation(1), 1))


def test_what_the_newest_run_has_in_flight_stays(store: BlobStore) -> None:
    run = Run(store)
    run.complete(FileKind.BASE)
    epoch = run.work()
    SnapshotFolder(store, JOB).clean(keep=1)
    run.folder.complete(epoch, run.parts)
    assert stored_state(store) == named(run.parts.values())


def test_what_a_fenced_run_never_completed_is_deleted_oldest_first(store: BlobStore) -> None:
    counted = WrappedStore(store)
    lost = [stored_state(store)]
    for _ in range(3):
        run = Run(store)
        run.work()
        run.work()
        lost.append(stored_state(store))
    Run(store).complete()
    SnapshotFolder(counted, JOB).clean()
    state = [path for path in counted.deleted if path.startswith("shared/")]
    assert [path.partition("/")[2].split("-")[0] for path in state] == ["1"] * 6 + ["2"] * 6 + ["3"] * 6
    assert stored_state(store).isdisjoint(lost[-1])


def test_files_that_are_not_ours_stay(store: BlobStore) -> None:
    Run(store).complete()
    for path in ("shared/notes.txt", "shared/0-0-0-0.channel", "log/README", "other/1-0-0-0.sst"):
        store.write(path, b"x")
    run = Run(store)
    for _ in range(4):
        run.complete(FileKind.BASE)
        run.folder.clean(keep=1)
    for path in ("shared/notes.txt", "shared/0-0-0-0.channel", "log/README", "other/1-0-0-0.sst"):
        assert store.read(path) == b"x"


def test_the_log_stays_short(store: BlobStore) -> None:
    for _ in range(5):
        run = Run(store)
        for _ in range(4):
            run.complete(FileKind.BASE)
            run.folder.clean(keep=2)
    assert len(store.list("log")) <= 8


def test_the_newest_snapshot_cannot_be_removed(store: BlobStore) -> None:
    with pytest.raises(ValueError, match="cannot keep 0 snapshots"):
        Run(store).folder.clean(keep=0)


def test_a_run_that_goes_on_from_what_was_removed_is_refused(store: BlobStore) -> None:
    before = Run(store)
    first = before.complete(FileKind.BASE)
    before.complete(FileKind.BASE)
    run = Run(store)
    old = run.folder.read(first)
    run.parts = {part.partition: part.files for part in old.parts}
    SnapshotFolder(store, JOB).clean(keep=1)
    with pytest.raises(RefusedSnapshot, match="begin again from a snapshot that is kept"):
        run.complete()


def test_state_of_something_else_is_not_taken_over(store: BlobStore) -> None:
    store.write("shared/1-0-0-0.sst", b"a stream's")
    with pytest.raises(ForeignSnapshot, match=r"holds files in shared/ that are not of snapshots of 'counts'"):
        SnapshotFolder(store, JOB).begin()
    assert [info.path for info in store.list()] == ["shared/1-0-0-0.sst"]


# --- sleepers --------------------------------------------------------------------------------------------------------


class Sleeping(WrappedStore):
    """Sleeps once before or after a create, while something else happens."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    def create(self, path: str, data: bytes) -> Creation:
        before, self.before = self.before, None
        if before is not None:
            before()
        answer = super().create(path, data)
        after, self.after = self.after, None
        if after is not None:
            after()
        return answer


def another_run_and_its_clean_ups(store: BlobStore) -> None:
    """Until the entries at which a sleeper was are deleted."""
    run = Run(store)
    for _ in range(3):
        run.complete(FileKind.BASE)
        run.folder.clean(keep=1)


def test_an_entry_that_a_sleeper_makes_below_the_floor_is_void(store: BlobStore) -> None:
    sleeping = Sleeping(store)
    run = Run(sleeping)
    run.complete()
    epoch = run.work()
    sleeping.before = lambda: another_run_and_its_clean_ups(store)
    with pytest.raises(FencedRun):
        run.folder.complete(epoch, run.parts)
    latest = SnapshotFolder(store, JOB).latest()
    assert latest is not None
    assert latest.epoch.generation == 2
    assert latest.paths <= stored_state(store)


def test_a_claim_that_a_sleeper_makes_below_the_floor_is_void(store: BlobStore) -> None:
    sleeping = Sleeping(store)
    sleeping.before = lambda: another_run_and_its_clean_ups(store)
    run = Run(sleeping)
    assert run.generation == 2
    assert run.complete() == run.folder.epochs()[-1]


def test_a_snapshot_that_others_have_passed_by_counts(store: BlobStore) -> None:
    def clean_up() -> None:
        for _ in range(3):
            SnapshotFolder(store, JOB).clean(keep=1)

    sleeping = Sleeping(store)
    run = Run(sleeping)
    run.complete()
    sleeping.after = clean_up
    epoch = run.complete()
    assert run.folder.epochs() == (epoch,)


# --- faults ----------------------------------------------------------------------------------------------------------


class Doubtful(WrappedStore):
    """Loses the answers to the next creates, which happen or do not."""

    def __init__(self, store: BlobStore) -> None:
        super().__init__(store)
        self.fates: list[bool] = []

    def create(self, path: str, data: bytes) -> Creation:
        if not self.fates:
            return super().create(path, data)
        if self.fates.pop(0):
            super().create(path, data)
        raise UnknownOutcome("the answer was lost")


@pytest.mark.parametrize("fates", [[True], [False], [False, True], [True, True, False, False]])
def test_a_lost_answer_is_asked_for_again(store: BlobStore, fates: list[bool]) -> None:
    doubtful = Doubtful(store)
    doubtful.fates = [*fates]
    run = Run(doubtful)
    assert run.generation == 1
    doubtful.fates = [*fates]
    first = run.complete()
    doubtful.fates = [*fates]
    run.folder.clean()
    second = run.complete()
    assert run.folder.epochs() == (first, second)


@pytest.mark.parametrize("happened", [True, False])
def test_an_answer_that_never_comes_is_an_error_and_doing_it_again_tells(store: BlobStore, happened: bool) -> None:
    doubtful = Doubtful(store)
    run = Run(doubtful)
    epoch = run.work()
    doubtful.fates = [happened] * 5
    with pytest.raises(UnknownOutcome):
        run.folder.complete(epoch, run.parts)
    assert SnapshotFolder(store, JOB).epochs() == ((epoch,) if happened else ())
    run.folder.complete(epoch, run.parts)
    assert SnapshotFolder(store, JOB).epochs() == (epoch,)


def test_a_clean_up_that_breaks_off_is_finished_by_a_later_one(store: BlobStore) -> None:
    class Dying(WrappedStore):
        def delete(self, path: str) -> None:
            if self.calls["delete"] == 2:
                raise StoreUnavailable("gone")
            super().delete(path)

    run = Run(store)
    for _ in range(4):
        run.complete(FileKind.BASE)
    with pytest.raises(StoreUnavailable):
        SnapshotFolder(Dying(store), JOB).clean(keep=1)
    latest = run.folder.latest()
    assert latest is not None
    assert latest.paths < stored_state(store)
    run = Run(store)
    run.complete(FileKind.BASE)
    run.folder.clean(keep=1)
    assert stored_state(store) == named(run.parts.values())


def newest_entry(store: BlobStore) -> str:
    return max(info.path for info in store.list("log"))


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00" * 40, b"[]\n"])
def test_a_damaged_log_is_named(store: BlobStore, damage: bytes) -> None:
    run = Run(store)
    run.complete()
    store.write(newest_entry(store), damage)
    for action in (SnapshotFolder(store, JOB).latest, SnapshotFolder(store, JOB).begin, run.folder.clean):
        with pytest.raises(DamagedSnapshot, match=r"^log/0000000002.json of counts is damaged: "):
            action()


def test_every_byte_that_is_changed_is_noticed(store: BlobStore) -> None:
    Run(store).complete()
    path = newest_entry(store)
    data = store.read(path)
    for place in range(0, len(data) - 1, 7):
        store.write(path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedSnapshot):
            SnapshotFolder(store, JOB).latest()


def test_a_kept_snapshot_that_is_gone_or_damaged_is_named_and_nothing_is_deleted(store: BlobStore) -> None:
    run = Run(store)
    first, second = run.complete(), run.complete()
    run = Run(store)
    before = stored_state(store)
    data = store.read("log/0000000002.json")
    store.delete("log/0000000002.json")
    folder = SnapshotFolder(store, JOB)
    with pytest.raises(
        DamagedSnapshot, match=rf"log/0000000002.json of counts is missing: the log keeps epoch {first}"
    ):
        folder.read(first)
    with pytest.raises(DamagedSnapshot):
        folder.clean()
    store.write("log/0000000002.json", data[:-9])
    with pytest.raises(DamagedSnapshot):
        folder.clean()
    assert stored_state(store) == before
    latest = folder.latest()
    assert latest is not None
    assert latest.epoch == second
    assert run.complete().number == second.number + 1


def test_the_folder_of_another_job_is_not_touched(store: BlobStore) -> None:
    Run(store, job="clicks").complete()
    with pytest.raises(ForeignSnapshot, match=r"log/0000000002.json belongs to job 'clicks', not to 'counts'"):
        SnapshotFolder(store, JOB).begin()


def test_the_folder_of_a_newer_program_is_not_touched(store: BlobStore) -> None:
    Run(store)
    store.write("log/0000000002.json", seal(FORMAT, 3, {"job": JOB, "anything": []}))
    with pytest.raises(
        NewerSnapshot, match=r"log/0000000002.json of counts was written by a newer program: .* version 3"
    ):
        SnapshotFolder(store, JOB).begin()


def test_an_entry_at_the_number_of_another_is_damage(store: BlobStore) -> None:
    Run(store)
    store.write("log/0000000005.json", store.read("log/0000000001.json"))
    with pytest.raises(DamagedSnapshot, match=r"log/0000000005.json of counts is damaged: it says that it is entry 1;"):
        SnapshotFolder(store, JOB).latest()


# --- the format ------------------------------------------------------------------------------------------------------

GROUPS = KeyGroupRange(KeyGroup(0), KeyGroup(128))
ENTRY = Entry(
    job=JOB,
    number=42,
    nonce="00ff",
    kind=Kind.COMPLETED,
    generation=Generation(3),
    newest=Epoch(Generation(3), 17),
    max_parallelism=128,
    floor=30,
    kept=(Kept(Epoch(Generation(2), 16), 38, "0a"), Kept(Epoch(Generation(3), 17), 42, "00ff")),
    parts=(
        Part(
            Partition(0),
            FileSet(
                GROUPS,
                (
                    FileRef("shared/2-0-1-0.sst", (GROUPS,), Epoch(Generation(2), 9), FileKind.BASE, 7, "sha256:ab"),
                    FileRef("shared/3-0-4-1.sst", (GROUPS,), Epoch(Generation(3), 17), FileKind.DELTA, 0, "sha256:cd"),
                ),
            ),
        ),
    ),
)


def test_entries_are_written_as_ever_and_stay_readable() -> None:
    assert decode(JOB, 42, GOLDEN.read_bytes()) == ENTRY
    noted = replace(ENTRY, note="batch 7")
    assert encode(noted) == GOLDEN_NOTED.read_bytes()
    assert decode(JOB, 42, GOLDEN_NOTED.read_bytes()) == noted
    assert json.loads(GOLDEN.read_bytes())["parts"][0]["state"] == json.loads(to_json(ENTRY.parts[0].files))
