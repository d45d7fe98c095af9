"""Flights from a Kafka topic, and the sum of their delays in minutes per day and airport, in a Delta table.

An ordinary PySpark script. It runs by itself, too:

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,io.delta:delta-spark_4.2_2.13:4.4.0 \\
        kafka_to_delta.py --servers localhost:9092 --topic flights --table /data/delays --by origin

``--by`` is part of the state's key: a version with another one cannot read the state. Drain it, then deploy.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--servers", required=True, help="Kafka's bootstrap servers")
parser.add_argument("--topic", required=True, help="flights, one JSON per record")
parser.add_argument("--table", required=True, help="path of the Delta table; one for all versions")
parser.add_argument("--by", choices=["origin", "destination"], default="origin")
options = parser.parse_args()

spark = (
    SparkSession.builder.appName("flights")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)

records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", options.servers)
    .option("subscribe", options.topic)
    .option("startingOffsets", "earliest")
    .load()
)
flights = (
    records.select(
        sf.from_json(sf.col("value").cast("string"), "date STRING, delay INT, origin STRING, destination STRING").alias(
            "f"
        )
    )
    .select("f.*")
    .withColumn("at", sf.to_timestamp("date", "yyyy/MM/dd HH:mm"))
)
# Partitions are read side by side: a row may come a little later than one of a later time.
delays = (
    flights.withWatermark("at", "10 days")
    .groupBy(sf.window("at", "1 day").alias("day"), options.by)
    .agg(sf.count("*").alias("flights"), sf.sum("delay").alias("delay_sum"))
    .select(
        sf.lit(options.by).alias("counted_by"),
        sf.col("day.start").alias("day"),
        sf.col(options.by).alias("airport"),
        "flights",
        "delay_sum",
    )
)

(
    delays.writeStream.queryName("delays")
    .outputMode("append")
    .format("delta")
    .option("checkpointLocation", f"{options.table.rstrip('/')}.checkpoint")
    .trigger(processingTime="1 second")
    .start(options.table)
    .awaitTermination()
)
