"""The sink of a script's writer: its connector, and a trial of what Spark requires of it at a start."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from airflow_streamstate.connectors.files import FORMATS
from airflow_streamstate.connectors.sink import (
    FoundUndo,
    HeldBatches,
    Sink,
    SinkConnector,
    UndoingSink,
    UndoMeans,
    UndoOrder,
    WarmingSink,
    cannot_undo,
    connector_for,
    known_sinks,
    means_of,
    options_to_write,
    repeat_means,
)
from airflow_streamstate.driver.spark.jvm import jvm_is_gone, read_field, scala_option, scala_sequence, scala_text_map
from airflow_streamstate.errors import ConflictError, InvalidRequestError, StreamStateError, UnavailableError
from airflow_streamstate.protocol.events import RepeatMeans

# Tries what Spark asks of a sink when a query starts, in Spark's own order, without a change in the sink.
#
# In a rehearsal the plan runs into no sink, so a format that is not there or a table that cannot be created would
# become known only after the old version has ended. Nothing here starts a query, creates a table, or makes a folder
# outside of the scratch folder: even Spark's own file sink makes ``_spark_metadata`` when it is constructed.

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
                    " `streamstate upgrade` while the stream runs: it continues with the files that are there.",
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
                next_step=f'Use .format("{provider}") in the script, or write into another table.',
            )

    def _refusal(self, fact: str, next_step: str) -> InvalidRequestError:
        return InvalidRequestError(fact, table=self._sink.table, next_step=next_step)


def how_to_find(sink: Sink, location: str) -> str:
    """How a script makes a later session find a table, as text."""
    return (
        f'Let the script use .option("path", "{location}") before .toTable("{sink.table}"), or first CREATE TABLE IF'
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
            next_step='Use .outputMode("append"), or write into another kind of sink.',
        )
    if sink.path is None and sink.table is None:
        raise InvalidRequestError(
            "a sink of files needs a path", format=sink.format, next_step='Use .start(path) or .option("path", …).'
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


_PATH = "path"
SESSION_CATALOG = "spark_catalog"
NOT_LOOKED_AT = "the sink could not be looked at, so nothing was undone"
UNKNOWN_FORMAT = "of a kind that its catalog does not state"


def stated_sink(spark: Any, jwriter: Any, path: str | None, table_name: str | None) -> Sink:
    """The sink as this JVM ``DataStreamWriter`` states it, without asking any catalog."""
    options = scala_text_map(spark._jvm, read_field(jwriter, "extraOptions").originalMap())
    options = {name.lower(): value for name, value in options.items()}
    output_mode = str(read_field(jwriter, "outputMode").toString()).lower()
    source = str(read_field(jwriter, "source")).lower()
    return Sink(source, path if path is not None else options.get(_PATH), table_name, options, output_mode)


def read_sink(spark: Any, stated: Sink) -> Sink:
    """The sink as stated; for a table with the format and location that its catalog reports."""
    if stated.table is None:
        return stated
    if not spark.catalog.tableExists(stated.table):
        return stated
    provider, location = _table(spark, stated.table)
    # Spark's own catalog reports the format of each table of files, so a table without one is another kind.
    unsaid = UNKNOWN_FORMAT if stated.format in FORMATS else stated.format
    return replace(stated, format=provider or unsaid, path=location or stated.path, is_there=True)


class AskedSink:
    """A writer's sink with its connector."""

    def __init__(self, spark: Any, jwriter: Any, path: str | None, table_name: str | None) -> None:
        self._spark = spark
        self._jwriter = jwriter
        self._target = (path, table_name)
        self._reach = HadoopReach(spark, jwriter)

    def held_batches(self, query_id: str | None, from_batch_id: int) -> HeldBatches:
        """See ``ports.StartableQuery``. A sink that cannot be asked counts as one that cannot answer."""
        try:
            sink = self._sink()
            connector = self._connector(sink)
            if connector is None:
                return HeldBatches(unknown_reason=f"no connector knows a sink of format {sink.format}")
            return connector.held_batches(sink, query_id, from_batch_id, self._reach)
        except Exception as error:
            if jvm_is_gone(error):
                raise
            return HeldBatches(unknown_reason=f"it could not be asked: {_in_a_line(error)}")

    def prepare(self, next_batch_id: int) -> tuple[str, ...]:
        """See ``ports.StartableQuery``."""
        try:
            try:
                sink = self._sink()
            except Exception as error:
                if jvm_is_gone(error) or not self._needs_nothing(next_batch_id):
                    raise
                return ()
            connector = self._connector(sink)
            return () if connector is None else connector.prepare(sink, next_batch_id, self._reach)
        except StreamStateError:
            raise
        except Exception as error:
            if jvm_is_gone(error):
                raise
            raise UnavailableError(
                "the sink could not be made ready for batch ids that continue",
                next_batch_id=next_batch_id,
                reason=_in_a_line(error),
                next_step="See that the script may write there, and resume the deployment.",
            ) from error

    def need_table(self) -> tuple[str, ...]:
        """See ``ports.StartableQuery``. What Spark itself would report about the table is left to its own start."""
        try:
            return self._table_remarks()
        except Exception as error:
            if jvm_is_gone(error) or isinstance(error, StreamStateError):
                raise
            return ()

    def _table_remarks(self) -> tuple[str, ...]:
        table = self._session_table()
        if table is None:
            return ()
        table.check(lambda place: not self._reach.names_in(place))
        return (ends_with_session(table, self._stated),) if table.ends_with_session else ()

    def try_it(self, next_batch_id: int, row_of: Callable[[], Any], scratch_uri: str) -> tuple[str, ...]:
        """See ``ports.StartableQuery``; ``row_of`` makes the row that is written at ``scratch_uri``."""
        try:
            return self._tried(next_batch_id, row_of, scratch_uri)
        except (Py4JError, AttributeError, TypeError) as error:
            if jvm_is_gone(error) or isinstance(error, Py4JJavaError):
                raise
            return (f"its sink could not be tried in full: {_in_a_line(error)}",)  # a Spark with other internals

    def _tried(self, next_batch_id: int, row_of: Callable[[], Any], scratch_uri: str) -> tuple[str, ...]:
        stated = self._stated
        if stated.table is not None and self._catalog_of(stated.table) != SESSION_CATALOG:
            return ()  # that catalog alone knows what it accepts
        table, remarks = self._session_table(), self._table_remarks()
        sink = self._sink()
        check_format(self._spark, self._jwriter, sink)
        if sink.format not in FORMATS:
            return remarks
        place = sink.path or ("" if table is None else table.location)
        if place:
            check_place(place, self._reach.local_path(place))
        connector = self._connector(sink)
        if sink.path is None and connector is not None:
            connector.prepare(sink, next_batch_id, self._reach)  # it can only refuse: there is no place to prepare
        write_row_beside(sink, self._jwriter, row_of(), scratch_uri)
        return remarks

    def _session_table(self) -> SessionTable | None:
        """The table of Spark's own catalog that the sink is; None for another kind."""
        sink = self._stated
        if sink.table is None or sink.format not in FORMATS or self._catalog_of(sink.table) != SESSION_CATALOG:
            return None
        return SessionTable(self._spark, sink)

    def warm(self, query_id: str, row_of: Callable[[], Any], scratch_uri: str) -> tuple[str, ...]:
        """See ``ports.StartableQuery``; ``row_of`` makes the row that is written."""
        cold = []
        held = self.held_batches(query_id, 0)
        try:
            sink = self._sink()
            connector = self._connector(sink)
            if held.unknown_reason and connector is not None and connector.skips not in ("nothing", "unknown"):
                cold.append(f"what it holds: {held.unknown_reason}")
            if isinstance(connector, WarmingSink):
                connector.warm(sink, row_of(), scratch_uri, self._reach)
        except Exception as error:
            if jvm_is_gone(error):
                raise
            cold.append(f"what writes to it: {_in_a_line(error)}")
        return tuple(cold)

    def undo_means(self) -> UndoMeans:
        """See ``ports.StartableQuery``."""
        return means_of(self._connector(self.found()))

    def repeat_means(self, conf: Mapping[str, str]) -> RepeatMeans:
        """See ``ports.StartableQuery``; ``conf`` has the session's ``REPEAT_SETTINGS``."""
        return repeat_means(self.found(), known_sinks().connectors, conf)

    def undo_needs_query_id(self) -> bool:
        """See ``ports.StartableQuery``. The catalog of a table has to answer."""
        with _said_as_refusal(NOT_LOOKED_AT):
            connector = self._connector(self._sink())
        return isinstance(connector, UndoingSink) and connector.undo_needs_query_id

    def find_undo(self, order: UndoOrder) -> FoundUndo:
        """See ``ports.StartableQuery``."""
        with _said_as_refusal(NOT_LOOKED_AT, to_batch_id=order.to_batch_id):
            sink = self._sink()
            return self._undoing(sink, order).find_undo(sink, order, self._reach)

    def undo_batches(self, order: UndoOrder, found: FoundUndo) -> None:
        """See ``ports.StartableQuery``."""
        with _said_as_refusal("the sink could not be undone to the end", to_batch_id=order.to_batch_id):
            sink = self._sink()
            self._undoing(sink, order).undo_batches(sink, order, found, self._reach)

    def _undoing(self, sink: Sink, order: UndoOrder) -> UndoingSink:
        connector = self._connector(sink)
        if not isinstance(connector, UndoingSink):
            raise cannot_undo("it has changed since the last look", sink, order)
        return connector

    def found(self) -> Sink:
        """The sink; as the writer states it where a table's catalog does not answer."""
        return self._sink_or_none() or replace(self._stated, path=None)

    def place(self) -> str:
        """Its place, human-readable."""
        sink = self._sink_or_none()
        return "its sink" if sink is None else sink.place

    def _sink_or_none(self) -> Sink | None:
        try:
            return self._sink()
        except Exception as error:
            if jvm_is_gone(error):
                raise
            return None

    def _sink(self) -> Sink:
        # Read each time: the first batch may have created the table.
        return read_sink(self._spark, self._stated)

    @cached_property
    def _stated(self) -> Sink:
        return stated_sink(self._spark, self._jwriter, *self._target)

    def _needs_nothing(self, next_batch_id: int) -> bool:
        """Whether a sink needs no preparation whatever its catalog reports; only output folders need any."""
        stated = replace(self._stated, path=None)
        connector = self._connector(stated)
        if stated.table is None or connector is None:
            return connector is None
        try:
            return (
                self._catalog_of(stated.table) != SESSION_CATALOG
                or connector.prepare(stated, next_batch_id, self._reach) == ()
            )
        except StreamStateError:
            return False

    def _catalog_of(self, table: str) -> str:
        first = table.partition(".")[0].strip("`")
        if self._spark.conf.get(f"spark.sql.catalog.{first}", None) is not None:
            return first
        return str(self._spark.catalog.currentCatalog())

    def _connector(self, sink: Sink) -> SinkConnector | None:
        return connector_for(sink, known_sinks().connectors)


