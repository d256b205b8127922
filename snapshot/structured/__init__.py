"""The sinks as formats of Spark's Structured Streaming: `df.writeStream.format("epochcut.kafka")`, exactly once.

Invariant: importing this package loads no Spark; `register(spark)` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the formats known to a session: `epochcut.files`, `.kafka`, `.postgres`, `.sqlite`, `.rocksdb`, `.delta`
    and, at least once, `.http`, each after the sink of that name (`ToFiles`, ...), whose fields are its options.

    `epochcut.stream` is the log that `snapshot.SparkSource` reads: the rows of a streaming DataFrame for a stream
    program, each batch once. Its options are `path` and `keep` ("7d"), how long batches stay; it takes append mode.

    Append mode works with every sink. Complete mode needs a sink with a `key` (Kafka, PostgreSQL, SQLite, RocksDB):
    each row of the result replaces the one with its key, in every batch. Spark keeps all groups in this mode; a row
    that leaves the result because of a filter or a limit after the aggregation stays in the target. Update mode is
    refused by Spark for every format that is written in Python ("does not support Update mode"); what it would write,
    the rows that a batch has changed, a function of `foreachBatch` writes, each batch once:

        def upsert(rows, id):
            totals = rows.write.format("epochcut.sqlite").option("path", "totals.db").option("table", "totals")
            totals = totals.option("key", "user").option("staging", "/data/totals").option("batch", id)
            totals.mode("append").save()

        df.groupBy("user").count().writeStream.outputMode("update").foreachBatch(upsert).start()

    `batch` is the batch's id; a batch that was written before adds nothing. `staging` is a folder for this write alone.
    Spark tells a format nothing of `partitionBy` of a stream: files are divided by the option `partitionBy`.

    A query needs a `checkpointLocation`, as always. Rows that wait for their commit lie in a folder `epochcut` there,
    or where the option `staging` says; the folder belongs to the checkpoint: delete both or neither.
    Executors need this package installed.

    Targets note their commits by batch and partition here: Kafka keeps a consumer group for each until its
    offsets.retention.minutes are over, Delta's log an application id for ever. Many partitions and short triggers make
    many of them.
    """
    from snapshot.structured.formats import FORMATS
    from snapshot.structured.stream_format import Stream

    for format in (*FORMATS, Stream):
        spark.dataSource.register(format)


__all__ = ["register"]
