"""Verification of a tree: what is damaged is found and named, and what is sound is told."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from recovery.offline.job_tree import open_tree
from recovery.offline.stopped_job import take_over
from recovery.savepoints.disposal import dispose
from recovery.savepoints.editing import ChangedRows, edit
from recovery.savepoints.gc import clean_up, take_over_and_plan
from recovery.savepoints.verifying import Verified, verify, what_to_verify
from snapshot.tree.manifest import Manifest
from tests.command_line import run_command
from tests.shop_job import tree_of


def verified(tree: Path, which: str | None = None) -> Verified:
    found = open_tree(str(tree))
    return verify(found, what_to_verify(found, which))


def state_files(tree: Path) -> list[Path]:
    manifest: Manifest = open_tree(str(tree)).find().manifest
    return [tree / path for path in sorted(manifest.references())]


def test_a_sound_tree_is_sound_with_all_its_keys(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    found = verified(tree)
    assert found.damages == ()
    assert found.sound == tuple(record.epoch for record in open_tree(str(tree)).state.usable)
    assert found.rows > 100
    assert found.bytes >= sum(file.stat().st_size for file in state_files(tree))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(cut_short, "bytes, and"), (flip_a_bit, "its content has sha256:"), (Path.unlink, "is not in")],
)
def test_a_damaged_file_is_named_with_the_epochs_that_need_it(
    damage: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path)
    file = state_files(tree)[0]
    damage(file)
    found = verified(tree)
    [one] = found.damages
    assert one.what == str(file.relative_to(tree))
    assert said in one.detail
    assert one.epochs == tuple(record.epoch for record in open_tree(str(tree)).state.usable)
    assert found.sound == ()


def test_epochs_that_do_not_need_a_damaged_manifest_stay_sound(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    first = open_tree(str(tree)).record()
    job = take_over(open_tree(str(tree)), "test")
    newest = job.publish(job.remade(job.tree.find().manifest, "test"))
    (tree / job.tree.record().manifest).write_text("{}")
    found = verified(tree)
    assert found.sound[-1] == first.epoch
    [one] = found.damages
    assert one.epochs == (newest,)
    assert verified(tree, str(first.epoch)).damages == ()


@pytest.mark.parametrize("keys", [True, False])
def test_an_epoch_that_is_removed_meanwhile_is_neither_damaged_nor_sound(tmp_path: Path, keys: bool) -> None:
    tree = tree_of(tmp_path)
    first = open_tree(str(tree)).find()
    edit(open_tree(str(tree)), "newest", [ChangedRows("totals", "totals", pa.table({"key": ["tea"]}))])
    second = open_tree(str(tree)).record().epoch
    job = take_over(open_tree(str(tree)), "test")
    third = job.publish(job.remade(first.manifest, "test"))
    dispose(open_tree(str(tree)), str(second))
    found = open_tree(str(tree))
    todo, lock, left = what_to_verify(found), threading.Lock(), itertools.count(1)

    def seen(_size: int) -> None:
        with lock:
            if next(left) == len(todo.files):  # all have been looked at; the keys have not
                clean_up(found, take_over_and_plan(found))

    verified = verify(found, todo, keys=keys, seen=seen)
    assert verified.damages == ()
    assert verified.sound == (first.record.epoch, third)
    assert verified.epochs == 2


def test_keys_in_key_groups_that_are_not_theirs_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(tmp_path)
    monkeypatch.setattr("statebackend.keys.columns.KeyColumn.groups", lambda keys, most: keys.hashes * 0)
    found = verified(tree)
    assert found.sound == ()
    assert {one.what.partition(",")[0] for one in found.damages} == {"state of baskets"}
    assert "rows have keys of other key groups" in found.damages[0].detail


def test_the_command_says_what_is_sound_and_ends_with_a_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tree_of(tmp_path)
    epoch = open_tree(str(tree)).record().epoch
    ended = run_command(capsys, "verify", "--checkpoints", tree)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0].endswith(f", {verified(tree).rows:,} rows of state")
    assert ended.out.splitlines()[-1].endswith(str(epoch))
    file = state_files(tree)[0]
    flip_a_bit(file)
    ended = run_command(capsys, "verify", "--checkpoints", tree)
    assert ended.code == 7
    assert f"damaged: {file.relative_to(tree)}: " in ended.out
    assert ended.out.splitlines()[-1] == "sound: none"
    assert ended.err == "recovery: 1 damage was found\n"
    as_json = run_command(capsys, "verify", "--checkpoints", tree, "--json")
    assert as_json.json["damages"][0]["what"] == str(file.relative_to(tree))
    assert run_command(capsys, "verify", "--checkpoints", tree, "--epoch", "999").code == 6
