"""Counts of users and rows, in every output mode, into every sink that needs no server of its own; run as a program.

Invariant: each query is started until it ends. The first batch of a `foreachBatch` fails when everything is
written, so that Spark runs it again.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from snapshot import read_rocksdb
from snapshot.structured import register
from tests.targets.http_rows import row_server

ROWS: list[list[str]] = [["ann", "bob", "ann"], ["bob", "eve"]]
"""The users of each batch."""


def files_with_rows(folder: Path) -> Path:
    folder.mkdir()
    for number, users in enumerate(ROWS):
        lines = [json.dumps({"user": user, "n": number * 10 + place}) + "\n" for place, user in enumerate(users)]
        (folder / f"{number}.json").write_text("".join(lines))
    return folder


class Queries:
    """Queries over the same rows, a file a batch, into targets in a folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._folder = folder
        self._from = str(files_with_rows(folder / "in"))
        self._spark = spark

    def rows(self, files: int = 1) -> DataFrame:
        """So many files in each batch."""
        stream = self._spark.readStream.schema("user string, n long").option("maxFilesPerTrigger", files)
        return stream.json(self._from)

    def counts(self) -> DataFrame:
        """The commonest query of all."""
        return self.rows().groupBy("user").count()

    def run(self, name: str, query: DataStreamWriter) -> str:
        """Run a query until it ends; what it says then, if it failed."""
        started = query.option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))
        try:
            started.trigger(availableNow=True).start().awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    def sink(self, name: str, mode: str, **options: str) -> str:
        """Write the counts to a format."""
        query = self.counts().writeStream.format(f"epochcut.{name}").outputMode(mode)
        return self.run(f"{name}-{mode}", query.options(**options))

    def batches(self, name: str, frame: DataFrame, mode: str, targets: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Write each batch to several targets; what was said of each run of the query."""
        failed = False

        def write(batch: DataFrame, number: int) -> None:
            nonlocal failed
            for place, options in targets.items():
                sink = batch.write.format(f"epochcut.{place.partition('-')[0]}").options(**options)
                staging = str(self._folder / f"staging-{name}-{place}")
                sink.option("staging", staging).option("batch", number).mode("append").save()
            if not failed:
                failed = True
                raise RuntimeError("all of it was written")

        query = frame.writeStream.foreachBatch(write).outputMode(mode)
        return [self.run(name, query), self.run(name, query)]


def in_sqlite(path: Path, table: str) -> list[Any]:
    connection = sqlite3.connect(path)
    rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    connection.close()
    return sorted(rows)


def in_rocksdb(path: Path) -> list[Any]:
    return sorted([row["user"], row["count"]] for row in read_rocksdb(str(path)).to_pylist())


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    queries, database = Queries(spark, folder), folder / "t.db"
    table = {"path": str(database), "create": "true"}
    said: dict[str, object] = {
        "update": queries.sink("sqlite", "update", **table, table="never", key="user"),
        "complete without a key": queries.sink("files", "complete", path=str(folder / "never")),
        "complete": [
            queries.sink("sqlite", "complete", **table, table="totals", key="user"),
            queries.sink("rocksdb", "complete", path=str(folder / "totals"), key="user"),
        ],
        "updates by batch": queries.batches(
            "updates",
            queries.counts(),
            "update",
            {
                "sqlite": {**table, "table": "updated", "key": "user"},
                "rocksdb": {"path": str(folder / "updated"), "key": "user"},
            },
        ),
    }
    with row_server() as server:
        said["rows by batch"] = queries.batches(
            "rows",
            queries.rows(len(ROWS)),
            "append",
            {
                "sqlite": {**table, "table": "added"},
                "sqlite-again": {**table, "table": "added"},
                "files": {"path": str(folder / "files"), "format": "jsonl", "partitionBy": "user"},
                "delta": {"path": str(folder / "delta"), "create": "true"},
                "http": {"url": server.url, "exactlyOnce": "false"},
            },
        )
        in_http = [row["n"] for row in server.rows()]
    in_files = [[row["user"], row["n"]] for row in spark.read.json(str(folder / "files")).collect()]
    said["seen"] = {
        "complete": [in_sqlite(database, "totals"), in_rocksdb(folder / "totals")],
        "updates": [in_sqlite(database, "updated"), in_rocksdb(folder / "updated")],
        "sqlite": sorted(n for _, n in in_sqlite(database, "added")),
        "files": sorted(in_files),
        "delta": sorted(DeltaTable(str(folder / "delta")).to_pyarrow_table()["n"].to_pylist()),
        "http": sorted(in_http),
    }
    spark.stop()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
