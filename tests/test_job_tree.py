"""A job's tree from outside: which epoch is meant, and what is said of one that cannot be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from recovery.decisions import notes
from recovery.decisions.notes import Notes, Origin
from recovery.driver.tree.identity import WrongJob
from recovery.offline.job_tree import JobTree, NoSuchEpoch, UnusableEpoch, find_jobs, open_tree
from recovery.offline.stopped_job import take_over
from snapshot.host.protocol.messages import PartitionCost
from snapshot.ids import JobId
from snapshot.journal.entries import NewerJournal, Rewound
from snapshot.tree.frozen_json import NULL, Json
from snapshot.tree.manifest_json import decode, encode
from statebackend.ids import Epoch, Partition
from tests.shop_job import tree_of


def with_savepoints(folder: Path, more: int = 2) -> JobTree:
    """The tree of a stopped job with its savepoint, and others that were made after it."""
    tree = open_tree(str(tree_of(folder)))
    for _ in range(more):
        job = take_over(tree, "test")
        job.publish(job.remade(tree.find().manifest, "test"))
        tree = tree.look_again()
    return tree


def epochs(tree: JobTree) -> list[str]:
    return [str(record.epoch) for record in tree.state.usable]


def test_an_epoch_is_found_by_its_number_its_name_or_by_being_the_newest(tmp_path: Path) -> None:
    tree = with_savepoints(tmp_path)
    first, second, third = (record.epoch for record in tree.state.usable[-3:])
    assert tree.record().epoch == third
    assert tree.record("newest-savepoint").epoch == third
    assert tree.record(str(second)).epoch == second
    assert tree.record(str(first.number)).epoch == first
    assert tree.savepoints >= {second, third}


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("999", "has no epoch '999'; it has "),
        ("999-9", "has no epoch '999-9'; it has "),
        ("yesterday", "names no epoch; give newest, newest-savepoint, a number as 17, or an epoch as 17-2"),
        ("-1", "names no epoch"),
    ],
)
def test_an_epoch_that_is_not_there_is_refused_and_the_others_are_named(tmp_path: Path, which: str, said: str) -> None:
    tree = with_savepoints(tmp_path, 0)
    with pytest.raises(NoSuchEpoch, match=said):
        tree.record(which)


def test_an_epoch_behind_which_the_job_went_back_is_not_to_be_had(tmp_path: Path) -> None:
    tree = with_savepoints(tmp_path)
    first, gone = tree.state.usable[-3].epoch, tree.state.usable[-1].epoch
    job = take_over(tree, "test")
    job.propose(Rewound(job.generation, first))
    with pytest.raises(NoSuchEpoch, match=f"epoch {gone} of job .* was given up when the job went back"):
        job.tree.record(str(gone))
    assert job.tree.record().epoch == first


def test_the_newest_sound_epoch_takes_the_place_of_a_damaged_one_only_if_that_is_asked_for(tmp_path: Path) -> None:
    tree = with_savepoints(tmp_path)
    before, newest = tree.state.usable[-2:]
    manifest = tmp_path / "tree" / newest.manifest
    manifest.write_bytes(manifest.read_bytes()[:-40])
    with pytest.raises(UnusableEpoch, match=f"epoch {newest.epoch} cannot be used: .* is damaged"):
        tree.find()
    found = tree.find(fall_back=True)
    assert found.record == before
    assert [error.epoch for error in found.passed_over] == [newest.epoch]
    with pytest.raises(UnusableEpoch):
        tree.find(str(newest.epoch), fall_back=True)


def test_a_manifest_that_is_not_the_journalled_one_or_is_missing_or_newer_is_not_used(tmp_path: Path) -> None:
    tree = with_savepoints(tmp_path, 0)
    record = tree.record()
    file = tmp_path / "tree" / record.manifest
    written = file.read_bytes()
    file.write_bytes(encode(replace(decode(written, "it"), created_at=1)))
    with pytest.raises(UnusableEpoch, match=r"has digest sha256:.*, and the journal says"):
        tree.manifest(record)
    file.write_bytes(written.replace(b'"version":1', b'"version":2'))
    with pytest.raises(UnusableEpoch, match="use a release of epochcut at least as new"):
        tree.manifest(record)
    file.unlink()
    with pytest.raises(UnusableEpoch, match=r"its manifest .* is missing"):
        tree.manifest(record)


def test_where_there_is_no_job_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no such folder"):
        open_tree(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(WrongJob, match=r"there is no job at .*: it has no job\.json"):
        open_tree(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    tree = with_savepoints(tmp_path, 0)
    entry = tmp_path / "tree/journal/0000000001.json"
    entry.write_bytes(entry.read_bytes().replace(b'"version":1', b'"version":3'))
    with pytest.raises(NewerJournal, match="written by a newer program"):
        tree.look_again()


def test_jobs_are_found_at_a_place_and_below_it(tmp_path: Path) -> None:
    assert find_jobs(str(tmp_path)) == ()
    tree_of(tmp_path / "one")
    tree_of(tmp_path / "two" / "deep")
    assert find_jobs(str(tmp_path)) == (f"{tmp_path}/one/tree", f"{tmp_path}/two/deep/tree")
    assert find_jobs(str(tmp_path / "one/tree")) == (str(tmp_path / "one/tree"),)


def test_notes_are_read_as_they_were_written() -> None:
    took = (PartitionCost(Partition(1), 12.5, 0.25, 1.0, 10.0, 4711, 0),)
    before = Origin("bootstrap", "/tables", 5)
    origin = Origin("fork", "/data/clicks", 1_700_000_000_000, JobId("clicks-1"), Epoch.parse("17-2"), before)
    for written in (Notes(), Notes("1.4"), Notes("1.4", took), Notes(origin=origin)):
        assert notes.from_json(notes.to_json(written)) == written
    assert notes.to_json(Notes()) == NULL


@pytest.mark.parametrize(
    "found",
    [
        [1],
        {"program": 7},
        {"took": {"a": 1}},
        {"took": [[1, 2], None, [0, 1.0, 2.0, 3.0, 4.0, 5]]},
        {"origin": {"how": "fork"}},
        {"origin": "here", "later": {"more": True}},
        {"took": [[0, 1.0, 2.0, 3.0, 4.0]]},
    ],
)
def test_notes_that_are_not_understood_are_left_out(found: object) -> None:
    assert notes.from_json(Json.of(found)) == Notes()  # type: ignore[arg-type]


def test_a_time_that_is_no_number_of_milliseconds_is_not_known() -> None:
    took = [[0, 10**400, 2.0, None, 1e308, 5, 6]]
    assert notes.from_json(Json.of({"took": took})) == Notes(
        took=(PartitionCost(Partition(0), 0.0, 2.0, 0.0, 0.0, 5, 6),)
    )
