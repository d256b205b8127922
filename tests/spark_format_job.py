"""Reads the state of the tree that it is given as DataFrames, and prints what it finds as JSON; run as a program."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import recovery


def main() -> None:
    tree, old = sys.argv[1:]
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    recovery.register(session)

    def state(uid: str, name: str, **options: str) -> Any:
        return session.read.format("epochcut").options(checkpoints=tree, uid=uid, state=name, **options).load()

    cents = state("baskets", "cents")
    one = state("totals", "totals", epoch=old).where("key = 'tea'")
    found: dict[str, Any] = {
        "partitions": [cents.rdd.getNumPartitions(), one.rdd.getNumPartitions()],
        "cents": [[row.key.f0, row.key.f1, row.value] for row in cents.collect()],
        "tea": [row["cents.value"] for row in one.collect()],
        "tea now": state("totals", "totals").where("key = 'tea'").count(),
        "us 5": [row.value for row in cents.where("key.f0 = 'us' and key.f1 = 5").collect()],
    }
    try:
        state("nobody", "cents")
    except Exception as error:
        found["nobody"] = str(error)
    session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
