"""The state in a fork of a snapshot: tables, row counts, exports and changes, by Spark's state readers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from shutil import rmtree
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, BinaryType, DataType, DecimalType, StructField, StructType

from airflow_streamstate.checkpoint.guards import STATE_READERS_SINCE, line_of
from airflow_streamstate.driver.attempt.ports import OperatorRows, WrittenState
from airflow_streamstate.driver.spark.jvm import spark_words
from airflow_streamstate.errors import ConflictError, InvalidRequestError, UnsupportedCheckpointError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.snapshot.state_tables import (
    ABOUT,
    JOIN_ROWS,
    PARTITION,
    StateExport,
    StateOrder,
    StatePlace,
    StateTable,
    difference_of,
    folder_name,
    parse_exactly,
    tables_of,
    variables_in,
)

# Counts over the state of a checkpoint, by Spark's own state readers.

_DEFAULT_STORE = "default"
_JOIN_STORES = ("left-keyWithIndexToValue", "right-keyWithIndexToValue")


def count_state_rows(spark: Any, checkpoint_uri: str) -> tuple[OperatorRows, ...]:
    """Rows per stateful operator at the last committed batch: of both sides of a join, as in Spark's progress, and of
    all variables of an operator."""
    stores: dict[tuple[int, str], list[Any]] = {}
    for row in stores_of(spark, checkpoint_uri):
        stores.setdefault((int(row["operatorId"]), str(row["operatorName"])), []).append(row)
    return tuple(
        OperatorRows(name, operator_id, sum(_count(spark, checkpoint_uri, operator_id, row) for row in rows))
        for (operator_id, name), rows in sorted(stores.items())
    )


def open_windows(spark: Any, checkpoint_uri: str) -> tuple[datetime, datetime] | None:
    """The start of the first and the end of the last window in the state's keys; None without a window."""
    bounds: list[tuple[int, int]] = []
    for row in stores_of(spark, checkpoint_uri):
        if str(row["stateStoreName"]) != _DEFAULT_STORE or _variables(row):
            continue
        state = spark.read.format("statestore").option("operatorId", int(row["operatorId"])).load(checkpoint_uri)
        for name in _window_fields(state.schema["key"].dataType):
            window = f"key.`{name}`"
            found = state.selectExpr(f"unix_micros(min({window}.start))", f"unix_micros(max({window}.end))").first()
            if found is not None and found[0] is not None:
                bounds.append((int(found[0]), int(found[1])))
    if not bounds:
        return None
    return _moment(min(start for start, _ in bounds)), _moment(max(end for _, end in bounds))


def stores_of(spark: Any, checkpoint_uri: str) -> list[Any]:
    """Spark's description of each state store of a checkpoint, one row each.

    Raises:
        UnsupportedCheckpointError: this Spark cannot read state.
    """
    if (line_of(spark.version) or STATE_READERS_SINCE) < STATE_READERS_SINCE:
        raise UnsupportedCheckpointError(
            f"Spark {spark.version} cannot read state",
            next_step="Spark 4.0 and newer can: name one with --spark PATH.",
        )
    # The readers need the state store coordinator, which a session creates at the first use of its streams.
    spark._jsparkSession.streams().active()
    found: list[Any] = spark.read.format("state-metadata").load(checkpoint_uri).collect()
    return found


def _window_fields(key_type: Any) -> list[str]:
    return [
        field.name
        for field in key_type.fields
        if set(getattr(field.dataType, "names", ())) == {"start", "end"}
        and all(part.dataType.typeName() == "timestamp" for part in field.dataType.fields)
    ]


def _moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)


def _count(spark: Any, checkpoint_uri: str, operator_id: int, row: Any) -> int:
    store_name = str(row["stateStoreName"])
    reader = spark.read.format("statestore").option("operatorId", operator_id)
    variables = _variables(row)
    if variables:
        return sum(int(reader.option("stateVarName", name).load(checkpoint_uri).count()) for name in variables)
    if store_name != _DEFAULT_STORE and store_name not in _JOIN_STORES:
        return 0  # an index of a join
    if store_name != _DEFAULT_STORE:
        reader = reader.option("storeName", store_name)
    return int(reader.load(checkpoint_uri).count())


def _variables(row: Any) -> list[str]:
    properties = json.loads(row["operatorProperties"] or "{}") if "operatorProperties" in row else {}
    names = [str(variable["stateName"]) for variable in variables_in(properties)]
    return [name for name in names if not name.startswith("$")]  # timers cannot be read as a variable


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
    # The rows have one field more than their type states (whether they found a match), which breaks writers.
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
                query["tables"].append({**table.to_json(), **_counted(frame, table)})
                known_columns[f"{name} {table.path}"] = _paths(frame.schema["key"].dataType)
                pairs = _wanted_columns(frame.schema["key"].dataType, order.key or {})
                if order.key is not None and pairs is not None:
                    is_known = True
                    chosen = _condition(spark, pairs)
                    query["rows"].append({**table.to_json(), **_shown(frame.where(chosen), order.limit)})
            except InvalidRequestError:
                raise
            except Exception as error:
                query["problems"].append({**table.to_json(), "reason": spark_words(error)})
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
        "next_at": _time_text(min((first for _, first, _ in timers), default=None)),
        "last_at": _time_text(max((last for _, _, last in timers), default=None)),
    }


