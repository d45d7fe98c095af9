"""Queries of every shape whose plans are kept as golden files, built without being started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SCHEMA = "ts timestamp, k string, v long"
NEEDS = {"named_sources": (4, 3), "tws_rows": (4, 1), "tws_pandas": (4, 0)}
"""The oldest Spark, as (major, minor), of the queries that not every Spark from 3.5 on has."""


def queries(spark: Any, folder: Path) -> dict[str, Any]:
    """A data frame for each name; those that this Spark does not have are left out."""
    line = tuple(int(part) for part in spark.version.split(".")[:2])
    made = {name: make for name, make in QUERIES.items() if NEEDS.get(name, (3, 5)) <= line}
    return {name: make(spark, folder) for name, make in made.items()}


def _rows(spark: Any, folder: Path, name: str = "in") -> Any:
    (folder / name).mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / name))


def _marked(spark: Any, folder: Path, name: str = "in", delay: str = "10 seconds") -> Any:
    return _rows(spark, folder, name).withWatermark("ts", delay)


def _tumbling(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    rows = _marked(spark, folder).filter("v > 3")
    counted = rows.groupBy(functions.window("ts", "5 minutes"), "k").agg(
        functions.count("*").alias("n"), functions.sum("v").alias("total")
    )
    return counted.select("window.start", "k", "n", "total")


def _sliding(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    @functions.udf("string")
    def shop(key: str) -> str:
        return key[:1]

    rows = _marked(spark, folder)
    return rows.groupBy(functions.window("ts", "10 minutes", "4 minutes", "1 minute"), shop("k")).agg(
        functions.max("v")
    )


def _session(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    return _marked(spark, folder).groupBy(functions.session_window("ts", "5 minutes"), "k").count()


def _session_by_row(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    gap = functions.when(functions.col("k") == "a", "5 seconds").otherwise("20 seconds")
    return _marked(spark, folder).groupBy(functions.session_window("ts", gap), "k").count()


def _unbounded(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    every = _rows(spark, folder).withColumn(
        "size", functions.expr("case when v > 10 then 'big' when v is null then '?' end")
    )
    return every.groupBy("size").agg(
        functions.approx_count_distinct("k"), functions.collect_set("v"), functions.expr("avg(v) filter (where v > 1)")
    )


def _deduplicated(spark: Any, folder: Path) -> Any:
    return _marked(spark, folder).dropDuplicates(["k", "ts"])


def _deduplicated_within(spark: Any, folder: Path) -> Any:
    return _marked(spark, folder).dropDuplicatesWithinWatermark(["k"])


def _joined(how: str) -> Callable[[Any, Path], Any]:
    def joined(spark: Any, folder: Path) -> Any:
        from pyspark.sql import functions

        left = _marked(spark, folder, "left").alias("l")
        right = _marked(spark, folder, "right", "2 minutes").alias("r")
        near = functions.expr("l.k = r.k and r.ts between l.ts and l.ts + interval 5 minutes")
        return left.join(right, near, how)

    return joined


def _joined_static(spark: Any, folder: Path) -> Any:
    names = spark.createDataFrame([("a", "first")], "k string, name string")
    return _marked(spark, folder).join(names, "k", "left").groupBy("name").count()


def _chained(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    once = _marked(spark, folder).dropDuplicates(["k", "ts"])
    per_minute = once.groupBy(functions.window("ts", "1 minute"), "k").count()
    return per_minute.groupBy(functions.window(functions.window_time("window"), "10 minutes")).agg(
        functions.sum("count").alias("n")
    )


def _union(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    def per_key(name: str) -> Any:
        rows = _marked(spark, folder, name)
        return rows.groupBy(functions.window("ts", "1 minute"), "k").agg(functions.sum("v").alias("total"))

    return per_key("a").union(per_key("b"))


def _self_union(spark: Any, folder: Path) -> Any:
    rows = _rows(spark, folder)
    return rows.filter("v > 3").union(rows.filter("v < 2")).withWatermark("ts", "1 minute").dropDuplicates(["ts", "k"])


def _limited(spark: Any, folder: Path) -> Any:
    return _rows(spark, folder).limit(50).select("k").limit(20)


def _sql(spark: Any, folder: Path) -> Any:
    _marked(spark, folder).createOrReplaceTempView("rows")
    return spark.sql(
        "with big as (select * from rows where v > 100), small as (select * from rows where v < 3)"
        " select k, window.end, count(1) as n, min(struct(v, k)) as least"
        " from (select * from big union all select * from small) group by k, window(ts, '30 seconds')"
    )


def _expressions(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    rate = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    return (
        rate.withWatermark("timestamp", "1 day")
        .withColumn("parts", functions.array(functions.lit(1), functions.col("value")))
        .select(
            "timestamp",
            functions.explode("parts").alias("part"),
            functions.expr("transform(parts, x -> x + 1) as more"),
        )
        .filter(functions.col("part").isin(1, 2, 3) & ~functions.col("part").isNull())
        .repartition(4, "part")
        .groupBy(functions.window("timestamp", "1 day"), (functions.col("part") % 7).cast("string").alias("shard"))
        .agg(functions.count("*"), functions.max(functions.date_format("timestamp", "yyyy")))
    )


def _stateless(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    return _rows(spark, folder).select(
        functions.to_json(functions.struct("k", "v")).alias("value"), functions.lit("a'b").alias("quote")
    )


def _pandas_state(spark: Any, folder: Path) -> Any:
    from pyspark.sql.streaming.state import GroupStateTimeout

    def counted(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
        yield from frames

    return (
        _rows(spark, folder)
        .groupBy("k")
        .applyInPandasWithState(
            counted, "k string, n long", "n long, last timestamp", "append", GroupStateTimeout.ProcessingTimeTimeout
        )
    )


def _processor() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")
            self.seen = handle.getMapState("seen", "k string", "n long", 3_600_000)
            self.last = handle.getListState("last", "v long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            yield from rows

        def close(self) -> None:
            pass

    return Counter()


def _tws_pandas(spark: Any, folder: Path) -> Any:
    return (
        _marked(spark, folder)
        .groupBy("k")
        .transformWithStateInPandas(_processor(), "k string, n long", "append", "EventTime")
    )


def _tws_rows(spark: Any, folder: Path) -> Any:
    from pyspark.sql import functions

    first = spark.createDataFrame([("a", 1)], "k string, n long").groupBy("k")
    counted = (
        _marked(spark, folder)
        .groupBy("k")
        .transformWithState(_processor(), "k string, ts timestamp, n long", "append", "ProcessingTime", first, "ts")
    )
    return counted.groupBy(functions.window("ts", "1 minute")).count()


def _named_sources(spark: Any, folder: Path) -> Any:
    spark.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    try:
        (folder / "named").mkdir(parents=True, exist_ok=True)

        def named(name: str) -> Any:
            return spark.readStream.name(name).schema(SCHEMA).json(str(folder / "named"))

        return named("second").union(named("first")).groupBy("k").count()
    finally:
        spark.conf.unset("spark.sql.streaming.queryEvolution.enableSourceEvolution")


QUERIES: dict[str, Callable[[Any, Path], Any]] = {
    "tumbling": _tumbling,
    "sliding": _sliding,
    "session": _session,
    "session_by_row": _session_by_row,
    "unbounded": _unbounded,
    "deduplicated": _deduplicated,
    "deduplicated_within": _deduplicated_within,
    "joined_inner": _joined("inner"),
    "joined_left": _joined("leftOuter"),
    "joined_full": _joined("fullOuter"),
    "joined_semi": _joined("leftSemi"),
    "joined_static": _joined_static,
    "chained": _chained,
    "union": _union,
    "self_union": _self_union,
    "limited": _limited,
    "sql": _sql,
    "expressions": _expressions,
    "stateless": _stateless,
    "pandas_state": _pandas_state,
    "tws_pandas": _tws_pandas,
    "tws_rows": _tws_rows,
    "named_sources": _named_sources,
}
