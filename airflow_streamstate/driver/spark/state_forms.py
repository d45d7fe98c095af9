"""The new state of a migration as Spark's columns: by rules, and by a function that takes all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

from airflow_streamstate.driver.spark import migrated_rows
from airflow_streamstate.driver.spark.jvm import spark_words
from airflow_streamstate.driver.spark.state_reading import AS_TEXT
from airflow_streamstate.errors import IncompatibleUpgradeError
from airflow_streamstate.migration import Migration
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.record import FieldSource, match_buffers
from airflow_streamstate.snapshot.state_tables import StateTable

MOST_CHARACTERS = 300
ROW_KEY = "row_key"
"""The column of the key that Spark keeps."""

# State in the form of a new version, without a function of the user: fields by name, aggregates by their function.

_WIDER: Sequence[Sequence[type[DataType]]] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
    (ByteType, ShortType, IntegerType, DoubleType),
)
"""Each type holds every value of those before it."""


FILLED = "what it held before was dropped, and would start with no rows"


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
        raise NoSafeFormError(FILLED)
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
            raise NoSafeFormError(FILLED)
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


# A function that takes all rows of a table as one DataFrame.


def may_drop(table: StateTable) -> bool:
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
        words = " ".join(spark_words(error).split())[:MOST_CHARACTERS].rstrip(".")
        raise wrong(table, f"the migration raised {type(error).__name__}: {words}") from None
    if names != ["key", "state"]:
        raise wrong(table, f"the migration returned {names}, and not a DataFrame with the columns key and state")
    if not same_type(kinds["key"], given.schema["key"].dataType, named=True):
        raise wrong(table, "the migration returned keys of another type", now=kinds["key"].simpleString())
    return found.select("key", _as_wanted(kinds["state"], wanted, table).alias("new"))


NAMED_KEY = "name"
_NARROW = ("Project", "Filter")
_NO_DROP = "the migration dropped a row of state with a time to live, which Spark counts elsewhere"


def name_of_key() -> Any:
    """A key as text: as a struct it would not equal another one with a null in it."""
    return as_json(F.struct("key")).alias(NAMED_KEY)


def keeps_keys(found: DataFrame, frame: DataFrame) -> bool:
    """Whether a plan can neither change a key nor repeat one: it only projects and filters the rows of a state."""
    plans = [one._jdf.queryExecution().analyzed() for one in (found, frame)]
    keys = [next(each.exprId().id() for each in elements_of(one.output()) if each.name() == "key") for one in plans]
    return bool(keys[0] == keys[1]) and _leaf(plans[0]) == _leaf(plans[1])


def _leaf(node: Any) -> tuple[str, ...]:
    """The relation below projections and filters alone, by its name and columns."""
    while node.nodeName() in _NARROW:
        node = node.child()
    return (str(node.nodeName()), *(str(each.exprId().id()) for each in elements_of(node.output())))


def check_keys(found: DataFrame, before: DataFrame, table: StateTable) -> None:
    """Refuse a key that came twice, or that the state does not have; both frames have the keys under one name."""
    twice = found.groupBy(NAMED_KEY).count().where("count > 1").first()
    if twice is not None:
        raise wrong(table, "the migration returned a key twice", key=twice[NAMED_KEY])
    other = found.join(before, NAMED_KEY, "left_anti").first()
    if other is not None:
        raise wrong(table, "the migration returned a key that the state does not have", key=other[NAMED_KEY])
    gone = None if may_drop(table) else before.join(found, NAMED_KEY, "left_anti").first()
    if gone is not None:
        raise wrong(table, _NO_DROP, key=gone[NAMED_KEY])


def _as_wanted(kind: DataType, wanted: StructType, table: StateTable) -> Any:
    """The column ``state`` in the type of the new state; a null where that has none fails the job."""
    if not isinstance(kind, StructType) or sorted(kind.names) != sorted(wanted.names):
        raise wrong(
            table,
            "the migration returned other fields than the new state has",
            now=wanted.simpleString(),
            returned=kind.simpleString(),
        )
    parts = []
    for field in wanted.fields:
        try:
            part = _in_form(F.col("state").getField(field.name), kind[field.name].dataType, field.dataType)
        except NoSafeFormError as error:
            raise wrong(table, f"the migration returned a wrong type for {field.name}: {error}") from None
        if _is_looser(kind[field.name].dataType, field.dataType):
            words = f"the migration may return a null within {field.name}, which the new state never has there"
            raise wrong(table, words, now=field.dataType.simpleString())
        if not field.nullable:
            words = f"the migration returned null for {field.name}, which the new state always has"
            part = F.coalesce(part, F.raise_error(F.lit(str(migrated_rows.reported(table.path, words)))))
        parts.append(part.alias(field.name))
    none = F.lit(None) if may_drop(table) else F.raise_error(F.lit(str(migrated_rows.reported(table.path, _NO_DROP))))
    return F.when(F.col("state").isNotNull(), F.struct(*parts)).otherwise(none)


def _in_form(column: Any, kind: DataType, wanted: DataType) -> Any:
    """A value whose fields are matched by name, and numbers get wider.

    Raises:
        NoSafeFormError: it has other fields, or a type that is not narrower.
    """
    is_reordered = isinstance(kind, StructType) and isinstance(wanted, StructType) and kind.names != wanted.names
    if not is_reordered or sorted(kind.names) != sorted(wanted.names):
        return _wider(column, kind, wanted)
    parts = [
        _in_form(column.getField(field.name), kind[field.name].dataType, field.dataType).alias(field.name)
        for field in wanted.fields
    ]
    return F.when(column.isNotNull(), F.struct(*parts))


def _is_looser(kind: DataType, wanted: DataType) -> bool:
    """Whether a type may hold a null within, where the wanted one holds none."""
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        pairs = [(kind[field.name], field) for field in wanted.fields if field.name in kind.names]
        return any((a.nullable and not b.nullable) or _is_looser(a.dataType, b.dataType) for a, b in pairs)
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        return (kind.containsNull and not wanted.containsNull) or _is_looser(kind.elementType, wanted.elementType)
    if isinstance(kind, MapType) and isinstance(wanted, MapType):
        return (kind.valueContainsNull and not wanted.valueContainsNull) or _is_looser(kind.valueType, wanted.valueType)
    return False


def wrong(table: StateTable, words: str, **facts: object) -> IncompatibleUpgradeError:
    step = "Nothing was changed. Fix the migration, and try it with `streamstate plan --migration FILE`."
    return IncompatibleUpgradeError(words, table=table.path, next_step=step, **facts)


def row_key_of(table: StateTable, schema: StructType) -> Any:
    """The key that Spark keeps, of that which the functions get."""
    if table.kind != "map":
        return F.col("key").alias(ROW_KEY)
    names, lead = schema["key"].dataType.names, "user_map_key."
    own = [F.col(f"key.`{name}`").alias(name) for name in names if not name.startswith(lead)]
    parts = [F.col(f"key.`{name}`").alias(name.removeprefix(lead)) for name in names if name.startswith(lead)]
    return F.struct(F.struct(*own).alias("key"), F.struct(*parts).alias("userKey")).alias(ROW_KEY)


def as_json(column: Any) -> Any:
    return F.to_json(column, {**AS_TEXT})


def same_type(one: Any, other: Any, *, named: bool = False) -> bool:
    """Whether two types are the same, apart from nullability and, unless ``named``, from the names of their columns."""
    if named:
        return bool(one.simpleString() == other.simpleString())
    return bool(_unnamed(one) == _unnamed(other))


def elements_of(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _unnamed(kind: Any) -> Any:
    if not isinstance(kind, StructType):
        return kind.simpleString()
    return [_unnamed(field.dataType) for field in kind.fields]
