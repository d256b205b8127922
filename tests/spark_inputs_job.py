"""Examples as they stand, but for their source: a streaming DataFrame takes its place; run as a program.

Invariant: queries are started under every trigger that there is, and all of their rows come before the program is
drained.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import recovery
from examples import moved_query, unpaid_orders, word_count
from snapshot import Program, SparkSource
from snapshot.structured import register
from snapshot.structured.stream_log import open_log

PATIENCE = 120.0
ORDERS = 2_000
"""At least so many events come from the rate source."""


def fed_by(
    module: object, source: str, frame: DataFrame, log: Path, build: Callable[[], Program], splits: int = 4
) -> Program:
    """Return an example's program that reads the log of a query over the frame, where it has a source of its own."""
    with mock.patch.object(module, source, return_value=SparkSource(frame, str(log), splits=splits)):
        return build()


def feed(frame: DataFrame, log: Path, **trigger: Any) -> None:
    """Run a query over the frame until it ends."""
    writer = frame.writeStream.format("epochcut.stream").option("checkpointLocation", f"{log}-checkpoint")
    writer.trigger(**trigger).start(str(log)).awaitTermination()


def run_all(program: Program, tree: Path, uid: str = "") -> list[Any]:
    """Run a program over what is there, with a standby, and again until it is drained; return the rows of a sink."""
    passive = recovery.Passive(standbys=1)
    rows = list[Any]()
    with recovery.run(program, checkpoints=str(tree), available_now=True, scheme=passive, progress=False) as run:
        rows += run.rows(uid) if uid else []
    drained = recovery.run(program, checkpoints=str(tree), scheme=passive, progress=False)
    drained.drain(PATIENCE)
    return rows + list(drained.rows(uid) if uid else [])


def words(spark: SparkSession, folder: Path) -> list[int]:
    """Count words of files, one in each batch; return how many counts are expected, lost and wrong."""
    lines, counts, log = folder / "lines", folder / "counts", folder / "lines-log"
    word_count.write_lines(lines, random.Random(0))
    files = sorted(lines.iterdir())
    for number, path in enumerate(files):
        os.utime(path, (number, number))
    hidden = [path.rename(path.with_name(f".{path.name}")) for path in files[1:]]
    stream = spark.readStream.schema("at timestamp, line string").option("maxFilesPerTrigger", 1)
    frame = stream.json(str(lines)).coalesce(1)
    feed(frame, log, once=True)  # which takes all that is there
    for path in hidden:
        path.rename(path.with_name(path.name[1:]))
    feed(frame, log, availableNow=True)
    build = fed_by(word_count, "Files", frame, log, lambda: word_count.program("", str(counts)))
    run_all(build, folder / "lines-tree")
    return compared(word_count.truth(lines), word_count.written(counts))


def orders(spark: SparkSession, folder: Path) -> list[int]:
    """Look for unpaid orders in events that are made of the rate source's numbers."""
    log, n = folder / "orders-log", f.col("value")
    rate = spark.readStream.format("rate").option("rowsPerSecond", ORDERS).option("numPartitions", 1).load()
    back, even = 1 + 2 * (n * 7 % 2_801), n % 2 == 0
    frame = rate.select(
        f.when(even, n).otherwise(f.greatest(f.lit(0), n - back)).alias("order"),
        f.when(even, "placed").otherwise("paid").alias("what"),
        f.when(even, 100 + n * 37 % 9_900).otherwise(f.lit(0)).cast("long").alias("cents"),
        (n * unpaid_orders.STEP).cast("long").alias("at"),
    )
    writer = frame.writeStream.format("epochcut.stream").option("checkpointLocation", f"{log}-checkpoint")
    query = writer.trigger(processingTime="100 milliseconds").start(str(log))
    give_up = time.monotonic() + PATIENCE
    while (events := rows_in(log)) < ORDERS and time.monotonic() < give_up:
        time.sleep(0.1)
    query.stop()
    events = rows_in(log)
    build = fed_by(unpaid_orders, "Generate", frame, log, lambda: unpaid_orders.program(events))
    found = run_all(build, folder / "orders-tree", "reminders")
    seen = Counter((row["order"], row["cents"], row["due"]) for row in found)
    return compared(Counter(unpaid_orders.truth(events)), seen)


def rows_in(log: Path) -> int:
    there = open_log(str(log))
    batches = (there.batch(number) for number in there.batches())
    return sum(part.rows for batch in batches if batch is not None for part in batch.parts)


def compared(expected: Counter[Any], found: Counter[Any]) -> list[int]:
    """Return how many results are expected, how many are lost, and how many are twice or wrong."""
    return [expected.total(), (expected - found).total(), (found - expected).total()]


def main(folder: Path) -> None:
    builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", 1)
    spark = builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    said: dict[str, Any] = {
        "words": words(spark, folder),
        "orders": orders(spark, folder),
        "moved": compared(*moved_query.run(spark, folder / "moved")),
    }
    spark.stop()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
