"""Exports state as tables: a folder for each table of each query, and ``_about.json``, which describes them.

``_about.json`` is written first, and says ``complete`` after the last table. Only an earlier export is ever replaced.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from airflow_streamstate.driver.attempt.ports import WrittenState
from airflow_streamstate.driver.spark.state_changes import same_tables, upserts_and_deletes, way_of
from airflow_streamstate.driver.spark.state_reading import Report, frame_of, place_tables
from airflow_streamstate.driver.spark.words import spark_words
from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.snapshot.state_order import ABOUT, StateExport, StateOrder, StatePlace
from airflow_streamstate.snapshot.state_tables import PARTITION, StateTable, folder_name

MAKER = "airflow-streamstate"
BATCH = "batch_id"
MAX_ABOUT_BYTES = 1 << 24


def check_export(spark: Any, wanted: StateExport) -> None:
    """Check whether tables can be written there; writes nothing.

    Raises:
        InvalidRequestError: this session cannot write that format, or not there.
        ConflictError: the folder is not empty.
    """
    _check_format(spark, wanted)
    _Folder(spark, wanted.uri).check(overwrite=wanted.overwrite)


def export(spark: Any, order: StateOrder, report: Report) -> dict[str, Any]:
    """Write the tables that the order asks for; the content of ``_about.json``, with ``problems``.

    Raises:
        InvalidRequestError: it cannot be written there; the operators differ between the two snapshots.
        ConflictError: the folder is not empty any more, or another export has taken it.
    """
    wanted = order.export
    if wanted is None:
        raise InvalidRequestError("the order asks for no export")
    tables = [
        (name, place, table)
        for name, place in order.places.items()
        for table in (
            same_tables(spark, name, order.before[name], place) if order.before else place_tables(spark, place)
        )
    ]
    folder = _Folder(spark, wanted.uri)
    made = {**wanted.about, "made_by": MAKER, "claim": Path(order.folder).name}
    folder.claim({**made, "complete": False, "tables": []}, overwrite=wanted.overwrite)
    written: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for name, place, table in tables:
        report(f"writing {name}: {table.path}")
        before = order.before.get(name)
        path = f"{folder_name(name)}/{table.path}"
        facts = {"path": path, "query_name": name, "operator_id": table.operator_id, **_facts(table, place, before)}
        try:
            rows = _write(spark, wanted, path, table, place, before)
        except InvalidRequestError:
            raise
        except Exception as error:
            problems.append({**facts, "reason": spark_words(error)})
        else:
            written.append({**facts, **rows})
    about = {**made, "complete": not problems, "tables": written, "problems": problems}
    folder.tell(about)
    return about


def write_tables(spark: Any, place: StatePlace, folder: str) -> WrittenState:
    """Write each table of a place into Parquet files in a folder of its own below this one, of this machine; the folder
    appears when it is whole."""
    tables: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for table in place_tables(spark, place):
        whole = Path(folder, table.path)
        partial = whole.with_name(f".{whole.name}.partial")  # Spark's readers pass hidden names over
        try:
            frame = _without_empty(frame_of(spark, place, table)).drop(PARTITION)
            frame.write.parquet(f"file://{partial}")
            partial.rename(whole)
        except Exception as error:
            problems.append(f"{table.path}: {spark_words(error)}")
            rmtree(partial, ignore_errors=True)
        else:
            identity = ("key",) if table.kind == "join" else table.identity
            tables[table.path] = tuple(name for name in identity if name in frame.columns)
    return WrittenState(tables, tuple(problems))


def _without_empty(frame: Any) -> Any:
    """Without the key of an aggregation over all rows, a struct without columns, which no file format can hold."""
    return frame.drop(*(field.name for field in frame.schema if field.dataType == StructType([])))


def _facts(table: StateTable, place: StatePlace, before: StatePlace | None) -> dict[str, Any]:
    facts = {
        "operator_name": table.operator_name,
        "name": table.name,
        "kind": table.kind,
        "identity": list(table.identity),
        "batch_id": place.batch_id,
    }
    return facts if before is None else {**facts, "since_batch_id": before.batch_id, "way": way_of(table, place)}


def _write(
    spark: Any, wanted: StateExport, path: str, table: StateTable, place: StatePlace, before: StatePlace | None
) -> dict[str, Any]:
    uri = f"{wanted.uri.rstrip('/')}/{path}"
    with ExitStack() as stack:
        if before is None:
            frame = frame_of(spark, place, table)
        else:
            frame = stack.enter_context(upserts_and_deletes(spark, table, before, place))
        frame = _without_empty(frame).withColumn(BATCH, F.lit(place.batch_id).cast("bigint"))
        frame.write.format(wanted.format).mode("errorifexists").save(uri)
    found = spark.read.format(wanted.format).load(uri)
    identity = [name for name in table.identity if name in found.columns]
    if before is None:
        return {"identity": identity, "rows": int(found.count())}
    counts = {row["change"]: int(row["count"]) for row in found.groupBy("change").count().collect()}
    return {"identity": identity, "upserts": counts.get("upsert", 0), "deletes": counts.get("delete", 0)}


def _check_format(spark: Any, wanted: StateExport) -> None:
    sources = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        sources.lookupDataSource(wanted.format, spark._jsparkSession.sessionState().conf())
    except Py4JJavaError as error:
        raise InvalidRequestError(
            "this session cannot write that format",
            format=wanted.format,
            reason=spark_words(error),
            next_step="Give --packages (of Delta: io.delta:delta-spark_…) and the --conf that it asks for; or write "
            "parquet.",
        ) from None


class _Folder:
    """The folder of an export, by Hadoop's file systems."""

    def __init__(self, spark: Any, uri: str) -> None:
        self._uri = uri
        self._jvm = spark._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path(uri)
        self._about = self._jvm.org.apache.hadoop.fs.Path(self._path, ABOUT)
        try:
            self._system = self._path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        except Py4JJavaError as error:
            raise self._unusable(error) from None

    def check(self, *, overwrite: bool) -> bool:
        """Refuse a folder that must not be replaced; whether anything is in it."""
        try:
            there = [str(status.getPath().getName()) for status in self._listed()]
            if there:
                self._check_ours(there, overwrite=overwrite)
        except Py4JJavaError as error:
            raise self._unusable(error) from None
        return bool(there)

    def claim(self, about: dict[str, Any], *, overwrite: bool) -> None:
        """Claim the folder, then empty it, so that it is known as an export after a crash, too."""
        is_there = self.check(overwrite=overwrite)
        try:
            self._put(about, overwrite=is_there)
            for status in self._listed() if is_there else ():
                if str(status.getPath().getName()) != ABOUT:
                    self._system.delete(status.getPath(), True)
        except Py4JJavaError as error:
            raise self._unusable(error) from None

    def tell(self, about: dict[str, Any]) -> None:
        """Write ``_about.json``.

        Raises:
            ConflictError: another export has claimed the folder since.
        """
        try:
            known = self._known() if self._system.exists(self._about) else None
            if known is None or known.get("claim") != about["claim"]:
                raise ConflictError(
                    "another export has taken the place of this one meanwhile",
                    uri=self._uri,
                    next_step="Run one export after the other, or give each its own folder.",
                )
            self._put(about, overwrite=True)
        except Py4JJavaError as error:
            raise self._unusable(error) from None

    def _listed(self) -> list[Any]:
        return list(self._system.listStatus(self._path)) if self._system.exists(self._path) else []

    def _check_ours(self, there: list[str], *, overwrite: bool) -> None:
        known = self._known() if ABOUT in there else None
        if known is None:
            raise ConflictError(
                "the folder for the export is not empty, and holds no earlier export",
                uri=self._uri,
                there=there[:5],
                next_step="Name an empty folder; --overwrite replaces earlier exports only.",
            )
        if not overwrite:
            raise ConflictError(
                "an export is in that folder already",
                uri=self._uri,
                snapshot_id=known.get("snapshot_id"),
                complete=known.get("complete"),
                next_step="Replace it with --overwrite, or name another folder.",
            )

    def _known(self) -> dict[str, Any] | None:
        status = self._system.getFileStatus(self._about)
        if status.getLen() > MAX_ABOUT_BYTES:
            return None
        stream = self._system.open(self._about)
        try:
            body = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            raw = json.loads(body)
        except (ValueError, TypeError):
            return None
        finally:
            stream.close()
        return raw if isinstance(raw, dict) and raw.get("made_by") == MAKER else None

    def _put(self, about: dict[str, Any], *, overwrite: bool) -> None:
        stream = self._system.create(self._about, overwrite)
        try:
            stream.write(bytearray(json.dumps(about, indent=1, ensure_ascii=True).encode()))
        finally:
            stream.close()

    def _unusable(self, error: Py4JJavaError) -> InvalidRequestError:
        return InvalidRequestError(
            "the state cannot be exported there",
            uri=self._uri,
            reason=spark_words(error),
            next_step="Name a folder that this driver can write, or give what its file system needs: --packages, "
            "--conf.",
        )
