"""The state in a fork of a snapshot, table by table, read with Spark's own state readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, BinaryType, DataType, DecimalType, StructField, StructType

from airflow_streamstate.driver.spark.state_rows import stores_of
from airflow_streamstate.driver.spark.words import spark_words
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.snapshot.state_order import StateOrder, StatePlace, parse_exactly
from airflow_streamstate.snapshot.state_tables import PARTITION, StateTable, tables_of

Report = Callable[[str], None]
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_TIMEOUT = "timeoutTimestamp"
_LAST_MS = 253_402_300_799_000
"""The end of the year 9999, the last time that can be formatted."""
AS_TEXT = {
    "ignoreNullFields": "false",
    # To the microsecond, as keys have them: Spark's own format cuts off behind the third digit.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options for rows as JSON, by which different values are different texts."""


def place_tables(spark: Any, place: StatePlace) -> list[StateTable]:
    """The tables of a place."""
    return tables_of([row.asDict() for row in stores_of(spark, place.checkpoint_uri)])


def frame_of(spark: Any, place: StatePlace, table: StateTable, **options: object) -> Any:
    """A table at the batch of its place: the columns of its identity, its payload, and ``partition_id``."""
    # The offset log does not pin it, and Spark finds no file without it.
    spark.conf.set(STATE_FORMAT, str(place.state_format))
    reader = spark.read.format("statestore").options(**table.options)
    if not options:
        reader = reader.option("batchId", place.batch_id)
    frame = reader.options(**options).load(place.checkpoint_uri)
    for field in frame.schema:
        apart = names_apart(field.dataType)
        if apart != field.dataType:
            frame = frame.withColumn(field.name, F.col(field.name).cast(apart))
    if table.kind != "join":
        return frame
    # The rows have a field more than their type tells (whether they found a match), which breaks writers.
    value = F.struct(*(F.col("value").getField(name).alias(name) for name in frame.schema["value"].dataType.names))
    return frame.select("key", value.alias("value"), PARTITION)


def names_apart(kind: Any) -> Any:
    """The same type with a unique name for each nested column: Spark calls two sums ``sum``, which no JSON can hold."""
    if not isinstance(kind, StructType):
        return kind
    fields: list[StructField] = []
    taken: set[str] = set()
    for field in kind.fields:
        name, number = field.name, 1
        while name.lower() in taken:
            number += 1
            name = f"{field.name}_{number}"
        taken.add(name.lower())
        fields.append(StructField(name, names_apart(field.dataType), field.nullable, field.metadata))
    return StructType(fields)


def look(spark: Any, order: StateOrder, report: Report) -> dict[str, Any]:
    """The content of the state of each place.

    Returns:
        By query: ``tables`` with rows, columns, rows by partition and timers; ``rows``, those of the order's key; and
        ``problems``, each with its table.

    Raises:
        InvalidRequestError: no table has the columns of the order's key, or one of them cannot have that value.
    """
    found: dict[str, Any] = {}
    known_columns: dict[str, list[str]] = {}
    is_known = order.key is None
    for name, place in order.places.items():
        query: dict[str, Any] = {"tables": [], "rows": [], "problems": []}
        found[name] = query
        for table in place_tables(spark, place):
            report(f"{name}: {table.path}")
            try:
                frame = frame_of(spark, place, table)
                query["tables"].append({**table.described(), **_counted(frame, table)})
                known_columns[f"{name} {table.path}"] = _paths(frame.schema["key"].dataType)
                pairs = _wanted_columns(frame.schema["key"].dataType, order.key or {})
                if order.key is not None and pairs is not None:
                    is_known = True
                    chosen = _condition(spark, pairs)
                    query["rows"].append({**table.described(), **_shown(frame.where(chosen), order.limit)})
            except InvalidRequestError:
                raise
            except Exception as error:
                query["problems"].append({**table.described(), "reason": spark_words(error)})
    if not is_known:
        raise InvalidRequestError(
            "no state has these key columns",
            key=dict(order.key or {}),
            columns=known_columns,
            next_step="Name columns of the keys, as `streamstate snapshot inspect` shows them.",
        )
    return found


def json_rows(frame: Any, limit: int) -> list[dict[str, Any]]:
    """The first rows as plain JSON, with nulls, each value as ``--key`` takes it."""
    text = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), AS_TEXT)
    return [parse_exactly(row[0]) for row in frame.select(text).limit(limit).collect()]


def _shown(frame: Any, limit: int) -> dict[str, Any]:
    rows = json_rows(frame, limit + 1)
    return {"rows": rows[:limit], "more": len(rows) > limit}


