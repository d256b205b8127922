"""The sinks as formats of Spark's Structured Streaming: `df.writeStream.format("epochcut.kafka")`, exactly once.

What always holds: importing this package loads no Spark; `register(spark)` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the formats known to a session: `epochcut.files`, `.kafka`, `.postgres`, `.sqlite`, `.rocksdb`, `.delta`
    and, at least once, `.http`, each after the sink of that name (`ToFiles`, ...), whose fields are its options.

    A query needs a `checkpointLocation`, as always, and writes in append or update mode. What is staged until it is
    committed lies in a folder `epochcut` there, or where the option `staging` says; it belongs to the checkpoint, and
    whoever deletes one deletes both. Executors need this package installed.

    What tells a target that something is committed is of a batch and partition here: Kafka keeps a consumer group for
    each until its offsets.retention.minutes are over, Delta's log an application id for ever. Many partitions and short
    triggers make many of them.
    """
    from snapshot.structured.formats import FORMATS

    for format in FORMATS:
        spark.dataSource.register(format)


__all__ = ["register"]
