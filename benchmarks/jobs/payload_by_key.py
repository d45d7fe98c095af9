"""The largest payload of each key, a kilobyte that nothing can compress: state of any size, in RocksDB.

With --window the keys belong to one window, which stays open until a drain closes it.

Each line of the input is a range of keys, so that a few bytes of input make many rows.
"""

import argparse
import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

PAYLOAD_BYTES = 1000

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--input", required=True, help="folder of files of ranges of keys, one JSON per line")
parser.add_argument("--checkpoint", required=True, help="folder of the checkpoint")
parser.add_argument("--window", action="store_true", help="group by a window of event time, too")
parser.add_argument("--available-now", action="store_true", help="end when all files that are there have been read")
parser.add_argument("--progress-to", type=Path, help="write Spark's own progress reports at the end")
options = parser.parse_args()

spark = (
    SparkSession.builder.appName("payloads")
    .config("spark.sql.shuffle.partitions", "2")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .getOrCreate()
)

keys = (
    spark.readStream.schema("first LONG, count LONG, round LONG")
    .option("maxFilesPerTrigger", 2)  # one for each core
    .json(options.input)
    .select(sf.explode(sf.expr("sequence(first, first + count - 1)")).alias("key"), "round")
)
# AES with its own vector for each row is the cheapest noise that comes out the same when a batch runs again.
vector = sf.expr("unhex(substring(sha2(concat(key, '-', round), 256), 1, 32))")
payload = sf.aes_encrypt(
    sf.lit("x" * (PAYLOAD_BYTES - 17)), sf.lit("0123456789abcdef"), sf.lit("CBC"), sf.lit("DEFAULT"), vector
)

payloads = keys.withColumn("payload", payload)
if options.window:
    at = sf.timestamp_seconds(sf.lit(1_767_225_600))
    grouped = payloads.withColumn("at", at).withWatermark("at", "1 hour").groupBy(sf.window("at", "1 hour"), "key")
else:
    grouped = payloads.groupBy("key")

writer = (
    grouped.agg(sf.max("payload").alias("payload"))
    .writeStream.queryName("payloads")
    .outputMode("append" if options.window else "update")
    .format("noop")
    .option("checkpointLocation", options.checkpoint)
)
if options.available_now:
    writer = writer.trigger(availableNow=True)

query = writer.start()
query.awaitTermination()
if options.progress_to:
    reports = [json.loads(report.json) for report in query.recentProgress]
    options.progress_to.write_text(json.dumps(reports), encoding="utf-8")
