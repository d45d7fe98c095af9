"""Read the same files by ``growing_files`` and by Spark's text source, in turns; rows per second as JSON."""

import argparse
import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.sources import register
from airflow_streamstate.sources.growing_files import GrowingFiles

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--bytes", type=int, required=True)
parser.add_argument("--files", type=int, required=True)
parser.add_argument("--pairs", type=int, required=True)
parser.add_argument("--rows-to", type=Path, required=True)
options = parser.parse_args()

lines = options.folder / "in"
lines.mkdir()
block = "".join(
    f"2026-01-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z host-{n % 97} GET /api/v1/things/{n} 200 {n * 37 % 9973} ms\n"
    for n in range(20_000)
).encode()
blocks = max(1, options.bytes // options.files // len(block))
for number in range(options.files):
    with (lines / f"{number}.log").open("wb") as file:
        for _ in range(blocks):
            file.write(block)
rows = options.files * blocks * 20_000

spark = SparkSession.builder.getOrCreate()
register(spark, GrowingFiles)


def rows_per_second(source: DataFrame, name: str) -> float:
    """Of a whole run of a query, from its start to its end; the length of each line is looked at."""
    query = source.selectExpr("length(value) as length").writeStream.format("noop").trigger(availableNow=True)
    began = SYSTEM_CLOCK.monotonic_seconds()
    running = query.option("checkpointLocation", str(options.folder / "checkpoints" / name)).start()
    running.awaitTermination()
    seconds = SYSTEM_CLOCK.monotonic_seconds() - began
    found = sum(progress["numInputRows"] for progress in running.recentProgress)
    if found != rows:
        raise SystemExit(f"{name} has read {found} of {rows} rows")
    return float(found / seconds)


pairs = []
for number in range(options.pairs + 1):  # the first one finds a cold JVM
    text = rows_per_second(spark.readStream.text(str(lines)), f"text-{number}")
    ours = spark.readStream.format("growing_files").option("path", f"{lines}/*.log").load()
    pair = {"rows_per_s": rows_per_second(ours, f"growing-{number}"), "text_rows_per_s": text, "rows": rows}
    if number:
        pairs.append(pair)
options.rows_to.write_text(json.dumps(pairs))
spark.stop()
