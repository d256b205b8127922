"""`recovery export`: the tables are the state, whole folders appear or none, and nothing is replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest

from recovery.command.exits import Exit
from recovery.offline.job_tree import open_tree
from recovery.offline.reading import read_epoch
from recovery.savepoints.exporting import TableFormat, export
from statebackend import KeyedState, Operator
from statebackend.canonical.importing import import_tables
from statebackend.canonical.parquet import read_parquet
from statebackend.states.declarations import Declaration
from statebackend.stores.memory_store import MemoryStore
from tests import visits_job
from tests.command_line import Printed, run_command
from tests.shop_job import Basket, baskets, totals, tree_of


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree_of(tmp_path_factory.mktemp("shop"))


def exported(capsys: pytest.CaptureFixture[str], tree: Path, into: Path, *arguments: object) -> Printed:
    return run_command(capsys, "export", "--checkpoints", tree, "--into", into, *arguments)


def test_what_is_exported_becomes_state_again(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = exported(capsys, tree, tmp_path / "out", "--uid", "baskets")
    assert (said.code, said.err) == (Exit.DONE, "")
    assert said.out.splitlines()[0].startswith(f"{tmp_path}/out/cents.parquet: 120 rows, ")
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    states: dict[str, Declaration[Any]] = {
        "cents": Basket.cents,
        "last": Basket.last,
        "items": Basket.items,
        "sales": Basket.sales,
    }
    declared = Operator("baskets", (str, int), states)
    tables = [table for table in read_parquet(tmp_path / "out") if table.name in states]
    with KeyedState(declared, tmp_path / "state", MemoryStore("out"), lambda: "shared/1.sst") as state:
        import_tables(tables, state)
        for key, expected in baskets().items():
            state.set_key(key)
            assert state["cents"].get() == expected["cents"]
            assert state["last"].get() == expected["last"]
            assert dict(state["items"].items()) == expected["items"]
            assert state["sales"].get() == expected["sales"]


def test_tables_of_all_forms_have_the_same_rows(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = exported(capsys, tree, tmp_path / "parquet", "--uid", "totals", "--json").json
    assert [(table["state"], table["rows"]) for table in said["tables"]] == [("totals", 4)]
    assert said["tables"][0]["bytes"] == (tmp_path / "parquet" / "totals.parquet").stat().st_size
    exported(capsys, tree, tmp_path / "arrow", "--uid", "totals", "--format", "arrow")
    exported(capsys, tree, tmp_path / "jsonl", "--uid", "totals", "--format", "jsonl")
    table = parquet.read_table(tmp_path / "parquet" / "totals.parquet")
    assert dict(zip(table["key"].to_pylist(), table["cents.value"].to_pylist(), strict=True)) == totals()
    with ipc.open_file(tmp_path / "arrow" / "totals.arrow") as file:
        assert file.read_all().equals(table, check_metadata=True)
    lines = (tmp_path / "jsonl" / "totals.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"state": "totals"} | row for row in table.to_pylist()]


def test_one_state_alone_and_a_dry_run(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = open_tree(str(tree)).state.number
    said = exported(capsys, tree, tmp_path / "out", "--uid", "baskets", "--state", "last", "--dry-run")
    assert said.code == Exit.DONE
    assert open_tree(str(tree)).state.number == number, "nothing was written"
    assert "the tables of last would be written" in said.out
    assert said.out.endswith("nothing was done, as this is a dry run\n")
    assert not (tmp_path / "out").exists()
    exported(capsys, tree, tmp_path / "out", "--uid", "baskets", "--state", "last")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["last.parquet"]


def test_what_is_there_is_not_replaced_and_a_failure_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tree_of(tmp_path)
    (tmp_path / "taken").mkdir()
    said = exported(capsys, tree, tmp_path / "taken", "--uid", "totals")
    assert (said.code, said.out) == (Exit.EXISTS, "")
    assert f"{tmp_path}/taken is there already" in said.err
    said = exported(capsys, tree, tmp_path / "out", "--uid", "nobody")
    assert said.code == Exit.NOTHING_THERE
    said = exported(capsys, tree, tmp_path / "out", "--uid", "baskets", "--state", "nothing")
    assert said.code == Exit.NOTHING_THERE
    with read_epoch(open_tree(str(tree)), "newest", pin=False) as reading:
        last = reading.operator("baskets").parts[-1].files[-1]
    (tree / last.path).write_bytes(b"x" * last.size)
    said = exported(capsys, tree, tmp_path / "out", "--uid", "baskets", "--state", "cents")
    assert said.code == Exit.DAMAGED
    assert last.path in said.err
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "taken"}
    assert open_tree(str(tree)).state.pins == open_tree(str(tree_of(tmp_path / "again"))).state.pins


def test_a_folder_that_somebody_made_meanwhile_stays_as_it_is(tree: Path, tmp_path: Path) -> None:
    into = tmp_path / "out"

    def make(_rows: int) -> None:
        into.mkdir(exist_ok=True)
        (into / "mine").touch()

    with pytest.raises(ValueError, match="already"):
        export(open_tree(str(tree)), "newest", "totals", into, TableFormat.JSONL, on_rows=make)
    assert [path.name for path in into.iterdir()] == ["mine"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_partitions_whose_files_are_from_before_there_was_a_state_have_no_rows_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, first, _ = visits_job.scored(tmp_path)
    said = exported(capsys, tree, tmp_path / "out", "--uid", visits_job.UID)
    assert (said.code, said.err) == (Exit.DONE, "")
    scores = parquet.read_table(tmp_path / "out" / "score.parquet")
    assert list(zip(scores["key"].to_pylist(), scores["value"].to_pylist(), strict=True)) == [(first, 5)]
    rates = parquet.read_table(tmp_path / "out" / "rate.parquet")
    assert dict(zip(rates["key"].to_pylist(), rates["value"].to_pylist(), strict=True)) == visits_job.RATES
