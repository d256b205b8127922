"""Jobs that are forked, copied and moved: what is there afterwards, whoever is interrupted where."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recovery.driver.birth import JobMoved, WrongJob
from recovery.driver.claim import StartRefused
from recovery.savepoints import fail_points
from recovery.savepoints.coming_back import choose
from recovery.savepoints.copying import Copied, copy, files_of, finish_move, fork, move
from recovery.savepoints.job_tree import JobTree, NoSuchEpoch, open_tree
from recovery.savepoints.new_tree import TargetExists, begin
from recovery.savepoints.notes import from_json
from recovery.savepoints.verify import verify, what_to_verify
from snapshot.journal_state import EpochState
from snapshot.manifest import Manifest
from statebackend.backends.backend import DamagedFile
from statebackend.fail_points import at
from statebackend.snapshots.transfer import MissingFile
from tests.stopped_trees import Stopped, add_output, kill_one, stop_one


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


@pytest.fixture
def into(tmp_path: Path) -> str:
    return str(tmp_path / "new")


def transactions(manifest: Manifest) -> list[str]:
    return [one.transaction for op in manifest.operators for part in op.subtasks for one in part.committables]


def sound(tree: JobTree) -> bool:
    return not verify(tree, what_to_verify(tree)).damages


def everything(uri: str) -> dict[str, bytes]:
    return {str(file.relative_to(uri)): file.read_bytes() for file in Path(uri).rglob("*") if file.is_file()}


# --- what is made


def test_a_fork_is_another_job_whose_epochs_rise_above_those_of_its_files(stopped: Stopped, into: str) -> None:
    source = stopped.tree.find()
    made = fork(stopped.tree, into, name="tried")
    tree = open_tree(into)
    manifest = tree.find().manifest
    assert tree.birth.name == "tried"
    assert tree.birth.job != stopped.job
    assert (manifest.job, manifest.epoch) == (tree.birth.job, made.made)
    assert manifest.epoch.generation == tree.state.generation == source.record.epoch.generation + 1
    assert manifest.epoch.number == source.record.epoch.number + 1
    assert [one.epoch for one in tree.state.usable] == [made.made] == list(tree.savepoints)
    origin = from_json(manifest.notes).origin
    assert origin is not None
    assert (origin.how, origin.uri, origin.job, origin.epoch) == ("fork", stopped.uri, stopped.job, source.record.epoch)
    assert sound(tree)


def test_a_fork_leaves_output_that_is_not_committed_to_its_origin(stopped: Stopped, into: str) -> None:
    add_output(stopped)
    before = stopped.tree.find().manifest
    made = fork(stopped.tree, into)
    assert made.plan.output == 1
    assert transactions(open_tree(into).find().manifest) == []
    assert transactions(stopped.tree.find().manifest) == transactions(before)


@pytest.mark.timeout(180)
def test_a_fork_runs_and_its_origin_does_not_hear_of_it(stopped: Stopped, into: str) -> None:
    fork(stopped.tree, into)
    before = everything(stopped.uri)
    stopped.settings.gate.touch()
    stopped.start(into).wait(120)
    assert everything(stopped.uri) == before
    assert len(open_tree(into).state.usable) > 0


def test_a_copy_is_the_same_job_with_the_same_epoch_files_and_output(stopped: Stopped, into: str) -> None:
    epoch = add_output(stopped)
    made = copy(stopped.tree, into)
    tree, source = open_tree(into), stopped.tree.find().manifest
    manifest = tree.find().manifest
    assert tree.birth == stopped.tree.birth
    assert made.made == manifest.epoch == epoch
    assert manifest.operators == source.operators
    assert transactions(manifest)
    assert tree.record().awaits_commit
    copied, original = everything(into), everything(stopped.uri)
    files = {file.path for file in files_of([source])}
    assert {path: copied[path] for path in files} == {path: original[path] for path in files}
    assert {path for path in copied if path.startswith("shared/")} == files
    assert sound(tree)


def test_what_a_copy_names_from_now_on_its_origin_has_never_named(stopped: Stopped, into: str) -> None:
    add_output(stopped)  # in a generation after the epoch's
    oldest = stopped.tree.state.usable[0].epoch
    copy(stopped.tree, into, str(oldest))
    assert open_tree(into).find().record.epoch == oldest
    assert open_tree(into).state.generation == stopped.tree.state.generation + 1


def test_while_it_is_read_an_epoch_is_pinned_and_not_after(stopped: Stopped, into: str) -> None:
    pins = []
    with at(fail_points.FILE_COPIED, lambda: pins.append(stopped.tree.state.pins), fail_points.POINTS):
        copy(stopped.tree, into)
    assert any(pin.pinner.value == "reader" for pin in pins[0])
    assert all(pin.pinner.value == "savepoint" for pin in stopped.tree.state.pins)


@pytest.mark.timeout(180)
def test_a_moved_job_goes_on_exactly_with_output_that_was_not_committed(tmp_path: Path) -> None:
    stopped = kill_one(tmp_path / "killed")
    before = stopped.tree
    assert before.record().awaits_commit
    into = str(tmp_path / "new")
    made = move(before, into)
    tree = open_tree(into)
    assert tree.birth == before.birth
    assert [record.epoch for record in tree.state.usable] == [record.epoch for record in before.state.usable]
    assert made.plan.epochs == len(before.state.usable)
    assert sound(tree)
    assert stopped.finish(into).exact


def test_a_moved_job_keeps_its_savepoints_and_is_nowhere_else(stopped: Stopped, into: str) -> None:
    savepoint = stopped.tree.record("newest-savepoint").epoch
    newest, before = add_output(stopped), stopped.tree
    move(stopped.tree, into)
    tree = open_tree(into)
    assert tree.savepoints == {savepoint, newest}
    states = {record.epoch: record.state for record in before.state.usable}
    assert {record.epoch: record.state for record in tree.state.usable} == states
    assert EpochState.COMMITTED in states.values()
    with pytest.raises(JobMoved, match=f"was moved from .* to {into}"):
        open_tree(stopped.uri)
    with pytest.raises(WrongJob, match=f"was moved to {into}"):
        stopped.start()
    assert list(everything(stopped.uri)) == ["moved.json"]


def test_a_job_can_come_back_to_where_it_was(stopped: Stopped, into: str) -> None:
    newest = stopped.tree.record().epoch
    move(stopped.tree, into)
    move(open_tree(into), stopped.uri)
    assert stopped.tree.record().epoch == newest
    assert "moved.json" not in everything(stopped.uri)
    move(stopped.tree, into)
    origin = from_json(open_tree(into).find().manifest.notes).origin
    assert origin is not None
    assert origin.before is not None
    assert (origin.how, origin.before.how) == ("move", "move")


def test_a_dry_run_says_how_much_it_would_be_and_makes_nothing(stopped: Stopped, into: str) -> None:
    before = everything(stopped.uri)
    files = files_of([stopped.tree.find().manifest])
    for dry in (
        fork(stopped.tree, into, dry_run=True),
        copy(stopped.tree, into, dry_run=True),
        move(stopped.tree, into, dry_run=True),
    ):
        assert dry.made is None
        assert dry.plan.files >= len(files) > 0
        assert dry.plan.bytes >= sum(file.size for file in files)
    assert everything(stopped.uri) == before
    assert not Path(into).exists()


def test_a_job_is_copied_from_one_kind_of_store_into_another(stopped: Stopped) -> None:
    into = f"memory://{stopped.folder.name}/archive"
    made = copy(stopped.tree, into)
    assert open_tree(into).record().epoch == made.made
    assert sound(open_tree(into))
    back = str(stopped.folder / "back")
    move(open_tree(into), back)
    assert open_tree(back).find().manifest.operators == choose(stopped.tree).manifest.operators
    assert sound(open_tree(back))


# --- what is refused


@pytest.mark.parametrize("make", [fork, copy, move])
def test_a_place_that_is_not_free_is_refused_and_left_as_it_is(stopped: Stopped, tmp_path: Path, make: object) -> None:
    assert callable(make)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for place, said in (
        (stopped.uri, "there is a job already"),
        (str(tmp_path / "full"), "is not empty, there is note"),
    ):
        before = everything(place)
        for dry_run in (True, False):
            with pytest.raises(TargetExists, match=said):
                make(stopped.tree, place, dry_run=dry_run)
        assert ours(everything(place)) == ours(before)


def ours(files: dict[str, bytes]) -> dict[str, bytes]:
    """All but what a reader writes, which pins what it reads."""
    return {path: data for path, data in files.items() if not path.startswith("journal/")}


def test_damaged_and_missing_files_are_noticed_on_the_way_and_no_job_is_made(stopped: Stopped, into: str) -> None:
    files = files_of([stopped.tree.find().manifest])
    damaged, missing = (Path(stopped.uri) / file.path for file in (files[0], files[-1]))
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=files[0].path):
        copy(stopped.tree, into)
    with pytest.raises(WrongJob):
        open_tree(into)
    damaged.write_bytes(data)
    missing.unlink()
    with pytest.raises((MissingFile, StartRefused)):
        copy(stopped.tree, into)
    with pytest.raises(WrongJob):
        open_tree(into)


def test_a_damaged_newest_epoch_is_passed_over_which_is_said(stopped: Stopped, into: str) -> None:
    before, newest = stopped.tree.record().epoch, add_output(stopped)
    manifest = Path(stopped.uri) / stopped.tree.record().manifest
    manifest.write_bytes(b"{}")
    with pytest.raises(StartRefused, match=f"the output of epoch {newest} may be committed"):
        copy(stopped.tree, into)
    made = copy(stopped.tree, into, accept_duplicates=True)
    assert (made.made, len(made.passed_over)) == (before, 1)
    forked = fork(stopped.tree, f"{into}-fork")
    assert (forked.plan.epoch, len(forked.passed_over)) == (before, 1)


def test_an_epoch_that_is_not_there_is_refused(stopped: Stopped, into: str) -> None:
    with pytest.raises(NoSuchEpoch, match="has no epoch '99'"):
        copy(stopped.tree, into, "99")
    assert not Path(into).exists()


# --- interrupted


MADE = (fail_points.TREE_BEGUN, fail_points.FILE_COPIED, fail_points.NEW_MANIFEST_WRITTEN, fail_points.JOURNAL_BEGUN)


@pytest.mark.parametrize("point", MADE)
def test_interrupted_before_the_job_is_born_there_is_none_and_it_can_be_done_again(
    stopped: Stopped, into: str, point: str
) -> None:
    interrupted(stopped, into, point)
    with pytest.raises(WrongJob, match="there is no job at"):
        open_tree(into)
    made = copy(stopped.tree, into)
    assert open_tree(into).record().epoch == made.made
    assert sound(open_tree(into))
    assert not [path for path in everything(into) if path.startswith("unfinished/")]


def test_interrupted_when_the_job_is_born_it_is_there_as_a_whole(stopped: Stopped, into: str) -> None:
    interrupted(stopped, into, fail_points.JOB_BORN)
    assert sound(open_tree(into))
    with pytest.raises(TargetExists, match="there is a job already"):
        copy(stopped.tree, into)


def test_interrupted_while_the_place_is_tried_out_it_can_be_done_again(stopped: Stopped, into: str) -> None:
    Path(into).mkdir()
    Path(into, f"probe-{'0' * 32}").write_text("first")
    copy(stopped.tree, into, dry_run=True)
    copy(stopped.tree, into)
    assert not [path for path in everything(into) if path.startswith("probe-")]


def interrupted(stopped: Stopped, into: str, point: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with at(point, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        copy(stopped.tree, into)


@pytest.mark.parametrize("point", [fail_points.TAKEN_OVER, *MADE, fail_points.JOB_BORN, fail_points.MOVED_AWAY])
def test_a_move_that_is_interrupted_goes_on(stopped: Stopped, into: str, point: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    newest = stopped.tree.record().epoch
    with at(point, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        move(stopped.tree, into)
    try:
        move(stopped.tree, into)
    except JobMoved as moved:
        assert point == fail_points.MOVED_AWAY
        with pytest.raises(JobMoved):
            finish_move(stopped.uri, f"{into}-else", moved)
        finish_move(stopped.uri, into, moved)
    assert list(everything(stopped.uri)) == ["moved.json"]
    assert open_tree(into).record().epoch == newest
    assert sound(open_tree(into))


def test_of_two_commands_at_one_place_the_one_that_began_first_fails(stopped: Stopped, into: str) -> None:
    manifest = stopped.tree.find().manifest
    first = begin(into, stopped.tree.birth, stopped.tree.state.generation, "copy")
    second = begin(into, stopped.tree.birth, stopped.tree.state.generation, "copy")
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        first.finish(manifest)
    with pytest.raises(WrongJob):
        open_tree(into)
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        second.finish(manifest)
    shutil.rmtree(into)
    made: Copied = copy(stopped.tree, into)
    assert made.made is not None
