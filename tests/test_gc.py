"""Cleaning up from outside: what nobody needs goes, what somebody may need stays, also beside a running job."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import recovery
from recovery.decisions.cleanup import Fate
from recovery.driver.tree.address import NotAllowed
from recovery.events import AnyEvent, EpochCompleted
from recovery.offline import fail_points
from recovery.offline.epoch_choice import choose
from recovery.offline.job_tree import NoSuchEpoch, UnusableEpoch, open_tree
from recovery.offline.stopped_job import JobRuns, take_over
from recovery.savepoints.disposal import dispose
from recovery.savepoints.editing import ChangedRows, edit
from recovery.savepoints.gc import clean_up, let_go, plan_cleanup, take_over_and_plan
from recovery.savepoints.verifying import verify, what_to_verify
from snapshot.journal.entries import PinId, Pinned, Pinner, Rewound
from snapshot.tree.layout import SHARED, parse
from statebackend.fail_points import at
from statebackend.ids import Epoch
from tests.command_line import run_command
from tests.endless_job import PATIENCE
from tests.endless_job import start as start_endless
from tests.shop_job import tree_of

GARBAGE = {"shared/1-0-7-901.sst", "shared/1-1-7-902.staged", "epochs/77-1-abc/manifest.json"}


def paths(tree: Path) -> set[str]:
    return {info.path for info in open_tree(str(tree)).store.list()}


def sound(tree: Path) -> bool:
    found = open_tree(str(tree))
    return verify(found, what_to_verify(found)).damages == ()


def with_garbage(tmp_path: Path) -> Path:
    """A tree with files of a fenced generation that nobody refers to, of the present one, and of somebody else."""
    tree = tree_of(tmp_path)
    take_over(open_tree(str(tree)), "test")
    for name in GARBAGE:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"left")
    (tree / "shared/2-0-1-1.sst").write_bytes(b"of the present generation")
    (tree / "notes.txt").write_bytes(b"somebody else's")
    return tree


def test_only_what_a_fenced_generation_left_goes(tmp_path: Path) -> None:
    tree = with_garbage(tmp_path)
    before = paths(tree)
    plan = plan_cleanup(open_tree(str(tree)))
    assert {file.path for file in plan.doomed if file.why is Fate.ORPHANED} == GARBAGE
    assert plan.in_flight_possible == 1
    assert plan.foreign == ("notes.txt",)
    assert paths(tree) == before
    done = clean_up(open_tree(str(tree)), plan)
    assert paths(tree) == before - {file.path for file in plan.doomed}
    assert done.files == len(plan.doomed)
    assert sound(tree)
    assert plan_cleanup(open_tree(str(tree))).doomed == ()


def test_a_clean_up_that_was_interrupted_is_just_done_again(tmp_path: Path) -> None:
    tree = with_garbage(tmp_path)
    found = open_tree(str(tree))
    plan = plan_cleanup(found)

    def die() -> None:
        raise KeyboardInterrupt

    with at(fail_points.GARBAGE_COLLECTED, die, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        clean_up(found, plan)
    assert plan.doomed[0].path not in paths(tree)
    clean_up(found, plan)
    assert not {file.path for file in plan.doomed} & paths(tree)
    assert sound(tree)


def test_nothing_goes_that_an_unreadable_epoch_may_need(tmp_path: Path) -> None:
    tree = with_garbage(tmp_path)
    (tree / open_tree(str(tree)).record().manifest).write_text("{}")
    plan = plan_cleanup(open_tree(str(tree)))
    assert not GARBAGE & {file.path for file in plan.doomed}
    assert plan.unexplained >= 3


def test_a_job_that_was_taken_over_is_left_with_its_newest_epoch_and_its_savepoints(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    job = take_over(open_tree(str(tree)), "test")
    first = open_tree(str(tree)).record("newest-savepoint").epoch
    second = job.publish(job.remade(job.tree.find().manifest, "test"))
    third = job.publish(job.remade(job.tree.find().manifest, "test"))
    dispose(open_tree(str(tree)), str(second))
    job = take_over(open_tree(str(tree)), "gc")
    assert second in let_go(job)
    clean_up(open_tree(str(tree)), plan_cleanup(open_tree(str(tree))))
    left = open_tree(str(tree))
    assert {record.epoch for record in left.state.retained} == {first, third}
    needed = frozenset().union(*(left.manifest(record).references() for record in left.state.retained))
    assert {path for path in paths(tree) if path.startswith(SHARED)} == needed
    assert sound(tree)


def with_broken_newest(tmp_path: Path) -> tuple[Path, Epoch]:
    """A tree whose newest epoch lacks a file; and the epoch before it, which nobody has pinned."""
    tree = tree_of(tmp_path)
    first = open_tree(str(tree)).record().epoch
    edit(open_tree(str(tree)), "newest", [ChangedRows("totals", "totals", pa.table({"key": ["tea"]}))])
    dispose(open_tree(str(tree)), str(first))
    newest, before = open_tree(str(tree)).find().manifest, open_tree(str(tree)).find(str(first)).manifest
    [own] = newest.references() - before.references()
    (tree / own).unlink()
    return tree, first


def test_no_epoch_is_let_go_that_the_job_would_come_back_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, sound_one = with_broken_newest(tmp_path)
    before, state = paths(tree), open_tree(str(tree)).state
    for arguments in ((), ("--dry-run",)):
        ended = run_command(capsys, "gc", "--checkpoints", tree, "--take-over", *arguments)
        assert (ended.code, ended.out) == (7, "")
        assert f"the job would come back to {sound_one}" in ended.err
    assert (paths(tree), open_tree(str(tree)).state) == (before, state)
    with pytest.raises(UnusableEpoch, match="files that it refers to are missing"):
        let_go(take_over(open_tree(str(tree)), "gc"))
    assert open_tree(str(tree)).state.retained == state.retained
    assert choose(open_tree(str(tree))).found.record.epoch == sound_one


def test_a_dry_run_of_a_take_over_shows_what_it_then_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = with_garbage(tmp_path)
    job = take_over(open_tree(str(tree)), "test")
    second, _ = (job.publish(job.remade(job.tree.find().manifest, "test")) for _ in range(2))
    dispose(open_tree(str(tree)), str(second))
    (tree / f"shared/{job.generation}-0-1-1.sst").write_bytes(b"of the present generation")
    before, state = paths(tree), open_tree(str(tree)).state
    said = run_command(capsys, "gc", "--checkpoints", tree, "--take-over", "--dry-run").out
    planned = run_command(capsys, "gc", "--checkpoints", tree, "--take-over", "--dry-run", "--json").json
    assert (paths(tree), open_tree(str(tree)).state) == (before, state)
    assert str(second) in planned["lets_go"]
    assert said.startswith(f"would let epochs {', '.join(planned['lets_go'])} go\nwould delete ")
    done = run_command(capsys, "gc", "--checkpoints", tree, "--take-over", "--json").json
    assert done["let_go"] == planned["lets_go"]
    assert before - paths(tree) == {file["path"] for file in planned["doomed"]}
    assert done["files"] == len(planned["doomed"])
    assert planned["in_flight_possible"] == 0
    assert sound(tree)


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_job_that_runs_with_a_folder_of_its_own_is_not_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    tree, asked = tree_of(tmp_path), list[Path]()
    state = open_tree(str(tree)).state

    def attach(checkpoints: str, *, job_folder: Path, timeout: float) -> object:
        assert checkpoints == str(tree)
        asked.append(job_folder)
        raise JobRuns("it runs")

    monkeypatch.setattr("recovery.offline.stopped_job.attach", attach)
    ended = run_command(
        capsys, "gc", "--checkpoints", tree, "--take-over", "--job-folder", tmp_path / "local", *arguments
    )
    assert (ended.code, asked) == (9, [tmp_path / "local"])
    assert open_tree(str(tree)).state == state


def test_an_epoch_that_nobody_has_pinned_cannot_be_disposed_of(tmp_path: Path) -> None:
    tree = open_tree(str(tree_of(tmp_path)))
    epoch = str(tree.record("newest-savepoint").epoch)
    dispose(tree, epoch, dry_run=True)
    dispose(tree.look_again(), epoch)
    with pytest.raises(NoSuchEpoch, match=f"epoch {epoch} is not pinned"):
        dispose(tree.look_again(), epoch)


def left_by_a_reader(tree: Path, epoch: Epoch) -> PinId:
    """The pin of a reader that was killed."""
    pin = PinId(f"reader-{epoch}-killed")
    take_over(open_tree(str(tree)), "test").propose(Pinned(pin, epoch, Pinner.READER))
    return pin


def test_a_pin_that_a_reader_left_is_lifted_as_the_clean_up_says_and_the_savepoint_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tree_of(tmp_path)
    savepoint = open_tree(str(tree)).record().epoch
    job = take_over(open_tree(str(tree)), "test")
    newest = job.publish(job.remade(job.tree.find().manifest, "test"))
    pin = left_by_a_reader(tree, savepoint)
    said = run_command(capsys, "gc", "--checkpoints", tree, "--dry-run").out
    [hint] = re.findall(rf"epoch {savepoint} is pinned by reader {pin}; if none runs: recovery (.*)", said)
    ended = run_command(capsys, *hint.split(), "--checkpoints", tree)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"epoch {savepoint} is no longer pinned by {pin}; it stays, as savepoint-{savepoint} keeps it\n"
    assert {one.epoch for one in open_tree(str(tree)).state.pins} == {savepoint, newest}
    assert open_tree(str(tree)).savepoints == {savepoint, newest}
    again = run_command(capsys, *hint.split(), "--checkpoints", tree)
    assert again.code == 6
    assert f"epoch {savepoint} is not pinned by a reader" in again.err


def test_a_savepoint_that_is_let_go_stays_as_long_as_a_reader_has_it(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    epoch = open_tree(str(tree)).record().epoch
    pin = left_by_a_reader(tree, epoch)
    assert dispose(open_tree(str(tree)), str(epoch)).left == (pin,)
    assert [one.pin for one in open_tree(str(tree)).state.pins] == [pin]
    with pytest.raises(NoSuchEpoch, match=r"is not pinned as a savepoint, but by readers \(--readers\)"):
        dispose(open_tree(str(tree)), str(epoch))


def test_who_may_not_ask_whether_the_job_runs_lifts_pins_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotAllowed("it is not ours")

    tree = tree_of(tmp_path)
    monkeypatch.setattr("recovery.savepoints.disposal.refuse_if_it_runs", refuse)
    assert dispose(open_tree(str(tree)), "newest-savepoint").runs
    assert open_tree(str(tree)).state.pins == ()


def test_a_savepoint_behind_which_the_job_went_back_can_be_disposed_of(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    first = open_tree(str(tree)).record().epoch
    job = take_over(open_tree(str(tree)), "test")
    given_up = job.publish(job.remade(job.tree.find().manifest, "test"))
    job.propose(Rewound(job.generation, first))
    assert given_up in open_tree(str(tree)).savepoints
    manifest = next(one.manifest for one in job.tree.state.retained if one.epoch == given_up)
    dispose(open_tree(str(tree)), str(given_up))
    assert open_tree(str(tree)).savepoints == {first}
    done = clean_up(open_tree(str(tree)), take_over_and_plan(open_tree(str(tree))))
    assert given_up in done.let_go
    assert manifest not in paths(tree)
    assert sound(tree)
    with pytest.raises(NoSuchEpoch, match=f"has no epoch '{given_up}'|epoch {given_up} of job .* was removed"):
        dispose(open_tree(str(tree)), str(given_up))


def completed(run: recovery.Run, epochs: int) -> None:
    """Wait until the job has completed so many more."""
    left = threading.Semaphore(0)

    def heard(event: AnyEvent) -> None:
        if isinstance(event, EpochCompleted):
            left.release()

    enough = run.listen(heard)
    for _ in range(epochs):
        assert left.acquire(timeout=PATIENCE), "no epoch was completed"
    enough()


@pytest.mark.timeout(900)
def test_cleaning_up_beside_a_running_job_takes_nothing_that_it_needs(tmp_path: Path, search_factor: int) -> None:
    run = start_endless(tmp_path, every="100ms")
    tree = tmp_path / "tree"
    stop = threading.Event()
    cleaned: list[int] = []

    def clean() -> None:
        while not stop.is_set():
            found = open_tree(str(tree))
            cleaned.append(clean_up(found, plan_cleanup(found)).files)

    try:
        completed(run, 5)
        with pytest.raises(JobRuns, match="stop it first"):
            take_over(open_tree(str(tree)), "gc", job_folder=tmp_path / "local")
        cleaner = threading.Thread(target=clean)
        cleaner.start()
        completed(run, 20 * search_factor)
        stop.set()
        cleaner.join()
    finally:
        stop.set()
        run.stop()
    assert len(cleaned) > 1
    assert sound(tree)
    let_go(take_over(open_tree(str(tree)), "gc", job_folder=tmp_path / "local"))
    left = open_tree(str(tree))
    clean_up(left, plan_cleanup(left))
    [newest] = left.look_again().state.retained
    assert {path for path in paths(tree) if path.startswith(SHARED)} == left.manifest(newest).references()
    assert all(parse(path) is not None or path == "job.json" for path in paths(tree))
    assert sound(tree)


def test_the_commands_say_what_they_would_do_and_what_they_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = with_garbage(tmp_path)
    before = paths(tree)
    ended = run_command(capsys, "gc", "--checkpoints", tree, "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert "left by attempts that are over, or uploaded in vain; no epoch can name them" in ended.out
    assert "1 files may be of an epoch in flight" in ended.out
    assert "1 files are not ours and stay, such as notes.txt" in ended.out
    assert paths(tree) == before
    ended = run_command(capsys, "gc", "--checkpoints", tree)
    assert ended.out.startswith("deleted ")
    assert run_command(capsys, "gc", "--checkpoints", tree, "--json").json["files"] == 0
    epoch = open_tree(str(tree)).record("newest-savepoint").epoch
    ended = run_command(capsys, "dispose", "--checkpoints", tree, "--epoch", str(epoch), "--dry-run")
    assert f"epoch {epoch} would no longer be pinned" in ended.out
    ended = run_command(capsys, "dispose", "--checkpoints", tree, "--epoch", str(epoch))
    assert f"epoch {epoch} is no longer pinned (savepoint-{epoch}); recovery gc --take-over removes it" in ended.out
    assert run_command(capsys, "dispose", "--checkpoints", tree, "--epoch", str(epoch)).code == 6
