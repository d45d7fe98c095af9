"""The facts of a script's ``DataStreamWriter`` and of the checkpoint that it names."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

from py4j.protocol import Py4JError

from airflow_streamstate.checkpoint.log import offset_order
from airflow_streamstate.connectors.source import Source
from airflow_streamstate.driver.attempt.ports import OwnCheckpoint, QuerySource, WriterFacts
from airflow_streamstate.driver.spark.jvm import jvm_is_gone, read_field, scala_option, scala_sequence, scala_text_map
from airflow_streamstate.protocol.positions import WatermarkSpec
from airflow_streamstate.store.options import plain_uri

CHECKPOINT_OPTION = "checkpointLocation"
RELATIONS = frozenset({"StreamingRelation", "StreamingRelationV2"})
_FILE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro"})
_TRIGGERS = {
    "ProcessingTimeTrigger": "processing_time",
    "OneTimeTrigger": "once",
    "AvailableNowTrigger": "available_now",
    "ContinuousTrigger": "continuous",
    "RealTimeTrigger": "real_time",
}
_CHANGING_IDS = re.compile(r"#\d+L?|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|@[0-9a-f]{4,8}\b")
_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)


@dataclass(frozen=True)
class WriterSettings:
    """What the script set on its writer.

    Attributes:
        options: all options, in the script's spelling.
        trigger: as Spark prints it, e.g. ``ProcessingTimeTrigger(5000)``.
    """

    query_name: str | None
    checkpoint_location: str | None
    options: dict[str, str]
    trigger: str


def read_settings(jvm: Any, jwriter: Any) -> WriterSettings:
    """The settings of a JVM ``DataStreamWriter``."""
    extra_options = read_field(jwriter, "extraOptions")
    return WriterSettings(
        query_name=scala_option(extra_options.get("queryName")),
        checkpoint_location=scala_option(extra_options.get(CHECKPOINT_OPTION)),
        options=scala_text_map(jvm, extra_options.originalMap()),
        trigger=read_field(jwriter, "trigger").toString(),
    )


def read_facts(jvm: Any, jdf: Any, jwriter: Any, table_name: str | None) -> WriterFacts:
    """The facts of a JVM ``DataStreamWriter`` over this JVM data frame."""
    plan = jdf.queryExecution().analyzed()
    nodes = list(_walk(plan))
    kinds = [kind for kind, _ in nodes]
    return WriterFacts(
        sink=f"table:{table_name}" if table_name is not None else _sink(read_field(jwriter, "source")),
        trigger=_trigger(read_field(jwriter, "trigger").toString()),
        output_mode=read_field(jwriter, "outputMode").toString().lower(),
        watermarks=tuple(_watermark(jvm, node) for kind, node in nodes if kind == "EventTimeWatermark"),
        stateful=any(_is_stateful(kind, node) for kind, node in nodes),
        # The offset log has one line for each place of a source: two for a self-union.
        sources_count=sum(kind in RELATIONS for kind in kinds),
        plan_fingerprint=fingerprint(plan.toString()),
        sources=read_sources(jvm, nodes),
    )


def read_sources(jvm: Any, nodes: Iterable[tuple[str, Any]]) -> tuple[QuerySource, ...]:
    """The sources among the nodes of a plan; empty where Spark shows them in an unknown way.

    Args:
        nodes: class name and node, from the top down, left to right.
    """
    relations = [(kind, node) for kind, node in nodes if kind in RELATIONS]
    seen: list[Any] = []
    found = []
    try:
        for kind, node in relations:
            folder = next((number for number, other in enumerate(seen) if node.equals(other)), len(seen))
            if folder == len(seen):
                seen.append(node)
            planned = _of_v2(node) if kind == "StreamingRelationV2" else _of_v1(jvm, node)
            found.append(QuerySource(planned, folder, _name_of(node)))
    except (Py4JError, AttributeError, TypeError) as error:
        if jvm_is_gone(error):
            raise
        return ()
    if any(source.name for source in found):
        found.sort(key=lambda source: offset_order(source.name))
    return tuple(found)


def _name_of(node: Any) -> str:
    """The name that the script gave a source; "" without one, and on a Spark without names."""
    try:
        name = node.sourceIdentifyingName()
    except Py4JError as error:
        if jvm_is_gone(error):
            raise
        return ""  # no such method: an older Spark
    return str(name.name()) if name.getClass().getSimpleName() == "UserProvided" else ""


def _of_v2(node: Any) -> Source:
    identifier = scala_option(node.identifier())
    table = ""
    if identifier is not None:
        catalog = scala_option(node.catalog())
        parts = [str(catalog.name())] if catalog is not None else []
        table = ".".join((*parts, *(str(part) for part in identifier.namespace()), str(identifier.name())))
    options = node.extraOptions().asCaseSensitiveMap()
    return Source(str(node.sourceName()).lower(), _lower({str(name): str(options[name]) for name in options}), table)


def _of_v1(jvm: Any, node: Any) -> Source:
    data_source = node.dataSource()
    table = scala_option(data_source.catalogTable())
    return Source(
        str(data_source.className()).lower(),
        _lower(scala_text_map(jvm, data_source.options())),
        "" if table is None else str(table.identifier().unquotedString()),
    )


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def fingerprint(plan: str) -> str:
    """A digest of a plan's text without the ids that differ each time the plan is built."""
    return hashlib.sha256(_CHANGING_IDS.sub("", plan).encode()).hexdigest()[:16]


