"""A query each of whose tasks has two attempts; run as a program on a cluster with workers at two addresses, as Spark
makes no speculative copy where the first attempt is.

Invariant: one task of each batch fails when it has given its rows, the other waits until it has a copy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from snapshot import SparkSource, Stream, ToDriver
from snapshot.structured import register
from tests.spark_inputs_job import feed, run_all

BATCHES, TASKS, ROWS = 2, 2, 20
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "0ms",
    # A task for each file.
    "spark.sql.files.openCostInBytes": str(1 << 30),
    "spark.sql.files.maxPartitionBytes": "1024",
}


def attempts(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Run a query whose tasks all have two attempts; return the attempts, and the rows that a program reads."""
    (folder / "numbers").mkdir()
    (folder / "attempts").mkdir()
    for batch in range(BATCHES):
        for task in range(TASKS):
            lines = [json.dumps({"n": (batch * TASKS + task) * ROWS + row}) + "\n" for row in range(ROWS)]
            path = folder / "numbers" / f"{batch}-{task}.json"
            path.write_text("".join(lines))
            os.utime(path, (batch * TASKS + task, batch * TASKS + task))
    noted = str(folder / "attempts")

    def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give all rows; then the first attempt of a task fails, or waits until it has a copy."""
        task = TaskContext.get()
        name = f"{noted}/{task.getLocalProperty('streaming.sql.batchId')}-{task.partitionId()}"
        Path(f"{name}-{task.attemptNumber()}").touch()
        yield from batches
        if task.attemptNumber() == 0 and task.partitionId() == 1:
            raise RuntimeError("the first attempt fails when it has given its rows")
        while task.attemptNumber() == 0 and not Path(f"{name}-1").exists():
            time.sleep(0.01)

    stream = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", TASKS)
    frame = stream.json(str(folder / "numbers")).mapInArrow(attempt, "n bigint")
    log = folder / "numbers-log"
    feed(frame, log, availableNow=True)
    program = Stream.read(SparkSource(frame, str(log), splits=4), uid="numbers").write(ToDriver(), uid="out")
    rows = run_all(program, folder / "numbers-tree", "out")
    return {
        "attempts": sorted(path.name for path in (folder / "attempts").iterdir()),
        "rows": sorted(row["n"] for row in rows),
    }


def main(master: str, folder: Path) -> None:
    builder = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    said = attempts(spark, folder)
    spark.stop()
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
