"""`recovery list`, `show` and `history`, as they are printed for a tree of a real job."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.decisions import notes
from recovery.decisions.notes import Notes, Origin
from recovery.offline.job_tree import JobTree, NoSuchEpoch, journal_of, open_tree
from recovery.offline.listing import list_job, show_epoch
from recovery.offline.stopped_job import take_over
from recovery.savepoints.disposal import dispose
from recovery.savepoints.gc import clean_up, take_over_and_plan
from snapshot.host.protocol.messages import PartitionCost
from statebackend.ids import Epoch, Partition
from tests.command_line import Printed, run_command
from tests.shop_job import tree_of

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Of a job that was stopped with a savepoint, of which another one was made."""
    folder = tree_of(tmp_path)
    found = open_tree(str(folder))
    job, newest = take_over(found, "test"), found.find()
    origin = Origin("rescale", str(folder), 0, found.birth.job, newest.record.epoch)
    took = (PartitionCost(Partition(0), 12.5, 0.25, 1.0, 10.0, 4711, 0),)
    job.publish(replace(job.remade(newest.manifest, "rescale"), notes=notes.to_json(Notes("1.4", took, origin))))
    return folder


def plainly(text: str, tree: Path) -> list[str]:
    """Without what differs from run to run."""
    text = text.replace(str(tree), "TREE")
    for pattern, name in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
        (r"shop-[0-9a-f]{8}", "JOB"),
        (r"-[0-9a-f]{16}\b", "-NONCE"),
        (r"\d[\d.]* (kB|bytes|MB)", "SIZE"),
        (r"\b\d+-1\b", "E"),
        (r"\b\d+-2\b", "F"),
        (r" +", " "),
    ):
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines()]


def ran(capsys: Capture, tree: Path, verb: str, *arguments: str) -> Printed:
    return run_command(capsys, verb, "--checkpoints", tree, *arguments)


def test_list_shows_jobs_with_their_epochs(tree: Path, capsys: Capture) -> None:
    listed = run_command(capsys, "list", tree.parent)
    assert listed.code == 0
    lines = plainly(listed.out, tree)
    assert lines[0] == "TREE: job JOB, 128 key groups, generation 2, not known to run on this host"
    assert lines[1] == "epoch taken kind state partitions size new pins"
    assert re.fullmatch(r"E TIME savepoint (complete|committed) 2 SIZE SIZE savepoint", lines[-2])
    assert re.fullmatch(r"F TIME savepoint \(rescale\) complete 2 SIZE SIZE savepoint", lines[-1])


def test_list_takes_the_place_as_other_verbs_do(tree: Path, capsys: Capture) -> None:
    assert ran(capsys, tree, "list") == run_command(capsys, "list", tree)
    assert "one of the arguments URI --checkpoints is required" in run_command(capsys, "list").err


def test_list_as_json_has_what_people_see_and_more(tree: Path, capsys: Capture) -> None:
    [job] = run_command(capsys, "list", tree, "--json").json
    assert (job["name"], job["max_parallelism"], job["pid"]) == ("shop", 128, None)
    newest = job["epochs"][-1]
    assert newest["origin"]["how"] == "rescale"
    assert newest["new_bytes"] == 0
    assert newest["full_bytes"] == job["epochs"][-2]["full_bytes"] > 0


def test_list_shows_what_cannot_be_read_beside_what_can(tree: Path, capsys: Capture) -> None:
    newest = open_tree(str(tree)).record()
    (tree / newest.manifest).unlink()
    [other] = [tree_of(tree.parent / "other")]
    (other / "journal/0000000001.json").write_bytes(b"{}")
    listed = run_command(capsys, "list", tree.parent)
    assert (listed.code, listed.err) == (7, "recovery: 1 of 2 jobs cannot be read\n")
    assert f"epoch {newest.epoch} cannot be used: its manifest {newest.manifest} is missing" in listed.out
    assert f"{other}: cannot be read: journal/0000000001.json is damaged" in listed.out
    assert f"recovery repair --checkpoints {other} --dry-run" in listed.out


def test_a_job_whose_files_nest_too_deep_hides_no_other(tree: Path, capsys: Capture) -> None:
    deep = tree_of(tree.parent / "deep")
    (deep / "job.json").write_bytes(b"[" * 100_000)
    pipe = tree_of(tree.parent / "pipe")
    (pipe / "journal/0000000001.json").unlink()
    os.mkfifo(pipe / "journal/0000000001.json")
    listed = run_command(capsys, "list", tree.parent)
    assert (listed.code, listed.err) == (7, "recovery: 2 of 3 jobs cannot be read\n")
    assert f"{deep}: cannot be read: job.json of the checkpoints is damaged: maximum recursion depth" in listed.out
    assert f"{tree}: job " in listed.out


def test_show_says_all_about_one_epoch(tree: Path, capsys: Capture) -> None:
    shown = ran(capsys, tree, "show", "--files")
    assert shown.code == 0
    lines = plainly(shown.out, tree)
    assert lines[0] == "savepoint F of job JOB, taken TIME, complete, pinned: savepoint"
    assert lines[1] == "based on epoch E, program version 1.4"
    assert "made by rescale at TIME from epoch E of JOB in TREE" in lines
    assert "0 12.5 0.2 1.0 10.0 SIZE SIZE" in lines
    assert "baskets: keyed state, in 2 partitions" in lines
    assert "sales: the positions of a source, in 2 partitions" in lines
    files = [line for line in lines if line.startswith("shared/")]
    assert files
    assert all(line.endswith(" E") for line in files)
    assert lines[-1] == f"{len(files)} of {len(files)} files are shared with other epochs"


