"""Spark's file source. An offset counts looks into a folder; what each found lies in the source's own log."""

from __future__ import annotations

import json
import re

from airflow_streamstate.adapters.source import NO_OFFSET, OffsetOrder, PlannedSource, SparkDoor, UnaskedSource
from airflow_streamstate.protocol.redaction import redact_uri
from airflow_streamstate.store.s3a import plain_uri

FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro", "binaryfile"})


class FileSource:
    """Spark's source of files in a folder. Nothing is lost behind its offsets: what was not read yet is looked for."""

    name = "file"

    def identify(self, source: PlannedSource) -> str | None:
        path = source.options.get("path")
        if source.format not in FORMATS or not path:
            return None
        return f"file {redact_uri(plain_uri(path))}"

    def continues(self, source: PlannedSource, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        one, other = _number(first), _number(second)
        if one == other:
            return "same"
        return "ahead" if one > other else "behind"

    def open(self, source: PlannedSource, spark: SparkDoor) -> UnaskedSource:
        return UnaskedSource()

    def remarks(self, source: PlannedSource) -> tuple[str, ...]:
        if source.options.get("cleansource", "off").strip().lower() == "delete":
            return (
                "cleanSource=delete: files are deleted once they are read, so no older snapshot can read them again",
            )
        return ()

    def explain(self, failure: str) -> str | None:
        if re.search(r"FAILED_READ_FILE\.FILE_NOT_EXIST|\bPATH_NOT_FOUND\b", failure):
            return (
                "a file that it had listed is gone; bring it back and resume, or set spark.sql.files.ignoreMissingFiles"
            )
        return None


def _number(offset: str) -> int:
    if offset == NO_OFFSET:
        return -1
    value = json.loads(offset)
    number = value.get("logOffset") if isinstance(value, dict) else None
    if isinstance(number, int):
        return number
    raise ValueError(f"no offset of a file source: {offset[:100]}")
