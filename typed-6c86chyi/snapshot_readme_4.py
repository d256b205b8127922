from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
df = spark.range(1)
from snapshot.structured import register

register(spark)


def upsert(rows, batch):
    totals = rows.write.format("epochcut.sqlite").option("path", "totals.db").option("table", "totals")
    totals = totals.option("key", "user").option("create", "true").option("staging", "staging").option("batch", batch)
    totals.mode("append").save()


query = df.groupBy("user").count().writeStream.outputMode("update").option("checkpointLocation", "checkpoint")
query.foreachBatch(upsert).start()
