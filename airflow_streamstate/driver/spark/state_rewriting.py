"""Writes the state of one checkpoint into another one, by Spark's state writer (Spark 4.2 and newer)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark import cloudpickle
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from airflow_streamstate.driver.attempt.ports import RewriteOrder, RewrittenState
from airflow_streamstate.driver.spark import migrated_rows
from airflow_streamstate.driver.spark.jvm import active_session, jvm_is_gone, spark_words
from airflow_streamstate.driver.spark.rewriter import rewrite_alongside
from airflow_streamstate.driver.spark.state_reading import (
    AS_TEXT,
    STATE_FORMAT,
    changes_of,
    frame_of,
    names_apart,
    place_tables,
)
from airflow_streamstate.errors import (
    DataError,
    IncompatibleUpgradeError,
    StreamStateError,
    UnsupportedCheckpointError,
)
from airflow_streamstate.migration import Migration
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.record import FieldSource, match_buffers
from airflow_streamstate.protocol.scratch import RewrittenTable
from airflow_streamstate.snapshot.state_tables import PARTITION, StatePlace, StateTable

# State in the form of a new version, without a function of the user: fields by name, aggregates by their function.

_WIDER: Sequence[Sequence[type[DataType]]] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
    (ByteType, ShortType, IntegerType, DoubleType),
)
"""Each type holds every value of those before it."""


_FILLED = "what it held before was dropped, and would start with no rows"


class NoSafeFormError(Exception):
    """The state cannot be brought into its new form without a function; the text is a lower-case clause."""


def aggregate_fields(
    column: Any,
    old: StructType,
    new: StructType,
    aggregates: tuple[Sequence[str], Sequence[str]],
    old_names: Sequence[str],
    new_names: Sequence[str],
    *,
    may_fill: bool = True,
) -> Any:
    """The new state of an aggregation whose list of aggregates changed.

    Args:
        column: the old state.
        old, new: its types, each field with a unique name.
        aggregates: the old and the new ones, normalised.
        old_names, new_names: the fields as Spark names them: two sums are both ``sum``.

    Raises:
        NoSafeFormError: it is not certain which field is whose, or a type got narrower.
    """
    sources = match_buffers(aggregates[0], old_names, aggregates[1], new_names)
    if sources is None:
        raise NoSafeFormError("it is not certain which of its fields belongs to which aggregate")
    if not may_fill and any(source.index is None for source in sources):
        raise NoSafeFormError(_FILLED)
    fields = zipped(sources, new.fields)
    return F.struct(*(_field(column, old, source, field.dataType).alias(field.name) for source, field in fields))


def fields_by_name(column: Any, old: DataType, new: DataType, *, may_fill: bool = True) -> Any:
    """The same value in a new type: new fields are null, old ones that are gone are left out, numbers get wider.

    Raises:
        NoSafeFormError: a type changed in another way.
    """
    if isinstance(old, StructType) and isinstance(new, StructType):
        gone, come = (sorted(set(one) - set(other)) for one, other in ((old.names, new.names), (new.names, old.names)))
        if gone and come:
            raise NoSafeFormError(f"{', '.join(come)} may be {', '.join(gone)} by another name")
        if come and not may_fill:
            raise NoSafeFormError(_FILLED)
        parts = []
        for field in new.fields:
            if field.name in old.names:
                part = fields_by_name(
                    column.getField(field.name), old[field.name].dataType, field.dataType, may_fill=may_fill
                )
            else:
                part = F.lit(None).cast(field.dataType)
            parts.append(part.alias(field.name))
        return F.when(column.isNotNull(), F.struct(*parts))
    if old.simpleString() == new.simpleString():
        return column
    return _wider(column, old, new)


def _field(column: Any, old: StructType, source: FieldSource, kind: DataType) -> Any:
    if source.index is not None:
        field = old.fields[source.index]
        return _wider(column.getField(field.name), field.dataType, kind)
    value = {"null": None, "zero": 0, "true": True, "false": False}[source.neutral]
    return F.lit(value).cast(kind)


def _wider(column: Any, old: DataType, new: DataType) -> Any:
    if old.simpleString() == new.simpleString():
        return column
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        is_wider = new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    else:
        is_wider = any(
            type(old) in order and type(new) in order and order.index(type(old)) < order.index(type(new))
            for order in _WIDER
        )
    if not is_wider:
        raise NoSafeFormError(f"{new.simpleString()} cannot hold every {old.simpleString()}")
    return column.cast(new)


cloudpickle.register_pickle_by_value(migrated_rows)
_REWRITER = "org.apache.spark.sql.execution.streaming.state.StateRewriter"
_SERIALIZER = "org.apache.spark.sql.catalyst.expressions.objects.EncodeUsingSerializer"
_OPERATOR = re.compile(r"\[operatorId=([0-9]+)\]")
_STORE = re.compile(r"\[storeName=([^\]]+)\]")
_DEFAULT_STORE = "default"
_JOIN_STORE = "{}-keyWithIndexToValue"
_ROW_KEY, _MATCHED = "row_key", "matched"
_MOST_CHARACTERS = 300
_ROW_BY_ROW = ("join", "list")
"""Kinds of state whose rows a function cannot take as a whole."""
_NAMED = ("value", "list", "map")
"""Kinds of state whose fields the user names: two of one type that change places are not the same."""
_MOST_BYTES = 2_147_483_647
_PARTITION_KEY, _KEY, _VALUE, _FAMILY = "partition_key", "key_bytes", "value_bytes", "column_family_name"


def why_no_rewrite(jvm: Any) -> str:
    """Why this Spark cannot rewrite state; "" where it can."""
    for name in (_REWRITER, _SERIALIZER):
        try:
            jvm.org.apache.spark.util.Utils.classForName(name, False, False)
        except Exception:
            return f"it has no {name.rpartition('.')[2]}"
    return ""


def rewrite_state(spark: Any, order: RewriteOrder) -> RewrittenState:
    """As ``StartableQuery.rewrite_state``."""
    problem = why_no_rewrite(spark._jvm)
    if problem and order.rewriter:
        return rewrite_alongside(spark, order)
    if problem:
        raise UnsupportedCheckpointError(
            f"Spark {spark.version} cannot rewrite state: {problem}",
            next_step="Name a Spark 4.2 or newer that does it, with --rewriter-spark PATH; `streamstate home doctor"
            " --prepare-rewriter` makes one.",
        )
    try:
        return _Rewriting(spark, order).run()
    except StreamStateError:
        raise
    except Exception as error:
        if jvm_is_gone(error):
            raise
        raise _in_our_words(error) from None


def _in_our_words(error: Exception) -> StreamStateError:
    """What a failed rewrite means for the user: a migration failed on a row, or Spark cannot do it."""
    found = migrated_rows.failure_in(str(error))
    if found is not None:
        return IncompatibleUpgradeError(
            found[1],
            table=found[0],
            next_step="Nothing was changed. Fix the migration, and try it with `streamstate plan --migration FILE`.",
        )
    return IncompatibleUpgradeError(
        "Spark cannot rewrite this state",
        reason=spark_words(error)[:_MOST_CHARACTERS],
        next_step="Nothing was changed. Make the other changes without it; or drain, and seed the new version.",
    )


NewState = Callable[[StateTable, StructType, StructType, int], Any]
"""Gets the table, the type of its new state, that of its old rows as ``_Rewriting._rows`` has them, and the number of
the run; returns the column of the new state."""


class _Rewriting:
    def __init__(self, spark: Any, order: RewriteOrder) -> None:
        self._order = order
        self._spark = _session_like(spark, order.after_format)
        self._reading = _session_like(spark, order.state_format)
        self._jvm = spark._jvm
        self._before = StatePlace(order.before_uri, order.batch_id, order.state_format)
        self._after = StatePlace(order.after_uri, 0, order.after_format)
        self._old_tables = place_tables(self._reading, self._before)
        self._new_tables = place_tables(self._spark, self._after)
        self._row_at = _row_offset(self._jvm, spark.sparkContext)
        self._plans: list[tuple[int, Any]] = []
        self._vectorized = {place: each for place, each in order.migrations.items() if each.is_vectorized}
        self._migrations: dict[tuple[int, str], NewState] = {
            place: partial(_by_function, each) for place, each in order.migrations.items()
        }
        self._failure: Exception | None = None

    def run(self) -> RewrittenState:
        self._check_tables()
        told = [self._told(table) for table in self._old_tables]
        ids = self._write()
        self._order.on_written(ids)
        if self._order.is_verified:
            told = [table if table.is_migrated else self._compared(table) for table in told]
        return RewrittenState(tuple(told), ids, self._rows_read())

    # before anything is written

    def _check_tables(self) -> None:
        old = {(table.operator_id, table.name): table for table in self._old_tables}
        new = {(table.operator_id, table.name): table for table in self._new_tables}
        for place, table in sorted(old.items()):
            if place not in new or _what(new[place]) != _what(table):
                raise IncompatibleUpgradeError(
                    "this state has no place in the new version, so it cannot be rewritten",
                    table=table.path,
                    kind=table.kind,
                    new_tables=[f"{each.path} ({each.kind})" for each in self._new_tables],
                    next_step="Make that change by itself, without rewriting the state; or drain, and seed it.",
                )
        self._check_migrations(old, new)
        for place, table in old.items():
            if place not in self._order.migrations:
                self._migrate_without_function(table, new[place])
            if place not in self._migrations:
                self._check_schema(table, new[place])

    def _check_migrations(
        self, old: Mapping[tuple[int, str], StateTable], new: Mapping[tuple[int, str], StateTable]
    ) -> None:
        for place in self._migrations:
            if place not in old or place not in new:
                raise IncompatibleUpgradeError(
                    "the migration is for state that is not there",
                    operator_id=place[0],
                    table=place[1],
                    tables=[each.path for each in self._old_tables],
                    next_step="Name an operator that both versions have, as the plan names it; of a transformWithState"
                    " or a join also its variable.",
                )
            if old[place].payload is None:
                raise IncompatibleUpgradeError(
                    "timers have no state that a migration could change",
                    table=old[place].path,
                    next_step="Name a variable of this operator in the migration.",
                )
            if place in self._vectorized and old[place].kind in _ROW_BY_ROW:
                raise IncompatibleUpgradeError(
                    "a vectorized migration cannot be for a join or a list, whose rows Spark also counts elsewhere",
                    table=old[place].path,
                    next_step="Write it row by row: leave out vectorized=True, and take (key, state).",
                )

    def _migrate_without_function(self, old: StateTable, new: StateTable) -> None:
        """Note how the rows of a table get their new form, if that is asked for and they need one."""
        place = (old.operator_id, old.name)
        if self._order.aggregates is None or old.payload is None or old.kind == "join":
            return
        was, now = (
            self._rows(at, table).schema["value"].dataType for at, table in ((self._before, old), (self._after, new))
        )
        aggregates = self._order.aggregates.get(old.operator_id)
        if aggregates is None and _same_type(was, now, named=old.kind in _NAMED):
            return
        try:
            if aggregates is not None and old.kind == "rows":
                raw = self._store(self._before, old.operator_id, _DEFAULT_STORE)
                names = [raw.schema["value"].dataType.names, self._raw_names(new)]
                column = aggregate_fields(F.col("value"), was, now, aggregates, *names, may_fill=self._order.may_fill)
            else:
                column = fields_by_name(F.col("value"), was, now, may_fill=self._order.may_fill)
        except NoSafeFormError as error:
            raise IncompatibleUpgradeError(
                f"this state cannot be migrated without a function: {error}",
                table=old.path,
                was=was.simpleString(),
                now=now.simpleString(),
                next_step="Give a migration for it (--migration FILE); or drain, and seed the new version.",
            ) from None
        self._migrations[place] = lambda *_: column

    def _raw_names(self, table: StateTable) -> list[str]:
        """The names of the fields of a new table's value, as Spark has them."""
        return list(self._store(self._after, table.operator_id, _DEFAULT_STORE).schema["value"].dataType.names)

    def _check_schema(self, old: StateTable, new: StateTable) -> None:
        was, now = self._frame(self._before, old).schema, self._frame(self._after, new).schema
        for name in was.names:
            is_named = name != "key" and old.kind in _NAMED
            if name != PARTITION and not _same_type(was[name].dataType, now[name].dataType, named=is_named):
                raise IncompatibleUpgradeError(
                    "the new version keeps this state in another form",
                    table=old.path,
                    was=was[name].dataType.simpleString(),
                    now=now[name].dataType.simpleString(),
                    next_step="Give a migration for it (--migration); or drain, and seed the new version.",
                )

    def _frame(self, place: StatePlace, table: StateTable) -> DataFrame:
        session = self._reading if place is self._before else self._spark
        found: DataFrame = frame_of(session, place, table)
        return found

    def _rows(self, place: StatePlace, table: StateTable) -> DataFrame:
        """The rows of a table as they are migrated, one by one.

        ``key`` and ``value`` are for the function, of a map with the map's own key; ``row_key`` is the key that Spark
        keeps, and ``matched`` of a join whether the row found a match.
        """
        if table.kind == "join":
            stored = _names_apart(self._store(place, table.operator_id, _JOIN_STORE.format(table.name)))
            keys, values = (F.col(name) for name in ("key", "value"))
            *key_names, _ = stored.schema["key"].dataType.names
            *names, matched = stored.schema["value"].dataType.names
            return stored.select(
                F.struct(*(keys.getField(name).alias(name) for name in key_names)).alias("key"),
                F.struct(*(values.getField(name).alias(name) for name in names)).alias("value"),
                keys.alias(_ROW_KEY),
                values.getField(matched).alias(_MATCHED),
            )
        session = self._reading if place is self._before else self._spark
        if table.kind == "list":
            options = {"flattenCollectionTypes": "true", "batchId": place.batch_id}
            elements = frame_of(session, place, table, **options)
            return elements.select("key", F.col("list_element").alias("value"), F.col("key").alias(_ROW_KEY))
        frame = frame_of(session, place, table)
        if table.kind == "map":
            of_map = frame.schema["user_map_key"].dataType.names
            own = [F.col(f"key.`{name}`").alias(name) for name in frame.schema["key"].dataType.names]
            parts = [F.col(f"user_map_key.`{name}`").alias(f"user_map_key.{name}") for name in of_map]
            row_key = F.struct("key", F.col("user_map_key").alias("userKey"))
            key = F.struct(*own, *parts)
            return frame.select(key.alias("key"), F.col("user_map_value").alias("value"), row_key.alias(_ROW_KEY))
        return frame.select("key", "value", F.col("key").alias(_ROW_KEY))

    def _store(self, place: StatePlace, operator_id: int, store_name: str) -> DataFrame:
        """The rows of a store, under Spark's names."""
        reader = self._reader(place, operator_id, store_name)
        return reader.load(place.checkpoint_uri).select("key", "value")

    def _reader(self, place: StatePlace, operator_id: int, store_name: str) -> Any:
        session = self._reading if place is self._before else self._spark
        session.conf.set(STATE_FORMAT, str(place.state_format))
        reader = session.read.format("statestore").option("operatorId", operator_id)
        reader = reader.option("batchId", place.batch_id)
        return reader if store_name == _DEFAULT_STORE else reader.option("storeName", store_name)

    # the user's functions

    def _told(self, table: StateTable) -> RewrittenTable:
        """The facts of a table; with what its migration does, if that is asked for."""
        place = (table.operator_id, table.name)
        partitions = self._order.partitions.get(table.operator_id, table.partitions)
        is_migrated = place in self._migrations
        told = RewrittenTable(table.operator_id, table.path, None, partitions, is_migrated)
        if not told.is_migrated or not self._order.is_verified:
            return told
        twice = self._twice(table)
        shown = F.to_json(F.struct("key", "before", "after"), {**AS_TEXT})
        texts = [_as_json(F.col(name)).alias(name) for name in ("before", "after", "again")]
        twice = twice.select(_as_json(F.struct("key")).alias("key"), shown.alias("shown"), *texts).persist()
        try:
            is_dropped, is_changed = F.col("after").isNull(), ~F.col("before").eqNullSafe(F.col("after"))
            differs = ~F.col("after").eqNullSafe(F.col("again"))
            counts = (F.count(F.lit(1)), *map(F.count_if, (is_dropped, is_changed & ~is_dropped, differs)))
            rows, dropped, changed, differing = (int(each) for each in twice.agg(*counts).first())
            if differing:
                one = twice.where(differs).first()
                raise IncompatibleUpgradeError(
                    "the migration is not deterministic: run twice on the same rows, it gave different state",
                    table=table.path,
                    rows=differing,
                    key=one["key"],
                    first=one["after"],
                    second=one["again"],
                    next_step="It may use only the key and the state that it is given: no clock, no random numbers, no"
                    " other state.",
                )
            samples = tuple(str(row["shown"]) for row in twice.where(is_changed).limit(self._order.samples).collect())
        finally:
            twice.unpersist()
        return replace(told, rows=rows, dropped=dropped, changed=changed, samples=samples)

    def _twice(self, table: StateTable) -> DataFrame:
        """Each row of a table, with the state that two runs of its migration give it."""
        place = (table.operator_id, table.name)
        frame, wanted = self._rows(self._before, table), self._rows(self._after, table).schema["value"].dataType
        if place in self._vectorized:
            return self._vectorized_twice(frame, table, wanted)
        first, second = (self._migrations[place](table, wanted, frame.schema, number) for number in (1, 2))
        return frame.select("key", F.col("value").alias("before"), first.alias("after"), second.alias("again"))

    def _vectorized_twice(self, frame: DataFrame, table: StateTable, wanted: StructType) -> DataFrame:
        function = self._vectorized[table.operator_id, table.name]
        before = frame.select(_name(), "key", F.col("value").alias("before"))
        runs = []
        for column in ("after", "again"):
            run = migrated_frame(function, frame, table, wanted).select(_name(), F.col("new").alias(column))
            # Two jobs, as within one Spark reads its clock once; not cached, as both plans are the same.
            runs.append(run.localCheckpoint())
        _check_keys(runs[0], before, table)
        found = before.join(runs[0], _NAMED_KEY, "left").join(runs[1], _NAMED_KEY, "left").drop(_NAMED_KEY)
        dropped = None if _may_drop(table) else found.where(F.col("after").isNull()).first()
        if dropped is not None:
            raise _wrong(
                table, "the migration dropped a row of state with a time to live, which Spark counts elsewhere"
            )
        return found

    # writing

    def _write(self) -> dict[str, list[list[str]]] | None:
        ensure_callback_server_started(self._spark.sparkContext._gateway)
        state = self._jvm.org.apache.spark.sql.execution.streaming.state
        jsession, option = self._spark._jsparkSession, self._jvm.scala.Option.apply
        conf = jsession.sessionState().newHadoopConf()
        uri = self._order.after_uri
        with active_session(self._spark):
            rewriter = state.StateRewriter(
                jsession, 0, 0, uri, conf, option(uri), option(_Function(self._rows_of)), option(None)
            )
            try:
                found = rewriter.run()
            except Exception:
                if self._failure is not None:
                    raise self._failure from None
                raise
        return _ids_of(found) if found.isDefined() else None

    def _rows_of(self, jframe: Any) -> Any:
        """The rows of a store, as Spark's writer takes them; ``jframe`` shows which store it is, and the schema."""
        try:
            return self._rows_to_write(jframe)
        except Exception as error:
            self._failure = error
            raise

    def _rows_to_write(self, jframe: Any) -> Any:
        name = str(jframe.queryExecution().analyzed().table().name())
        operator, store = _OPERATOR.search(name), _STORE.search(name)
        if operator is None or store is None:
            raise UnsupportedCheckpointError(
                f"Spark {self._spark.version} names its state in a way that is not known here", name=name
            )
        operator_id, store_name = int(operator[1]), store[1]
        if operator_id not in {table.operator_id for table in self._old_tables}:
            return jframe  # a new operator starts with nothing
        wanted = DataFrame(jframe, self._spark).schema
        partitions = self._order.partitions[operator_id]
        frame = self._bytes_of(operator_id, store_name, wanted, partitions)
        execution = frame._jdf.queryExecution()
        self._plans.append((operator_id, execution))
        # The writer wants the schema to the nullability.
        return self._reading._jsparkSession.internalCreateDataFrame(execution.toRdd(), jframe.schema(), False)

    def _bytes_of(self, operator_id: int, store_name: str, wanted: StructType, partitions: int) -> DataFrame:
        migrations = {table: migrate for (of, table), migrate in self._migrations.items() if of == operator_id}
        tables = {table.name: table for table in self._old_tables if table.operator_id == operator_id}
        key = F.col(_PARTITION_KEY)
        if self._order.is_rocksdb and not migrations:
            return self._raw(operator_id, store_name).repartition(partitions, key)
        sides = {name: migrate for name, migrate in migrations.items() if tables[name].kind == "join"}
        if sides:
            side = next((name for name in sides if store_name == _JOIN_STORE.format(name)), None)
            if side is None and self._order.is_rocksdb:
                return self._raw(operator_id, store_name).repartition(partitions, key)
            migrations = {} if side is None else {side: sides[side]}
        if not self._order.is_rocksdb or sides or set(tables) == set(migrations) == {"rows"}:
            name = next(iter(migrations), None)
            typed = self._typed(operator_id, store_name) if name is None else self._migrated(tables[name])
            return self._encoded(_keyed(typed, wanted).repartition(partitions, key), _DEFAULT_STORE)
        found = self._raw(operator_id, store_name).where(~F.col(_FAMILY).isin(*migrations))
        for name in migrations:
            typed = _keyed(self._migrated(tables[name]), wanted)
            # A shuffle makes the rows of the bytes that they are written as.
            found = found.unionByName(self._encoded(typed.repartition(partitions, key), name))
        return found.repartition(partitions, key)

    def _raw(self, operator_id: int, store_name: str) -> DataFrame:
        options = self._jvm.org.apache.spark.sql.execution.datasources.v2.state.StateSourceOptions
        reader = self._reader(self._before, operator_id, store_name)
        return reader.option(options.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES(), "true").load(self._order.before_uri)

    def _typed(self, operator_id: int, store_name: str) -> DataFrame:
        """The key and the value of each row of a store."""
        return self._store(self._before, operator_id, store_name).withColumn(_ROW_KEY, F.col("key"))

    def _migrated(self, table: StateTable) -> DataFrame:
        """The key and the new value of each row of a table."""
        place = (table.operator_id, table.name)
        frame, wanted = self._rows(self._before, table), self._rows(self._after, table).schema["value"].dataType
        if place in self._vectorized:
            found = migrated_frame(self._vectorized[place], frame, table, wanted)
            if not _keeps_keys(found, frame):
                _check_keys(found.select(_name()), frame.select(_name()), table)
            row_key = _row_key(table, frame.schema)
            return found.where(F.col("new").isNotNull()).select("key", row_key, F.col("new").alias("value"))
        value = self._migrations[place](table, wanted, frame.schema, 1)
        if _MATCHED not in frame.columns:
            found = frame.select("key", _ROW_KEY, value.alias("value"))
            return found.where(F.col("value").isNotNull())
        found = frame.select("key", _ROW_KEY, value.alias("new"), _MATCHED)
        fields = [F.col("new").getField(name).alias(name) for name in wanted.names]
        return found.select("key", _ROW_KEY, F.struct(*fields, F.col(_MATCHED)).alias("value"))

    def _encoded(self, frame: DataFrame, family: str) -> DataFrame:
        """The rows of a frame as bytes; right behind a shuffle, whose rows have the layout that is written."""
        return frame.select(
            _PARTITION_KEY,
            self._row_bytes(frame, _ROW_KEY).alias(_KEY),
            self._row_bytes(frame, "value").alias(_VALUE),
            F.lit(family).alias(_FAMILY),
        )

    def _row_bytes(self, frame: DataFrame, name: str) -> Any:
        output = frame._jdf.queryExecution().analyzed().output()
        attribute = next(each for each in _elements(output) if str(each.name()) == name)
        objects = self._jvm.org.apache.spark.sql.catalyst.expressions.objects
        serialized = objects.EncodeUsingSerializer(attribute, True)
        from pyspark.sql.classic.column import Column  # not there before Spark 4

        column = Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(serialized))
        return F.substring(column, self._row_at + 1, _MOST_BYTES)

    # what was written

    def _rows_read(self) -> dict[int, int]:
        """By operator whose rows were all written as they are: how many were read, over all its stores."""
        migrated = {operator_id for operator_id, _ in self._migrations}
        lists = {table.operator_id for table in self._old_tables if table.kind == "list"}
        rows: dict[int, int] = {}
        for operator_id, execution in self._plans:
            if operator_id not in migrated | lists:
                rows[operator_id] = rows.get(operator_id, 0) + _scanned_rows(execution.executedPlan())
        return rows

    def _compared(self, told: RewrittenTable) -> RewrittenTable:
        old = next(table for table in self._old_tables if table.path == told.table)
        with changes_of(self._spark, old, self._before, self._after) as changes:
            row = changes.first()
        if row is not None:
            raise DataError(
                "the state that was written differs from the one that was read",
                table=told.table,
                row=str(row.asDict(recursive=True))[:500],
                next_step="This is a defect, of this package or of Spark: nothing was changed. Drain, and seed it.",
            )
        return replace(told, rows=self._frame(self._before, old).count(), is_equal=True)


