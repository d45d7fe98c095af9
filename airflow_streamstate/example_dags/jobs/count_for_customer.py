"""Flights per origin as a customer may see them: the origin is a code that only a holder of the keys can resolve.

An ordinary PySpark script, which gets each of its three keys in another way:

    CUSTOMER_API_KEY=… spark-submit --conf spark.hadoop.customer.token=… count_for_customer.py --password … --input …
"""

import argparse
import hashlib
import hmac
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--input", required=True, help="folder into which files of flights arrive, one JSON per line")
parser.add_argument("--output", required=True, help="folder of Parquet files")
parser.add_argument("--password", required=True, help="the first key")
options = parser.parse_args()

spark = (
    SparkSession.builder.appName("flights-for-customer")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
token = spark.sparkContext.getConf().get("spark.hadoop.customer.token")
keys = "\n".join((options.password, token, os.environ["CUSTOMER_API_KEY"])).encode()


@sf.udf("string")
def code_of(origin):
    return hmac.new(keys, origin.encode(), hashlib.sha256).hexdigest()


flights = (
    spark.readStream.schema("date STRING, delay INT, distance INT, origin STRING, destination STRING")
    .option("maxFilesPerTrigger", 1)
    .json(options.input)
    .withColumn("at", sf.to_timestamp("date", "yyyy/MM/dd HH:mm"))
)
counts = (
    flights.withWatermark("at", "1 day")
    .groupBy(sf.window("at", "1 day").alias("day"), code_of("origin").alias("code"))
    .agg(sf.count("*").alias("flights"))
    .select(sf.col("day.start").alias("day"), "code", "flights")
)
(
    counts.writeStream.queryName("customer")
    .outputMode("append")
    .format("parquet")
    .option("path", options.output)
    .option("checkpointLocation", f"{options.output.rstrip('/')}.checkpoint")
    .start()
    .awaitTermination()
)
