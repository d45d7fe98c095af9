"""Runs a user's migration on one row of state, in a Python worker.

Sent to the workers by value, since they may not have this package: it imports nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    Row,
    StructType,
    TimestampType,
    _make_type_verifier,
)

from airflow_streamstate.older_python import zipped

_SHOWN_CHARACTERS = 200
_FAILURE = re.compile(r"(?:^|[ .])MigrationError: \[([^\]]*)\] (.*?\S)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CHECKS: dict[str, Callable[[Any], None]] = {}


class MigrationError(Exception):
    """A migration failed on a row, or returned what cannot be its state; its text is read by ``failure_in``."""

    def __init__(self, table: str, message: str) -> None:
        super().__init__(f"[{table}] {message}")


def reported(table: str, message: str) -> str:
    """The text of a ``MigrationError`` that an expression of Spark raises."""
    return f"{MigrationError.__name__}: {MigrationError(table, message)}"


def failure_in(text: str) -> tuple[str, str] | None:
    """The table and the sentence of a ``MigrationError`` in Spark's report of a failed job; None if not found."""
    found = _FAILURE.findall(text)
    return found[-1] if found else None


def migrate_row(
    migrate: Callable[[Mapping[str, Any], Mapping[str, Any]], Any],
    target: StructType,
    key: Row,
    state: Row,
    table: str,
    may_drop: bool,
) -> dict[str, Any] | None:
    """The new state of a row; None where it is dropped.

    Args:
        table: for errors.
        may_drop: a row of this table can be dropped.

    Raises:
        MigrationError: the function raised, or its result is no state of the type ``target``.
    """
    shown = plain(key)
    place = f"at key {_short(shown)}"
    try:
        found = migrate(shown, plain(state))
    except Exception as error:
        raise MigrationError(table, f"the migration raised {type(error).__name__} {place}: {_short(error)}") from error
    if found is None:
        if may_drop:
            return None
        raise MigrationError(
            table,
            f"the migration returned None {place}: a row of a join, an element of a list and state with a time to live"
            " cannot be dropped, since Spark counts them elsewhere",
        )
    if not isinstance(found, Mapping):
        raise MigrationError(
            table,
            f"the migration returned {type(found).__name__} {place}: return the fields of the new state as a dict, or"
            " None to drop the row",
        )
    names = set(target.names)
    if set(found) != names:
        wrong = [f"{name} is missing" for name in sorted(names - set(found))]
        wrong += [f"{name} is unknown" for name in sorted(map(str, set(found) - names))]
        raise MigrationError(
            table, f"the migration returned other fields than the new state has, {place}: {', '.join(wrong)}"
        )
    try:
        value: dict[str, Any] = spark_value(found, target)
        _check(target)(value)
    except Exception as error:
        raise MigrationError(
            table, f"the migration returned a wrong value {place}: {_short(error).rstrip('.')}"
        ) from error
    return value


def plain(value: Any) -> Any:
    """A value of Spark as Python has it: rows as dicts, moments with their zone, UTC."""
    if isinstance(value, Row):
        return {name: plain(each) for name, each in zipped(value.__fields__, value)}
    if isinstance(value, dict):
        return {plain_key(name): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def plain_key(value: Any) -> Any:
    """A key of a map: a row as a tuple, which can be a key."""
    return tuple(value) if isinstance(value, Row) else value


def in_utc(value: Any, kind: DataType) -> Any:
    """The same value with its moments in UTC: Spark gives them in the zone of the worker, without it."""
    if value is None:
        return None
    if isinstance(kind, TimestampType):
        return value.astimezone(timezone.utc)
    if isinstance(kind, StructType):
        return Row(*kind.names)(*(in_utc(each, field.dataType) for each, field in zipped(value, kind.fields)))
    if isinstance(kind, ArrayType):
        return [in_utc(each, kind.elementType) for each in value]
    if isinstance(kind, MapType):
        return {in_utc(name, kind.keyType): in_utc(each, kind.valueType) for name, each in value.items()}
    return value


def spark_value(value: Any, kind: DataType) -> Any:
    """A value that a migration returned, as Spark takes it.

    Raises:
        ValueError: a moment has no time zone.
    """
    if value is None:
        return None
    if isinstance(kind, TimestampType) and isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone, and a timestamp is a moment: give it tzinfo, e.g. UTC")
    if isinstance(kind, StructType) and isinstance(value, Mapping):
        if set(value) != set(kind.names):
            raise ValueError(f"it has the fields {sorted(map(str, value))}, and needs {sorted(kind.names)}")
        return {field.name: spark_value(value[field.name], field.dataType) for field in kind.fields}
    if isinstance(kind, ArrayType) and isinstance(value, (list, tuple)):
        return [spark_value(each, kind.elementType) for each in value]
    if isinstance(kind, MapType) and isinstance(value, Mapping):
        return {spark_value(name, kind.keyType): spark_value(each, kind.valueType) for name, each in value.items()}
    return value


def _check(target: StructType) -> Callable[[Any], None]:
    known = _CHECKS.get(target.json())
    if known is None:
        known = _CHECKS[target.json()] = _make_type_verifier(target)
    return known


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
