"""Flights and the sum of their delays per origin and week: an ordinary stateful script.

It runs the same with us and without us; the three options at the end let a benchmark look into it, and stop it.
"""

import argparse
import json
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

LOOK_SECONDS = 0.05
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--input", required=True, help="folder of files of flights, one JSON per line")
parser.add_argument("--output", required=True, help="folder of Parquet files")
parser.add_argument("--checkpoint", help="the query's own (default: next to the output)")
parser.add_argument("--max-files-per-trigger", type=int, required=True)
parser.add_argument("--every-seconds", type=int, help="pause between the beginnings of two batches")
parser.add_argument("--available-now", action="store_true", help="end when all files that are there have been read")
parser.add_argument("--fails-once-there-is", type=Path, help="a file: a batch that writes rows fails while it is there")
parser.add_argument("--stops-once-there-is", type=Path, help="a file: the query is stopped when it is there")
parser.add_argument("--threads-to", type=Path, help="write the native ids of the threads of this process, by name")
parser.add_argument("--progress-to", type=Path, help="write Spark's own progress reports at the end")
options = parser.parse_args()

spark = (
    SparkSession.builder.appName("delays")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)

delays = (
    spark.readStream.schema("date STRING, delay INT, distance INT, origin STRING, destination STRING")
    .option("maxFilesPerTrigger", options.max_files_per_trigger)
    .json(options.input)
    .withColumn("at", sf.to_timestamp("date", "yyyy/MM/dd HH:mm"))
    .withWatermark("at", "1 day")
    .groupBy(sf.window("at", "7 days").alias("week"), "origin")
    .agg(sf.count("*").alias("flights"), sf.sum("delay").alias("delay_sum"))
    .select(sf.col("week.start").alias("week"), "origin", "flights", "delay_sum")
)

if options.fails_once_there_is:
    mistake = options.fails_once_there_is

    @sf.udf("string")  # type: ignore[untyped-decorator]
    def checked(origin: str) -> str:
        if mistake.exists():
            raise ValueError("a mistake of the new version")
        return origin

    delays = delays.withColumn("origin", checked("origin"))

writer = (
    delays.writeStream.queryName("delays")
    .outputMode("append")
    .format("parquet")
    .option("path", options.output)
    .option("checkpointLocation", options.checkpoint or f"{options.output.rstrip('/')}.checkpoint")
)
if options.available_now:
    writer = writer.trigger(availableNow=True)
elif options.every_seconds:
    writer = writer.trigger(processingTime=f"{options.every_seconds} seconds")

query = writer.start()
if options.threads_to:
    names = [(thread.name, thread.native_id) for thread in threading.enumerate()]
    options.threads_to.write_text(json.dumps(names), encoding="utf-8")
if options.stops_once_there_is:
    while not options.stops_once_there_is.exists():
        if query.awaitTermination(LOOK_SECONDS):
            break
    query.stop()
query.awaitTermination()
if options.progress_to:
    reports = [json.loads(report.json) for report in query.recentProgress]
    options.progress_to.write_text(json.dumps(reports), encoding="utf-8")
