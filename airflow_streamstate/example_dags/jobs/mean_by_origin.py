"""Flights and the mean of their delays in minutes per origin and day: an upgrade with a migration of the state.

Spark keeps a count and a sum for a mean, where ``count_by_origin.py`` keeps one sum: it refuses that state. The file
``dags/migrations/sum_to_mean.py`` has the function that makes the new state of the old one.

    spark-submit mean_by_origin.py --input flights/incoming --output flights/delays
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--input", required=True, help="folder into which files of flights arrive, one JSON per line")
parser.add_argument("--output", required=True, help="folder of Parquet files; one for all versions (see below)")
parser.add_argument("--max-files-per-trigger", type=int, default=1)
parser.add_argument("--available-now", action="store_true", help="end when all files that are there have been read")
options = parser.parse_args()

spark = (
    SparkSession.builder.appName("flights")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)

flights = (
    spark.readStream.schema("date STRING, delay INT, distance INT, origin STRING, destination STRING")
    .option("maxFilesPerTrigger", options.max_files_per_trigger)
    .json(options.input)
    .withColumn("at", sf.to_timestamp("date", "yyyy/MM/dd HH:mm"))
)

delays = (
    flights.withWatermark("at", "1 day")
    .groupBy(sf.window("at", "1 day").alias("day"), "origin")
    .agg(sf.count("*").alias("flights"), sf.avg("delay").alias("delay_mean"))
    .select(
        sf.lit("mean_by_origin").alias("version"),
        sf.col("day.start").alias("day"),
        "origin",
        "flights",
        "delay_mean",
    )
)

# The file sink remembers batch ids in its folder, and batch ids continue from version to version. So all versions write
# to one folder, and a column shows which one wrote a row.
writer = (
    delays.writeStream.queryName("delays")
    .outputMode("append")
    .format("parquet")
    .option("path", options.output)
    .option("checkpointLocation", f"{options.output.rstrip('/')}.checkpoint")
)
if options.available_now:
    writer = writer.trigger(availableNow=True)

writer.start().awaitTermination()
