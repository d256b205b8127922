"""State that outlives its Spark jobs: visits are counted per user, day after day, each day with another parallelism.

Every day is an ordinary batch job: a DataFrame whose rows go to the partition that owns their key, and `mapInArrow`.
Its tasks open what the day before has left, count on, and snapshot to a folder; the driver completes the snapshot, with
a note of the day, so that a day that comes twice is counted once. No state is rewritten when the parallelism changes.
The last days come as micro-batches of a streaming query, which counts each in a function of `foreachBatch`.

Behind its rows for a partition each task sends a marker with their number. So a block of rows that is lost or repeated
on the way fails the job before its snapshot is complete.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from statebackend import (
    AggregateTable,
    Count,
    Epoch,
    KeyedState,
    Operator,
    Snapshot,
    SnapshotFolder,
    Sum,
    open_store,
)

OPERATOR = Operator(
    "visits",
    key=str,
    states={"users": AggregateTable({"cents": int}, visits=Count(), cents=Sum("cents"))},
)
DAYS = ((1, 2), (2, 4), (3, 3))
"""Each day, and how many partitions its job has."""

STREAMED = (4, 5)
"""Days that come as micro-batches, in two partitions."""

USERS, VISITS_A_DAY = 20_000, 200_000
SENT = "user string, cents bigint, partition int, task int, rows bigint"
"""A visit and the partition that it goes to; or a marker: so many rows are from this task."""

Batches = Iterator[pa.RecordBatch]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.visits_in_spark",
        description=__doc__,
        epilog="example: python -m examples.visits_in_spark --keep /tmp/visits, and look at what is in the folder",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the snapshots here; it must be empty")
    given = parser.parse_args(arguments)
    if given.keep is not None and given.keep.exists() and any(given.keep.iterdir()):
        parser.error(f"{given.keep} is not empty; choose a new folder")
    with TemporaryDirectory() as scratch:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers are whatever python3 is
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        try:
            run(spark, (given.keep or Path(scratch) / "snapshots").absolute().as_uri(), Path(scratch))
        finally:
            spark.stop()


def run(spark: SparkSession, url: str, scratch: Path) -> None:
    """Count for some days; then compare the state with a query over all visits."""
    for day, parallelism in (*DAYS, DAYS[-1]):
        counted = count(day, visits_of(spark, day), url, parallelism)
        print(f"day {day}: {counted}")
    count_stream(spark, url, scratch)
    snapshot = SnapshotFolder(open_store(url), OPERATOR.uid).latest()
    assert snapshot is not None
    users = state_of(spark, snapshot, url, parallelism=2)
    visits = visits_of(spark, DAYS[0][0])
    for day in (*(day for day, _ in DAYS[1:]), *STREAMED):
        visits = visits.union(visits_of(spark, day))
    expected = visits.groupBy("user").agg(sql.count("*").alias("visits"), sql.sum("cents").alias("cents"))
    differing = users.exceptAll(expected).count() + expected.exceptAll(users).count()
    print(f"{users.count():,} users in the state; {differing} differ from a query over all visits")


def visits_of(spark: SparkSession, day: int) -> DataFrame:
    """A day of visits: who, and how much was spent."""
    number = sql.col("id") + day * VISITS_A_DAY
    user = sql.concat(sql.lit("user-"), sql.pmod(sql.xxhash64(number), sql.lit(USERS)).cast("string"))
    return spark.range(VISITS_A_DAY).select(user.alias("user"), (number % 997).alias("cents"))


def count_stream(spark: SparkSession, url: str, scratch: Path) -> None:
    """Count the days that a query finds in a folder, one in each micro-batch; Spark may run a batch again."""
    for day in STREAMED:
        visits_of(spark, day).coalesce(1).write.mode("append").parquet(str(scratch / "visits"))
    visits = spark.readStream.schema("user string, cents bigint").option("maxFilesPerTrigger", 1)

    def count_batch(batch: DataFrame, number: int) -> None:
        day = STREAMED[0] + number
        print(f"day {day}: {count(day, batch, url, 2)}")

    query = visits.parquet(str(scratch / "visits")).writeStream.foreachBatch(count_batch)
    query = query.option("checkpointLocation", str(scratch / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()


def count(day: int, visits: DataFrame, url: str, parallelism: int) -> str:
    """One job: take the visits of a day into the state that the last one has left, unless they are in it."""
    folder = SnapshotFolder(open_store(url), OPERATOR.uid)
    generation = folder.begin()
    epoch, before = folder.next_epoch(generation), folder.latest()
    if before is not None and int(before.note) >= day:
        return f"is in the state since epoch {before.epoch}, and not counted again"
    task = partial(count_partition, url=url, epoch=epoch, before=before, parallelism=parallelism)
    parts = (
        visits.mapInArrow(partial(with_partition, parallelism), SENT)
        .repartitionById(parallelism, "partition")
        .mapInArrow(task, "partition int, files binary, tasks array<int>")
        .collect()
    )
    tasks = {tuple(sorted(row.tasks)) for row in parts}
    if len(parts) != parallelism or tasks != {tuple(range(len(parts[0].tasks)))}:
        raise RuntimeError(f"rows of some tasks are missing: {sorted(tasks)} have sent to {len(parts)} partitions")
    folder.complete(epoch, {row.partition: pickle.loads(row.files) for row in parts}, note=str(day))
    folder.clean()
    return f"{VISITS_A_DAY:,} visits counted in {parallelism} partitions; epoch {epoch} is complete"


def with_partition(parallelism: int, batches: Batches) -> Batches:
    """Say of each row which partition owns its key, and at last, to each partition, how many rows it was sent."""
    task, sent = partition_here(), [0] * parallelism
    for batch in batches:
        owners = OPERATOR.owners_of(batch.column("user"), parallelism)
        for counted in owners.value_counts().to_pylist():
            sent[counted["values"]] += counted["counts"]
        yield sent_rows(batch.column("user"), batch.column("cents"), owners, None, None)
    partitions, none = pa.array(range(parallelism), pa.int32()), pa.nulls(parallelism)
    yield sent_rows(none, none, partitions, pa.array([task] * parallelism), pa.array(sent))


def sent_rows(
    user: pa.Array, cents: pa.Array, partition: pa.Array, task: pa.Array | None, rows: pa.Array | None
) -> pa.RecordBatch:
    """Return what is sent, with nulls where there is nothing."""
    types = [pa.string(), pa.int64(), pa.int32(), pa.int32(), pa.int64()]
    columns = [column if column is not None else pa.nulls(len(user)) for column in (user, cents, partition, task, rows)]
    names = ["user", "cents", "partition", "task", "rows"]
    return pa.RecordBatch.from_arrays([one.cast(type) for one, type in zip(columns, types, strict=True)], names)


def partition_here() -> int:
    """Return the number of Spark's task within its stage."""
    task = TaskContext.get()
    assert task is not None
    return int(task.partitionId())