def _walk(node: Any) -> Iterator[tuple[str, Any]]:
    """A logical plan's nodes, from the top down, left to right, each with its class name."""
    yield node.getClass().getSimpleName(), node
    for child in scala_sequence(node.children()):
        yield from _walk(child)


def _is_stateful(kind: str, node: Any) -> bool:
    if kind == "Join":
        return bool(node.left().isStreaming() and node.right().isStreaming())
    return kind in _STATEFUL and bool(node.isStreaming())


def _watermark(jvm: Any, node: Any) -> WatermarkSpec:
    to_ms = jvm.org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark.getDelayMs
    return WatermarkSpec(column=node.eventTime().name(), delay_ms=int(to_ms(node.delay())))


def _sink(source: str) -> str:
    name = source.lower()
    if name in _FILE_FORMATS:
        return f"file:{name}"
    return "foreachBatch" if name == "foreachbatch" else source


def _trigger(words: str) -> str:
    if words == "ProcessingTimeTrigger(0)":
        return "default"
    return _TRIGGERS.get(words.partition("(")[0], words)


# A look at the checkpoint that a script names for a query, by Spark's own Hadoop file systems.
#
# Where Spark finds it: the writer's ``checkpointLocation``, else the folder of the query's name below
# ``spark.sql.streaming.checkpointLocation``. Without a name Spark takes a random folder there, which holds nothing.

Found = TypeVar("Found")
SESSION_LOCATION = "spark.sql.streaming.checkpointLocation"
LOOK_SECONDS = 20.0
"""How long a file system may take to answer: S3A tries for minutes."""
OTHERS_LOOKED_AT = 50
_COMMITS = "commits"


def look_at_own_checkpoint(spark: Any, settings: WriterSettings) -> OwnCheckpoint | None:
    """What the folder holds now; None where the script names none."""
    location = settings.checkpoint_location or _of_session(spark, settings.query_name)
    if not location:
        return None
    try:
        return _within(LOOK_SECONDS, lambda: _look(spark, location))
    except Exception as error:
        if jvm_is_gone(error):
            raise
        return OwnCheckpoint(plain_uri(location), unread_reason=_in_a_line(error))


def _of_session(spark: Any, query_name: str | None) -> str:
    base = spark.conf.get(SESSION_LOCATION, None) if query_name else None
    return f"{base.rstrip('/')}/{query_name}" if base else ""


def _look(spark: Any, location: str) -> OwnCheckpoint:
    path = spark._jvm.org.apache.hadoop.fs.Path(location)
    files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    path = files.makeQualified(path)
    batch_id, written_ms = _last_commit(spark, files, path)
    if batch_id is None:
        return OwnCheckpoint(plain_uri(path.toString()))
    others = _others(spark, files, path)
    return OwnCheckpoint(plain_uri(path.toString()), batch_id, _time(written_ms), others)


def _last_commit(spark: Any, files: Any, folder: Any) -> tuple[int | None, int]:
    """The last committed batch, and when its file was written, in milliseconds since 1970."""
    commits = spark._jvm.org.apache.hadoop.fs.Path(folder, _COMMITS)
    if not files.exists(commits):
        return None, 0
    found: tuple[int | None, int] = (None, 0)
    for status in files.listStatus(commits):
        name = str(status.getPath().getName())
        if name.isdecimal() and (found[0] is None or int(name) > found[0]):
            found = int(name), int(status.getModificationTime())
    return found


def _others(spark: Any, files: Any, folder: Any) -> tuple[str, ...]:
    """Checkpoints with committed batches in the same parent: probably those of the script's other queries."""
    if folder.getParent() is None:
        return ()
    found = []
    for status in list(files.listStatus(folder.getParent()))[:OTHERS_LOOKED_AT]:
        other = status.getPath()
        is_another = bool(status.isDirectory()) and other.getName() != folder.getName()
        if is_another and _last_commit(spark, files, other)[0] is not None:
            found.append(plain_uri(other.toString()))
    return tuple(sorted(found))


def _time(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, timezone.utc) if ms > 0 else None


def _within(seconds: float, look: Callable[[], Found]) -> Found:
    """The result of ``look`` in its own thread, which is left alone if it takes too long."""
    results: list[Found] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(look())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="streamstate-own-checkpoint", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"its file system did not answer within {seconds:.0f} s")
    return results[0]


def _in_a_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return " ".join(str(java.toString() if java is not None else error).split())[:300]
