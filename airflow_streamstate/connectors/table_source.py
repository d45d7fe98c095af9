"""Tables of a catalog, Delta and Iceberg: what they are called, and how their offsets lie to each other.

Nobody here asks a table what it still has: a snapshot that was expired behind an offset is found by Spark itself. A
Delta table is asked for its versions.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from airflow_streamstate.connectors.source import (
    NO_OFFSET,
    Lag,
    OffsetOrder,
    Source,
    SparkDoor,
    UnaskedSource,
    Untold,
)
from airflow_streamstate.protocol.redaction import redact_uri

_FORMATS = frozenset({"delta", "iceberg", "hudi", "paimon"})
_VERSION = "reservoirVersion"
_ORDERED = ((_VERSION, "index"),)
_NOT_DELTA = "only the offsets of Delta say which version they are of"


class TableSource:
    """A source that has the name of a table, or a format of tables and a path."""

    name = "table"

    def identify(self, source: Source) -> str | None:
        if source.table:
            return f"table {source.table}"
        path = source.options.get("path")
        return f"table {source.format} {redact_uri(path.rstrip('/'))}" if source.format in _FORMATS and path else None

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        if first == second:
            return "same"
        if NO_OFFSET in (first, second):
            return "behind" if first == NO_OFFSET else "ahead"
        one, other = _fields(first), _fields(second)
        if one == other:
            return "same"
        for names in _ORDERED:  # Delta; an Iceberg snapshot's id says nothing of its age
            if all(name in one and name in other for name in names):
                places = [tuple(offset[name] for name in names) for offset in (one, other)]
                return "ahead" if places[0] > places[1] else "behind" if places[0] < places[1] else "same"
        return "apart"

    def between(self, first: str, second: str) -> Lag | None:
        """In versions, of Delta; a part of one counts as one."""
        one, other = ({} if offset == NO_OFFSET else _fields(offset) for offset in (first, second))
        if any(_VERSION not in fields for fields in (one, other) if fields):
            return None
        if self.compare(first, second) != "behind":
            return Lag(0, "versions")
        return Lag(max(1, int(other[_VERSION]) - int(one.get(_VERSION, 0))), "versions")

    def open(self, source: Source, spark: SparkDoor) -> OpenTable:
        return OpenTable(source, spark)

    def remarks(self, source: Source) -> tuple[str, ...]:
        if source.options.get("failondataloss", "true").strip().lower() == "false":
            return ("failOnDataLoss=false: versions that the table has no more are passed over without a word",)
        return ()

    def explain(self, failure: str) -> str | None:
        return None


class OpenTable(UnaskedSource):
    """A table whose history is asked for by SQL, as its readers would.

    Args:
        source: the source.
        spark: of the driver.
    """

    def __init__(self, source: Source, spark: SparkDoor) -> None:
        super().__init__(_NOT_DELTA)
        self._source = source
        self._spark = spark

    def lag(self, offset: str) -> Lag | Untold | None:
        """In versions that are not read to their end. An offset stands before a version, or in it."""
        fields = {} if offset == NO_OFFSET else _fields(offset)
        if _VERSION not in fields:
            return Untold(_NOT_DELTA)
        newest = self._spark.session.sql(f"DESCRIBE HISTORY {self._name()} LIMIT 1").first()
        return Lag(max(0, int(newest["version"]) - int(fields[_VERSION]) + 1), "versions")

    def offset_at(self, moment: datetime, last: str) -> str | Untold:
        """Before the first version that was written at that moment or later."""
        fields = {} if last == NO_OFFSET else _fields(last)
        if _VERSION not in fields:
            return Untold(_NOT_DELTA)
        if int(fields.get("index", 0)) >= 0 or fields.get("isStartingVersion"):
            return Untold("its last offset is in the middle of a version")
        versions = self._spark.session.sql(f"DESCRIBE HISTORY {self._name()}").select("version", "timestamp").collect()
        since = [int(row["version"]) for row in versions if row["timestamp"].astimezone(UTC) >= moment]
        first = min(since) if since else max(int(row["version"]) for row in versions) + 1
        return json.dumps({**fields, _VERSION: first}, separators=(",", ":"))

    def _name(self) -> str:
        return self._source.table or f"delta.`{self._source.options.get('path', '')}`"


def _fields(offset: str) -> dict[str, Any]:
    value = json.loads(offset)
    if isinstance(value, dict):
        return value
    raise ValueError(f"no offset of a table: {offset[:100]}")
