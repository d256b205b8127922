"""`recovery edit`: a savepoint that differs from another one by what was asked for, and by nothing else."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from recovery.command.exits import Exit
from recovery.decisions.notes import from_json
from recovery.offline import fail_points
from recovery.offline.job_tree import open_tree
from recovery.offline.reading import read_epoch
from recovery.offline.stopped_job import JobRuns
from recovery.savepoints.editing import ChangedBy, ChangedRows, edit
from recovery.savepoints.inspecting import rows_of
from statebackend import KeyedState, Operator
from statebackend.canonical.schema import NAMESPACES
from statebackend.fail_points import at
from statebackend.ids import Uid
from statebackend.keygroups import key_group_of
from tests import visits_job
from tests.command_line import Printed, run_command
from tests.shop_job import AFTER, BEFORE, PATIENCE, baskets, program, start, totals, tree_of


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tree_of(tmp_path)


class Terminal:
    def __init__(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.tree, self._capsys = tree, capsys

    def edit(self, *arguments: object) -> Printed:
        return run_command(self._capsys, "edit", "--checkpoints", self.tree, *arguments)


@pytest.fixture
def terminal(tree: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tree, capsys)


def rows_in(tree: Path, uid: str, which: str = "newest") -> set[str]:
    """All rows of an operator, as text."""
    with read_epoch(open_tree(str(tree)), which, pin=False) as reading:
        return {json.dumps(row) for rows in rows_of(reading, uid) for row in rows.in_json()}


def differences(before: set[str], after: set[str]) -> tuple[list[Any], list[Any]]:
    """What is there no more, and what is new: state, key, and what is kept."""

    def shown(rows: set[str]) -> list[Any]:
        found = [json.loads(row) for row in rows]
        kept = [(row["state"], row["key"], row.get("map_key", row.get("index", row.get("time"))),
                 row.get("value", row.get("cents.value"))) for row in found]  # fmt: skip
        return sorted(kept, key=repr)

    return shown(before - after), shown(after - before)


KEY = '["eu", 0]'


@pytest.mark.parametrize(
    ("arguments", "gone", "new"),
    [
        (("cents", "--set", "7"), [("cents", ["eu", 0], None, 120)], [("cents", ["eu", 0], None, 7)]),
        (("last", "--set", '"pot"'), [("last", ["eu", 0], None, "tea")], [("last", ["eu", 0], None, "pot")]),
        (("last", "--delete"), [("last", ["eu", 0], None, "tea")], []),
        (("items", "--set", '{"tea": null, "jar": 3}'), [("items", ["eu", 0], "tea", 2)],
         [("items", ["eu", 0], "jar", 3)]),
        (("items", "--set", '[["cup", 1]]'), [], [("items", ["eu", 0], "cup", 1)]),
        (("sales", "--set", "[5, 120, 6]"), [("sales", ["eu", 0], 0, 0)],
         [("sales", ["eu", 0], 0, 5), ("sales", ["eu", 0], 2, 6)]),
        (("sales", "--delete"), [("sales", ["eu", 0], 0, 0), ("sales", ["eu", 0], 1, 120)], []),
        (("timers in processing time", "--set", "[17]"), [], [("timers in processing time", ["eu", 0], 17, None)]),
        (("timers in processing time", "--delete"), [("timers in processing time", ["eu", 0], 1 << 45, None)], []),
    ],
)  # fmt: skip
def test_one_key_is_changed_and_nothing_else(
    terminal: Terminal, tree: Path, arguments: tuple[str, ...], gone: list[Any], new: list[Any]
) -> None:
    before, old = rows_in(tree, "baskets"), open_tree(str(tree)).find()
    state, *rest = arguments
    said = terminal.edit("--uid", "baskets", "--state", state, "--key", KEY, *rest, "--json")
    assert (said.code, said.err) == (Exit.DONE, "")
    assert said.json["files"] == 1
    found = open_tree(str(tree)).find()
    assert said.json["made"] == str(found.record.epoch)
    assert differences(before, rows_in(tree, "baskets")) == (gone, new)
    assert found.record.epoch in open_tree(str(tree)).savepoints
    assert found.record.epoch.number == old.record.epoch.number + 1
    assert len(found.manifest.references() - old.manifest.references()) == 1
    assert old.manifest.references() <= found.manifest.references()
    assert rows_in(tree, "baskets", str(old.record.epoch)) == before
    assert rows_in(tree, "totals") == rows_in(tree, "totals", str(old.record.epoch))
    origin = from_json(found.manifest.notes).origin
    assert origin is not None
    assert (origin.how, origin.epoch) == ("edit", old.record.epoch)


def absent(tree: Path, uid: str, *, with_file: bool) -> str:
    """A key that an operator has not, as one types it, in a key group of which files speak, or in one without any."""
    with read_epoch(open_tree(str(tree)), "newest", pin=False) as reading:
        operator = reading.operator(uid)
        for number in count(10_000):
            key: Any = ("eu", number) if uid == "baskets" else f"nobody-{number}"
            if bool(operator.files_of_group(operator.group_of(key)).files) == with_file:
                return json.dumps(key)
    raise AssertionError("unreachable")


@pytest.mark.parametrize("with_file", [True, False])
@pytest.mark.parametrize(("uid", "state"), [("totals", "totals"), ("baskets", "sales"), ("baskets", "cents")])
def test_of_a_key_that_is_not_there_nothing_is_taken_away(
    terminal: Terminal, tree: Path, uid: str, state: str, with_file: bool
) -> None:
    before, usable = rows_in(tree, uid), open_tree(str(tree)).state.usable
    said = terminal.edit("--uid", uid, "--state", state, "--key", absent(tree, uid, with_file=with_file), "--delete")
    assert said.code == Exit.DONE
    assert said.err.endswith("; nothing is deleted\n")
    assert said.out == f"epoch {usable[-1].epoch} is so already; there is nothing to do\n"
    assert open_tree(str(tree)).state.usable == usable
    assert rows_in(tree, uid) == before


def expiries(tree: Path, state: str) -> dict[str, Any]:
    """When what a state has expires, by what it is."""
    rows = [json.loads(row) for row in rows_in(tree, visits_job.UID)]
    return {str(row["value"]): row["expires_at"] for row in rows if row["state"] == state}


def test_what_is_set_expires_when_what_was_there_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def come(state: KeyedState) -> None:
        state.advance(watermark=1000)
        state["last"].set("tea")
        state["pages"].add("a")
        state["seen"].put("a", 1)
        state.advance(watermark=1500)
        state["pages"].add("b")

    tree = visits_job.tree_of_visits(tmp_path)
    visits_job.visit(tree, "visitor-3", come)
    assert expiries(tree, "pages") == {"a": 2000, "b": 2500}
    terminal = Terminal(tree, capsys)
    of_key = ("--uid", visits_job.UID, "--key", "visitor-3")
    assert terminal.edit(*of_key, "--state", "last", "--set", '"tea"').out.endswith("there is nothing to do\n")
    assert terminal.edit(*of_key, "--state", "last", "--set", '"pot"').code == Exit.DONE
    assert terminal.edit(*of_key, "--state", "pages", "--set", '["a", "c", "d"]').code == Exit.DONE
    assert terminal.edit(*of_key, "--state", "seen", "--set", '{"a": 7, "new": 8}').code == Exit.DONE
    assert expiries(tree, "last") == {"pot": 2000}
    assert expiries(tree, "pages") == {"a": 2000, "c": 2500, "d": 2500}
    assert expiries(tree, "seen") == {"7": 2000, "8": None}


def scores(capsys: pytest.CaptureFixture[str], tree: Path) -> dict[str, int]:
    said = run_command(
        capsys, "inspect", "--checkpoints", tree, "--uid", visits_job.UID, "--state", "score", "--limit", 0, "--json"
    )
    assert (said.code, said.err) == (Exit.DONE, "")
    return {row["key"]: row["value"] for row in said.lines[:-1]}


def test_a_state_is_changed_of_keys_whose_files_are_from_before_there_was_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, first, second = visits_job.scored(tmp_path)
    terminal, of_score = Terminal(tree, capsys), ("--uid", visits_job.UID, "--state", "score")
    nothing = terminal.edit(*of_score, "--key", second, "--delete")
    assert nothing.out.endswith("is so already; there is nothing to do\n")
    lines = [{"key": first, "value": 6}, {"key": second, "value": 7}]
    (tmp_path / "some.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    some = ("--table", tmp_path / "some.jsonl")
    assert terminal.edit(*of_score, *some, "--dry-run").out.splitlines()[0] == (
        "visits, score: 1 added, 1 changed, 0 removed, 0 as they were"
    )
    assert terminal.edit(*of_score, "--key", second, "--set", "8").code == Exit.DONE
    assert scores(capsys, tree) == {first: 5, second: 8}
    assert terminal.edit(*of_score, *some).code == Exit.DONE
    assert scores(capsys, tree) == {first: 6, second: 7}
    rates = {
        row["key"]: row["value"] for row in map(json.loads, rows_in(tree, visits_job.UID)) if row["state"] == "rate"
    }
    assert rates == visits_job.RATES


def test_an_edit_of_older_files_leaves_the_states_known_that_only_others_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, first, second = visits_job.scored(tmp_path)
    of_rate = ("--uid", visits_job.UID, "--state", "rate")
    assert Terminal(tree, capsys).edit(*of_rate, "--key", second, "--set", "0.5").code == Exit.DONE
    assert scores(capsys, tree) == {first: 5}


def test_accumulators_of_a_table_are_set_one_by_one(terminal: Terminal, tree: Path) -> None:
    before = rows_in(tree, "totals")
    totals_of = ("--uid", "totals", "--state", "totals")
    said = terminal.edit(*totals_of, "--key", "tea", "--set", '{"cents.value": 1}')
    assert said.out.splitlines()[0] == "totals, totals: 0 added, 1 changed, 0 removed, 0 as they were"
    again = terminal.edit(*totals_of, "--key", "new", "--set", '{"cents.value": 2, "cents.seen": 1}')
    assert again.out.splitlines()[0] == "totals, totals: 1 added, 0 changed, 0 removed, 0 as they were"
    terminal.edit(*totals_of, "--key", "cup", "--delete")
    expected = totals()
    assert differences(before, rows_in(tree, "totals")) == (
        [("totals", "cup", None, expected["cup"]), ("totals", "tea", None, expected["tea"])],
        [("totals", "new", None, 2), ("totals", "tea", None, 1)],
    )


def test_accumulators_in_a_namespace_keep_what_is_not_set(terminal: Terminal, tree: Path) -> None:
    namespaces = pa.array([{"start": None, "end": None, "bytes": b"\x00\xff"}, {"start": 5, "end": 9}], NAMESPACES)
    rows = {"key": ["tea", "tea"], "namespace": namespaces, "cents.value": [5, 6], "cents.seen": [1, 1]}
    edit(open_tree(str(tree)), "newest", [ChangedRows("totals", "totals", pa.table(rows))])
    of_tea = ("--uid", "totals", "--state", "totals", "--key", "tea")
    for namespace, value in (('"00FF"', 7), ("[5, 9]", 8)):
        said = terminal.edit(*of_tea, "--namespace", namespace, "--set", json.dumps({"cents.value": value}))
        assert said.out.splitlines()[0] == "totals, totals: 0 added, 1 changed, 0 removed, 0 as they were"
    kept = [row for row in map(json.loads, rows_in(tree, "totals")) if row["key"] == "tea"]
    assert {row["cents.value"] for row in kept} == {totals()["tea"], 7, 8}


def test_the_job_goes_on_from_what_was_changed(terminal: Terminal, tmp_path: Path) -> None:
    terminal.edit("--uid", "baskets", "--state", "cents", "--key", KEY, "--set", "1000000")
    terminal.edit("--uid", "totals", "--state", "totals", "--key", "tea", "--set", '{"cents.value": 0}')
    run = start(tmp_path, parallelism=3)
    sums = {row["item"]: row["cents"] for row in run.rows("sums")}
    bought = {(str(row["region"]), int(str(row["user"]))): row["cents"] for row in run.rows("bought")}
    run.wait(PATIENCE)
    truth = totals(BEFORE + AFTER)
    assert sums == truth | {"tea": truth["tea"] - totals()["tea"]}
    later = baskets(BEFORE + AFTER)
    assert bought["eu", 0] == later["eu", 0]["cents"] - 120 + 1_000_000
    assert all(cents == later[key]["cents"] for key, cents in bought.items() if key != ("eu", 0))


def test_a_dry_run_and_a_change_that_is_none_make_no_epoch(terminal: Terminal, tree: Path) -> None:
    state, files = open_tree(str(tree)).state, sorted(tree.rglob("*"))
    cents = ("--uid", "baskets", "--state", "cents", "--key", KEY)
    said = terminal.edit(*cents, "--set", "7", "--dry-run")
    assert said.out.splitlines() == [
        "baskets, cents: 0 added, 1 changed, 0 removed, 0 as they were",
        "nothing was done, as this is a dry run",
    ]
    assert open_tree(str(tree)).state == state
    assert sorted(tree.rglob("*")) == files
    said = terminal.edit(*cents, "--set", "120")
    assert said.code == Exit.DONE
    assert said.out.splitlines()[-1] == f"epoch {state.usable[-1].epoch} is so already; there is nothing to do"
    assert open_tree(str(tree)).state.usable == state.usable


def test_tables_of_changes_come_from_files_of_all_forms(
    terminal: Terminal, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(capsys, "export", "--checkpoints", tree, "--uid", "baskets", "--into", tmp_path / "out")
    table = parquet.read_table(tmp_path / "out" / "cents.parquet")
    doubled = pa.array([2 * cents for cents in table["value"].to_pylist()])
    at = table.column_names.index("value")
    parquet.write_table(table.set_column(at, table.schema.field(at), doubled), tmp_path / "double.parquet")
    said = terminal.edit("--uid", "baskets", "--table", tmp_path / "double.parquet", "--json")
    assert said.json["states"] == [
        {"uid": "baskets", "state": "cents", "rows": {"added": 0, "changed": 120, "removed": 0, "unchanged": 0}}
    ]
    assert said.json["files"] == 2, "one for each partition"
    lines = [{"state": "last", "key": ["eu", 0], "value": "jar"}, {"state": "cents", "key": ["us", 5], "deleted": True}]
    (tmp_path / "some.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    before = rows_in(tree, "baskets")
    assert terminal.edit("--uid", "baskets", "--table", tmp_path / "some.jsonl").code == Exit.DONE
    gone, new = differences(before, rows_in(tree, "baskets"))
    assert new == [("last", ["eu", 0], None, "jar")]
    assert [row[:2] for row in gone] == [("cents", ["us", 5]), ("last", ["eu", 0])]


def test_lines_that_were_exported_are_taken_back_whatever_is_in_a_text(
    terminal: Terminal, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_last = ("--uid", "baskets", "--state", "last")
    text = "next\x85line\u2028separated\u2029and\r\nmore\x1c\x0b"
    assert terminal.edit(*of_last, "--key", KEY, "--set", json.dumps(text)).code == Exit.DONE
    before = rows_in(tree, "baskets")
    into = tmp_path / "out"
    run_command(capsys, "export", "--checkpoints", tree, *of_last, "--into", into, "--format", "jsonl")
    assert terminal.edit(*of_last, "--key", KEY, "--delete").code == Exit.DONE
    said = terminal.edit(*of_last, "--table", into / "last.jsonl")
    assert (said.code, said.err) == (Exit.DONE, "")
    assert said.out.splitlines()[0] == "baskets, last: 1 added, 0 changed, 0 removed, 119 as they were"
    assert rows_in(tree, "baskets") == before


def test_a_fork_that_is_changed_leaves_its_origin_as_it_is(terminal: Terminal, tree: Path, tmp_path: Path) -> None:
    state, before = open_tree(str(tree)).state, rows_in(tree, "baskets")
    into = tmp_path / "other"
    cents = ("--uid", "baskets", "--state", "cents", "--key", KEY)
    assert terminal.edit(*cents, "--set", "7", "--into", into, "--dry-run").code == Exit.DONE
    assert not into.exists()
    said = terminal.edit(*cents, "--set", "7", "--into", into)
    assert (said.code, said.err) == (Exit.DONE, "")
    assert f" at {into}, a job of its own; 1 file with " in said.out
    assert differences(before, rows_in(into, "baskets")) == (
        [("cents", ["eu", 0], None, 120)], [("cents", ["eu", 0], None, 7)],
    )  # fmt: skip
    there = open_tree(str(into))
    assert there.birth.job != open_tree(str(tree)).birth.job
    origin = from_json(there.find().manifest.notes).origin
    assert origin is not None
    assert origin.how == "edit"
    now = open_tree(str(tree)).state
    assert (now.usable, now.pins, now.generation) == (state.usable, state.pins, state.generation)
    assert terminal.edit(*cents, "--set", "8", "--into", into).code == Exit.EXISTS


class _Crash(BaseException):
    pass


CHANGES = [
    ChangedRows("totals", "totals", pa.table({"key": ["tea", "cup"], "cents.value": [1, 2], "cents.seen": [1, 1]}))
]


def _crash() -> None:
    raise _Crash


@pytest.mark.parametrize(
    "point",
    [
        fail_points.TAKEN_OVER,
        fail_points.CHANGES_STORED,
        fail_points.NEW_MANIFEST_WRITTEN,
        fail_points.NEW_EPOCH_ENTERED,
    ],
)
def test_whoever_crashes_while_editing_leaves_the_old_epoch_or_the_new_one_and_can_do_it_again(
    tree: Path, point: str
) -> None:
    old = open_tree(str(tree)).find()
    with pytest.raises(_Crash), at(point, _crash, fail_points.POINTS):
        edit(open_tree(str(tree)), "newest", CHANGES)
    newest = open_tree(str(tree)).find()
    assert (newest.record.epoch != old.record.epoch) == (point == fail_points.NEW_EPOCH_ENTERED)
    done = edit(open_tree(str(tree)), "newest", CHANGES)
    assert (done.made is None) == (point == fail_points.NEW_EPOCH_ENTERED)
    found = open_tree(str(tree))
    assert found.find().record.epoch in found.savepoints
    kept = {row["key"]: row["cents.value"] for row in map(json.loads, rows_in(tree, "totals"))}
    assert kept == totals() | {"tea": 1, "cup": 2}


def test_a_crash_while_a_fork_is_edited_leaves_no_job_there(tree: Path, tmp_path: Path) -> None:
    into = tmp_path / "other"
    with pytest.raises(_Crash), at(fail_points.CHANGES_STORED, _crash, fail_points.POINTS):
        edit(open_tree(str(tree)), "newest", CHANGES, into=str(into))
    with pytest.raises(ValueError, match="there is no job"):
        open_tree(str(into))
    assert edit(open_tree(str(tree)), "newest", CHANGES, into=str(into)).made is not None
    kept = {row["key"]: row["cents.value"] for row in map(json.loads, rows_in(into, "totals"))}
    assert kept == totals() | {"tea": 1, "cup": 2}


def test_a_function_is_given_the_open_state_of_each_partition(tree: Path) -> None:
    declared = program().plan().keyed[Uid("baskets")].states
    groups: list[Any] = []

    def double(state: KeyedState) -> None:
        groups.append(state.groups)
        for key in baskets():
            if key_group_of(state.key_type.hash(key), 128) in state.groups:
                state.set_key(key)
                state["cents"].set(2 * state["cents"].get())

    done = edit(open_tree(str(tree)), "newest", [ChangedBy(Operator("baskets", (str, int), declared), double)])
    assert done.made is not None
    assert done.files == len(groups) == 2
    kept = {
        tuple(row["key"]): row["value"] for row in map(json.loads, rows_in(tree, "baskets")) if row["state"] == "cents"
    }
    assert kept == {key: 2 * one["cents"] for key, one in baskets().items()}


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--uid", "nobody", "--state", "a", "--key", "a", "--set", "1"), 6, "has no operator 'nobody'"),
        (("--uid", "totals", "--state", "a", "--key", "a", "--set", "1"), 6, "totals has no state 'a'"),
        (("--uid", "totals", "--state", "totals", "--key", "a", "--set", "1"), 2, "a JSON object of its accumulators"),
        (
            ("--uid", "totals", "--state", "totals", "--key", "a", "--set", '{"cents.value": 1}'),
            2,
            "'cents.seen': it is",
        ),
        (
            ("--uid", "totals", "--state", "totals", "--key", "tea", "--set", '{"sum": 1}'),
            2,
            "there is no column 'sum'",
        ),
        (("--uid", "baskets", "--state", "cents", "--key", "eu", "--set", "1"), 2, "'eu' is no JSON"),
        (("--uid", "baskets", "--state", "cents", "--key", KEY, "--set", "x"), 2, "--set takes JSON, and 'x' is none"),
        (("--uid", "baskets", "--state", "cents", "--key", KEY, "--set", '"x"'), 2, "value is of type int64"),
        (("--uid", "baskets", "--state", "cents", "--set", "1"), 2, "give --state and --key, or a --table"),
        (("--uid", "baskets", "--table", "a.parquet", "--key", KEY), 2, "leave --key out"),
        (("--uid", "baskets", "--table", "a.csv"), 2, "a.csv is no table of changes"),
        (("--uid", "baskets", "--table", "nothing.parquet"), 1, "nothing.parquet"),
        (("--uid", "baskets", "--state", "cents", "--key", KEY, "--set", "1", "--epoch", "77"), 6, "no epoch '77'"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_nothing_is_done(
    terminal: Terminal, tree: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    usable = open_tree(str(tree)).state.usable
    said = terminal.edit(*arguments)
    assert (said.code, said.out) == (code, ""), said
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert open_tree(str(tree)).state.usable == usable


def test_a_job_that_runs_is_not_edited_in_its_tree_and_may_be_forked(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise JobRuns("it runs")

    monkeypatch.setattr("recovery.savepoints.editing.refuse_if_it_runs", refuse)
    with pytest.raises(JobRuns):
        edit(open_tree(str(tree)), "newest", CHANGES)
    assert edit(open_tree(str(tree)), "newest", CHANGES, into=str(tmp_path / "other")).made is not None
