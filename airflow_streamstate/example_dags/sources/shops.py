"""Orders of several shops from a paged API, and lines of growing logs, each in its own query.

    shops.py API_URL LOGS SPOOL OUTPUT

An ordinary PySpark script. It runs by itself, too, with its checkpoints in OUTPUT/checkpoints.
"""

import json
import sys
from datetime import datetime
from urllib.parse import quote
from urllib.request import urlopen

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_streamstate.sources import Part, PartitionedSource, register
from airflow_streamstate.sources.growing_files import GrowingFiles


# [START shops]
class Shops(PartitionedSource):
    """Each shop is a part; its state is the number of its last order."""

    schema = "shop string, number long, at timestamp, amount double"
    event_time = "at"
    identifying = ("api",)

    def list_parts(self):
        return self.ask("shops")

    def build_part(self, part, state):
        return Shop(self, part, state or 0)

    def ask(self, path):
        with urlopen(f"{self.options['url']}/{path}", timeout=10) as answer:  # noqa: S310
            return json.load(answer)


class Shop(Part):
    """A shop only returns its next orders, so they are read ahead and kept in the spool."""

    def __init__(self, source, shop, number):
        self.source, self.shop, self.number = source, shop, number
        self.is_closed = False

    def poll(self, limit):
        page = self.source.ask(f"orders?shop={quote(self.shop)}&after={self.number}&limit={limit}")
        orders = page["orders"]
        self.is_closed = page["closed"] and len(orders) < limit
        if orders:
            self.number = orders[-1]["number"]
        return [(self.shop, one["number"], datetime.fromisoformat(one["at"]), one["amount"]) for one in orders]

    def snapshot(self):
        return self.number

    def is_finished(self):
        return self.is_closed


# [END shops]
url, logs, spool, output = sys.argv[1:]

# [START register]
spark = SparkSession.builder.getOrCreate()
register(spark, Shops)
register(spark, GrowingFiles)
orders = (
    spark.readStream.format("shops")
    .options(url=url, api="orders of the shops", spool=spool, maxPerTrigger="100", aheadSeconds="60")
    .load()
)
lines = spark.readStream.format("growing_files").options(path=logs, doneSuffix=".done").load()
# [END register]
window = F.window("at", "10 seconds")
revenue = (
    orders.withWatermark("at", "1 minute").groupBy(window).agg(F.count("*").alias("n"), F.sum("amount").alias("s"))
)
fields = F.split("value", ",")
rows = lines.select(F.to_timestamp(fields[0]).alias("at"), fields[1].cast("int").alias("v"))
sums = rows.withWatermark("at", "1 minute").groupBy(window).agg(F.count("*").alias("n"), F.sum("v").alias("s"))
for name, frame in (("revenue", revenue), ("lines", sums)):
    writer = frame.select("window.start", "n", "s").writeStream.queryName(name).format("json")
    writer.option("checkpointLocation", f"{output}/checkpoints/{name}").start(f"{output}/{name}")
for query in spark.streams.active:
    query.awaitTermination()
