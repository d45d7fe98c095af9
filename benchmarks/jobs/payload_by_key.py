"""The largest payload of each key, a kilobyte that nothing can compress: state of any size, in RocksDB.

Each line of the input is a range of keys, so that a few bytes of input make many rows.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

PAYLOAD_BYTES = 1000

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--input", required=True, help="folder of files of ranges of keys, one JSON per line")
parser.add_argument("--checkpoint", required=True, help="folder of the checkpoint")
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
# AES with a vector of its own for each row is the cheapest noise that comes out the same when a batch runs again.
vector = sf.expr("unhex(substring(sha2(concat(key, '-', round), 256), 1, 32))")
payload = sf.aes_encrypt(
    sf.lit("x" * (PAYLOAD_BYTES - 17)), sf.lit("0123456789abcdef"), sf.lit("CBC"), sf.lit("DEFAULT"), vector
)

query = (
    keys.withColumn("payload", payload)
    .groupBy("key")
    .agg(sf.max("payload").alias("payload"))
    .writeStream.queryName("payloads")
    .outputMode("update")
    .format("noop")
    .option("checkpointLocation", options.checkpoint)
    .start()
)
query.awaitTermination()
