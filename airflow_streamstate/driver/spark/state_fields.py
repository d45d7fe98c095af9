"""State in the form of a new version, without a function of the user: fields by name, aggregates by their function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    StructType,
)

from airflow_streamstate.plan.migrating import FieldSource, match_buffers

_WIDER: Sequence[Sequence[type[DataType]]] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
    (ByteType, ShortType, IntegerType, DoubleType),
)
"""Each type holds every value of those before it."""


_FILLED = "what it held before was dropped, and would begin with no rows"


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
        old, new: its types, each field with a name of its own.
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
    fields = zip(sources, new.fields, strict=True)
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
