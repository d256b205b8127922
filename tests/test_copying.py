"""Jobs that are forked, copied and moved: what is there afterwards, whoever is interrupted where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

import pytest

from recovery.decisions.notes import from_json
from recovery.driver.claim import StartRefused, claim_next
from recovery.driver.tree.identity import JobMoved, JobOnItsWay, WrongJob, wanted_birth
from recovery.driver.tree.owned import FencedOff, JournalInDoubt
from recovery.offline import fail_points, new_tree
from recovery.offline.epoch_choice import choose
from recovery.offline.job_tree import JobTree, NoSuchEpoch, journal_of, open_tree
from recovery.offline.new_tree import KeptEpoch, NewTree, TargetExists, begin
from recovery.offline.stopped_job import take_over
from recovery.savepoints.copying import Copied, copy, files_of, finish_move, fork, move
from recovery.savepoints.happenings import history
from recovery.savepoints.verifying import verify, what_to_verify
from snapshot.journal.state import EpochState
from snapshot.journal.writer import JournalWriter
from snapshot.tree.manifest import Manifest
from statebackend.backends.backend import DamagedFile
from statebackend.fail_points import at
from statebackend.ids import Epoch, Generation, Partition
from statebackend.snapshots.transfer import MissingFile, copy_all
from statebackend.stores.limited_store import open_limited
from statebackend.stores.local_store import LocalStore
from statebackend.stores.store import BlobStore, Creation, UnknownOutcome
from tests.stopped_trees import Stopped, add_output, kill_one, stop_one
from tests.wrapped_store import WrappedStore


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


def remains(uri: str) -> list[str]:
    """What a job leaves that was moved away, but for what its journal says at last."""
    return [path for path in everything(uri) if not path.startswith("journal/summary-")]


# --- what is made


def test_a_fork_is_another_job_whose_epochs_rise_above_those_of_its_files(stopped: Stopped, into: str) -> None:
    source = stopped.tree.find()
    made = fork(stopped.tree, "newest", into, name="tried")
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
    made = fork(stopped.tree, "newest", into)
    assert made.plan.output == 1
    assert transactions(open_tree(into).find().manifest) == []
    assert transactions(stopped.tree.find().manifest) == transactions(before)


@pytest.mark.timeout(180)
def test_a_fork_runs_and_its_origin_does_not_hear_of_it(stopped: Stopped, into: str) -> None:
    fork(stopped.tree, "newest", into)
    before = everything(stopped.uri)
    stopped.settings.gate.touch()
    stopped.start(into).wait(120)
    assert everything(stopped.uri) == before
    assert len(open_tree(into).state.usable) > 0


def test_a_copy_is_the_same_job_with_the_same_epoch_files_and_output(stopped: Stopped, into: str) -> None:
    epoch = add_output(stopped)
    made = copy(stopped.tree, "newest", into)
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
    copy(stopped.tree, str(oldest), into)
    assert open_tree(into).find().record.epoch == oldest
    assert open_tree(into).state.generation == stopped.tree.state.generation + 1


def test_while_it_is_read_an_epoch_is_pinned_and_not_after(stopped: Stopped, into: str) -> None:
    pins = []
    with at(fail_points.FILE_COPIED, lambda: pins.append(stopped.tree.state.pins), fail_points.POINTS):
        copy(stopped.tree, "newest", into)
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
    with pytest.raises(WrongJob, match=f"was moved from .* to {into}"):
        stopped.start()
    assert remains(stopped.uri) == ["moved.json"]


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
        fork(stopped.tree, "newest", into, dry_run=True),
        copy(stopped.tree, "newest", into, dry_run=True),
        move(stopped.tree, into, dry_run=True),
    ):
        assert dry.made is None
        assert dry.plan.files >= len(files) > 0
        assert dry.plan.bytes >= sum(file.size for file in files)
    assert everything(stopped.uri) == before
    assert not Path(into).exists()


def test_a_job_is_copied_from_one_kind_of_store_into_another(stopped: Stopped) -> None:
    into = f"memory://{stopped.folder.name}/archive"
    made = copy(stopped.tree, "newest", into)
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
                make(stopped.tree, *(() if make is move else ("newest",)), place, dry_run=dry_run)
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
        copy(stopped.tree, "newest", into)
    with pytest.raises(WrongJob):
        open_tree(into)
    damaged.write_bytes(data)
    missing.unlink()
    with pytest.raises((MissingFile, StartRefused)):
        copy(stopped.tree, "newest", into)
    with pytest.raises(WrongJob):
        open_tree(into)


def test_a_damaged_newest_epoch_is_passed_over_which_is_said(stopped: Stopped, into: str) -> None:
    before, newest = stopped.tree.record().epoch, add_output(stopped)
    manifest = Path(stopped.uri) / stopped.tree.record().manifest
    manifest.write_bytes(b"{}")
    again = f"the output of 1 epoch after {before}, up to epoch {newest}, may be committed"
    with pytest.raises(StartRefused, match=again):
        copy(stopped.tree, "newest", into)
    made = copy(stopped.tree, "newest", into, accept_duplicates=True)
    assert (made.made, len(made.passed_over)) == (before, 1)
    with pytest.raises(StartRefused, match=again):
        fork(stopped.tree, "newest", f"{into}-fork")
    forked = fork(stopped.tree, "newest", f"{into}-fork", accept_duplicates=True)
    assert (forked.plan.epoch, len(forked.passed_over)) == (before, 1)


def test_an_epoch_that_is_not_there_is_refused(stopped: Stopped, into: str) -> None:
    with pytest.raises(NoSuchEpoch, match="has no epoch '99'"):
        copy(stopped.tree, "99", into)
    assert not Path(into).exists()


# --- interrupted


MADE = (fail_points.TREE_BEGUN, fail_points.FILE_COPIED, fail_points.NEW_MANIFEST_WRITTEN)
DECIDED = (fail_points.TREE_DECIDED, fail_points.JOURNAL_BEGUN, fail_points.JOB_BORN)


@pytest.mark.parametrize("point", MADE)
def test_interrupted_before_the_job_is_born_there_is_none_and_it_can_be_done_again(
    stopped: Stopped, into: str, point: str
) -> None:
    interrupted(stopped, into, point)
    with pytest.raises(WrongJob, match="there is no job at"):
        open_tree(into)
    with pytest.raises(WrongJob, match="the checkpoints are not there as a whole"):
        stopped.start(into)
    made = copy(stopped.tree, "newest", into)
    assert open_tree(into).record().epoch == made.made
    assert sound(open_tree(into))
    assert not [path for path in everything(into) if path.startswith("unfinished/")]


@pytest.mark.parametrize("point", DECIDED)
def test_interrupted_when_the_tree_is_made_it_is_there_as_a_whole_at_the_latest_when_it_is_done_again(
    stopped: Stopped, into: str, point: str
) -> None:
    interrupted(stopped, into, point)
    with pytest.raises(TargetExists, match="there is a job already"):
        copy(stopped.tree, "newest", into, dry_run=True)
    with pytest.raises(TargetExists, match="there is a job already"):
        copy(stopped.tree, "newest", into)
    assert open_tree(into).record().epoch == stopped.tree.record().epoch
    assert sound(open_tree(into))


def test_interrupted_while_the_place_is_tried_out_it_can_be_done_again(stopped: Stopped, into: str) -> None:
    Path(into).mkdir()
    Path(into, f"probe-{'0' * 32}").write_text("first")
    copy(stopped.tree, "newest", into, dry_run=True)
    copy(stopped.tree, "newest", into)
    assert not [path for path in everything(into) if path.startswith("probe-")]


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(stopped: Stopped, into: str, point: str) -> None:
    with at(point, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        copy(stopped.tree, "newest", into)


@pytest.mark.parametrize(
    "point", [fail_points.TAKEN_OVER, *MADE, *DECIDED, fail_points.JOURNAL_CLOSED, fail_points.MOVED_AWAY]
)
def test_a_move_that_is_interrupted_goes_on(stopped: Stopped, into: str, point: str) -> None:
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
    assert remains(stopped.uri) == ["moved.json"]
    assert open_tree(into).record().epoch == newest
    assert sound(open_tree(into))


# --- two at one place


class Disturbed(WrappedStore):
    """Before the first call that makes a blob whose path begins with `where`, something happens."""

    def __init__(self, place: str, where: str, happens: Callable[[], object]) -> None:
        super().__init__(LocalStore(Path(place)))
        self._where, self._happens, self._lock = where, [happens], Lock()

    def create(self, path: str, data: bytes) -> Creation:
        self._disturb(path)
        return super().create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self._disturb(path)
        super().write(path, data)

    def upload(self, source: Path, path: str) -> None:
        self._disturb(path)
        super().upload(source, path)

    def _disturb(self, path: str) -> None:
        with self._lock:
            if path.startswith(self._where) and self._happens:
                self._happens.pop()()


def disturbed(monkeypatch: pytest.MonkeyPatch, where: str, happens: Callable[[], object]) -> None:
    """Let it happen in the middle of the next command that begins a tree; those that come in between are quiet."""
    once = [happens]

    def opened(uri: str, seconds: float) -> BlobStore:
        return Disturbed(uri, where, once.pop()) if once else open_limited(uri, seconds)

    monkeypatch.setattr(new_tree, "open_limited", opened)


def begun(stopped: Stopped, into: str, generation: int = 0) -> NewTree:
    birth = stopped.tree.birth
    return begin(into, birth, Generation(generation or stopped.tree.state.generation + 1), "copy", birth.job)


def test_of_two_commands_at_one_place_the_one_that_began_last_makes_the_tree(stopped: Stopped, into: str) -> None:
    manifest = stopped.tree.find().manifest
    first = begun(stopped, into)
    made = copy(stopped.tree, "newest", into)
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        first.finish(KeptEpoch(manifest))
    assert open_tree(into).record().epoch == made.made
    assert sound(open_tree(into))
    assert not unfinished(into)


@pytest.mark.parametrize("point", DECIDED)
def test_a_fork_that_has_made_its_tree_keeps_it_though_another_comes_before_its_end(
    stopped: Stopped, into: str, point: str
) -> None:
    def another() -> None:
        with pytest.raises(TargetExists, match="there is a job already"):
            fork(stopped.tree, "newest", into)

    with at(point, once(another), fail_points.POINTS):
        made = fork(stopped.tree, "newest", into)
    tree = open_tree(into)
    assert (tree.birth.job, tree.record().epoch) == (made.plan.becomes, made.made)
    assert sound(tree)
    assert not unfinished(into)


def once(happens: Callable[[], object]) -> Callable[[], None]:
    """A hook that is not reached again by what it does."""
    left = [happens]

    def hook() -> None:
        if left:
            left.pop()()

    return hook


@pytest.mark.parametrize("where", ["unfinished/", "shared/", "epochs/"])
def test_a_fork_that_is_overtaken_says_so_and_damages_nothing(
    stopped: Stopped, into: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Copied] = []
    disturbed(monkeypatch, where, lambda: others.append(fork(stopped.tree, "newest", into)))
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        fork(stopped.tree, "newest", into)
    tree = open_tree(into)
    assert tree.birth.job == others[0].plan.becomes
    assert sound(tree)
    assert not unfinished(into)


def test_a_command_that_found_an_unfinished_tree_deletes_nothing_of_it_when_that_was_finished_meanwhile(
    stopped: Stopped, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish() -> None:
        first.finish(KeptEpoch(manifest))

    manifest, files = stopped.tree.find().manifest, files_of([stopped.tree.find().manifest])
    first = begun(stopped, into)
    copy_all(stopped.tree.store, first.store, files, stopped.folder)
    disturbed(monkeypatch, "unfinished/", finish)
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        copy(stopped.tree, "newest", into)
    assert sound(open_tree(into))
    assert not unfinished(into)


def test_whoever_comes_so_late_that_its_mark_is_free_again_withdraws(
    stopped: Stopped, into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, late = stopped.tree.find().manifest, begun(stopped, into)
    disturbed(monkeypatch, "unfinished/", lambda: copy(stopped.tree, "newest", into))
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        copy(stopped.tree, "newest", into)
    with pytest.raises(TargetExists, match="another command makes a tree there"):
        late.finish(KeptEpoch(manifest))
    assert sound(open_tree(into))
    assert not unfinished(into)


def test_what_two_commands_name_at_one_place_is_never_the_same(stopped: Stopped, into: str) -> None:
    first, second = (begun(stopped, into).names(Partition(0)) for _ in range(2))
    assert not {first() for _ in range(9)} & {second() for _ in range(9)}


def test_where_something_else_was_begun_nothing_else_is_made(stopped: Stopped, into: str) -> None:
    interrupted(stopped, into, fail_points.FILE_COPIED)
    fork(stopped.tree, "newest", f"{into}-other")
    before = everything(into)
    with pytest.raises(TargetExists, match=f"with files of job {stopped.job}; do that again, or empty the place"):
        copy(open_tree(f"{into}-other"), "newest", into)
    with pytest.raises(TargetExists, match="a copy was begun there"):
        copy(open_tree(f"{into}-other"), "newest", into, dry_run=True)
    assert ours(everything(into)) == ours(before)
    assert fork(stopped.tree, "newest", into).made is not None


def test_an_older_look_at_the_origin_does_not_follow_a_newer_one(stopped: Stopped, into: str) -> None:
    begun(stopped, into, 5)
    with pytest.raises(TargetExists, match="a later copy was begun there"):
        begun(stopped, into, 4)
    begun(stopped, into, 6)


def test_what_others_left_who_were_interrupted_goes_when_the_tree_is_there(stopped: Stopped, into: str) -> None:
    add_output(stopped)
    with at(fail_points.NEW_MANIFEST_WRITTEN, once(interrupt), fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        copy(stopped.tree, str(stopped.tree.state.usable[0].epoch), into)
    made = copy(stopped.tree, "newest", into)
    manifest = open_tree(into).find().manifest
    assert made.made == manifest.epoch
    shared = {path for path in everything(into) if path.startswith("shared/")}
    assert shared == manifest.references()
    assert len([path for path in everything(into) if path.startswith("epochs/")]) == 1


def test_a_tree_that_a_program_of_another_version_began_is_begun_anew(stopped: Stopped, into: str) -> None:
    old = Path(into) / "unfinished" / "0123456789abcdef.json"
    old.parent.mkdir(parents=True)
    old.write_text('{"format": "epochcut.unfinished", "version": 1, "by": "copy"}')
    (Path(into) / "shared").mkdir()
    (Path(into) / "shared" / "1-0-0-77.sst").write_text("half")
    assert copy(stopped.tree, "newest", into).made is not None
    assert sound(open_tree(into))
    assert not unfinished(into)
    assert "shared/1-0-0-77.sst" not in everything(into)


@pytest.mark.parametrize("path", ["unfinished/0000000001-2", "journal/summary-0000000001", "job.json"])
@pytest.mark.parametrize("done", [True, False])
def test_an_answer_that_is_lost_leaves_a_tree_that_is_whole_or_can_be_made(
    stopped: Stopped, into: str, path: str, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        raise UnknownOutcome("nobody knows")

    class Losing(Disturbed):
        def create(self, path: str, data: bytes) -> Creation:
            if done and path.startswith(self._where):
                super(Disturbed, self).create(path, data)
            return super().create(path, data)

    monkeypatch.setattr(new_tree, "open_limited", lambda uri, _: Losing(uri, path, lose))
    if done:
        copy(stopped.tree, "newest", into)
    else:
        with pytest.raises(UnknownOutcome):
            copy(stopped.tree, "newest", into)
        monkeypatch.undo()
        with suppress(TargetExists):
            copy(stopped.tree, "newest", into)
    assert sound(open_tree(into))
    assert not unfinished(into)


def unfinished(uri: str) -> list[str]:
    return [path for path in everything(uri) if path.startswith("unfinished/")]


# --- moved while others work with the job


def test_a_job_that_is_started_while_it_is_moved_goes_on_where_it_is(stopped: Stopped, into: str) -> None:
    made: list[Epoch] = []

    def start() -> None:
        job = take_over(stopped.tree, "test")
        made.append(job.publish(job.remade(choose(stopped.tree).manifest, "test")))

    with at(fail_points.FILE_COPIED, once(start), fail_points.POINTS), pytest.raises(FencedOff):
        move(stopped.tree, into)
    assert stopped.tree.record().epoch == made[0]
    assert sound(stopped.tree)
    with pytest.raises(WrongJob, match="there is no job at"):
        open_tree(into)
    move(stopped.tree, into)
    assert open_tree(into).record().epoch == made[0]


def test_of_two_moves_at_once_to_different_places_one_is_done_and_the_job_is_there_alone(
    stopped: Stopped, into: str
) -> None:
    other, left = f"{into}-other", [move(stopped.tree, into, dry_run=True).plan.files]

    def the_other_one_when_all_is_copied() -> None:
        left[0] -= 1
        if not left[0]:
            move(stopped.tree, other)

    with at(fail_points.FILE_COPIED, the_other_one_when_all_is_copied, fail_points.POINTS), pytest.raises(FencedOff):
        move(stopped.tree, into)
    assert sound(open_tree(other))
    with pytest.raises(WrongJob, match="there is no job at"):
        open_tree(into)


def test_a_job_that_is_on_its_way_is_started_nowhere_and_moved_nowhere_else(stopped: Stopped, into: str) -> None:
    with at(fail_points.JOURNAL_CLOSED, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        move(stopped.tree, into)
    assert history(stopped.tree)[-1].kind == "moved"
    with pytest.raises(JobOnItsWay, match=f"on its way to {into}, .* recovery move --into {into} goes on with it"):
        take_over(stopped.tree, "test")
    for dry_run in (True, False):
        with pytest.raises(JobOnItsWay, match=f"on its way to {into}"):
            move(stopped.tree, f"{into}-other", dry_run=dry_run)
    with pytest.raises(WrongJob, match="not there as a whole"):
        wanted_birth(LocalStore(Path(into)), into, None, None, 2)
    assert move(stopped.tree, into, dry_run=True).made is None
    move(stopped.tree, into)
    assert sound(open_tree(into))
    assert take_over(open_tree(into), "test").generation > stopped_generation(stopped)


def stopped_generation(stopped: Stopped) -> int:
    return journal_of(LocalStore(Path(stopped.uri))).read().generation


def test_a_job_json_that_a_crash_of_the_machine_brings_back_starts_nothing(stopped: Stopped, into: str) -> None:
    file = Path(stopped.uri) / "job.json"
    data = file.read_bytes()
    move(stopped.tree, into)
    file.write_bytes(data)
    with pytest.raises(JobOnItsWay, match=f"on its way to {into}"):
        take_over(stopped.tree, "test")


def test_whoever_wakes_up_after_a_move_writes_nothing_any_more(stopped: Stopped, into: str) -> None:
    late, store = take_over(stopped.tree, "test"), stopped.tree.store
    manifest = late.remade(choose(stopped.tree).manifest, "test")
    writer = JournalWriter(stopped.tree.state)
    move(stopped.tree, into)
    with pytest.raises(FencedOff):
        late.publish(manifest)
    with pytest.raises(JobOnItsWay):
        claim_next(journal_of(store), writer, "late")
    assert journal_of(store).read().usable[-1].epoch != manifest.epoch


def test_whoever_wakes_up_when_a_job_came_back_writes_nothing_any_more(stopped: Stopped, into: str) -> None:
    late = take_over(stopped.tree, "test")
    manifest = late.remade(choose(stopped.tree).manifest, "test")
    move(stopped.tree, into)
    move(open_tree(into), stopped.uri)
    before = stopped.tree.state
    with pytest.raises((FencedOff, JournalInDoubt)):
        late.publish(manifest)
    assert stopped.tree.state == before
    assert sound(stopped.tree)
    assert add_output(stopped) == stopped.tree.record().epoch


@pytest.mark.parametrize("point", [fail_points.JOB_BORN, fail_points.MOVED_AWAY])
def test_a_move_that_others_have_ended_takes_nothing_of_the_job_that_came_back(
    stopped: Stopped, into: str, point: str
) -> None:
    def end_and_come_back() -> None:
        try:
            move(stopped.tree, into)
        except JobMoved as moved:
            finish_move(stopped.uri, into, moved)
        move(open_tree(into), stopped.uri)

    newest = stopped.tree.record().epoch
    with at(point, once(end_and_come_back), fail_points.POINTS), suppress(FencedOff):
        move(stopped.tree, into)
    assert stopped.tree.record().epoch == newest
    assert sound(stopped.tree)
    assert take_over(stopped.tree, "test").generation > 0