def _time_text(milliseconds: int | None) -> str | None:
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
        """The value in the column's type; null if that is not possible."""
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


# The changes of the state between two snapshots: by comparing both, or by Spark's change feed.

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
                    query["tables"].append({**table.to_json(), **_told(changes, table, order.limit)})
            except InvalidRequestError:
                raise
            except Exception as error:
                query["problems"].append({**table.to_json(), "reason": spark_words(error)})
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


# Exports state as tables: a folder for each table of each query, and ``_about.json``, which describes them.
#
# ``_about.json`` is written first, and states ``complete`` after the last table. Only an earlier export is ever
# replaced.

MAKER = "airflow-streamstate"
BATCH = "batch_id"
MAX_ABOUT_BYTES = 1 << 24


def check_export(spark: Any, wanted: StateExport) -> None:
    """Check whether tables can be written there; writes nothing.

    Raises:
        InvalidRequestError: this session cannot write that format, or not there.
        ConflictError: the folder is not empty.
    """
    _check_format(spark, wanted)
    _Folder(spark, wanted.uri).check(overwrite=wanted.overwrite)


def export(spark: Any, order: StateOrder, report: Report) -> dict[str, Any]:
    """Write the tables that the order asks for; the content of ``_about.json``, with ``problems``.

    Raises:
        InvalidRequestError: it cannot be written there; the operators differ between the two snapshots.
        ConflictError: the folder is not empty any more, or another export has taken it.
    """
    wanted = order.export
    if wanted is None:
        raise InvalidRequestError("the order asks for no export")
    tables = [
        (name, place, table)
        for name, place in order.places.items()
        for table in (
            same_tables(spark, name, order.before[name], place) if order.before else place_tables(spark, place)
        )
    ]
    folder = _Folder(spark, wanted.uri)
    made = {**wanted.about, "made_by": MAKER, "claim": Path(order.folder).name}
    folder.claim({**made, "complete": False, "tables": []}, overwrite=wanted.overwrite)
    written: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for name, place, table in tables:
        report(f"writing {name}: {table.path}")
        before = order.before.get(name)
        path = f"{folder_name(name)}/{table.path}"
        facts = {"path": path, "query_name": name, "operator_id": table.operator_id, **_facts(table, place, before)}
        try:
            rows = _write(spark, wanted, path, table, place, before)
        except InvalidRequestError:
            raise
        except Exception as error:
            problems.append({**facts, "reason": spark_words(error)})
        else:
            written.append({**facts, **rows})
    about = {**made, "complete": not problems, "tables": written, "problems": problems}
    folder.tell(about)
    return about


def write_tables(spark: Any, place: StatePlace, folder: str) -> WrittenState:
    """Write each table of a place into Parquet files in its own folder below this local one.

    The folder appears when it is complete.
    """
    tables: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for table in place_tables(spark, place):
        whole = Path(folder, table.path)
        partial = whole.with_name(f".{whole.name}.partial")  # Spark's readers pass hidden names over
        try:
            frame = _without_empty(frame_of(spark, place, table)).drop(PARTITION)
            frame.write.parquet(f"file://{partial}")
            partial.rename(whole)
        except Exception as error:
            problems.append(f"{table.path}: {spark_words(error)}")
            rmtree(partial, ignore_errors=True)
        else:
            identity = ("key",) if table.kind == "join" else table.identity
            tables[table.path] = tuple(name for name in identity if name in frame.columns)
    return WrittenState(tables, tuple(problems))


def _without_empty(frame: Any) -> Any:
    """Without the key of an aggregation over all rows, a struct without columns, which no file format can hold."""
    return frame.drop(*(field.name for field in frame.schema if field.dataType == StructType([])))


def _facts(table: StateTable, place: StatePlace, before: StatePlace | None) -> dict[str, Any]:
    facts = {
        "operator_name": table.operator_name,
        "name": table.name,
        "kind": table.kind,
        "identity": list(table.identity),
        "batch_id": place.batch_id,
    }
    return facts if before is None else {**facts, "since_batch_id": before.batch_id, "way": way_of(table, place)}


