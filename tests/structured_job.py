"""Queries of Spark's that write to a target each: `stop` them at two points of a commit, or let them `finish`.

Invariant: when all lines are in the pipe, each query is in the middle of committing its second batch, at a
point of its own, and does not go on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from snapshot.structured import register
from tests.structured_formats import FORMATS

TARGETS = {
    "files": {"format": "jsonl"},
    "sqlite": {"table": "numbers", "create": "true"},
    "stream": {},
}


def rows(spark: SparkSession, folder: Path) -> DataFrame:
    stream = spark.readStream.schema("n long, batch long").option("maxFilesPerTrigger", 1)
    return stream.json(str(folder / "in"))


def start(spark: SparkSession, folder: Path, name: str, available_now: bool) -> StreamingQuery:
    writer = rows(spark, folder).repartition(2).writeStream.format(f"epochcut.{name}")
    writer = writer.options(**TARGETS[name]).option("checkpointLocation", str(folder / f"checkpoint-{name}"))
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start(str(folder / name))


def main(folder: Path, what: str) -> None:
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    for format in FORMATS:
        spark.dataSource.register(format)
    queries = [start(spark, folder, name, available_now=what == "finish") for name in TARGETS]
    for query in queries:
        query.awaitTermination()
    batches = [query.lastProgress["batchId"] for query in queries]
    print(json.dumps({"batches": batches, "misspelt": problem_of_a_misspelt_option(spark, folder)}), flush=True)
    spark.stop()


def problem_of_a_misspelt_option(spark: SparkSession, folder: Path) -> str:
    """What Spark says of a query that has one."""
    writer = rows(spark, folder).writeStream.format("epochcut.sqlite").option("tabel", "numbers")
    try:
        writer.option("checkpointLocation", str(folder / "checkpoint-wrong")).start(
            str(folder / "wrong")
        ).processAllAvailable()
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
