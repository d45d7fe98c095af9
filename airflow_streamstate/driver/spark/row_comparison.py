"""Compares the rows of one batch by two versions, as two bags.

One shuffle by all columns, as ``EXCEPT ALL`` makes it, finds the rows that differ; all the rest is asked of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, repeat

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window, functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from airflow_streamstate.driver.spark.state_reading import AS_TEXT
from airflow_streamstate.older_python import zipped
from airflow_streamstate.protocol.scratch import RowComparison

ROWS_OF_A_TASK = 1_000_000
_KEPT = ("spark.sql.session.timeZone", "spark.sql.caseSensitive")
_GROUPED = (
    NullType,
    NumericType,
    BinaryType,
    BooleanType,
    DateType,
    TimestampType,
    TimestampNTZType,
    DayTimeIntervalType,
    YearMonthIntervalType,
)
_OLD, _NEW = "old", "new"
_COUNT, _SIDE, _FROM_START, _FROM_END = "rows", "side", "from_start", "from_end"


@dataclass(frozen=True)
class _Compared:
    """A column of either version.

    Attributes:
        at: its name while it is compared: that of the script may have any character.
        kind: its type in both; None where it differs, or one version has no such column: it is compared as text.
        sides: the versions that have it.
    """

    name: str
    at: str
    kind: DataType | None
    sides: tuple[str, ...]

    def of(self, frame: DataFrame, side: str) -> Column:
        """Its values in the rows of one version, in a form that can be grouped and ordered."""
        if side not in self.sides:
            return functions.lit(None).cast("string").alias(self.at)
        value = _grouped(_column(self.name), frame.schema[self.name].dataType)
        if self.kind is None:
            value = functions.to_json(functions.struct(value.alias(self.name)), AS_TEXT)
        return value.alias(self.at)

    def shown(self) -> Column:
        """Its part of a row: a JSON object of this column alone."""
        value = functions.col(self.at)
        if self.kind is None:
            return value
        return functions.to_json(functions.struct(_ungrouped(value, self.kind).alias(self.name)), AS_TEXT)


def compare_folders(
    spark: SparkSession, old_folder: str, new_folder: str, keys: Sequence[str], samples: int
) -> RowComparison:
    """Compare the rows of two folders of Parquet files of this machine; other arguments as ``compare_frames``."""
    session = spark.newSession()  # the script's settings are for its state, and for batches of a different size
    for name in _KEPT:
        session.conf.set(name, spark.conf.get(name))
    reader = session.read.option("__globPaths__", "false")  # the path is no pattern
    old, new = (reader.parquet(f"file://{folder}") for folder in (old_folder, new_folder))
    return compare_frames(old, new, keys, samples)


def compare_frames(old: DataFrame, new: DataFrame, keys: Sequence[str], samples: int) -> RowComparison:
    """Compare two bags of rows, of any types and of two schemas; sets the shuffle partitions of their session.

    Args:
        keys: the names of columns by which a row of the one is that of the other; those that a frame does not have are
            left out, and without any no row counts as changed.
        samples: at most this many rows of each kind are shown.
    """
    columns = _compared(old, new)
    by = tuple(one for one in columns if one.name in keys and len(one.sides) == 2)
    new_rows = new.count()  # Parquet files store it
    _set_tasks(new, old.count() + new_rows)
    differing = _differing(old, new, columns).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        _set_tasks(new, differing.count())
        found = _by_keys(differing, columns, by, samples) if by else _as_they_are(differing, columns, samples)
        return replace(found, same=new_rows - found.only_new - (found.changed or 0))
    finally:
        differing.unpersist()


def _set_tasks(frame: DataFrame, rows: int) -> None:
    """As many tasks for a shuffle as its rows need: Spark does not join small ones below a frame that is kept."""
    session = frame.sparkSession
    tasks = max(session.sparkContext.defaultParallelism, math.ceil(rows / ROWS_OF_A_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def _compared(old: DataFrame, new: DataFrame) -> tuple[_Compared, ...]:
    kinds = [{field.name: field.dataType for field in frame.schema.fields} for frame in (old, new)]
    found = []
    for number, name in enumerate(sorted({*kinds[0], *kinds[1]})):
        sides = tuple(side for side, known in zipped((_OLD, _NEW), kinds) if name in known)
        same = kinds[0].get(name) == kinds[1].get(name)
        found.append(_Compared(name, f"c{number}", kinds[0][name] if same else None, sides))
    return tuple(found)


def _differing(old: DataFrame, new: DataFrame, columns: Sequence[_Compared]) -> DataFrame:
    """Each distinct row that one version has more often, and how many more the new one has: negative for the old."""
    both = []
    for frame, side, count in ((old, _OLD, -1), (new, _NEW, 1)):
        counted = functions.lit(count).cast("long").alias(_COUNT)
        both.append(frame.select(*(one.of(frame, side) for one in columns), functions.lit(side).alias(_SIDE), counted))
    by = [one.at for one in columns]
    if any(len(one.sides) == 1 for one in columns):
        by.append(_SIDE)  # a row without a column is no row with a null in it
    return both[0].union(both[1]).groupBy(*by).agg(functions.sum(_COUNT).alias(_COUNT)).where(f"{_COUNT} <> 0")


def _as_they_are(differing: DataFrame, columns: Sequence[_Compared], samples: int) -> RowComparison:
    old, new = differing.agg(_total(-functions.col(_COUNT)), _total(functions.col(_COUNT))).collect()[0]
    shown = []
    for sign, there in (("<", old), (">", new)):
        rows = differing.where(f"{_COUNT} {sign} 0").orderBy(*(one.at for one in columns)).limit(samples)
        found = rows.select(_shown(columns), _COUNT).collect() if there else []
        shown.append(tuple(map(_as_object, islice(_each(found), samples))))
    return RowComparison(0, old, new, samples_old=shown[0], samples_new=shown[1])


def _by_keys(
    differing: DataFrame, columns: Sequence[_Compared], by: Sequence[_Compared], samples: int
) -> RowComparison:
    names = [one.at for one in by]
    count = functions.col(_COUNT)
    per_key = differing.groupBy(*names).agg(_total(-count).alias(_OLD), _total(count).alias(_NEW))
    per_key = per_key.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        pairs = functions.sum(functions.least(_OLD, _NEW))
        every = [
            functions.coalesce(total, functions.lit(0)) for total in (functions.sum(_OLD), functions.sum(_NEW), pairs)
        ]
        old, new, changed = per_key.agg(*every).collect()[0]
        found = RowComparison(0, old - changed, new - changed, changed=changed, keys=tuple(one.name for one in by))
        if old or new:
            rows = _of_some_keys(differing, per_key, columns, names, samples)
            found = _with_samples(found, rows, by, samples)
        return found
    finally:
        per_key.unpersist()


def _of_some_keys(
    differing: DataFrame, per_key: DataFrame, columns: Sequence[_Compared], names: Sequence[str], samples: int
) -> list[Row]:
    """The first and the last rows of each side of the first keys that have changed rows, and rows of one side."""
    some = [
        per_key.where(which).orderBy(*names).limit(samples)
        for which in (f"{_OLD} > 0 AND {_NEW} > 0", f"{_OLD} > {_NEW}", f"{_NEW} > {_OLD}")
    ]
    chosen = some[0].union(some[1]).union(some[2]).distinct()
    chosen = chosen.withColumnsRenamed({name: f"{name}_of_key" for name in names})
    is_of_key = [differing[name].eqNullSafe(chosen[f"{name}_of_key"]) for name in names]
    order = [functions.col(one.at) for one in columns]
    side = Window.partitionBy(*names, (functions.col(_COUNT) > 0).alias(_SIDE))
    rows = differing.join(functions.broadcast(chosen), is_of_key)
    rows = rows.withColumn(_FROM_START, functions.row_number().over(side.orderBy(*order)))
    rows = rows.withColumn(_FROM_END, functions.row_number().over(side.orderBy(*(column.desc() for column in order))))
    rows = rows.where(f"{_FROM_START} <= {samples} OR {_FROM_END} <= {samples}")
    rows = rows.orderBy(*names, _FROM_START)
    return list(rows.select(_shown(columns), _COUNT, _FROM_START, _FROM_END, _OLD, _NEW).collect())


def _with_samples(found: RowComparison, rows: Sequence[Row], by: Sequence[_Compared], samples: int) -> RowComparison:
    places = [int(one.at[1:]) for one in by]
    only: tuple[list[str], list[str]] = ([], [])
    changed: list[str] = []
    for _, group in groupby(rows, key=lambda row: [row[0][place] for place in places]):
        of_key = list(group)
        sides = [[row for row in of_key if row[_COUNT] < 0], [row for row in of_key if row[_COUNT] > 0]]
        first = [_each(row for row in side if row[_FROM_START] <= samples) for side in sides]
        pairs = islice(zip(*first), min(of_key[0][_OLD], of_key[0][_NEW]))
        changed += [_as_change(old, new, places) for old, new in pairs]
        surplus = of_key[0][_OLD] - of_key[0][_NEW]
        for number, left in ((0, surplus), (1, -surplus)):
            last = sorted(
                (row for row in sides[number] if row[_FROM_END] <= samples), key=lambda row: int(row[_FROM_END])
            )
            only[number].extend(reversed([_as_object(parts) for parts in islice(_each(last), max(left, 0))]))
    old_ones, new_ones, pairs_shown = (tuple(each[:samples]) for each in (*only, changed))
    return replace(found, samples_old=old_ones, samples_new=new_ones, samples_changed=pairs_shown)


def _total(count: Column) -> Column:
    return functions.coalesce(functions.sum(functions.greatest(count, functions.lit(0))), functions.lit(0))


def _shown(columns: Sequence[_Compared]) -> Column:
    return functions.array(*(one.shown() for one in columns))


def _each(rows: Iterable[Row]) -> Iterator[Sequence[str | None]]:
    """The parts of each row, as often as it is there."""
    return chain.from_iterable(repeat(row[0], abs(row[_COUNT])) for row in rows)


def _as_object(parts: Iterable[str | None]) -> str:
    """One JSON object of those of the columns; None: the row has no such column."""
    return f"{{{','.join(part[1:-1] for part in parts if part is not None)}}}"


def _as_change(old: Sequence[str | None], new: Sequence[str | None], places: Sequence[int]) -> str:
    """The key of two rows, and the columns in which they differ."""
    key = _as_object(old[place] for place in places)
    others = [place for place in range(len(old)) if place not in places and old[place] != new[place]]
    before, after = (_as_object(row[place] for place in others) for row in (old, new))
    return f'{{"key":{key},"old":{before},"new":{after}}}'


def _column(name: str) -> Column:
    return functions.col(f"`{name.replace('`', '``')}`")


def _grouped(value: Column, kind: DataType) -> Column:
    """A value in a form that can be grouped and ordered, and is equal where the value is: maps as sorted entries,
    types that Spark does not group, or groups by other rules than equality, as text."""
    if isinstance(kind, MapType):
        entries = functions.transform(
            functions.map_entries(value),
            lambda entry: functions.struct(
                _grouped(entry["key"], kind.keyType).alias("key"),
                _grouped(entry["value"], kind.valueType).alias("value"),
            ),
        )
        return functions.array_sort(entries)
    if isinstance(kind, ArrayType):
        if _is_grouped(kind.elementType):
            return value
        return functions.transform(value, lambda element: _grouped(element, kind.elementType))
    if isinstance(kind, StructType):
        if _is_grouped(kind):
            return value
        fields = (_grouped(value.getField(one.name), one.dataType).alias(one.name) for one in kind.fields)
        return functions.when(value.isNotNull(), functions.struct(*fields))
    return value if _is_grouped(kind) else functions.to_json(functions.struct(value.alias("value")), AS_TEXT)


def _ungrouped(value: Column, kind: DataType) -> Column:
    """A grouped value as it was, to show it."""
    if isinstance(kind, MapType):
        return functions.map_from_entries(
            functions.transform(
                value,
                lambda entry: functions.struct(
                    _ungrouped(entry["key"], kind.keyType).alias("key"),
                    _ungrouped(entry["value"], kind.valueType).alias("value"),
                ),
            )
        )
    if isinstance(kind, ArrayType) and not _is_grouped(kind):
        return functions.transform(value, lambda element: _ungrouped(element, kind.elementType))
    if isinstance(kind, StructType) and not _is_grouped(kind):
        fields = (_ungrouped(value.getField(one.name), one.dataType).alias(one.name) for one in kind.fields)
        return functions.when(value.isNotNull(), functions.struct(*fields))
    return value


def _is_grouped(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_grouped(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_grouped(one.dataType) for one in kind.fields)
    return isinstance(kind, _GROUPED) or kind == StringType()  # a string with a collation is equal by its rules