class _Function:
    """A Python function as one of Scala."""

    class Java:
        implements = ("scala.Function1",)

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self._act = act

    def apply(self, argument: Any) -> Any:
        return self._act(argument)


def _session_like(spark: Any, state_format: int) -> Any:
    """A session with another session's settings, for state in this format, that writes whole versions."""
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    conf = session.conf
    for key in [str(key) for key in _elements(session._jsparkSession.conf().getAll().keys().toSeq())]:
        if key.lower() == "spark.sql.streaming.statestore.rocksdb.changelogcheckpointing.enabled":
            conf.set(key, "false")
    conf.set(STATE_FORMAT, str(state_format))
    conf.set("spark.sql.session.timeZone", "UTC")
    conf.set("spark.sql.adaptive.enabled", "false")
    return session


def _scanned_rows(plan: Any) -> int:
    """The rows that the scans of an executed plan gave."""
    own = 0
    if str(plan.nodeName()).startswith("BatchScan"):
        own = int(plan.metrics().apply("numOutputRows").value())
    return own + sum(_scanned_rows(child) for child in _elements(plan.children()))


def _elements(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _row_offset(jvm: Any, context: Any) -> int:
    """Where the bytes of a row start in what Spark's serializer makes of it."""
    row = jvm.org.apache.spark.sql.catalyst.expressions.UnsafeRow(1)
    row.pointTo(bytearray(16), 16)
    serializer = jvm.org.apache.spark.serializer.KryoSerializer(context._jsc.sc().conf()).newInstance()
    return int(serializer.serialize(row, jvm.scala.reflect.ClassTag.Any()).limit()) - 16


def _what(table: StateTable) -> tuple[str, str]:
    return table.operator_name, table.kind


def _keyed(typed: DataFrame, wanted: StructType) -> DataFrame:
    """With the key that decides about the partition: columns of the whole key, in their order."""
    columns = typed.schema["key"].dataType.fields
    # Spark gives two columns of a key one name where neither has its own.
    apart = F.col("key").cast(StructType([StructField(str(n), each.dataType) for n, each in enumerate(columns)]))
    parts, number = [], 0
    for field in wanted[_PARTITION_KEY].dataType.fields:
        while columns[number].name != field.name:
            number += 1
        parts.append(apart.getField(str(number)).alias(field.name))
        number += 1
    return typed.select(F.struct(*parts).alias(_PARTITION_KEY), _ROW_KEY, "value")


def _may_drop(table: StateTable) -> bool:
    """Whether Spark counts the rows of this table nowhere else."""
    return table.kind in ("rows", "value", "map") and not table.has_ttl


def migrated_frame(migration: Migration, frame: DataFrame, table: StateTable, wanted: StructType) -> DataFrame:
    """What a vectorized migration makes of the rows of a table: ``key``, and ``new`` of the type that is wanted.

    Raises:
        IncompatibleUpgradeError: the function raised, or its result has not the form of the new state.
    """
    given = frame.select("key", F.col("value").alias("state"))
    try:
        found: Any = migration.migrate(given)
        names = sorted(found.columns) if isinstance(found, DataFrame) else type(found).__name__
        kinds = {field.name: field.dataType for field in found.schema} if isinstance(found, DataFrame) else {}
    except Exception as error:
        words = " ".join(spark_words(error).split())[:_MOST_CHARACTERS].rstrip(".")
        raise _wrong(table, f"the migration raised {type(error).__name__}: {words}") from None
    if names != ["key", "state"]:
        raise _wrong(table, f"the migration returned {names}, and not a DataFrame with the columns key and state")
    if not _same_type(kinds["key"], given.schema["key"].dataType, named=True):
        raise _wrong(table, "the migration returned keys of another type", now=kinds["key"].simpleString())
    return found.select("key", _as_wanted(kinds["state"], wanted, table).alias("new"))


_NAMED_KEY = "name"
_NARROW = ("Project", "Filter")


def _name() -> Any:
    """A key as text: as a struct it would not equal another one with a null in it."""
    return _as_json(F.struct("key")).alias(_NAMED_KEY)


def _keeps_keys(found: DataFrame, frame: DataFrame) -> bool:
    """Whether a plan can neither change a key nor repeat one: it only projects and filters the rows of a state."""
    plans = [one._jdf.queryExecution().analyzed() for one in (found, frame)]
    keys = [next(each.exprId().id() for each in _elements(one.output()) if each.name() == "key") for one in plans]
    node = plans[0]
    while node.nodeName() in _NARROW:
        node = node.child()
    return bool(keys[0] == keys[1]) and not _elements(node.children())


def _check_keys(found: DataFrame, before: DataFrame, table: StateTable) -> None:
    """Refuse a key that came twice, or that the state does not have; both frames have the keys under one name."""
    twice = found.groupBy(_NAMED_KEY).count().where("count > 1").first()
    if twice is not None:
        raise _wrong(table, "the migration returned a key twice", key=twice[_NAMED_KEY])
    other = found.join(before, _NAMED_KEY, "left_anti").first()
    if other is not None:
        raise _wrong(table, "the migration returned a key that the state does not have", key=other[_NAMED_KEY])


def _as_wanted(kind: DataType, wanted: StructType, table: StateTable) -> Any:
    """The column ``state`` in the type of the new state; a null where that has none fails the job."""
    if not isinstance(kind, StructType) or sorted(kind.names) != sorted(wanted.names):
        raise _wrong(
            table,
            "the migration returned other fields than the new state has",
            now=wanted.simpleString(),
            returned=kind.simpleString(),
        )
    parts = []
    for field in wanted.fields:
        try:
            part = _wider(F.col("state").getField(field.name), kind[field.name].dataType, field.dataType)
        except NoSafeFormError as error:
            raise _wrong(table, f"the migration returned a wrong type for {field.name}: {error}") from None
        if not field.nullable:
            words = f"the migration returned null for {field.name}, which the new state always has"
            part = F.coalesce(part, F.raise_error(F.lit(str(migrated_rows.reported(table.path, words)))))
        parts.append(part.alias(field.name))
    return F.when(F.col("state").isNotNull(), F.struct(*parts))


def _wrong(table: StateTable, words: str, **facts: object) -> IncompatibleUpgradeError:
    step = "Nothing was changed. Fix the migration, and try it with `streamstate plan --migration FILE`."
    return IncompatibleUpgradeError(words, table=table.path, next_step=step, **facts)


def _row_key(table: StateTable, schema: StructType) -> Any:
    """The key that Spark keeps, of that which the functions get."""
    if table.kind != "map":
        return F.col("key").alias(_ROW_KEY)
    names, lead = schema["key"].dataType.names, "user_map_key."
    own = [F.col(f"key.`{name}`").alias(name) for name in names if not name.startswith(lead)]
    parts = [F.col(f"key.`{name}`").alias(name.removeprefix(lead)) for name in names if name.startswith(lead)]
    return F.struct(F.struct(*own).alias("key"), F.struct(*parts).alias("userKey")).alias(_ROW_KEY)


def _by_function(migration: Migration, table: StateTable, wanted: StructType, schema: StructType, number: int) -> Any:
    """The column of the migrated state; two numbers make two runs of the function."""
    key_type, value_type = schema["key"].dataType, schema["value"].dataType
    run, utc, path, migrate = migrated_rows.migrate_row, migrated_rows.in_utc, table.path, migration.migrate
    may_drop = _may_drop(table)

    def on_row(key: Any, value: Any, _number: int) -> Any:
        return run(migrate, wanted, utc(key, key_type), utc(value, value_type), path, may_drop)

    # Without Arrow, moments come in the zone of the worker, with their fold: each is one moment, in every hour.
    return F.udf(on_row, wanted, useArrow=False).asNondeterministic()("key", "value", F.lit(number))


def _names_apart(frame: DataFrame) -> DataFrame:
    """A frame whose nested columns each have a unique name."""
    apart = [F.col(each.name).cast(names_apart(each.dataType)).alias(each.name) for each in frame.schema]
    return frame.select(*apart)


def _as_json(column: Any) -> Any:
    return F.to_json(column, {**AS_TEXT})


def _same_type(one: Any, other: Any, *, named: bool = False) -> bool:
    """Whether two types are the same, apart from nullability and, unless ``named``, from the names of their columns."""
    if named:
        return bool(one.simpleString() == other.simpleString())
    return bool(_unnamed(one) == _unnamed(other))


def _unnamed(kind: Any) -> Any:
    if not isinstance(kind, StructType):
        return kind.simpleString()
    return [_unnamed(field.dataType) for field in kind.fields]


def _ids_of(found: Any) -> dict[str, list[list[str]]]:
    """Spark's map of operators to partitions to stores to ids."""
    ids: dict[str, list[list[str]]] = {}
    pairs = found.get().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        ids[str(pair._1())] = [[str(each) for each in stores] for stores in pair._2()]
    return ids
