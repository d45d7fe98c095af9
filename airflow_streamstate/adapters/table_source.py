"""Tables of a catalog, Delta and Iceberg: what they are called, and how their offsets lie to each other.

Nobody here asks a table what it still has: a snapshot that was expired behind an offset is found by Spark itself.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_streamstate.adapters.source import NO_OFFSET, OffsetOrder, PlannedSource, SparkDoor, UnaskedSource
from airflow_streamstate.protocol.redaction import redact_uri

_FORMATS = frozenset({"delta", "iceberg", "hudi", "paimon"})
_ORDERED = (("reservoirVersion", "index"),)


class TableSource:
    """A source that has the name of a table, or a format of tables and a path."""

    name = "table"

    def identify(self, source: PlannedSource) -> str | None:
        if source.table:
            return f"table {source.table}"
        path = source.options.get("path")
        return f"table {source.format} {redact_uri(path.rstrip('/'))}" if source.format in _FORMATS and path else None

    def continues(self, source: PlannedSource, offset: str) -> bool:
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

    def open(self, source: PlannedSource, spark: SparkDoor) -> UnaskedSource:
        return UnaskedSource()

    def remarks(self, source: PlannedSource) -> tuple[str, ...]:
        if source.options.get("failondataloss", "true").strip().lower() == "false":
            return ("failOnDataLoss=false: versions that the table has no more are passed over without a word",)
        return ()

    def explain(self, failure: str) -> str | None:
        return None


def _fields(offset: str) -> dict[str, Any]:
    value = json.loads(offset)
    if isinstance(value, dict):
        return value
    raise ValueError(f"no offset of a table: {offset[:100]}")
