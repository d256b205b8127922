"""State that outlives its Spark jobs: visits are counted per user, day after day, each day with another parallelism.

Every day is an ordinary batch job: a DataFrame whose rows go to the partition that owns their key, and `mapInArrow`.
Its tasks open what the day before has left, count on, and snapshot to a folder; the driver completes the snapshot, with
a note of the day, so that a day that comes twice is counted once. No state is rewritten when the parallelism changes.
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

USERS, VISITS_A_DAY = 20_000, 200_000

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
            run(spark, (given.keep or Path(scratch) / "snapshots").absolute().as_uri())
        finally:
            spark.stop()


def run(spark: SparkSession, url: str) -> None:
    """Count for some days; then compare the state with a query over all visits."""
    for day, parallelism in (*DAYS, DAYS[-1]):
        counted = count(day, visits_of(spark, day), url, parallelism)
        print(f"day {day}: {counted}")
    snapshot = SnapshotFolder(open_store(url), OPERATOR.uid).latest()
    assert snapshot is not None
    users = state_of(spark, snapshot, url, parallelism=2)
    visits = visits_of(spark, DAYS[0][0])
    for day, _ in DAYS[1:]:
        visits = visits.union(visits_of(spark, day))
    expected = visits.groupBy("user").agg(sql.count("*").alias("visits"), sql.sum("cents").alias("cents"))
    differing = users.exceptAll(expected).count() + expected.exceptAll(users).count()
    print(f"{users.count():,} users in the state; {differing} differ from a query over all visits")


def visits_of(spark: SparkSession, day: int) -> DataFrame:
    """A day of visits: who, and how much was spent."""
    number = sql.col("id") + day * VISITS_A_DAY
    user = sql.concat(sql.lit("user-"), sql.pmod(sql.xxhash64(number), sql.lit(USERS)).cast("string"))
    return spark.range(VISITS_A_DAY).select(user.alias("user"), (number % 997).alias("cents"))


def count(day: int, visits: DataFrame, url: str, parallelism: int) -> str:
    """One job: take the visits of a day into the state that the last one has left, unless they are in it."""
    folder = SnapshotFolder(open_store(url), OPERATOR.uid)
    generation = folder.begin()
    epoch, before = folder.next_epoch(generation), folder.latest()
    if before is not None and int(before.note) >= day:
        return f"is in the state since epoch {before.epoch}, and not counted again"
    task = partial(count_partition, url=url, epoch=epoch, before=before, parallelism=parallelism)
    parts = (
        visits.mapInArrow(partial(with_partition, parallelism), "user string, cents bigint, partition int")
        .repartitionById(parallelism, "partition")
        .mapInArrow(task, "partition int, files binary")
        .collect()
    )
    folder.complete(epoch, {row.partition: pickle.loads(row.files) for row in parts}, note=str(day))
    folder.clean()
    return f"{VISITS_A_DAY:,} visits counted in {parallelism} partitions; epoch {epoch} is complete"


def with_partition(parallelism: int, batches: Batches) -> Batches:
    """Say of each row which partition owns its key."""
    for batch in batches:
        yield batch.append_column("partition", OPERATOR.owners_of(batch.column("user"), parallelism))


def count_partition(batches: Batches, *, url: str, epoch: Epoch, before: Snapshot | None, parallelism: int) -> Batches:
    """One task: open the partition's state, count, and say which files it consists of afterwards."""
    task = TaskContext.get()
    assert task is not None
    partition = task.partitionId()
    with KeyedState.open_part(OPERATOR, url, epoch, before, partition, parallelism) as state:
        for batch in batches:
            state["users"].update(state.keys(batch.column("user")), {"cents": batch.column("cents")})
        part = pickle.dumps(state.snapshot(epoch))
    yield pa.record_batch({"partition": pa.array([partition], pa.int32()), "files": [part]})


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
