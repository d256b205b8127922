"""`recovery bootstrap`: a job starts from tables alone and goes on as if it had made that state itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from recovery.command.exits import Exit
from recovery.decisions.notes import from_json
from recovery.offline import fail_points
from recovery.offline.job_tree import open_tree
from recovery.savepoints.bootstrapping import StateFrom, bootstrap
from snapshot import Collection, Program, Stream, ToDriver
from statebackend.canonical.mapping import Columns
from statebackend.canonical.schema import CanonicalError, TableMismatch
from statebackend.fail_points import at
from tests.command_line import Printed, run_command
from tests.shop_job import PATIENCE, SALES, Basket, baskets, sale, start, totals, tree_of


def later() -> Program:
    """The program of the shop, with sales from 240 to 299 only."""
    sales = Stream.read(Collection([sale(number) for number in range(240, 300)], SALES), uid="sales")
    bought = sales.key_by("region", "user").process(Basket, uid="baskets").write(ToDriver(), uid="bought")
    return bought + sales.key_by("item").sum("cents", uid="totals").write(ToDriver(), uid="sums")


def made(capsys: pytest.CaptureFixture[str], into: Path, *arguments: object) -> Printed:
    return run_command(capsys, "bootstrap", "tests.test_bootstrap:later", "--into", into, *arguments)


def ordinary(folder: Path) -> Path:
    """A table of what each buyer has spent, as some other system has it."""
    rows = [{"where": region, "who": user, "spent": one["cents"]} for (region, user), one in baskets().items()]
    schema = pa.schema([("where", pa.large_string()), ("who", pa.int32()), ("spent", pa.int32())])
    parquet.write_table(pa.Table.from_pylist(rows, schema), folder / "spent.parquet")
    return folder / "spent.parquet"


def test_a_job_goes_on_from_an_ordinary_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    columns = ("--key", "where,who", "--value", "spent")
    said = made(capsys, tree, "--state", f"baskets/cents={ordinary(tmp_path)}", *columns, "--dry-run")
    assert (said.code, said.err) == (Exit.DONE, "")
    assert "would be written; nothing was done" in said.out
    assert not tree.exists()
    said = made(capsys, tree, "--state", f"baskets/cents={tmp_path}/spent.parquet", *columns, "--name", "shop")
    assert said.out.splitlines()[0] == "baskets, cents: 120 rows"
    assert f"is made at {tree}, with 2 partitions; 2 files with " in said.out
    run = start(tmp_path, later(), parallelism=3)
    bought = {(str(row["region"]), int(str(row["user"]))): row["cents"] for row in run.rows("bought")}
    run.wait(PATIENCE)
    truth = baskets(300)
    assert len(bought) == 60
    assert bought == {key: truth[key]["cents"] for key in bought}


def test_what_was_exported_is_taken_whole_and_a_table_of_aggregates_from_plain_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tree_of(tmp_path / "old")
    run_command(capsys, "export", "--checkpoints", old, "--uid", "baskets", "--into", tmp_path / "out")
    sums = pa.table({"key": list(totals()), "cents": list(totals().values())})
    states = [
        StateFrom("baskets", name, tmp_path / "out" / f"{name}.parquet") for name in ("cents", "last", "items", "sales")
    ]
    done = bootstrap(later(), str(tmp_path / "tree"), [*states, StateFrom("totals", "totals", sums)], name="shop")
    assert {(one.state, one.rows) for one in done.states} >= {("cents", 120), ("sales", 240), ("totals", 4)}
    origin = from_json(open_tree(str(tmp_path / "tree")).find().manifest.notes).origin
    assert origin is not None
    assert origin.how == "bootstrap"
    assert f"{tmp_path}/out/cents.parquet" in origin.uri
    run = start(tmp_path, later())
    found = {row["item"]: row["cents"] for row in run.rows("sums")}
    rows = list(run.rows("bought"))
    run.wait(PATIENCE)
    assert found == totals(300)
    truth = baskets(300)
    last = {(str(row["region"]), int(str(row["user"]))): (row["cents"], row["sales"]) for row in rows}
    assert last == {key: (truth[key]["cents"], len(truth[key]["sales"])) for key in last}


def test_a_crash_leaves_no_job_and_it_can_be_done_again(tmp_path: Path) -> None:
    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    into, states = str(tmp_path / "tree"), [StateFrom("totals", "totals", pa.table({"key": ["tea"], "cents": [1]}))]
    for point in (fail_points.TREE_BEGUN, fail_points.CHANGES_STORED, fail_points.NEW_MANIFEST_WRITTEN):
        with pytest.raises(Crash), at(point, crash, fail_points.POINTS):
            bootstrap(later(), into, states)
        with pytest.raises(ValueError, match="there is no job"):
            open_tree(into)
    assert bootstrap(later(), into, states).made is not None
    assert open_tree(into).find().manifest.operators[0].uid == "totals"


def test_what_is_there_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = made(capsys, tree_of(tmp_path), "--state", f"baskets/cents={ordinary(tmp_path)}")
    assert (said.code, said.out) == (Exit.EXISTS, "")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("--state", "nobody/cents=T"),
            6,
            "the program has no operator 'nobody' with keyed state; it has 'baskets', 'tot",
        ),
        (("--state", "baskets/a=T"), 6, "baskets declares no state 'a'; it declares 'cents'"),
        (("--state", "baskets=T"), 2, "'baskets=T' does not say which state a table is for"),
        (("--state", "baskets/cents=T"), 2, "there is no column 'key' for the key; there are where, who, spent"),
        (("--state", "baskets/cents=T", "--key", "where,who"), 2, "there is no column 'value' for the value"),
        (("--state", "baskets/cents=T", "--key", "where", "--value", "spent"), 2, "a key has 2 fields, and 1 columns"),
        (("--state", "baskets/cents=T", "--key", "who,where", "--value", "spent"), 2, "a key of type int32 is given"),
        (
            ("--state", "baskets/cents=T", "--key", "where,who", "--value", "where"),
            2,
            "is of type large_string instead",
        ),
        (("--state", "totals/totals=T", "--key", "where"), 2, "there is no column 'cents' for the output 'cents'"),
        (("--state", "totals/totals=T", "--key", "where", "--parallelism", "999"), 2, "parallelism 999 is out of bou"),
        (
            ("--state", "totals/totals=T", "--key", "where", "--max-parallelism", "100000"),
            2,
            "maximum parallelism 100000 is out of bounds: 1 to 32768",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_and_leaves_no_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    table = str(ordinary(tmp_path))
    said = made(
        capsys, tmp_path / "tree", *(one.replace("=T", f"={table}") if "/" in one else one for one in arguments)
    )
    assert (said.code, said.out) == (code, ""), said
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert not list((tmp_path / "tree").rglob("job.json"))


def test_tables_with_other_types_are_refused() -> None:
    def filled(**columns: Any) -> None:
        states = [StateFrom("totals", "totals", pa.table(columns), Columns(value="sum"))]
        bootstrap(later(), "/nowhere", states, dry_run=True)

    filled(key=["a", "b"], sum=[1, None])
    for columns in ({"key": [1], "sum": [1]}, {"key": ["a"], "sum": ["x"]}, {"key": ["a"], "sum": [1.5]}):
        with pytest.raises(TableMismatch):
            filled(**columns)
    with pytest.raises(CanonicalError, match="there is no column 'map_key' for the map_key"):
        bootstrap(later(), "/nowhere", [StateFrom("baskets", "items", pa.table({"key": ["a"]}))], dry_run=True)
