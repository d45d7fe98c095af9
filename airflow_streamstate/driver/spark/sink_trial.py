"""Tries what Spark asks of a sink when a query starts, in Spark's own order, without a change in the sink.

In a rehearsal the plan runs into no sink, so a format that is not there or a table that cannot be created would become
known only after the old version has ended. Nothing here starts a query, creates a table, or makes a folder outside of
the scratch folder: even Spark's own file sink makes ``_spark_metadata`` when it is constructed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_streamstate.connectors.files import FORMATS
from airflow_streamstate.connectors.sink import Sink
from airflow_streamstate.connectors.warming import options_to_write
from airflow_streamstate.driver.spark.jvm import read_field, scala_option, scala_sequence
from airflow_streamstate.errors import InvalidRequestError

CATALOG_SETTING = "spark.sql.catalogImplementation"
IN_MEMORY = "in-memory"
_OWN = frozenset({"memory", "foreach", "foreachbatch"})
"""Spark makes these sinks itself, and looks no format up."""


class SessionTable:
    """A table of Spark's own session catalog, as ``toTable`` will find or create it.

    Args:
        sink: as the writer states it.
    """

    def __init__(self, spark: Any, sink: Sink) -> None:
        state = spark._jsparkSession.sessionState()
        self._spark = spark
        self._sink = sink
        self._catalog = state.catalog()
        self._identifier = state.sqlParser().parseTableIdentifier(sink.table)
        self._metadata = (
            self._catalog.getTableMetadata(self._identifier) if self._catalog.tableExists(self._identifier) else None
        )

    @property
    def ends_with_session(self) -> bool:
        """Whether a later session does not know it, and cannot create it over the files that are there by then."""
        if str(self._spark.conf.get(CATALOG_SETTING, IN_MEMORY)) != IN_MEMORY:
            return False
        if self._metadata is not None:
            return str(self._metadata.tableType().name()) == "MANAGED"
        return self._sink.path is None

    @property
    def location(self) -> str:
        """Where its files are, or will be.

        Raises what Spark raises: there is no such database.
        """
        if self._metadata is not None:
            return str(self._metadata.location())
        return self._sink.path or str(self._catalog.defaultTablePath(self._identifier))

    def check(self, is_empty: Callable[[str], bool]) -> None:
        """Check that ``toTable`` will find or create it.

        Raises:
            InvalidRequestError: it will not.
            and what Spark raises: there is no such database.
        """
        if self._catalog.isTempView(self._identifier):
            raise self._refusal("a stream cannot write into a temporary view", "Write into a table.")
        if self._metadata is None:
            place = self.location
            if self._sink.path is None and not is_empty(place):
                raise InvalidRequestError(
                    "Spark's catalog does not know this table, and cannot create it: its location is not empty"
                    " (LOCATION_ALREADY_EXISTS)",
                    table=self._sink.table,
                    location=place,
                    catalog=self._spark.conf.get(CATALOG_SETTING, IN_MEMORY),
                    next_step=f"{how_to_find(self._sink, place)} Then `streamstate deploy` of that script, or"
                    " `streamstate upgrade` while the stream runs: it goes on with the files that are there.",
                )
            return
        kind, provider = str(self._metadata.tableType().name()), scala_option(self._metadata.provider())
        if kind == "VIEW":
            raise self._refusal("a stream cannot write into a view", "Write into a table.")
        if provider is not None and str(provider).lower() in FORMATS and str(provider).lower() != self._sink.format:
            raise InvalidRequestError(
                "the table has another format than the query writes",
                table=self._sink.table,
                table_format=str(provider),
                written_format=self._sink.format,
                next_step=f'Say .format("{provider}") in the script, or write into another table.',
            )

    def _refusal(self, fact: str, next_step: str) -> InvalidRequestError:
        return InvalidRequestError(fact, table=self._sink.table, next_step=next_step)


def how_to_find(sink: Sink, location: str) -> str:
    """How a script makes a later session find a table, for people."""
    return (
        f'Let the script say .option("path", "{location}") before .toTable("{sink.table}"), or first CREATE TABLE IF'
        f" NOT EXISTS {sink.table} (…) USING {sink.format} LOCATION '{location}', or use a catalog that lasts (Hive)."
    )


def ends_with_session(table: SessionTable, sink: Sink) -> str:
    """What a person should know of such a table at a start."""
    return (
        f"the catalog of table {sink.table} ends with this Spark session, and its files stay: no later start can create"
        f" it there again, so every resume and upgrade would be refused. {how_to_find(sink, table.location)}"
    )


def check_format(spark: Any, jwriter: Any, sink: Sink) -> None:
    """Check that Spark knows the format of a sink that is no table yet, and what a sink of files needs.

    Raises:
        InvalidRequestError: Spark would refuse the start.
        and what Spark raises: it does not know the format.
    """
    if sink.format in _OWN:
        if sink.format == "memory" and not sink.options.get("queryname"):
            raise InvalidRequestError(
                "a memory sink needs a query name", next_step="Name the query in the script, by .queryName(…)."
            )
        return
    if not sink.is_there:
        sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource
        sources.lookupDataSource(str(read_field(jwriter, "source")), spark._jsparkSession.sessionState().conf())
    if sink.format not in FORMATS:
        return
    if sink.output_mode != "append":
        raise InvalidRequestError(
            "a sink of files takes no other output mode than append",
            format=sink.format,
            output_mode=sink.output_mode,
            next_step='Say .outputMode("append"), or write into another kind of sink.',
        )
    if sink.path is None and sink.table is None:
        raise InvalidRequestError(
            "a sink of files needs a path", format=sink.format, next_step='Say .start(path) or .option("path", …).'
        )


def check_place(place: str, local_path: str | None) -> None:
    """Check that this process may write where a sink of files is, or would be.

    Args:
        local_path: the path on this machine; None for another file system, which is not asked.

    Raises:
        InvalidRequestError: it may not.
    """
    if local_path is None:
        return
    path = Path(local_path)
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return
    raise InvalidRequestError(
        "the driver may not write to the folder of the sink"
        if there.is_dir()
        else "a file is where a folder should be",
        location=place,
        found=str(there),
        next_step="Give the driver's user the right to write there, or write elsewhere.",
    )


def write_row_beside(sink: Sink, jwriter: Any, row: Any, scratch_uri: str) -> None:
    """Write a row of nulls as the first batch would write: its format, options, column types and partition columns.

    Raises what Spark raises: the format does not take these columns or options.
    """
    found = scala_option(read_field(jwriter, "partitioningColumns"))
    columns = () if found is None else tuple(map(str, scala_sequence(found)))
    writer = row.write.format(sink.format).options(**options_to_write(sink)).mode("append")
    (writer.partitionBy(*columns) if columns else writer).save(scratch_uri)
