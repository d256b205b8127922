"""`recovery diff`: what differs between two epochs is what was changed, and only what may differ is read."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.command.exits import Exit
from recovery.offline.job_tree import open_tree
from recovery.offline.reading import read_epoch
from recovery.savepoints.comparing import Compared, KeyDiff, StateDiff, compare
from recovery.savepoints.editing import ChangedRows, edit
from recovery.savepoints.rescaling import rescale
from statebackend.ids import Uid
from tests import visits_job
from tests.command_line import Printed, run_command
from tests.shop_job import ITEMS, baskets, totals, tree_of


def compared(one: Path, other: Path, *epochs: str, **of: Any) -> tuple[Compared, list[KeyDiff]]:
    keys: list[KeyDiff] = []
    first, second = epochs or ("newest", "newest")
    with (
        read_epoch(open_tree(str(one)), first, pin=False) as before,
        read_epoch(open_tree(str(other)), second, pin=False) as after,
    ):
        return compare(before, after, on_key=keys.append, **of), keys


def changed(tree: Path, **tables: dict[str, list[Any]]) -> None:
    rows = [
        ChangedRows("totals" if state == "totals" else "baskets", state, _table(columns))
        for state, columns in tables.items()
    ]
    edit(open_tree(str(tree)), "newest", rows)


def _table(columns: dict[str, list[Any]]) -> pa.Table:
    if isinstance(columns["key"][0], tuple):
        keys = [{"f0": region, "f1": user} for region, user in columns["key"]]
        columns = columns | {"key": keys}
    return pa.table(columns)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tree_of(tmp_path)


def test_what_was_edited_is_what_differs(tree: Path) -> None:
    old = str(open_tree(str(tree)).find().record.epoch)
    changed(tree, cents={"key": [("eu", 0), ("us", 5), ("mars", 1)], "value": [7, None, 9]},
            sales={"key": [("eu", 0), ("eu", 0)], "index": [0, 1], "value": [1, 2]},
            totals={"key": ["tea", "new"], "cents.value": [1, 2], "cents.seen": [1, 1]})  # fmt: skip
    found, keys = compared(tree, tree, old, "newest")
    assert found.states == (
        StateDiff(Uid("baskets"), "cents", added=1, removed=1, changed=1),
        StateDiff(Uid("baskets"), "sales", changed=1),
        StateDiff(Uid("totals"), "totals", added=1, changed=1),
    )
    assert found.groups - found.same_files <= 5
    cents = [(key.before, key.after) for key in keys if key.state == "cents"]
    shown = [([row["value"] for row in before], [row["value"] for row in after]) for before, after in cents]
    assert sorted(shown) == sorted([([120], [7]), ([], [9]), ([baskets()["us", 5]["cents"]], [])])
    back, _ = compared(tree, tree, "newest", old)
    assert [(one.added, one.removed, one.changed) for one in back.states] == [(1, 1, 1), (0, 0, 1), (0, 1, 1)]
    only, keys = compared(tree, tree, old, "newest", uid="baskets", state="sales")
    assert [one.state for one in only.states] == ["sales"]
    assert [row["value"] for row in keys[0].after] == [1, 2]


@settings(max_examples=6)
@given(st.dictionaries(st.sampled_from([*ITEMS, "new", "other"]), st.none() | st.integers(0, 3), max_size=4))
def test_the_difference_of_an_edit_is_the_edit(wanted: dict[str, int | None]) -> None:
    with TemporaryDirectory() as folder:
        tree = tree_of(Path(folder))
        old = str(open_tree(str(tree)).find().record.epoch)
        if wanted:
            values, seen = list(wanted.values()), [None if value is None else 1 for value in wanted.values()]
            columns = {"key": pa.array(wanted, pa.string()), "cents.value": pa.array(values, pa.int64()),
                       "cents.seen": pa.array(seen, pa.uint8())}  # fmt: skip
            edit(open_tree(str(tree)), "newest", [ChangedRows("totals", "totals", pa.table(columns))])
        before = totals()
        after = {key: value for key, value in (before | wanted).items() if value is not None}
        found, keys = compared(tree, tree, old, "newest")
        expected = StateDiff(
            Uid("totals"), "totals", len(after.keys() - before.keys()), len(before.keys() - after.keys()),
            sum(after[key] != before[key] for key in after.keys() & before.keys()),
        )  # fmt: skip
        differs = before != after
        assert found.states == ((expected,) if differs else ())
        told = {row["key"]: row["cents.value"] for key in keys for row in key.after}
        assert told == {key: value for key, value in after.items() if before.get(key) != value}


def test_files_that_both_have_are_not_read_and_another_parallelism_is_no_difference(tree: Path, tmp_path: Path) -> None:
    old = str(open_tree(str(tree)).find().record.epoch)
    rescale(open_tree(str(tree)), "newest", 3)
    found, keys = compared(tree, tree, old, "newest")
    assert (found.states, keys) == ((), [])
    assert (found.groups, found.same_files) == (256, 256)
    assert found.read.files == 0
    other = tree_of(tmp_path / "other")
    found, keys = compared(tree, other)
    assert (found.states, found.same_files, found.read.files) == ((), 256, 0)


class Terminal:
    def __init__(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._tree, self._capsys = tree, capsys

    def diff(self, *arguments: object) -> Printed:
        return run_command(self._capsys, "diff", "--checkpoints", self._tree, *arguments)


def test_differences_are_told_in_text_and_json(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terminal, old = Terminal(tree, capsys), open_tree(str(tree)).find().record.epoch
    changed(tree, cents={"key": [("eu", 0)], "value": [7]})
    new = open_tree(str(tree)).find().record.epoch
    said = terminal.diff("--epoch", old, "--epoch", new, "--rows")
    assert (said.code, said.err) == (Exit.DONE, "")
    lines = said.out.splitlines()
    assert lines[0].startswith(
        '- {"uid": "baskets", "state": "cents", "key": ["eu", 0], "namespace": null, "value": 120'
    )
    assert lines[1].startswith('+ {"uid": "baskets", "state": "cents", "key": ["eu", 0], "namespace": null, "value": 7')
    assert lines[2] == "baskets, cents: 0 keys added, 0 removed, 1 changed"
    assert lines[3].startswith(f"from epoch {old} to {new}; 255 of 256 key groups have the same files; ")
    key, end = terminal.diff("--epoch", old, "--epoch", new, "--rows", "--json").lines
    assert key["before"][0]["value"] == 120
    assert end["states"] == [{"uid": "baskets", "state": "cents", "added": 0, "removed": 0, "changed": 1}]
    other = terminal.diff("--with", tree_of(tmp_path / "other"))
    assert other.out.splitlines()[0] == "baskets, cents: 0 keys added, 0 removed, 1 changed"
    same = terminal.diff("--epoch", new, "--epoch", new)
    assert same.out.startswith(f"from epoch {new} to {new} nothing differs; 256 of 256 key groups")
    pins = [pin.pin for pin in open_tree(str(tree)).state.pins]
    assert not [pin for pin in pins if pin.startswith("reader")]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((), 2, "which two epochs? give --epoch twice"),
        (("--epoch", "newest"), 2, "which two epochs? give --epoch twice"),
        (("--epoch", "newest", "--epoch", "99"), 6, "has no epoch '99'"),
        (("--epoch", "newest", "--epoch", "newest", "--state", "cents"), 2, "of which operator? give --uid"),
        (("--epoch", "newest", "--epoch", "newest", "--uid", "nobody"), 6, "has no operator 'nobody'"),
        (("--epoch", "newest", "--epoch", "newest", "--uid", "totals", "--state", "x"), 6, "totals has no state 'x'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_a_code(
    tree: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    said = Terminal(tree, capsys).diff(*arguments)
    assert (said.code, said.out) == (code, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_rows_as_json_have_their_values_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = visits_job.tree_of_visits(tmp_path)
    old = open_tree(str(tree)).record().epoch
    rows = pa.table({"key": ["visitor-3"], "value": [0.00025]})
    edit(open_tree(str(tree)), "newest", [ChangedRows(visits_job.UID, "rate", rows)])
    said = Terminal(tree, capsys).diff("--epoch", old, "--epoch", "newest", "--rows", "--json")
    key, _ = said.lines
    assert (key["uid"], key["state"]) == (visits_job.UID, "rate")
    assert [[row["value"] for row in key[side]] for side in ("before", "after")] == [[3 / 8192], [0.00025]]
