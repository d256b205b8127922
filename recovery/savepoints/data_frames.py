"""Keyed state of an epoch and output of a program as Spark DataFrames: the format `epochcut`, made known to a session.

Invariant: importing this module loads no Spark; `register` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format `epochcut` known to a session, and let it push filters down to data sources in Python.

        spark.read.format("epochcut").option("checkpoints", uri).option("uid", "per-user").option("state", "count")

    `epoch` may be given (newest), and `partitions`: so many, where otherwise each of the job's gives one. Rows are
    those of the canonical table, expired ones included; unsigned integers come in a wider type, times in microseconds.
    A filter for equality on `key`, on all fields of a key, or on `key_group` reads the files of these groups only.

    The epoch is not kept while the query runs: of a job that runs, read a savepoint (`newest-savepoint`). Executors
    need this package installed, and reach the checkpoints.

    Without `uid` and `state`, the format reads what a `ToSpark` of the program has written, streaming or not:

        spark.readStream.format("epochcut").option("checkpoints", uri).load("/data/totals")

    A micro-batch has whole epochs, each row once. With the option `delete=true` a query deletes what it has read.
    """
    from recovery.savepoints.spark_output import EpochcutFormat

    spark.conf.set(_PUSH_DOWN, "true")
    spark.dataSource.register(EpochcutFormat)