def _counted(frame: Any, table: StateTable) -> dict[str, Any]:
    size = F.sum(F.size("list_value")) if table.kind == "list" else F.count(F.lit(1))
    columns = [size.alias("rows"), F.count(F.lit(1)).alias("keys")]
    due = _due_column(frame, table)
    if due is not None:
        set_ = F.when(due > 0, due)
        columns += [F.count(set_).alias("timers"), F.min(set_).alias("next"), F.max(set_).alias("last")]
    by_partition = [0] * table.partitions
    timers: list[tuple[int, int, int]] = []
    for row in frame.groupBy(PARTITION).agg(*columns).collect():
        number = int(row[PARTITION])
        by_partition += [0] * (number + 1 - len(by_partition))
        by_partition[number] = int(row["rows"] or 0)
        if due is not None and row["timers"]:
            timers.append((int(row["timers"]), int(row["next"]), int(row["last"])))
    schema = frame.schema
    return {
        "rows": sum(by_partition),
        "rows_by_partition": by_partition,
        "columns": {field.name: field.dataType.simpleString() for field in schema if field.name != PARTITION},
        "timers": None if due is None else {"time": table.time or "timeout", **_timers(timers)},
    }


def _due_column(frame: Any, table: StateTable) -> Any:
    """The time of a row's timer or timeout, in milliseconds since 1970; None where rows have none."""
    if table.kind == "timers":
        return F.col("expiration_timestamp_ms")
    value = frame.schema["value"].dataType if table.kind == "rows" else None
    names = getattr(value, "names", [])
    return F.col(f"value.{_TIMEOUT}") if "groupState" in names and _TIMEOUT in names else None


def _timers(timers: list[tuple[int, int, int]]) -> dict[str, Any]:
    return {
        "count": sum(count for count, _, _ in timers),
        "next_at": _moment(min((first for _, first, _ in timers), default=None)),
        "last_at": _moment(max((last for _, _, last in timers), default=None)),
    }


def _moment(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return format_time(datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=min(milliseconds, _LAST_MS)))


def _paths(key_type: Any, prefix: str = "") -> list[str]:
    """The columns of a key, nested ones by their whole path."""
    found: list[str] = []
    for field in key_type.fields:
        path = f"{prefix}{field.name}"
        found += _paths(field.dataType, f"{path}.") if hasattr(field.dataType, "fields") else [path]
    return found


@dataclass(frozen=True)
class _WantedState:
    """A column of a key, and its wanted value."""

    path: tuple[str, ...]
    kind: DataType
    value: Any

    @property
    def column(self) -> Any:
        return F.col(".".join(f"`{name.replace('`', '``')}`" for name in ("key", *self.path)))

    @property
    def literal(self) -> Any:
        """The value in the column's type; null where that is not possible."""
        text = F.lit(self.value if isinstance(self.value, str) else json.dumps(self.value))
        if isinstance(self.kind, ArrayType):
            return F.from_json(text, self.kind, {"mode": "FAILFAST"})
        if isinstance(self.kind, BinaryType):
            return F.try_to_binary(text, F.lit("base64"))
        return text.try_cast(self.kind)

    def is_possible(self, spark: Any) -> bool:
        """Whether the column can have that value."""
        kind, value = self.kind, self.value
        if isinstance(kind, StructType) or isinstance(value, Mapping):
            return False
        if isinstance(value, list) != isinstance(kind, ArrayType):
            return False
        try:
            if isinstance(kind, DecimalType):  # Spark would round it
                return Decimal(str(value)) == Decimal(spark.range(1).select(self.literal.cast("string")).first()[0])
            return not spark.range(1).select(self.literal.isNull()).first()[0]
        except (PySparkException, Py4JJavaError, ArithmeticError, TypeError):
            return False


def _condition(spark: Any, pairs: Iterable[_WantedState]) -> Any:
    """The rows whose key has these values."""
    condition = F.lit(True)
    for wanted in pairs:
        if wanted.value is None:
            condition &= wanted.column.isNull()
            continue
        if not wanted.is_possible(spark):
            raise InvalidRequestError(
                "this value does not fit the type of a key column",
                column=".".join(wanted.path),
                type=wanted.kind.simpleString(),
                value=wanted.value,
                next_step='Give it in JSON: a text for texts and times ("2026-01-01T00:00:00Z"), base64 for binary '
                "columns, a list for arrays, a number for numbers.",
            )
        condition &= wanted.column == wanted.literal
    return condition


def _wanted_columns(kind: Any, wanted: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[_WantedState] | None:
    """The wanted value of each column; None where the key lacks one of them."""
    fields = {field.name: field.dataType for field in kind.fields}
    found: list[_WantedState] = []
    for name, value in wanted.items():
        if name not in fields:
            return None
        if isinstance(value, Mapping) and value:
            is_struct = isinstance(fields[name], StructType)
            inner = _wanted_columns(fields[name], value, (*path, name)) if is_struct else None
            if inner is None:
                return None
            found += inner
        else:
            found.append(_WantedState((*path, name), fields[name], value))
    return found