def test_show_as_json_and_of_an_older_epoch(tree: Path, capsys: Capture) -> None:
    shown = ran(capsys, tree, "show", "--json").json
    assert shown["took"] == [
        {"partition": 0, "since_trigger_ms": 12.5, "alignment_ms": 0.25, "sync_ms": 1.0, "async_ms": 10.0,
         "state_bytes": 4711, "channel_bytes": 0}
    ]  # fmt: skip
    older = ran(capsys, tree, "show", "--epoch", shown["parent"], "--json").json
    assert older["line"]["epoch"] == shown["parent"]
    assert older["line"]["program"] == "summer"
    assert [took["partition"] for took in older["took"]] == [0, 1]
    assert all(took["since_trigger_ms"] >= took["async_ms"] > 0 for took in older["took"])
    assert Epoch.parse(older["line"]["epoch"]) < Epoch.parse(shown["line"]["epoch"])


def test_show_passes_over_a_damaged_newest_epoch_and_says_so(tree: Path, capsys: Capture) -> None:
    found = open_tree(str(tree))
    before, newest = found.state.usable[-2:]
    (tree / newest.manifest).write_bytes(b"{}")
    shown = ran(capsys, tree, "show")
    assert shown.code == 0
    assert f"savepoint {before.epoch} of job" in shown.out
    assert f"epoch {newest.epoch} cannot be used" in shown.err
    asked = ran(capsys, tree, "show", "--epoch", str(newest.epoch))
    assert (asked.code, asked.out) == (7, "")


def with_one_removed(folder: Path) -> tuple[JobTree, Epoch, Epoch, Epoch]:
    """A tree as it was found before a running job took its newest epoch away: what was the newest, and what is there
    now, the older one first.
    """
    tree = tree_of(folder)
    first = open_tree(str(tree)).record().epoch
    job = take_over(open_tree(str(tree)), "test")
    removed = job.publish(job.remade(job.tree.find().manifest, "test"))
    dispose(job.tree, str(removed))
    found = open_tree(str(tree))
    job = take_over(found, "test")
    newest = job.publish(job.remade(job.tree.find().manifest, "test"))
    clean_up(found, take_over_and_plan(found))
    assert removed not in {record.epoch for record in found.look_again().state.retained}
    return found, removed, first, newest


def test_an_epoch_that_is_removed_while_a_tree_is_listed_is_left_out(tmp_path: Path) -> None:
    found, removed, first, newest = with_one_removed(tmp_path)
    assert [line.epoch for line in list_job(found).epochs] == [first, newest]
    assert removed not in [line.epoch for line in list_job(found, looks=1).epochs]
    assert not [line for line in list_job(found, looks=1).epochs if line.problem]


def test_if_the_newest_epoch_is_removed_the_one_that_is_newest_then_is_shown(tmp_path: Path) -> None:
    found, removed, first, newest = with_one_removed(tmp_path)
    line = show_epoch(found).line
    assert (line.epoch, line.pins) == (newest, ("savepoint",))
    shown = show_epoch(found, str(first))
    assert shown.line.epoch == first
    assert removed not in {epoch for file in shown.files for epoch in file.shared_with}
    with pytest.raises(NoSuchEpoch, match=f"epoch {removed} was removed just now; it has {first}, {newest}"):
        show_epoch(found, str(removed))


def test_history_tells_the_journal(tree: Path, capsys: Capture) -> None:
    told = ran(capsys, tree, "history")
    lines = plainly(told.out, tree)
    assert lines[0] == "entry what taken took"
    assert re.fullmatch(r"1 started generation 1, claimed by 127\.0\.0\.1:\d+", lines[1])
    assert re.fullmatch(r"\d+ started generation 2, claimed by recovery test, process \d+ on \S+", lines[-3])
    assert re.fullmatch(r"\d+ completed epoch F TIME 12 ms", lines[-2])
    assert re.fullmatch(r"\d+ pinned epoch F as a savepoint", lines[-1])
    kinds = [one["kind"] for one in ran(capsys, tree, "history", "--json").json]
    assert kinds[0] == "started"
    assert kinds[-3:] == ["started", "completed", "pinned"]


def test_history_of_a_compacted_journal_says_what_is_forgotten(tree: Path, capsys: Capture) -> None:
    found = open_tree(str(tree))
    journal_of(found.store).compact(found.state, found.state.number)
    lines = plainly(ran(capsys, tree, "history").out, tree)
    assert len(lines) == 2
    assert "what came before is forgotten" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["list", "nowhere"], 1, "nowhere: there is no such folder"),
        (["list", "."], 3, "there is no job at ., nor below it"),
        (["show", "--checkpoints", "."], 3, "there is no job at .: it has no job.json"),
        (["show", "--checkpoints", "TREE", "--epoch", "999"], 6, "has no epoch '999'"),
        (["show", "--checkpoints", "TREE", "--epoch", "soon"], 6, "'soon' names no epoch"),
        (["history", "--checkpoints", "gs://bucket/job"], 1, "gs://bucket/job: the store behind gs://"),
    ],
)
def test_what_is_not_there_is_refused(
    arguments: list[str],
    code: int,
    said: str,
    tree: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    ended = run_command(capsys, *(argument.replace("TREE", str(tree)) for argument in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
