"""Two queries with state over files of sales, whose state becomes that of our programs; run as a program.

Invariant: the queries see the first files alone. The last file comes when their state has been taken, and goes to the
log that the programs read, by a query without state that goes on from a copy of the first one's checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import recovery
from recovery.command.main import main as command
from snapshot import (
    Count,
    KeyedProcess,
    ListState,
    MapState,
    ProcessContext,
    Program,
    Row,
    SparkSource,
    Stream,
    Sum,
    ToDriver,
    Ttl,
    ValueState,
)
from snapshot.structured import register

BEFORE, AFTER = 2, 1
"""Files that the queries see, and that come later."""
SALES = "region string, user bigint, item string, cents bigint"
LATER = 10_000_000
"""Milliseconds until a timer fires, and until an item is forgotten: longer than any test."""


def sales(file: int) -> list[tuple[str, int, str, int]]:
    """The rows of a file."""
    return [(("eu", "us")[n % 2], n % 5, ("tea", "ink")[n % 3 == 0], file * 100 + n) for n in range(20)]


def put_file(folder: Path, file: int) -> None:
    """Let a file appear, after the earlier ones."""
    (folder / "in").mkdir(exist_ok=True)
    rows = [dict(zip(("region", "user", "item", "cents"), sale, strict=True)) for sale in sales(file)]
    path = folder / "in" / f".{file}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (file, file))
    path.rename(folder / "in" / f"{file}.json")


def program(log: str) -> Program:
    """What the queries did, and each sale once."""
    sold = Stream.read(SparkSource(SALES, log), uid="sales")
    totals = sold.key_by("region", "user").aggregate(uid="totals", n=Count(), cents=Sum("cents"), per="end")
    baskets = sold.key_by("user").process(Basket, uid="baskets")
    return totals.write(ToDriver(), uid="sums") + baskets.write(ToDriver(), uid="bought")


def the_program() -> Program:
    """The same, as the command finds it: its log is beside the tree."""
    return program(os.environ["SALES_LOG"])


class Basket(KeyedProcess):
    """What a user has bought."""

    output: ClassVar = {"user": int, "cents": int, "sales": str, "items": int}
    cents = ValueState(int, default=0)
    sales = ListState(int)
    items = MapState(str, int, ttl=Ttl("1d"))

    def on_event(self, event: Row, ctx: ProcessContext) -> None:
        self.cents.set(self.cents.get() + event.cents)
        self.sales.add(event.cents)
        self.items.put(event.item, (self.items.get(event.item) or 0) + 1)
        sales = ",".join(map(str, self.sales.get()))
        ctx.emit((ctx.key, self.cents.get(), sales, sum(count for _, count in self.items.items())))

    def on_timer(self, at: int, ctx: ProcessContext) -> None:
        pass


class SparksBasket(StatefulProcessor):  # type: ignore[misc]
    """The same for Spark."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.cents = handle.getValueState("cents", "cents bigint")
        self.sales = handle.getListState("sales", "cents bigint")
        self.items = handle.getMapState("items", "item string", "n bigint", LATER)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N803
        for row in rows:
            self.cents.update(((self.cents.get() or (0,))[0] + row.cents,))
            self.sales.appendValue((row.cents,))
            self.items.updateValue((row.item,), ((self.items.getValue((row.item,)) or (0,))[0] + 1,))
        if not list(self.handle.listTimers()):
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + LATER)
        return iter(())

    def close(self) -> None:
        pass


def run(frame: DataFrame, checkpoint: Path, to: Callable[[Any], Any], rows: int, mode: str = "append") -> None:
    """Run a query until it has taken so many rows. One with timers makes batches without rows for ever."""
    query = to(frame.writeStream.outputMode(mode)).option("checkpointLocation", str(checkpoint)).start()
    while sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        query.awaitTermination(0.1)
    query.stop()


def main(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", rocksdb)
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for file in range(BEFORE):
        put_file(folder, file)
    sold = spark.readStream.schema(SALES).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    totals, baskets = folder / "totals", folder / "baskets"
    sums = sold.groupBy("region", "user").agg(f.count("*"), f.sum("cents"))
    run(sums, totals, lambda writer: writer.format("noop"), BEFORE * len(sales(0)), "update")
    kept = sold.groupBy("user").transformWithState(SparksBasket(), "user bigint", "update", "processingTime")
    run(kept, baskets, lambda writer: writer.format("noop"), BEFORE * len(sales(0)), "update")

    timed = SparkSource(sold.selectExpr("*", "timestamp_millis(cents) AS at").withWatermark("at", "2 seconds"), "/log")
    log, said = folder / "log", dict[str, Any](event_time=str(timed.event_time))
    names = ["cents", "sales", "items"]
    states = [recovery.from_spark(spark, str(baskets), "baskets", name, name) for name in names]
    states.append(recovery.from_spark(spark, str(baskets), "baskets", "timers in processing time"))
    outputs = {"n": "count", "cents": "sum"}
    states.append(recovery.from_spark(spark, str(totals), "totals", "totals", columns=outputs))
    done = recovery.bootstrap(program(str(log)), str(folder / "tree"), states, name="shop")
    said["rows"] = {one.state: one.rows for one in done.states}
    refused: dict[str, Callable[[], object]] = {
        "no such variable": lambda: recovery.from_spark(spark, str(baskets), "baskets", "cents", "pence"),
        "no such checkpoint": lambda: recovery.from_spark(spark, str(folder / "in"), "baskets", "cents"),
        "no such column": lambda: recovery.from_spark(spark, str(totals), "t", "t", columns={"n": "counts"}),
    }
    for name, wrong in refused.items():
        try:
            wrong()
        except recovery.EpochcutError as error:
            said[name] = str(error)

    shutil.copytree(totals, folder / "onwards", ignore=shutil.ignore_patterns("state"))
    put_file(folder, BEFORE)
    register(spark)
    run(
        sold,
        folder / "onwards",
        lambda writer: writer.format("epochcut.stream").option("path", str(log)),
        AFTER * len(sales(0)),
    )
    os.environ["SALES_LOG"] = str(log)
    print(json.dumps(said), flush=True)
    arguments = ["--into", str(folder / "by command"), "--from-spark", str(totals), "--state", "totals/totals"]
    columns = ["--column", "n=count", "--column", "cents=sum"]
    command(["bootstrap", "tests.spark_state_job:the_program", *arguments, *columns, "--json"])  # stops the session


if __name__ == "__main__":
    main(Path(sys.argv[1]))
