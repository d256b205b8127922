from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
df = spark.range(1)
from snapshot.structured import register

register(spark)
(
    df.writeStream.format("epochcut.sqlite")  # .files .kafka .postgres .rocksdb .delta; .http at least once
    .option("path", "totals.db")
    .option("table", "totals")
    .option("key", "user")
    .option("create", "true")
    .option("checkpointLocation", "checkpoint")
    .start()
)
