"""A query of Structured Streaming goes on as a stream program, with the state that it has, by ten lines.

For a reader who knows Spark: `old_query` is the query as it was, a count for each user in update mode. `moved` is what
is added: the same DataFrame feeds a program, whose state begins with the query's; what comes out is in a table, exactly
once, and the job has savepoints and can be rescaled. Rows that came before and after the move count once each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

import recovery
from snapshot import SparkSource, Stream, ToSQLite
from snapshot.structured import register

USERS, ROWS = 50, 2_000


def old_query(clicks: DataFrame, folder: Path) -> None:
    """The query as it was, until it has taken what is there."""
    counts = clicks.groupBy("user").count().writeStream.outputMode("update").format("noop")
    counts.option("checkpointLocation", f"{folder}/old").trigger(availableNow=True).start().awaitTermination()


def move(spark: SparkSession, clicks: DataFrame, folder: Path) -> None:
    """Go on as a program, with the rows that are new."""
    rows = Stream.read(SparkSource(clicks, f"{folder}/log"), uid="clicks").key_by("user")
    table = ToSQLite(f"{folder}/totals.db", "totals", key="user", create=True)
    program = rows.count(uid="totals", per="batch").write(table, uid="out")
    state = recovery.from_spark(spark, f"{folder}/old", uid="totals", state="totals")
    recovery.bootstrap(program, f"{folder}/program", [state])
    shutil.copytree(f"{folder}/old", f"{folder}/onwards", ignore=shutil.ignore_patterns("state"))
    register(spark)
    query = clicks.writeStream.format("epochcut.stream").option("checkpointLocation", f"{folder}/onwards")
    query.trigger(availableNow=True).start(f"{folder}/log").awaitTermination()
    recovery.run(program, checkpoints=f"{folder}/program", available_now=True, progress=False).wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.moved_query",
        description=__doc__,
        epilog="example: python -m examples.moved_query --keep /tmp/moved, and look at what is in the folder",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep everything here; it must be empty")
    given = parser.parse_args(arguments)
    if given.keep is not None and given.keep.exists() and any(given.keep.iterdir()):
        parser.error(f"{given.keep} is not empty; choose a new folder")
    with TemporaryDirectory() as scratch:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers are whatever python3 is
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        try:
            expected, found = run(spark, (given.keep or Path(scratch)).absolute())
        finally:
            spark.stop()
    lost, twice = (expected - found).total(), (found - expected).total()
    print(f"{expected.total():,} clicks of {len(expected)} users: {lost} lost, {twice} twice or wrong")
    return 1 if lost or twice else 0


def run(spark: SparkSession, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Move the query between two files of clicks; return the truth, and what is in the table."""
    write_clicks(folder, 0)
    clicks = spark.readStream.schema("user string, page string").json(f"{folder}/in")
    old_query(clicks, folder)
    write_clicks(folder, 1)
    move(spark, clicks, folder)
    lines = (json.loads(line) for file in (folder / "in").iterdir() for line in file.read_text().splitlines())
    with closing(sqlite3.connect(folder / "totals.db")) as table:
        found = Counter(dict(table.execute("SELECT user, count FROM totals").fetchall()))
    return Counter(line["user"] for line in lines), found


def write_clicks(folder: Path, number: int) -> None:
    """Let a file of clicks appear; every user has some in each."""
    chance = random.Random(number)
    users = [f"user-{n}" for n in range(USERS)]
    rows = [{"user": user, "page": f"/{n}"} for n, user in enumerate([*users, *chance.choices(users, k=ROWS - USERS)])]
    (folder / "in").mkdir(parents=True, exist_ok=True)
    hidden = folder / "in" / f".{number}.json"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / "in" / f"{number}.json")


if __name__ == "__main__":
    sys.exit(main())
