"""Queries over the output of a program that is run three times; run as a program.

Invariant: a task of the first batch is killed when it has given its first rows, and the function that gets the batch
fails when it has all of it; so Spark runs the task again, and the batch when the query is started again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

import recovery
from recovery.offline.job_tree import open_tree
from recovery.savepoints.spark_output import newest_committed
from snapshot import Files, Stream, ToSpark
from snapshot.structured.output_log import Owner, open_output

ROWS = 100
SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ns", "UTC"))])


WIDER = {
    "numbers": pa.array([[1, 2]], pa.list_(pa.uint32())),
    "structs": pa.array([[{"c": 200}]], pa.large_list(pa.struct([("c", pa.uint8())]))),
    "map": pa.array([[("a", 2**64 - 1)]], pa.map_(pa.string(), pa.uint64())),
    "pair": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
    "day": pa.array([86_400_000], pa.date64()),
    "time": pa.array([5], pa.time32("s")),
    "took": pa.array([5_000], pa.duration("ns")),
    "times": pa.array([[5_000]], pa.list_(pa.timestamp("ns"))),
    "word": pa.array(["x"]).dictionary_encode(),
    "large": pa.array(["y"], pa.large_string()),
    "view": pa.array(["z"], pa.string_view()),
    "cents": pa.array([Decimal("1.25")], pa.decimal256(30, 2)),
    "half": pa.array([1.5], pa.float16()),
    "code": pa.array([b"ab"], pa.binary(2)),
    "none": pa.nulls(1),
}
"""Columns of types that Spark lacks, with one row."""


def wider_rows(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Give Spark the row of all types, as output of the program that has run."""
    batch = pa.RecordBatch.from_pydict(WIDER)
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batch.schema) as stream:
        stream.write_batch(batch)
    tree = open_tree(str(folder / "tree"))
    log = open_output(str(folder / "wider"))
    log.own(Owner(tree.birth.job, "out", batch.schema))
    log.put(newest_committed(tree.state), "a.arrow", buffer.getvalue().to_pybytes())
    table = spark.read.format("epochcut").option("checkpoints", str(folder / "tree")).load(str(folder / "wider"))
    return dict(zip(table.columns, table.collect()[0], strict=True))


def run_program(folder: Path, number: int) -> None:
    """Let a file appear, and have the program read it."""
    at = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    lines = [json.dumps({"n": number * ROWS + row, "at": at}) + "\n" for row in range(ROWS)]
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{number}.jsonl").write_text("".join(lines))
    rows = Stream.read(Files(str(folder / "in"), "jsonl", SCHEMA), uid="rows").rebalance(uid="spread")
    program = rows.write(ToSpark(str(folder / "out")), uid="out")
    with recovery.run(program, checkpoints=str(folder / "tree"), available_now=True, progress=False):
        pass


class Queries:
    """Queries over the program's output."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.batches: list[list[Any]] = []
        """The batches that the function got, each time."""

    @property
    def killed(self) -> Path:
        """The note of the killed task."""
        return self._folder / "killed"

    def output(self, **options: str) -> DataFrame:
        """A stream of the output."""
        reader = self._spark.readStream.format("epochcut").option("checkpoints", str(self._folder / "tree"))
        return reader.options(**options).load(str(self._folder / "out"))

    def run(self, name: str, query: DataStreamWriter, **trigger: Any) -> str:
        """Run a query over what is there; return what it says if it failed."""
        started = query.option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))
        try:
            started.trigger(**trigger or {"availableNow": True}).start().awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    def run_by_batch(self) -> str:
        """Run the query whose task is killed, and whose function fails."""
        killed = str(self.killed)

        def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                try:
                    os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)

        def keep(rows: DataFrame, batch: int) -> None:
            self.batches.append([batch, sorted(row["n"] for row in rows.collect())])
            if len(self.batches) == 1:
                raise RuntimeError("all of it was written")

        frame = self.output()
        return self.run("by-batch", frame.mapInArrow(die_once, frame.schema).writeStream.foreachBatch(keep))

    def run_once(self) -> tuple[str, list[int]]:
        """Run a query that deletes what it has read; return what it says, and the rows."""
        to = str(self._folder / "once")
        failed = self.run("once", self.output(delete="true").writeStream.format("json").option("path", to), once=True)
        return failed, sorted(row["n"] for row in self._spark.read.json(to).collect())


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    recovery.register(spark)
    queries = Queries(spark, folder)
    run_program(folder, 0)
    failed = queries.run_by_batch()
    run_program(folder, 1)
    again = [queries.run_by_batch()]
    deleting, _ = queries.run_once()
    run_program(folder, 2)
    again.append(queries.run_by_batch())
    table = spark.read.format("epochcut").option("checkpoints", str(folder / "tree")).load(str(folder / "out"))
    whole = [table.count(), table.groupBy().sum("n").collect()[0][0]]
    deleting_again, once = queries.run_once()  # which deletes what the first batch had
    late = queries.run("late", queries.output().writeStream.format("noop"))
    said = {
        "failed": failed,
        "again": [*again, deleting, deleting_again],
        "killed": queries.killed.exists(),
        "batches": queries.batches,
        "columns": [f"{name}: {kind}" for name, kind in table.dtypes],
        "table": whole,
        "once": once,
        "late": late,
        "wider": wider_rows(spark, folder),
    }
    spark.stop()
    print(json.dumps(said, default=lambda value: value.hex() if hasattr(value, "hex") else str(value)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
