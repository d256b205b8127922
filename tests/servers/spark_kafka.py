"""Spark's own source for Kafka: the jars, and a topic of JSON objects as a streaming DataFrame."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

JARS = Path(__file__).parents[2] / ".servers" / "spark-kafka"


def jars() -> str:
    """Return what the setting `spark.jars` takes."""
    if not JARS.is_dir():
        raise FileNotFoundError(f"{JARS} is not there; `make test-servers` fetches Spark's source for Kafka")
    return ",".join(str(path) for path in sorted(JARS.glob("*.jar")))


def read_topic(spark: SparkSession, bootstrap: str, topic: str, columns: str, at_once: int) -> DataFrame:
    """Read the committed records of a topic from its beginning, so many in a micro-batch."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", at_once)
    records = reader.option("kafka.isolation.level", "read_committed").load()
    return records.select(f.from_json(f.col("value").cast("string"), columns).alias("row")).select("row.*")
