"""The changes of the state between two snapshots: by comparing both, or by Spark's change feed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from airflow_streamstate.driver.spark.state_reading import AS_TEXT, Report, frame_of, json_rows, place_tables
from airflow_streamstate.driver.spark.words import spark_words
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.snapshot.state_order import StateOrder, StatePlace
from airflow_streamstate.snapshot.state_tables import JOIN_ROWS, PARTITION, StateTable, difference_of

CHANGE = "change"
ADDED, CHANGED, GONE = "added", "changed", "gone"
UPSERT, DELETE = "upsert", "delete"
_BEFORE = "before"
_SEEN = "__there"
_ORDER = "__order"


def compare(spark: Any, order: StateOrder, report: Report) -> dict[str, Any]:
    """Added, changed and removed rows, per table of each place.

    Raises:
        InvalidRequestError: the operators, or the columns of a table, are not the same in both.
    """
    found: dict[str, Any] = {}
    for name, place in order.places.items():
        before = order.before[name]
        query: dict[str, Any] = {"tables": [], "problems": []}
        found[name] = query
        for table in same_tables(spark, name, before, place):
            report(f"{name}: {table.path}")
            try:
                with changes_of(spark, table, before, place) as changes:
                    query["tables"].append({**table.described(), **_told(changes, table, order.limit)})
            except InvalidRequestError:
                raise
            except Exception as error:
                query["problems"].append({**table.described(), "reason": spark_words(error)})
    return found


def same_tables(spark: Any, query_name: str, before: StatePlace, after: StatePlace) -> list[StateTable]:
    """The tables of a query.

    Raises:
        InvalidRequestError: they differ between the two places.
    """
    first, second = place_tables(spark, before), place_tables(spark, after)
    difference = difference_of(first, second)
    if difference:
        raise InvalidRequestError(
            "these two snapshots have different operators, so their state cannot be compared",
            query_name=query_name,
            difference=difference,
            next_step="Compare snapshots between which the state was restored.",
        )
    return second


@contextmanager
def changes_of(spark: Any, table: StateTable, before: StatePlace, after: StatePlace) -> Iterator[Any]:
    """Every row that differs, with ``change``, its identity, its payload in each place, and its partition.

    Raises:
        InvalidRequestError: the columns have other types in one of the places.
    """
    old, new = (_identified(frame_of(spark, place, table), table) for place in (before, after))
    _check_types(table, old, new)
    columns = (*table.identity, *_payload(table))
    left = new.select(*columns, PARTITION, F.lit(True).alias(_SEEN)).alias("new")
    right = old.select(*columns, PARTITION, F.lit(True).alias(_SEEN)).alias("old")
    condition = F.lit(True)
    for name in table.identity:
        kind = new.schema[name].dataType
        condition &= _as_compared(f"new.{name}", kind).eqNullSafe(_as_compared(f"old.{name}", kind))
    change = F.when(F.col(f"old.{_SEEN}").isNull(), ADDED).when(F.col(f"new.{_SEEN}").isNull(), GONE)
    for name in _payload(table):
        kind = new.schema[name].dataType
        change = change.when(_as_compared(f"new.{name}", kind) != _as_compared(f"old.{name}", kind), CHANGED)
    is_new = F.col(f"new.{_SEEN}").isNotNull()

    def either(name: str) -> Any:
        return F.when(is_new, F.col(f"new.{name}")).otherwise(F.col(f"old.{name}")).alias(name)

    joined = left.join(right, condition, "full_outer")
    found = joined.select(
        change.alias(CHANGE),
        *map(either, table.identity),
        *(F.col(f"new.{name}").alias(name) for name in _payload(table)),
        *(F.col(f"old.{name}").alias(f"{_BEFORE}_{name}") for name in _payload(table)),
        either(PARTITION),
    ).where(F.col(CHANGE).isNotNull())
    found = found.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield found
    finally:
        found.unpersist()


@contextmanager
def upserts_and_deletes(spark: Any, table: StateTable, before: StatePlace, after: StatePlace) -> Iterator[Any]:
    """One row per changed identity: ``change`` (``upsert`` or ``delete``), the identity, the new payload (null for a
    delete), the partition."""
    if after.feed_from is not None and table.has_feed:
        yield _of_feed(spark, table, after)
        return
    with changes_of(spark, table, before, after) as changes:
        change = F.when(F.col(CHANGE) == GONE, DELETE).otherwise(UPSERT).alias(CHANGE)
        yield changes.select(change, *table.identity, *_payload(table), PARTITION)


def way_of(table: StateTable, after: StatePlace) -> str:
    """The source of ``upserts_and_deletes``: ``feed`` or ``comparison``."""
    return "feed" if after.feed_from is not None and table.has_feed else "comparison"


def _of_feed(spark: Any, table: StateTable, after: StatePlace) -> Any:
    feed = frame_of(
        spark,
        after,
        table,
        readChangeFeed="true",
        changeStartBatchId=after.feed_from,
        changeEndBatchId=after.batch_id,
    )
    # A batch may change a row twice; a partition is read in the order of its changes.
    latest = Window.partitionBy(*table.identity).orderBy(F.col(_ORDER).desc())
    feed = feed.withColumn(_ORDER, F.monotonically_increasing_id()).withColumn("__n", F.row_number().over(latest))
    change = F.when(F.col("change_type") == "delete", DELETE).otherwise(UPSERT).alias(CHANGE)
    return feed.where("__n = 1").select(change, *table.identity, *_payload(table), PARTITION)


def _told(changes: Any, table: StateTable, limit: int) -> dict[str, Any]:
    counts = {row[CHANGE]: int(row["count"]) for row in changes.groupBy(CHANGE).count().collect()}
    told: dict[str, Any] = {kind: counts.get(kind, 0) for kind in (ADDED, CHANGED, GONE)}
    told["examples"] = {
        kind: json_rows(_columns_of(changes, table, kind), limit) if told[kind] else []
        for kind in (ADDED, CHANGED, GONE)
    }
    return told


def _columns_of(changes: Any, table: StateTable, kind: str) -> Any:
    """The columns that are shown for a kind of change."""
    now = [F.col(name) for name in _payload(table)] if kind != GONE else []
    then = [F.col(f"{_BEFORE}_{name}") for name in _payload(table)] if kind != ADDED else []
    return changes.where(F.col(CHANGE) == kind).select(*table.identity, *now, *then, PARTITION)


def _identified(frame: Any, table: StateTable) -> Any:
    """Each identity once; equal rows of a join are counted."""
    if table.kind != "join":
        return frame
    return frame.groupBy(*table.identity).agg(F.count(F.lit(1)).alias(JOIN_ROWS), F.min(PARTITION).alias(PARTITION))


def _payload(table: StateTable) -> tuple[str, ...]:
    return (table.payload,) if table.payload is not None else ()


def _as_compared(name: str, kind: Any) -> Any:
    """A column in a form that Spark can compare; a map, which it cannot compare, as text."""
    column = F.col(name)
    if "map<" in kind.simpleString():
        column = F.to_json(F.struct(column), AS_TEXT)
    return F.struct(column)


def _check_types(table: StateTable, old: Any, new: Any) -> None:
    for name in (*table.identity, *_payload(table)):
        kinds = [frame.schema[name].dataType.simpleString() for frame in (old, new)]
        if kinds[0] != kinds[1]:
            raise InvalidRequestError(
                "the state of an operator has other columns in one of these snapshots",
                table=table.path,
                column=name,
                before=kinds[0],
                after=kinds[1],
                next_step="Compare snapshots of versions whose state has the same columns.",
            )
