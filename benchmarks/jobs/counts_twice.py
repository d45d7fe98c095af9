"""Flights per origin and week, by two queries of the same shape that start one after the other.

What the second one costs it costs in a JVM that is warm by the first one.
"""

import argparse
import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--input", required=True, help="folder of files of flights, one JSON per line")
parser.add_argument("--output", required=True, help="folder, in which each query has its own")
parser.add_argument("--once", action="store_true", help="one batch each, one query after the other, and end")
parser.add_argument(
    "--progress-to", type=Path, help="write Spark's own progress reports of the second query at the end"
)
options = parser.parse_args()

spark = (
    SparkSession.builder.appName("counts")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)

for name in ("first", "second"):
    counts = (
        spark.readStream.schema("date STRING, delay INT, distance INT, origin STRING, destination STRING")
        .option("maxFilesPerTrigger", 1)
        .json(options.input)
        .withColumn("at", sf.to_timestamp("date", "yyyy/MM/dd HH:mm"))
        .withWatermark("at", "1 day")
        .groupBy(sf.window("at", "7 days").alias("week"), "origin")
        .agg(sf.count("*").alias("flights"))
        .select(sf.col("week.start").alias("week"), "origin", "flights")
    )
    writer = (
        counts.writeStream.queryName(name)
        .outputMode("append")
        .format("parquet")
        .option("path", f"{options.output}/{name}")
        .option("checkpointLocation", f"{options.output}/{name}.checkpoint")
    )
    if options.once:
        query = writer.trigger(once=True).start()
        query.awaitTermination()
    else:
        query = writer.start()

query.awaitTermination()
if options.progress_to:
    reports = [json.loads(report.json) for report in query.recentProgress]
    options.progress_to.write_text(json.dumps(reports), encoding="utf-8")
