"""State of Spark's queries becomes that of a program, which goes on with the rows after it: each row counts once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import recovery
from recovery.command.exits import Exit
from recovery.savepoints import open_tree, read_rows
from snapshot import EventTime
from tests.command_line import run_command
from tests.spark_state_job import AFTER, BEFORE, LATER, program, sales

pytestmark = pytest.mark.usefixtures("with_pandas")

ROOT = Path(__file__).parent.parent


def all_sales(files: int) -> list[tuple[str, int, str, int]]:
    return [sale for file in range(files) for sale in sales(file)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark-state")


@pytest.fixture(scope="module")
def said(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark_state_job", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-2:]]


@pytest.mark.timeout(600)
def test_a_program_goes_on_from_the_state_of_two_queries_with_the_rows_after_it(
    said: list[dict[str, Any]], folder: Path
) -> None:
    users, pairs = {sale[1] for sale in all_sales(BEFORE)}, {sale[:2] for sale in all_sales(BEFORE)}
    items = {(sale[1], sale[2]) for sale in all_sales(BEFORE)}
    assert said[0]["rows"] == {
        "cents": len(users),
        "sales": len(all_sales(BEFORE)),
        "items": len(items),
        "timers in processing time": len(users),
        "totals": len(pairs),
    }
    run = recovery.run(
        program(str(folder / "log")), checkpoints=str(folder / "tree"), available_now=True, progress=False
    )
    sums = {(row["region"], row["user"]): (row["n"], row["cents"]) for row in run.rows("sums")}
    bought = {row["user"]: (row["cents"], row["sales"], row["items"]) for row in run.rows("bought")}
    run.wait(120)
    everything = all_sales(BEFORE + AFTER)
    cents_of = {pair: [sale[3] for sale in everything if sale[:2] == pair] for pair in pairs}
    assert sums == {pair: (len(cents), sum(cents)) for pair, cents in cents_of.items()}
    cents_by = {user: [sale[3] for sale in everything if sale[1] == user] for user in users}
    assert bought == {user: (sum(cents), ",".join(map(str, cents)), len(cents)) for user, cents in cents_by.items()}


@pytest.mark.timeout(600)
def test_times_to_live_and_timers_come_along(said: list[dict[str, Any]], folder: Path) -> None:
    tree, now = open_tree(str(folder / "tree")), time.time() * 1000
    for state, column in {"items": "expires_at", "timers in processing time": "time"}.items():
        rows = [row for some in read_rows(tree, "1-1", "baskets", state) for row in some.rows.to_pylist()]
        assert rows
        assert all(now + LATER - 600_000 < row[column] < now + LATER for row in rows)


@pytest.mark.timeout(600)
def test_a_source_knows_the_watermark_of_its_dataframe(said: list[dict[str, Any]]) -> None:
    assert said[0]["event_time"] == str(EventTime("at", out_of_order="2s"))


@pytest.mark.timeout(600)
def test_the_command_does_the_same(said: list[dict[str, Any]], folder: Path) -> None:
    assert [(one["state"], one["rows"]) for one in said[1]["states"]] == [("totals", 10)]
    assert str(open_tree(str(folder / "by command")).find().record.epoch) == "1-1"


@pytest.mark.timeout(600)
def test_what_cannot_be_read_is_named(said: list[dict[str, Any]]) -> None:
    assert "pence of operator 0 of the query at " in said[0]["no such variable"]
    assert "Spark cannot read this state: " in said[0]["no such checkpoint"]
    assert said[0]["no such column"].endswith("it keeps no 'counts'; it keeps count, sum")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--state", "totals"), "'totals' does not say which state is meant; write UID/STATE, or UID/STATE=NAME"),
        (("--state", "a/b="), "'a/b=' does not say which state is meant"),
        (("--state", "a/b", "--column", "n"), "'n' does not say which column an output takes; write OUTPUT=COLUMN"),
        (("--state", "a/b", "--key", "user"), "--key and --value are for files"),
    ],
)
def test_wrong_usage_starts_no_spark(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    printed = run_command(
        capsys, "bootstrap", "tests.test_bootstrap:later", "--into", "/nowhere", "--from-spark", "/c", *arguments
    )
    assert (printed.code, printed.out) == (Exit.USAGE, "")
    assert sentence in printed.err
