"""Spark's file source. An offset counts looks into a folder; what each found lies in the source's own log."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from airflow_streamstate.connectors.source import NO_OFFSET, OffsetOrder, Source, SparkDoor, UnaskedSource
from airflow_streamstate.protocol.redaction import redact_uri
from airflow_streamstate.store.s3a import plain_uri

_MODIFIED = re.compile(r"; modification_time=([0-9]+); ")
FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro", "binaryfile"})


class FileSource:
    """Spark's source of files in a folder. Nothing is lost behind its offsets: what was not read yet is looked for."""

    name = "file"

    def identify(self, source: Source) -> str | None:
        path = source.options.get("path")
        if source.format not in FORMATS or not path:
            return None
        return f"file {redact_uri(plain_uri(path))}"

    def continues(self, source: Source, offset: str) -> bool:
        return False

    def compare(self, first: str, second: str) -> OffsetOrder:
        one, other = _number(first), _number(second)
        if one == other:
            return "same"
        return "ahead" if one > other else "behind"

    def open(self, source: Source, spark: SparkDoor) -> OpenFolder:
        return OpenFolder(source, spark)

    def remarks(self, source: Source) -> tuple[str, ...]:
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


class OpenFolder(UnaskedSource):
    """The files of a folder, listed as the source itself lists them: by Spark, with its options. No file is opened.

    Args:
        source: the source.
        spark: of the driver.
    """

    def __init__(self, source: Source, spark: SparkDoor) -> None:
        super().__init__("what it has read is in Spark's own book of it")
        self._source = source
        self._spark = spark

    def paths(self) -> frozenset[str]:
        return frozenset(self._in_order(self._index()))

    def modified_at_ms(self) -> Mapping[str, int]:
        index = self._index()
        paths, statuses = self._in_order(index), index.allFiles()
        times = [int(found) for found in _MODIFIED.findall(str(statuses.mkString("\n")))]
        if len(times) != len(paths):  # a name that looks like a part of what Hadoop says of a file
            times = [int(statuses.apply(number).getModificationTime()) for number in range(statuses.size())]
        return dict(zip(paths, times, strict=True))

    def _index(self) -> Any:
        # Whatever the files hold, as text they need no look into them. All at once: each word with the JVM costs time.
        options = {name: value for name, value in self._source.options.items() if name != "path"}
        reader = self._spark.session._jsparkSession.read().format("text")
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load(self._source.options["path"]).queryExecution().analyzed().relation().location()

    def _in_order(self, index: Any) -> list[str]:
        # Of the index and not of the data frame, which puts them into a set.
        mapper = self._spark.jvm.com.fasterxml.jackson.databind.ObjectMapper()
        return [str(path) for path in json.loads(mapper.writeValueAsString(index.inputFiles()))]


def _number(offset: str) -> int:
    if offset == NO_OFFSET:
        return -1
    value = json.loads(offset)
    number = value.get("logOffset") if isinstance(value, dict) else None
    if isinstance(number, int):
        return number
    raise ValueError(f"no offset of a file source: {offset[:100]}")
