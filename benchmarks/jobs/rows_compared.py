"""Compare two versions of the same rows by their keys, and by one ``EXCEPT ALL``, in turns; the seconds as JSON."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession, functions

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.driver.spark.row_comparison import compare_folders

Found = TypeVar("Found")
parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--rows", type=int, required=True)
parser.add_argument("--pairs", type=int, required=True)
parser.add_argument("--seconds-to", type=Path, required=True)
options = parser.parse_args()
spark = SparkSession.builder.getOrCreate()


def rows(every_hundredth_differs: bool) -> DataFrame:
    """Delays by hour and origin; the new version's differ in one row of a hundred."""
    hour = (functions.lit(1_700_000_000) + functions.expr("id div 1000") * 3600).cast("timestamp")
    differs = functions.lit(every_hundredth_differs) & (functions.col("id") % 100 == 0)
    return spark.range(0, options.rows, 1, 8).select(
        functions.struct(hour.alias("start"), (hour + functions.expr("interval 1 hour")).alias("end")).alias("window"),
        functions.format_string("K%03d", functions.col("id") % 1000).alias("origin"),
        functions.when(differs, -1).otherwise(functions.xxhash64("id") % 1000).alias("flights"),
        (functions.xxhash64("id", functions.lit(1)) % 100_000 / 7).alias("delay"),
    )


old_folder, new_folder = (str(options.folder / version) for version in ("old", "new"))
for folder, differs in ((old_folder, False), (new_folder, True)):
    rows(differs).write.parquet(folder)
old, new = map(spark.read.parquet, (old_folder, new_folder))


def timed(run: Callable[[], Found]) -> tuple[Found, float]:
    """What it finds, and its seconds."""
    began = SYSTEM_CLOCK.monotonic_seconds()
    found = run()
    return found, SYSTEM_CLOCK.monotonic_seconds() - began


pairs = []
for number in range(options.pairs + 1):  # the first one finds a cold JVM
    only_old, except_seconds = timed(lambda: old.exceptAll(new).count())
    found, seconds = timed(lambda: compare_folders(spark, old_folder, new_folder, ("window", "origin"), 5))
    if (found.changed, found.only_old, found.same) != (only_old, 0, options.rows - only_old) or not only_old:
        raise SystemExit(f"{only_old} rows differ, and the comparison found {found}")
    if number:
        pairs.append({"seconds": seconds, "except_all_seconds": except_seconds, "rows": options.rows})
options.seconds_to.write_text(json.dumps(pairs))
spark.stop()