def _write(
    spark: Any, wanted: StateExport, path: str, table: StateTable, place: StatePlace, before: StatePlace | None
) -> dict[str, Any]:
    uri = f"{wanted.uri.rstrip('/')}/{path}"
    with ExitStack() as stack:
        if before is None:
            frame = frame_of(spark, place, table)
        else:
            frame = stack.enter_context(upserts_and_deletes(spark, table, before, place))
        frame = _without_empty(frame).withColumn(BATCH, F.lit(place.batch_id).cast("bigint"))
        frame.write.format(wanted.format).mode("errorifexists").save(uri)
    found = spark.read.format(wanted.format).load(uri)
    identity = [name for name in table.identity if name in found.columns]
    if before is None:
        return {"identity": identity, "rows": int(found.count())}
    counts = {row["change"]: int(row["count"]) for row in found.groupBy("change").count().collect()}
    return {"identity": identity, "upserts": counts.get("upsert", 0), "deletes": counts.get("delete", 0)}


def _check_format(spark: Any, wanted: StateExport) -> None:
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        sources.lookupDataSource(wanted.format, spark._jsparkSession.sessionState().conf())
    except Py4JJavaError as error:
        raise InvalidRequestError(
            "this session cannot write that format",
            format=wanted.format,
            reason=spark_words(error),
            next_step="Give --packages (of Delta: io.delta:delta-spark_…) and the --conf that it asks for; or write "
            "parquet.",
        ) from None


class _Folder:
    """The folder of an export, by Hadoop's file systems."""

    def __init__(self, spark: Any, uri: str) -> None:
        self._uri = uri
        self._jvm = spark._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
        self._about = self._jvm.org.apache.hadoop.fs.Path(self._path, ABOUT)
        try:
            self._system = self._path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        except Py4JJavaError as error:
            raise self._unusable(error) from None

    def check(self, *, overwrite: bool) -> bool:
        """Refuse a folder that must not be replaced; whether anything is in it."""
        try:
            there = [str(status.getPath().getName()) for status in self._listed()]
            if there:
                self._check_ours(there, overwrite=overwrite)
        except Py4JJavaError as error:
            raise self._unusable(error) from None
        return bool(there)

    def claim(self, about: dict[str, Any], *, overwrite: bool) -> None:
        """Claim the folder, then empty it, so that it is known as an export after a crash, too."""
        is_there = self.check(overwrite=overwrite)
        try:
            self._put(about, overwrite=is_there)
            for status in self._listed() if is_there else ():
                if str(status.getPath().getName()) != ABOUT:
                    self._system.delete(status.getPath(), True)
        except Py4JJavaError as error:
            raise self._unusable(error) from None

    def tell(self, about: dict[str, Any]) -> None:
        """Write ``_about.json``.

        Raises:
            ConflictError: another export has claimed the folder since.
        """
        try:
            known = self._known() if self._system.exists(self._about) else None
            if known is None or known.get("claim") != about["claim"]:
                raise ConflictError(
                    "another export has taken the place of this one in the meantime",
                    uri=self._uri,
                    next_step="Run one export after the other, or give each its own folder.",
                )
            self._put(about, overwrite=True)
        except Py4JJavaError as error:
            raise self._unusable(error) from None

    def _listed(self) -> list[Any]:
        return list(self._system.listStatus(self._path)) if self._system.exists(self._path) else []

    def _check_ours(self, there: list[str], *, overwrite: bool) -> None:
        known = self._known() if ABOUT in there else None
        if known is None:
            raise ConflictError(
                "the folder for the export is not empty, and holds no earlier export",
                uri=self._uri,
                there=there[:5],
                next_step="Name an empty folder; --overwrite replaces earlier exports only.",
            )
        if not overwrite:
            raise ConflictError(
                "an export is in that folder already",
                uri=self._uri,
                snapshot_id=known.get("snapshot_id"),
                complete=known.get("complete"),
                next_step="Replace it with --overwrite, or name another folder.",
            )

    def _known(self) -> dict[str, Any] | None:
        status = self._system.getFileStatus(self._about)
        if status.getLen() > MAX_ABOUT_BYTES:
            return None
        stream = self._system.open(self._about)
        try:
            body = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            raw = json.loads(body)
        except (ValueError, TypeError):
            return None
        finally:
            stream.close()
        return raw if isinstance(raw, dict) and raw.get("made_by") == MAKER else None

    def _put(self, about: dict[str, Any], *, overwrite: bool) -> None:
        stream = self._system.create(self._about, overwrite)
        try:
            stream.write(bytearray(json.dumps(about, indent=1, ensure_ascii=True).encode()))
        finally:
            stream.close()

    def _unusable(self, error: Py4JJavaError) -> InvalidRequestError:
        return InvalidRequestError(
            "the state cannot be exported there",
            uri=self._uri,
            reason=spark_words(error),
            next_step="Name a folder that this driver can write, or give what its file system needs: --packages, "
            "--conf.",
        )
