"""A savepoint for another number of partitions: made of manifests alone, and what the job goes on from exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.decisions.notes import from_json
from recovery.driver.claim import StartRefused
from recovery.offline import fail_points, stopped_job
from recovery.offline.epoch_choice import OutputWouldRepeat
from recovery.offline.job_tree import JobTree
from recovery.offline.stopped_job import JobRuns, take_over
from recovery.savepoints.rescaling import CannotRescale, parallelism_of, plan_rescale, rescale
from recovery.savepoints.verifying import verify, what_to_verify
from snapshot.ids import ChannelId, JobId
from snapshot.journal.entries import Committed
from snapshot.tree.manifest import ChannelState, Inline, Manifest, ManifestKind, OperatorSnapshot, SubtaskSnapshot
from statebackend.fail_points import at
from statebackend.files import FileSet
from statebackend.ids import Attempt, Epoch, Generation, Partition, Uid
from statebackend.keygroups import KeyGroupRange
from statebackend.stores.store import BlobInfo
from tests.stopped_trees import Stopped, add_output, kill_one, stop_one


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


def state_files(tree: JobTree) -> set[str]:
    return {info.path for info in tree.store.list("shared")}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("to", [3, 1])
def test_a_job_goes_on_exactly_from_a_rescaled_savepoint_and_no_state_is_written(stopped: Stopped, to: int) -> None:
    before, files = stopped.tree.find(), state_files(stopped.tree)
    done = rescale(stopped.tree, "newest", to)
    tree = stopped.tree
    found = tree.find()
    assert done.made == found.record.epoch > before.record.epoch
    assert found.record.epoch in tree.savepoints
    assert parallelism_of(found.manifest) == to
    assert state_files(tree) == files
    assert not verify(tree, what_to_verify(tree), scratch=stopped.folder).damages
    assert stopped.finish(parallelism=to).exact


@pytest.mark.timeout(180)
def test_output_that_was_not_committed_goes_along(tmp_path: Path) -> None:
    stopped = kill_one(tmp_path)
    pending = stopped.tree.find()
    assert pending.record.awaits_commit
    rescale(stopped.tree, "newest", 3)
    found = stopped.tree.find()
    assert found.record.awaits_commit
    assert sorted(transactions(found.manifest)) == sorted(transactions(pending.manifest))
    assert stopped.finish(parallelism=3).exact


def transactions(manifest: Manifest) -> list[str]:
    return [one.transaction for op in manifest.operators for part in op.subtasks for one in part.committables]


def test_what_is_known_to_be_committed_is_not_committed_again(stopped: Stopped) -> None:
    epoch = add_output(stopped)
    job = take_over(stopped.tree, "test")
    job.propose(Committed(job.generation, epoch))
    assert transactions(stopped.tree.find().manifest)
    rescale(stopped.tree, "newest", 3)
    assert transactions(stopped.tree.find().manifest) == []


def test_watermarks_splits_and_notes_go_along(stopped: Stopped) -> None:
    before = stopped.tree.find().manifest
    rescale(stopped.tree, "newest", 4)
    after = stopped.tree.find().manifest
    for was, now in zip(before.operators, after.operators, strict=True):
        assert now.enumerator == was.enumerator
        assert sorted(splits(now)) == sorted(splits(was))
        assert {part.watermark for part in now.subtasks} <= {part.watermark for part in was.subtasks}
    origin = from_json(after.notes).origin
    assert origin is not None
    assert (origin.how, origin.uri, origin.job, origin.epoch) == ("rescale", stopped.uri, stopped.job, before.epoch)
    rescale(stopped.tree, "newest", 2)
    second = from_json(stopped.tree.find().manifest.notes).origin
    assert second is not None
    assert second.before == origin


def splits(operator: OperatorSnapshot) -> list[tuple[str, str]]:
    return [(one.split, one.position.text) for part in operator.subtasks for one in part.positions]


def test_the_plan_says_for_each_partition_which_files_it_reads_and_a_dry_run_changes_nothing(stopped: Stopped) -> None:
    before = listing(stopped)
    done = rescale(stopped.tree, "newest", 4, dry_run=True)
    assert listing(stopped) == before
    assert done.made is None
    keyed = [part for part in done.plan.parts if part.uid == "numbers"]
    assert [str(part.groups) for part in keyed] == ["[0, 32)", "[32, 64)", "[64, 96)", "[96, 128)"]
    assert [part.of for part in keyed] == [(0,), (0,), (1,), (1,)]
    rescale(stopped.tree, "newest", 4)
    made = next(op for op in stopped.tree.find().manifest.operators if op.uid == "numbers")
    for part, subtask in zip(keyed, made.subtasks, strict=True):
        assert subtask.state is not None
        assert [(file.path, file.groups) for file in part.files] == [(f.path, f.ranges) for f in subtask.state.files]
        assert part.bytes == sum(file.size for file in subtask.state.files)
    assert done.plan.stored == sum({file.path: file.size for part in keyed for file in part.files}.values())


def listing(stopped: Stopped) -> list[BlobInfo]:
    return list(stopped.tree.store.list())


def test_what_has_so_many_partitions_already_is_left_as_it_is(stopped: Stopped) -> None:
    before = listing(stopped)
    assert not rescale(stopped.tree, "newest", 2, dry_run=True).new
    done = rescale(stopped.tree, "newest", 2)
    assert (done.made, done.new) == (stopped.tree.find().record.epoch, False)
    assert listing(stopped) == before


@pytest.mark.parametrize("to", [0, -1, 129])
def test_more_partitions_than_key_groups_are_refused_before_anything_is_claimed(stopped: Stopped, to: int) -> None:
    before = listing(stopped)
    with pytest.raises(CannotRescale, match=f"{to} partitions are out of bounds: 1 to 128"):
        rescale(stopped.tree, "newest", to)
    assert listing(stopped) == before


def test_rows_in_flight_are_refused_and_it_is_said_what_to_do_instead() -> None:
    channel = ChannelState(ChannelId(Uid("a"), Uid("count"), Partition(0), Partition(0)), (Inline(b"rows"),))
    manifest = manifest_with(channel)
    with pytest.raises(CannotRescale, match=r"rows in flight \(a -> count\).*take a savepoint, which has none"):
        plan_rescale(manifest, 2)
    assert plan_rescale(manifest, 1).before == 1


def manifest_with(channel: ChannelState) -> Manifest:
    part = SubtaskSnapshot(Partition(0), FileSet(KeyGroupRange.of_all(128)), channels=(channel,))
    operator = OperatorSnapshot(Uid("count"), 1, (part,))
    epoch = Epoch(Generation(1), 1)
    return Manifest(JobId("job"), epoch, Attempt(1), ManifestKind.CHECKPOINT, 128, 0, (operator,))


def test_a_job_that_runs_is_refused(original: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(stopped_job, "attach", lambda *_, **__: Running())
        with pytest.raises(JobRuns, match=r"runs \(driver process 4711\); stop it first: recovery stop --savepoint"):
            rescale(original.tree, "newest", 3)


class Running:
    """A driver that answers."""

    job, pid = "sequences", 4711

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_an_older_epoch_is_made_the_newest_only_if_repeated_output_is_accepted(stopped: Stopped) -> None:
    oldest, newest = stopped.tree.state.usable[0].epoch, add_output(stopped)
    with pytest.raises(
        OutputWouldRepeat, match=f"the output of . epochs? after {oldest}, up to epoch {newest}, may be"
    ):
        rescale(stopped.tree, str(oldest), 3)
    before = listing(stopped)
    planned = rescale(stopped.tree, str(oldest), 2, accept_duplicates=True, dry_run=True)
    assert (planned.plan.before, planned.new, planned.gives_up[-1]) == (2, True, newest)
    assert listing(stopped) == before
    done = rescale(stopped.tree, str(oldest), 3, accept_duplicates=True)
    assert done.gives_up[-1] == newest
    assert [record.epoch for record in stopped.tree.state.usable] == [oldest, done.made]


def test_a_damaged_newest_epoch_is_passed_over_only_if_repeated_output_is_accepted(stopped: Stopped) -> None:
    add_output(stopped)
    *_, before, newest = stopped.tree.state.usable
    damaged = Path(stopped.uri) / newest.manifest
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(
        StartRefused, match=f"the output of 1 epoch after {before.epoch}, up to epoch {newest.epoch}, may"
    ):
        rescale(stopped.tree, "newest", 3)
    done = rescale(stopped.tree, "newest", 3, accept_duplicates=True)
    assert done.plan.epoch == before.epoch
    assert done.gives_up == (newest.epoch,)
    assert "its manifest is damaged" in done.passed_over[0]


@pytest.mark.parametrize(
    "point", [fail_points.TAKEN_OVER, fail_points.NEW_MANIFEST_WRITTEN, fail_points.NEW_EPOCH_ENTERED]
)
def test_interrupted_anywhere_it_can_be_done_again(stopped: Stopped, point: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    before = stopped.tree.find().record.epoch
    with at(point, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        rescale(stopped.tree, "newest", 3)
    entered = point == fail_points.NEW_EPOCH_ENTERED
    assert (stopped.tree.find().record.epoch == before) is not entered
    assert not verify(stopped.tree, what_to_verify(stopped.tree), keys=False).damages
    done = rescale(stopped.tree, "newest", 3)
    assert done.new is not entered
    assert stopped.tree.find().record.epoch == done.made
    assert done.made in stopped.tree.savepoints