class HadoopReach:
    """Files by Hadoop's API, in the configuration that Spark gives this writer. Implements ``SinkReach``."""

    def __init__(self, spark: Any, jwriter: Any) -> None:
        self.session = spark
        self._jvm = spark._jvm
        self._jwriter = jwriter

    def names_in(self, folder: str) -> tuple[str, ...] | None:
        path, file_system = self._at(folder)
        try:
            statuses = file_system.listStatus(path)
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error.java_exception.getClass().getName()):
                return None
            raise
        # As one text: a folder may have thousands of names, and each call of the JVM takes its time.
        paths = self._jvm.scala.Predef.genericWrapArray(self._file_util.stat2Paths(statuses))
        text = str(paths.mkString("\n"))
        parent = f"{file_system.makeQualified(path)}/"
        if not text.startswith(parent):
            return tuple(str(status.getPath().getName()) for status in statuses)
        return tuple(text.removeprefix(parent).split(f"\n{parent}"))

    def local_path(self, uri: str) -> str | None:
        """The path of a file or folder of this machine; None on another file system."""
        path, file_system = self._at(uri)
        qualified = file_system.makeQualified(path).toUri()
        return str(qualified.getPath()) if str(qualified.getScheme()) == "file" else None

    def read_text(self, uri: str) -> str:
        path, file_system = self._at(uri)
        stream = file_system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create_text(self, uri: str, text: str) -> None:
        path, file_system = self._at(uri)
        if file_system.exists(path):
            return
        # Written next to it and renamed: the driver may die at any point.
        beside = self._path_class(path.getParent(), f".{path.getName()}.streamstate.tmp")
        stream = file_system.create(beside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not file_system.rename(beside, path):
            raise OSError(f"{beside} cannot be renamed to {path}")

    def delete(self, uri: str) -> None:
        path, file_system = self._at(uri)
        if not file_system.delete(path, False) and file_system.exists(path):
            raise OSError(f"{path} cannot be deleted")

    def move(self, uri: str, to_uri: str) -> None:
        path, file_system = self._at(uri)
        if not file_system.exists(path):
            return
        target, _ = self._at(to_uri)
        file_system.mkdirs(target.getParent())
        if not file_system.rename(path, target):
            raise OSError(f"{path} cannot be moved to {target}")

    @cached_property
    def _conf(self) -> Any:
        state = self.session._jsparkSession.sessionState()
        return state.newHadoopConfWithOptions(read_field(self._jwriter, "extraOptions"))

    @cached_property
    def _file_util(self) -> Any:
        return self._jvm.org.apache.hadoop.fs.FileUtil

    @cached_property
    def _path_class(self) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path

    def _at(self, uri: str) -> tuple[Any, Any]:
        path = self._path_class(uri)
        return path, path.getFileSystem(self._conf)


@contextmanager
def _said_as_refusal(fact: str, **facts: object) -> Iterator[None]:
    """Translate errors of Spark and Hadoop to ConflictError."""
    try:
        yield
    except StreamStateError:
        raise
    except Exception as error:
        if jvm_is_gone(error):
            raise
        raise ConflictError(
            fact,
            **facts,
            reason=_in_a_line(error),
            next_step="Correct the reason, and resume the deployment: the undo continues.",
        ) from error


def _table(spark: Any, name: str) -> tuple[str | None, str | None]:
    """Provider and location of a table; None for what its catalog does not report."""
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    found = {str(row["col_name"]).strip(): str(row["data_type"]).strip() for row in rows}
    return found.get("Provider", "").lower() or None, found.get("Location") or None


def _in_a_line(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, Py4JJavaError):
        line = str(error.java_exception.toString()).splitlines()[0]
    lines = traceback.format_exception_only(type(error), error)
    return f"{type(error).__name__}: {line}" if line else lines[-1].strip()
