"""Flights by three queries that every Spark from 3.5 on has: windows, a deduplication and a join."""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--input", required=True, help="folder into which files of flights arrive, one JSON per line")
parser.add_argument("--output", required=True, help="folder of the three outputs")
options = parser.parse_args()

spark = SparkSession.builder.appName("flights").config("spark.sql.session.timeZone", "UTC").getOrCreate()
flights = (
    spark.readStream.schema("date STRING, delay INT, distance INT, origin STRING, destination STRING")
    .option("maxFilesPerTrigger", 2)
    .json(options.input)
    .withColumn("at", sf.to_timestamp("date", "yyyy/MM/dd HH:mm"))
    .withWatermark("at", "1 day")
)

delays = (
    flights.groupBy(sf.window("at", "1 day").alias("day"), "origin")
    .agg(sf.count("*").alias("flights"), sf.sum("delay").alias("delay_sum"))
    .select(sf.col("day.start").alias("day"), "origin", "flights", "delay_sum")
)
routes = flights.select("origin", "destination").dropDuplicates(["origin", "destination"])
late = flights.where("delay >= 60").select("at", "origin", sf.col("destination").alias("via"))
onward = flights.select(sf.col("at").alias("later"), sf.col("origin").alias("place"), "destination")
within = (onward.later >= late.at) & (onward.later <= late.at + sf.expr("INTERVAL 1 HOUR"))
missed = late.join(onward, (late.via == onward.place) & within).select("at", "origin", "via", "destination")

for name, rows in {"delays": delays, "routes": routes, "missed": missed}.items():
    writer = rows.writeStream.queryName(name).format("parquet").option("path", f"{options.output}/{name}")
    writer.option("checkpointLocation", f"{options.output}/{name}.checkpoint").start()

spark.streams.awaitAnyTermination()
