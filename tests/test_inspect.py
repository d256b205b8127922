"""`recovery inspect`: what is in an epoch's state is shown as it is, and only what is asked for is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from recovery.command.exits import Exit
from recovery.json_values import WrongText, heard, parsed, said
from recovery.offline.job_tree import open_tree
from recovery.offline.reading import read_epoch
from recovery.savepoints.inspecting import Wanted, rows_of
from snapshot.tree.layout import JOB
from statebackend.keys.types import KeyType
from tests.command_line import Printed, run_command
from tests.shop_job import baskets, totals, tree_of


@pytest.fixture(scope="module", params=["rocksdb", "heap"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree_of(tmp_path_factory.mktemp("shop"), request.param)


class Terminal:
    def __init__(self, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._tree, self._capsys = tree, capsys
        self.epoch = str(open_tree(str(tree)).record().epoch)

    def inspect(self, *arguments: object) -> Printed:
        return run_command(self._capsys, "inspect", "--checkpoints", self._tree, *arguments)


@pytest.fixture
def terminal(tree: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tree, capsys)


def test_without_a_uid_all_states_are_listed(terminal: Terminal) -> None:
    said = terminal.inspect()
    lines = [line.partition(", 2 partitions")[0] for line in said.out.splitlines()]
    assert (said.code, said.err) == (Exit.DONE, "")
    assert lines == [
        f"epoch {terminal.epoch}, 128 key groups",
        "baskets: keys of type struct<string, int64>",
        "  cents: value of int",
        "  last: value of str",
        "  items: map of str -> int",
        "  sales: list of int",
        "  timers in event time: timers",
        "  timers in processing time: timers",
        "totals: keys of type string",
        "  totals: table of cents: sum(int)",
    ]
    found = terminal.inspect("--json").json
    assert [operator["uid"] for operator in found["operators"]] == ["baskets", "totals"]
    assert found["operators"][1]["states"] == [
        {"name": "totals", "kind": "table", "holds": "cents: sum(int)", "expires": None}
    ]
    assert all(operator["bytes"] > 0 and operator["files"] >= 2 for operator in found["operators"])


def test_a_key_is_shown_with_all_that_is_kept_of_it(terminal: Terminal) -> None:
    wanted = baskets()["eu", 0]
    assert wanted["sales"] == [0, 120]
    shown = terminal.inspect("--uid", "baskets", "--key", '["eu", 0]')
    assert shown.out.splitlines() == [
        "state                      key        value  key_group  map_key  index  time",
        'cents                      ["eu", 0]  120    107',
        'last                       ["eu", 0]  tea    107',
        'items                      ["eu", 0]  2      107        tea',
        'sales                      ["eu", 0]  0      107                 0',
        'sales                      ["eu", 0]  120    107                 1',
        'timers in processing time  ["eu", 0]         107                        35184372088832',
    ]
    *rows, end = terminal.inspect("--uid", "baskets", "--state", "items", "--key", '["eu", 0]', "--json").lines
    empty = {"namespace": None, "expires_at": None}
    assert rows == [{"state": "items", "key": ["eu", 0], "map_key": "tea", "value": 2, "key_group": 107} | empty]
    assert (end["epoch"], end["rows"], end["more"]) == (terminal.epoch, 1, False)
    assert terminal.inspect("--uid", "baskets", "--key", '["eu", 999]').out == f"no rows in epoch {terminal.epoch}\n"


def test_all_rows_of_a_state_are_what_the_program_has_kept(terminal: Terminal) -> None:
    *rows, end = terminal.inspect("--uid", "totals", "--json").lines
    assert {row["key"]: row["cents.value"] for row in rows} == totals()
    *rows, end = terminal.inspect("--uid", "baskets", "--state", "sales", "--limit", 0, "--json").lines
    found: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        found.setdefault(tuple(row["key"]), []).append(row["value"])
    assert found == {key: one["sales"] for key, one in baskets().items()}
    assert end["rows"] == len(rows) == 240
    some = terminal.inspect("--uid", "baskets", "--state", "sales", "--limit", 5)
    assert len(some.out.splitlines()) == 7
    assert some.out.endswith("... and more; --limit 0 shows all\n")


def test_keys_are_found_by_how_they_begin_and_by_their_key_group(terminal: Terminal) -> None:
    def keys(*arguments: object) -> set[object]:
        *rows, _ = terminal.inspect(*arguments, "--limit", 0, "--json").lines
        return {tuple(row["key"]) if isinstance(row["key"], list) else row["key"] for row in rows}

    cents = ("--uid", "baskets", "--state", "cents")
    assert keys(*cents, "--prefix", '["us"]') == {key for key in baskets() if key[0] == "us"}
    assert keys(*cents, "--prefix", '["us", 5]') == {key for key in baskets() if key == ("us", 5)}
    assert keys("--uid", "totals", "--prefix", "t") == {"tea"}
    group = KeyType.of((str, int)).hash(("eu", 0)) * 128 >> 64
    expected = {key for key in baskets() if KeyType.of((str, int)).hash(key) * 128 >> 64 == group}
    assert keys(*cents, "--key-group", group) == expected
    assert ("eu", 0) in expected


def test_for_a_key_only_files_that_speak_of_its_group_are_opened(terminal: Terminal, tree: Path) -> None:
    with read_epoch(open_tree(str(tree)), "newest", pin=False) as reading:
        operator = reading.operator("baskets")
        (group,) = {row["key_group"] for rows in rows_of(reading, "baskets", "cents", Wanted('["eu",0]'))
                    for row in rows.in_json()}  # fmt: skip
        files = operator.files_of_group(group).files
        assert 0 < len(files) < len(operator.files)
        assert (reading.read.files, reading.read.bytes) == (len(files), sum(file.size for file in files))
    said = terminal.inspect("--uid", "baskets", "--key", '["eu", 0]', "-v").out
    assert f"epoch {terminal.epoch}: {len(files)} file{'' if len(files) == 1 else 's'} with " in said


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--uid", "basket"), 6, "has no operator 'basket'; those with keyed state are 'baskets', 'totals'"),
        (("--uid", "sales"), 6, "sales has no keyed state in epoch"),
        (("--uid", "totals", "--state", "total"), 6, "totals has no state 'total'; it has 'totals'"),
        (("--uid", "totals", "--epoch", "99"), 6, "has no epoch '99'; it has "),
        (("--uid", "totals", "--epoch", "last"), 6, "'last' names no epoch; give newest, newest-savepoint"),
        (("--uid", "baskets", "--key", "eu"), 2, "'eu' is no JSON"),
        (("--uid", "baskets", "--key", '["eu"]'), 2, "give a JSON list of 2"),
        (("--uid", "baskets", "--key", '["eu", "x"]'), 2, 'the key, field f1 is of type int64, and "x" is none'),
        (("--uid", "totals", "--key-group", "128"), 2, "there is no key group 128; they go from 0 to 127"),
        (("--uid", "totals", "--key", "a", "--prefix", "a"), 2, "give a key, or a key group, or a prefix"),
        (("--key", "tea"), 2, "of which operator? give --uid"),
        (("--uid", "totals", "--limit", "-1"), 2, "-1 rows cannot be shown"),
    ],
)
def test_what_is_not_there_or_makes_no_sense_is_one_sentence_and_a_code(
    terminal: Terminal, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    said = terminal.inspect(*arguments)
    assert (said.code, said.out) == (code, "")
    assert sentence in said.err
    assert said.err.startswith("recovery: ")
    assert said.err.count("\n") == 1


def test_damage_is_named_and_other_epochs_are_not_shown_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    nowhere = run_command(capsys, "inspect", "--checkpoints", tmp_path / "empty")
    assert nowhere.code == Exit.NOT_RUNNING
    assert "there is no job at" in nowhere.err
    tree = tree_of(tmp_path)
    terminal = Terminal(tree, capsys)
    for file in (tree / "shared").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    said = terminal.inspect("--uid", "totals")
    assert said.code == Exit.DAMAGED
    assert "is damaged: it has" in said.err
    for manifest in (tree / "epochs").rglob("manifest.json"):
        manifest.write_bytes(b"{}")
    said = terminal.inspect("--uid", "totals")
    assert (said.code, said.out) == (Exit.DAMAGED, "")
    assert f"epoch {terminal.epoch} cannot be used" in said.err
    (tree / JOB).write_bytes(b"nothing")
    assert terminal.inspect().code == Exit.NOT_RUNNING


def test_reading_leaves_no_pin_and_no_scratch(
    terminal: Terminal, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = open_tree(str(tree)).state
    with read_epoch(open_tree(str(tree)), "newest", pin=True) as reading:
        assert any(tmp_path.iterdir())
        assert len(open_tree(str(tree)).state.pins) == len(before.pins) + 1
        next(rows_of(reading, "totals"))
    assert open_tree(str(tree)).state.pins == before.pins
    assert list(tmp_path.iterdir()) == []
    number = open_tree(str(tree)).state.number
    terminal.inspect("--uid", "totals", "--key", "tea")
    assert open_tree(str(tree)).state.number == number, "one key is read without a pin"


ARROW = pa.struct([("f0", pa.binary()), ("f1", pa.float64()), ("f2", pa.timestamp("us", "UTC"))])


def test_values_come_back_from_json_as_they_were() -> None:
    for arrow, value in (
        (ARROW, ["00ff", "NaN", "2026-01-02 03:04:05.000006Z"]),
        (pa.struct([("a", pa.int8()), ("b", pa.bool_())]), {"a": -3, "b": True}),
        (pa.decimal128(5, 2), "123.45"),
        (pa.date32(), "2026-01-02"),
        (pa.float32(), 0.5),
        (pa.string(), "null"),
        (pa.int64(), None),
    ):
        assert said(heard(value, arrow)) == [value]
    assert said(parsed("00ff", pa.binary(), "it")) == ["00ff"]
    assert said(parsed("tea", pa.string(), "it")) == said(parsed('"tea"', pa.string(), "it")) == ["tea"]
    for text, arrow in (("zz", pa.binary()), ("1.5", pa.int64()), ("true", pa.int64()), ("1e999", pa.date32())):
        with pytest.raises(WrongText, match="it is of type"):
            parsed(text, arrow, "it")
