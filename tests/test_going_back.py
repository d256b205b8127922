"""Every way back behind an idle stretch: the epochs that had output are removed, and their output is not made again.

Each is refused, with of how many epochs the output would be made once more and what accepts it, and nothing is done;
accepted, it repeats exactly these rows.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery.command.exits import Exit
from recovery.driver.claim import StartRefused
from recovery.events import Claimed
from recovery.offline import fail_points
from recovery.offline.epoch_choice import OutputWouldRepeat
from recovery.offline.job_tree import NEWEST_SAVEPOINT, open_tree
from recovery.offline.stopped_job import take_over
from recovery.savepoints.copying import copy, fork, move
from recovery.savepoints.editing import edit
from recovery.savepoints.gc import let_go
from recovery.savepoints.repairing import repair
from recovery.savepoints.rescaling import rescale
from recovery.savepoints.restoring import plan_restore_of, restore
from recovery.savepoints.typed_changes import set_key
from recovery.savepoints.upgrading import migrate, plan_upgrade
from snapshot.journal.entries import Completed
from snapshot.journal.entry_json import decode_entry
from snapshot.tree.layout import JournalSummary, path_of
from statebackend.fail_points import at
from statebackend.snapshots.sealed_json import seal
from tests.command_line import Printed, run_command
from tests.idle_stretch import LATE_TWICE, ONCE, IdleJob, TalliedInText, add_output, idle_for, idle_job

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> IdleJob:
    return idle_job(tmp_path_factory.mktemp("idle"))


@pytest.fixture
def job(original: IdleJob, tmp_path: Path) -> IdleJob:
    return original.copied(tmp_path)


def test_of_what_came_after_the_savepoint_only_an_epoch_without_output_is_left(original: IdleJob) -> None:
    state, savepoint = original.tree.state, original.tree.record(NEWEST_SAVEPOINT)
    assert not any(record.has_committables for record in state.usable if record.epoch > savepoint.epoch)
    assert state.output_after(savepoint).epochs > 0


# --- real jobs


def changed(job: IdleJob, *, into: str | None = None, accept_duplicates: bool) -> None:
    """Let the savepoint have another tally for a key."""
    tree = job.tree
    change = set_key(tree, NEWEST_SAVEPOINT, "tallies", "tally", "3", 1000)
    edit(tree, NEWEST_SAVEPOINT, (change,), into=into, accept_duplicates=accept_duplicates)


@dataclass(frozen=True, slots=True)
class Way:
    """A way back: `go` makes the job go back, and may start it; else it is started at `at`, or where it was."""

    go: Callable[[IdleJob, str, bool], recovery.Run | None]
    at: str = ""
    loses: bool = False
    of: type[Any] | None = None


def by_itself(job: IdleJob, _: str, accepted: bool) -> recovery.Run:
    run = job.start(accept_duplicates=accepted)
    if not accepted:
        run.wait(60)
    return run


def by_restoring(job: IdleJob, _: str, accepted: bool) -> recovery.Run:
    return restore(
        job.tree,
        NEWEST_SAVEPOINT,
        job.program(),
        accept_duplicates=accepted,
        every="50ms",
        local=job.folder / "local",
        progress=False,
    )


def by_a_fork_that_runs(job: IdleJob, into: str, accepted: bool) -> recovery.Run:
    return restore(
        job.tree,
        NEWEST_SAVEPOINT,
        job.program(),
        into=into,
        accept_duplicates=accepted,
        every="50ms",
        local=job.folder / "local",
        progress=False,
    )


def by_rescaling(job: IdleJob, _: str, accepted: bool) -> None:
    rescale(job.tree, NEWEST_SAVEPOINT, 1, accept_duplicates=accepted)


def by_editing(job: IdleJob, _: str, accepted: bool) -> None:
    changed(job, accept_duplicates=accepted)


def by_an_edited_fork(job: IdleJob, into: str, accepted: bool) -> None:
    changed(job, into=into, accept_duplicates=accepted)


def by_upgrading(job: IdleJob, _: str, accepted: bool) -> None:
    migrate(job.tree, job.program(TalliedInText), accept_duplicates=accepted)


def by_forking(job: IdleJob, into: str, accepted: bool) -> None:
    fork(job.tree, NEWEST_SAVEPOINT, into, accept_duplicates=accepted)


def by_moving(job: IdleJob, into: str, accepted: bool) -> None:
    move(job.tree, into, accept_duplicates=accepted)


WAYS = {
    "its own fallback": Way(by_itself, loses=True),
    "restore": Way(by_restoring),
    "rescale": Way(by_rescaling),
    "edit": Way(by_editing),
    "upgrade": Way(by_upgrading, loses=True, of=TalliedInText),
    "fork": Way(by_forking, at="new"),
}
FURTHER = {
    "restore as a fork": Way(by_a_fork_that_runs, at="new"),
    "edit as a fork": Way(by_an_edited_fork, at="new"),
    "move": Way(by_moving, at="new", loses=True),
}
"""Those that do what the others do, which are refused like them and not run."""


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_way_back_is_refused_and_if_accepted_repeats_exactly_what_was_removed(job: IdleJob, way: Way) -> None:
    if way.loses:
        job.lose_what_came_after()
    savepoint, before, into = job.tree.record(NEWEST_SAVEPOINT), job.tree.state, str(job.folder / "new")
    after = before.output_after(savepoint)
    many = f"{after.epochs} epoch{'s' if after.epochs > 1 else ''}"
    with pytest.raises((OutputWouldRepeat, StartRefused)) as refused:
        way.go(job, into, False)
    assert f"the output of {many} after {savepoint.epoch}, up to epoch {after.newest}, may be" in str(refused.value)
    assert "(accept_duplicates=True)" in str(refused.value)
    assert job.output() == ONCE
    assert job.tree.state.epochs == before.epochs
    run = way.go(job, into, True)
    if run is None:
        options = {} if way.of is None else {"of": way.of}
        run = job.start(str(job.folder / way.at) if way.at else "", **options)
    assert job.outcome(run, LATE_TWICE) == LATE_TWICE


def test_a_copy_knows_what_its_job_has_made_since_and_asks_before_it_is_started(job: IdleJob) -> None:
    archive, moved = str(job.folder / "archive"), str(job.folder / "moved")
    after = job.tree.state.output_after(job.tree.record(NEWEST_SAVEPOINT))
    made = copy(job.tree, NEWEST_SAVEPOINT, archive)
    assert (made.repeats, made.asks) == (after, True)
    shutil.rmtree(job.uri)
    with pytest.raises(StartRefused, match=r"a copy of epoch .* the output of .*\(accept_duplicates=True\)"):
        job.start(archive).wait(60)
    assert job.output() == ONCE
    assert copy(open_tree(archive), "newest", f"{archive}-2").asks, "a copy of the copy knows it as well"
    with pytest.raises(OutputWouldRepeat, match="a copy of epoch"):
        rescale(open_tree(f"{archive}-2"), "newest", 1)
    with pytest.raises(OutputWouldRepeat, match="a copy of epoch"):
        fork(open_tree(f"{archive}-2"), "newest", f"{archive}-3")
    assert let_go(take_over(open_tree(f"{archive}-2"), "test")) == (), "what goes back nowhere is not asked"
    assert move(open_tree(archive), moved).asks, "it has gone nowhere back"
    with pytest.raises(StartRefused):
        job.start(moved).wait(60)
    run = job.start(moved, accept_duplicates=True)
    assert job.outcome(run, LATE_TWICE) == LATE_TWICE
    (claimed,) = (event for event in run.events if isinstance(event, Claimed))
    assert claimed.repeats == after.epochs
    again = job.start(moved)
    assert job.outcome(again, LATE_TWICE) == LATE_TWICE, "what was accepted is not asked again"


def test_a_copy_of_the_newest_epoch_and_one_that_was_accepted_go_on_without_a_word(job: IdleJob) -> None:
    newest, accepted = str(job.folder / "newest"), str(job.folder / "accepted")
    assert not copy(job.tree, "newest", newest).asks
    assert job.outcome(job.start(newest), ONCE) == ONCE
    assert not copy(job.tree, NEWEST_SAVEPOINT, accepted, accept_duplicates=True).asks
    assert job.outcome(job.start(accepted), LATE_TWICE) == LATE_TWICE


def test_a_copy_knows_what_its_job_makes_while_it_is_copied(job: IdleJob) -> None:
    archive, made = str(job.folder / "archive"), []
    with at(fail_points.FILE_COPIED, lambda: made.append(add_output(take_over(job.tree, "test"))), fail_points.POINTS):
        assert copy(job.tree, "newest", archive).asks
    with pytest.raises(OutputWouldRepeat, match=f"up to epoch {made[-1]}, may be committed"):
        rescale(open_tree(archive), "newest", 1)


# --- after any number of idle epochs, and in a terminal


@pytest.mark.parametrize("epochs", [1, 2, 50])
def test_after_however_many_idle_epochs_every_way_back_is_refused(job: IdleJob, epochs: int, tmp_path: Path) -> None:
    with_output, savepoint = idle_for(job, epochs), job.savepoint
    assert [record.epoch for record in job.tree.state.epochs][:-1] == [savepoint], "all others are forgotten"
    again = f"the output of 1 epoch after {savepoint}, up to epoch {with_output}, may be committed"
    into, number = str(tmp_path / "new"), job.tree.state.number
    ways = {**WAYS, **FURTHER}
    for way in ways.values():
        if not way.loses:
            with pytest.raises(OutputWouldRepeat, match=again):
                way.go(job, into, False)
    job.lose_what_came_after()
    for way in ways.values():
        if way.go is not by_itself:
            with pytest.raises((OutputWouldRepeat, StartRefused), match=again):
                way.go(job, into, False)
    with pytest.raises(StartRefused, match=again):
        copy(job.tree, "newest", into)
    with pytest.raises(StartRefused, match=again):
        plan_upgrade(job.tree, "newest", job.program(), accept_duplicates=False)
    with pytest.raises(StartRefused, match=again):
        plan_restore_of(job.tree, "newest", job.program())
    assert job.tree.state.number == number, "nothing was claimed"
    assert not Path(into).exists()
    with pytest.raises(StartRefused, match=again):
        by_itself(job, into, False)
    assert job.output() == ONCE


def test_what_a_summary_of_an_older_program_has_forgotten_counts_as_output_which_is_said(job: IdleJob) -> None:
    with_output, savepoint = idle_for(job, 3), job.savepoint
    state, store = job.tree.state, job.tree.store
    path = path_of(JournalSummary(state.number))
    content = json.loads(store.read(path))
    form = content.pop("format")
    for field in ("version", "checksum"):
        del content[field]
    for record in content["epochs"]:
        del record["output"]
    store.write(path, seal(form, 1, content))
    newest = state.newest_usable
    assert [record.epoch for record in job.tree.state.usable] == [savepoint, newest]
    missing = newest.number - savepoint.number - 1
    assert missing > with_output.number - savepoint.number > 0
    again = f"the output of {missing} epochs after {savepoint}, up to epoch {newest} "
    with pytest.raises(OutputWouldRepeat, match=re.escape(f"{again}({missing} of them removed before the journal ")):
        rescale(job.tree, NEWEST_SAVEPOINT, 3)


VERBS = {
    "restore": ("PROGRAM",),
    "restore as a fork": ("PROGRAM", "--no-claim", "--into", "NEW"),
    "rescale": ("--to", "3"),
    "edit": ("--uid", "tallies", "--state", "tally", "--key", "3", "--set", "1000"),
    "edit into": ("--uid", "tallies", "--state", "tally", "--key", "3", "--set", "1000", "--into", "NEW"),
    "fork": ("--into", "NEW"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_says_what_would_be_made_again(
    job: IdleJob, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"PROGRAM": job.program_file, "NEW": str(tmp_path / "new")}
    given = [names.get(one, one) for one in VERBS[verb]]

    def run(*options: str) -> Printed:
        arguments = (*given, "--checkpoints", job.uri, "--epoch", NEWEST_SAVEPOINT, "--dry-run", *options)
        return run_command(capsys, verb.split()[0], *arguments)

    after = job.tree.state.output_after(job.tree.record(NEWEST_SAVEPOINT))
    again = (
        f"epoch{'s' if after.epochs > 1 else ''} after {job.savepoint}, up to epoch {after.newest}, may be committed"
    )
    said = run()
    assert (said.code, said.out) == (Exit.DECLINED, "")
    assert f"{again} and would be made once more" in said.err
    assert "(--accept-duplicates)" in said.err
    accepted = run("--accept-duplicates")
    assert (accepted.code, accepted.err) == (Exit.DONE, "")
    assert f"{again} and is made once more from there" in accepted.out
    assert "nothing was done, as this is a dry run" in accepted.out
    assert f'"epochs": {after.epochs}' in run("--accept-duplicates", "--json").out


def test_a_dry_run_of_an_upgrade_says_it_and_so_does_one_of_a_copy_which_asks_later(
    job: IdleJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = f"after {job.savepoint}, up to epoch"
    into = ("--into", tmp_path / "new", "--checkpoints", job.uri, "--dry-run")
    copied = run_command(capsys, "copy", *into, "--epoch", NEWEST_SAVEPOINT)
    assert again in copied.out
    assert "a start from the new tree asks whether that is accepted" in copied.out
    job.lose_what_came_after()
    upgrade = ("upgrade", job.program_file, "--checkpoints", job.uri, "--migrate", "--dry-run")
    refused = run_command(capsys, *upgrade)
    assert (refused.code, refused.out) == (Exit.DAMAGED, "")
    assert again in refused.err
    assert again in run_command(capsys, *upgrade, "--accept-duplicates").out
    assert again in run_command(capsys, *upgrade[:-2]).out, "and one that only looks"
    moved = run_command(capsys, "move", *into)
    assert again in moved.err
    assert again in run_command(capsys, "move", *into, "--accept-duplicates").out


# --- repaired journals


def test_a_repaired_journal_counts_the_epochs_whose_entries_and_files_are_lost(job: IdleJob) -> None:
    savepoint = job.savepoint
    for file in sorted((Path(job.uri) / "journal").glob("0*.json")):
        match decode_entry(int(file.stem), file.read_bytes()).body:
            case Completed(epoch=epoch, has_committables=True) if epoch > savepoint:
                file.unlink()
            case _:
                pass
    repair(job.uri)
    with pytest.raises(OutputWouldRepeat):
        rescale(job.tree, str(savepoint), 2)
    assert job.outcome(job.start(), ONCE) == ONCE


def test_a_copy_whose_journal_is_lost_is_repaired_only_if_output_made_elsewhere_may_be_repeated(job: IdleJob) -> None:
    archive = str(job.folder / "archive")
    copy(job.tree, NEWEST_SAVEPOINT, archive)
    shutil.rmtree(f"{archive}/journal")
    with pytest.raises(OutputWouldRepeat, match=f"a copy of epoch .*{job.uri}.* is lost; .*--accept-duplicates"):
        repair(archive)
    assert repair(archive, accept_duplicates=True).epoch == job.savepoint
    assert job.outcome(job.start(archive), LATE_TWICE) == LATE_TWICE


def test_a_copy_that_has_gone_on_is_repaired_as_any_other_tree(job: IdleJob) -> None:
    archive = str(job.folder / "archive")
    copy(job.tree, "newest", archive)
    assert job.outcome(job.start(archive), ONCE) == ONCE
    shutil.rmtree(f"{archive}/journal")
    repair(archive)
    assert job.outcome(job.start(archive), ONCE) == ONCE
