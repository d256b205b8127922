"""The example with payments, fed by Spark's own source for Kafka; run as a program.

Invariant: all payments are in their topic before the query reads them, and some that were never made: their
transactions were aborted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import recovery
from examples import kafka_to_kafka
from examples.kafka_to_kafka import Topics
from snapshot.structured import register
from tests.servers.spark_kafka import jars, read_topic
from tests.spark_inputs_job import fed_by, feed

AT_ONCE = 700


def main(topics: Topics, folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.jars", jars()).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    columns, log = "payment bigint, account string, cents bigint", folder / "log"
    frame = read_topic(spark, topics.bootstrap, topics.payments, columns, AT_ONCE)
    feed(frame, log, availableNow=True)
    program = fed_by(kafka_to_kafka, "Kafka", frame, log, lambda: kafka_to_kafka.program(topics), splits=1)
    with recovery.run(program, checkpoints=str(folder / "tree"), available_now=True, progress=False):
        pass
    spark.stop()


if __name__ == "__main__":
    main(Topics(*sys.argv[1:4]), Path(sys.argv[4]))