def count_partition(batches: Batches, *, url: str, epoch: Epoch, before: Snapshot | None, parallelism: int) -> Batches:
    """One task: open the partition's state, count, and say which files it consists of afterwards."""
    partition, counted, sent = partition_here(), 0, list[tuple[int, int]]()
    with KeyedState.open_part(OPERATOR, url, epoch, before, partition, parallelism) as state:
        for batch in batches:
            markers = batch.filter(batch.column("task").is_valid())
            visits = batch.filter(batch.column("task").is_null())
            sent += zip(markers.column("task").to_pylist(), markers.column("rows").to_pylist(), strict=True)
            counted += len(visits)
            state["users"].update(state.keys(visits.column("user")), {"cents": visits.column("cents")})
        tasks = [task for task, _ in sent]
        if counted != sum(rows for _, rows in sent) or len(set(tasks)) < len(tasks):
            raise RuntimeError(
                f"partition {partition} was sent {sent} and has {counted} rows: some are lost or repeated"
            )
        part = pickle.dumps(state.snapshot(epoch))
    found = pa.array([partition], pa.int32()), pa.array([part]), pa.array([tasks], pa.list_(pa.int32()))
    yield pa.record_batch(list(found), names=["partition", "files", "tasks"])


def state_of(spark: SparkSession, snapshot: Snapshot, url: str, parallelism: int) -> DataFrame:
    """The state as a DataFrame."""
    task = partial(read_partition, url=url, snapshot=snapshot, parallelism=parallelism)
    return spark.range(0, parallelism, 1, parallelism).mapInArrow(task, "user string, visits bigint, cents bigint")


def read_partition(partitions: Batches, *, url: str, snapshot: Snapshot, parallelism: int) -> Batches:
    """One task: all users of the partitions whose numbers come in; Spark may join what it reads with other tasks."""
    for partition in chain.from_iterable(batch.column("id").to_pylist() for batch in partitions):
        with KeyedState.open_part(OPERATOR, url, snapshot.epoch, snapshot, partition, parallelism) as state:
            found = state["users"].keys_and_results()
            users = state.key_array(found.keys)
            yield pa.record_batch([users, *found.results.columns], names=["user", *found.results.schema.names])


if __name__ == "__main__":
    main()
