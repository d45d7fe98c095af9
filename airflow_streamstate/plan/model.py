"""The plan of a query as it is recorded: what decides its results and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime
from typing import Literal

from airflow_streamstate.checkpoint.guards import MERGE_OPERATOR, PROVIDER
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Attempt, Message, Milliseconds, QueryName, RunId, StreamId, message
from airflow_streamstate.protocol.positions import WatermarkSpec

READING = 1
"""Version of the normalisation: digests and texts of two versions cannot be compared."""

OperatorKind = Literal[
    "aggregate",
    "session_window",
    "deduplicate",
    "deduplicate_within_watermark",
    "stream_join",
    "transform_with_state",
    "apply_in_pandas_with_state",
    "flat_map_groups_with_state",
    "global_limit",
]
"""``session_window`` is an aggregate by ``session_window``, whose state Spark keeps in another way."""

DEDUPLICATIONS: tuple[OperatorKind, ...] = ("deduplicate", "deduplicate_within_watermark")
_OF_FUNCTIONS: frozenset[OperatorKind] = frozenset(
    {"transform_with_state", "apply_in_pandas_with_state", "flat_map_groups_with_state"}
)

WindowKind = Literal["tumbling", "sliding", "session"]

VariableKind = Literal["value", "list", "map", "timer"]


@dataclass(frozen=True)
class Expression:
    """A column or an expression of a plan.

    Attributes:
        text: normalised; columns by their names.
        type: Spark's short word for its type, e.g. ``bigint``; "" where the plan does not state it.
        name: its name in the output; "" if not set.
        is_event_time: state by it can end by the watermark: a column with one, or a window over it.
        origin: the same in terms of the sources' columns and the stateful operators below; a digest where it is long.
    """

    text: str
    type: str = ""
    name: str = ""
    is_event_time: bool = False
    origin: str = ""


@dataclass(frozen=True)
class Window:
    """A window over time among the keys of an operator.

    Attributes:
        column: the expression of the time.
        duration_ms: its length; of a session: its gap, None if that is an expression of the row.
        slide_ms: between two starts; equal to the length of a tumbling one; None for a session.
        offset_ms: of the starts; None for a session.
        gap: of a session whose gap is an expression: its text; "" otherwise.
    """

    kind: WindowKind
    column: str
    duration_ms: Milliseconds | None
    slide_ms: Milliseconds | None = None
    offset_ms: Milliseconds | None = None
    gap: str = ""


@dataclass(frozen=True)
class StateVariable:
    """A variable of a ``transformWithState``.

    Attributes:
        name: its name in the processor.
        has_ttl: its values expire.
        key_schema, value_schema: Spark's DDL; "" where unknown.
    """

    name: str
    kind: VariableKind
    has_ttl: bool = False
    key_schema: str = ""
    value_schema: str = ""


@dataclass(frozen=True)
class OperatorInput:
    """What feeds an operator from one side.

    Attributes:
        digest: of all that is below, down to its sources; equal for equal inputs.
        text: the same in one line.
        columns: of the incoming rows.
        sources: the numbers of the sources below (``QueryPlan.sources``), ascending.
        operators: the ids of the next stateful operators below, ascending.
        watermarks: on the way from the sources, from the top down.
    """

    digest: str
    text: str
    columns: tuple[Expression, ...] = ()
    sources: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()
    watermarks: tuple[WatermarkSpec, ...] = ()


@dataclass(frozen=True)
class StateOperator:
    """One operator with state.

    Attributes:
        operator_id: Spark's number of it, by which it finds its state.
        kind: e.g. ``aggregate``, ``session_window``, ``stream_join`` (``OperatorKind``).
        spark_name: its name in the metadata of its state, e.g. ``stateStoreSave``.
        inputs: what feeds it: one, for a join two, left before right.
        path: its place in the plan as text: the kinds of the nodes from the top, ``Project > Aggregate``.
        keys: of its state, windows included; of a join: of both sides, left before right.
        windows: among the keys: kind, column of the time, length or gap, slide, offset.
        aggregates: of an aggregation, each function once.
        join_type: ``Inner``, ``LeftOuter``, ``RightOuter``, ``FullOuter``, ``LeftSemi``; "" where it is no join.
        condition: of a join, complete; "": not set.
        function: the name of the user's function; "": not set, or not in the plan.
        output_mode: of an operator that has its own; "" for others.
        time_mode: of a ``transformWithState``: ``NoTime``, ``ProcessingTime`` or ``EventTime``; "" for others.
        timeout: of an operator with a timeout: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``; ""
            for others.
        limit: of a limit: its rows; None for others.
        state_schema: of the user's state (``applyInPandasWithState``), DDL; "" where unknown.
        has_initial_state: whether the script gives it an initial state.
        variables: of a ``transformWithState``: name, kind (``value``, ``list``, ``map``, ``timer``), whether values
            expire, schemas; None while unknown.
        key_schema, value_schema: from the checkpoint; "" where unknown.
    """

    operator_id: int
    kind: OperatorKind
    spark_name: str
    inputs: tuple[OperatorInput, ...]
    path: str
    keys: tuple[Expression, ...] = ()
    windows: tuple[Window, ...] = ()
    aggregates: tuple[Expression, ...] = ()
    join_type: str = ""
    condition: str = ""
    function: str = ""
    output_mode: str = ""
    time_mode: str = ""
    timeout: str = ""
    limit: int | None = None
    state_schema: str = ""
    has_initial_state: bool = False
    variables: tuple[StateVariable, ...] | None = None
    key_schema: str = ""
    value_schema: str = ""

    @property
    def fed_by(self) -> tuple[str, ...]:
        """The digests of its inputs, which distinguish two operators of one shape."""
        return tuple(each.digest for each in self.inputs)


@dataclass(frozen=True)
class PlannedSource:
    """A source of a query, as recorded.

    Attributes:
        format: lower case, e.g. ``kafka``, ``json``, ``rate``.
        adapter: the source connector that knows it; "": not set.
        identity: what it reads, in that connector's words (path, topics, table), or the plan's name of it; no secrets.
        options: those that decide what is read and how, names in lower case; no secrets.
        columns: of its rows.
        name: given by the script, by which Spark finds its offset; "": not set.
        path: its place in the plan, as text.
        sends_once: why it cannot send a row twice, in its connector's words; "" where it can.
    """

    format: str
    adapter: str = ""
    identity: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Expression, ...] = ()
    name: str = ""
    path: str = ""
    sends_once: str = ""


@dataclass(frozen=True)
class PlannedSink:
    """The sink of a query, as recorded.

    Attributes:
        kind: ``file:parquet``, ``memory``, ``foreachBatch``, ``console``, ``noop``, ``kafka``, ``delta``,
            ``table:NAME`` …: from the writer.
        format: lower case; of a table: its provider, "" where unknown.
        target: path, table or topic; "": not set. No secrets.
        adapter: the sink connector that knows it; "": not set.
        skips: by what the sink recognises a repeated batch and skips it: ``batch_id``, ``query_id_and_batch_id``,
            ``nothing`` or ``unknown``.
        options: those that decide what is written, names in lower case; no secrets.
        partitioned_by: the columns of ``partitionBy``.
    """

    kind: str
    format: str = ""
    target: str = ""
    adapter: str = ""
    skips: str = "unknown"
    options: Mapping[str, str] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """Kind and target, human-readable; a target that only repeats the kind is left out."""
        known = self.target.lower()
        repeats = self.kind.lower() in (known, f"table:{known}")
        return self.kind if repeats or not known else f"{self.kind} {self.target}"


@dataclass(frozen=True)
class StateLayout:
    """How state is kept, by the session's settings; an existing checkpoint may hold Spark to another layout.

    Attributes:
        partitions: of the state of each operator (``spark.sql.shuffle.partitions``).
        provider: class of the state store.
        checkpoint_format: ``spark.sql.streaming.stateStore.checkpointFormatVersion``; 1 where Spark has no other.
        changelog: RocksDB writes changelogs.
        encoding: ``unsaferow`` or ``avro``.
    """

    partitions: int
    provider: str
    checkpoint_format: int = 1
    changelog: bool = False
    encoding: str = "unsaferow"


@dataclass(frozen=True)
class PlanNode:
    """One node of the normalised tree.

    Attributes:
        kind: Spark's class of it, e.g. ``Filter``.
        text: its expressions; "" without any.
        depth: 0 for the top.
        operator_id: of a stateful operator; None for others.
        source: of a source: its number in ``QueryPlan.sources``; None for others.
    """

    kind: str
    text: str
    depth: int
    operator_id: int | None = None
    source: int | None = None


@dataclass(frozen=True)
class QueryPlan:
    """What one query does.

    Attributes:
        query_name: its name in the deployment.
        spark_version: of the driver that made the plan.
        output_mode: ``append``, ``update`` or ``complete``.
        trigger: ``default`` where the script sets none, else ``processing_time``, ``once`` or ``available_now``; no
            interval.
        sources: in the order of the lines of the offset log.
        sink: where the rows go.
        watermarks: column and delay of each, in the order of the plan, from the top down.
        operators: those with state, in the order of their ids: number i is the one with id i.
        state: how their state is kept.
        settings: those of the session that change results or state, effective values.
        pinned: the same settings as the checkpoint's own log has them; they win. Empty before the first batch.
        nodes: Spark's analyzed plan, normalised, the node before its children, left to right.
        columns: of the written rows: name and type.
        reading: version of the normalisation.
    """

    query_name: QueryName
    spark_version: str
    output_mode: str
    trigger: str
    sources: tuple[PlannedSource, ...]
    sink: PlannedSink
    watermarks: tuple[WatermarkSpec, ...]
    operators: tuple[StateOperator, ...]
    state: StateLayout
    settings: Mapping[str, str]
    nodes: tuple[PlanNode, ...]
    pinned: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Expression, ...] = ()
    reading: int = READING

    @property
    def is_stateful(self) -> bool:
        return bool(self.operators)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The written columns that are keys of the operators, or the start or end of a window that is; () without any.

        A row with other values in the rest of its columns is another value of the same key.
        """
        origins = {key.origin for operator in self.operators for key in operator.keys if key.origin}
        ends = {
            f"{key.origin}.{end}"
            for operator in self.operators
            for key in operator.keys
            if operator.windows and key.origin
            for end in ("start", "end")
        }
        # Behind a function of the user, columns have origins of their own.
        names = {key.name for operator in self.operators for key in operator.keys if operator.kind in _OF_FUNCTIONS}
        return tuple(column.name for column in self.columns if column.origin in {*origins, *ends, *names})


@message
@dataclass(frozen=True)
class RecordedPlan(Message):
    """The plan that a query had when it was about to start.

    Attributes:
        number: of this plan of this query in its deployment, from 1; only a plan that differs gets one.
        attempt: the first one that started with it.
        first_batch_id: the first batch whose state it made, if it committed one; of a seed, and of state that was
            rewritten for it, the batch at which it started.
    """

    stream_id: StreamId
    deployment_id: RunId
    query_name: QueryName
    number: int
    attempt: Attempt
    plan: QueryPlan
    write_id: str
    recorded_at: datetime
    first_batch_id: int = 0


# The recorded settings of a session: those that change what a query computes, or how its state is kept.

PARTITIONS = "spark.sql.shuffle.partitions"
CHECKPOINT_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"

STATE_SETTINGS: tuple[str, ...] = (
    PARTITIONS,
    PROVIDER,
    CHECKPOINT_FORMAT,
    CHANGELOG,
    ENCODING,
    MERGE_OPERATOR,
    "spark.sql.streaming.stateStore.compression.codec",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.join.stateFormatVersion",
    "spark.sql.streaming.sessionWindow.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    "spark.sql.streaming.transformWithState.stateSchemaVersion",
)
"""Those that decide how state is kept."""

RESULT_SETTINGS: tuple[str, ...] = (
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.session.timeZone",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.timestampType",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.datetime.java8API.enabled",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.legacy.allowHashOnMapType",
    "spark.sql.legacy.sizeOfNull",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
    "spark.sql.streaming.statefulOperator.allowMultiple",
    "spark.sql.streaming.statefulOperator.useStrictDistribution",
    "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition",
    "spark.sql.streaming.stateStore.skipNullsForStreamStreamJoins.enabled",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution",
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
)
"""Those that decide which rows come out."""

SETTINGS: tuple[str, ...] = tuple(sorted((*STATE_SETTINGS, *RESULT_SETTINGS)))
"""All of them, sorted."""


def state_layout(settings: Mapping[str, str]) -> StateLayout:
    """How state is kept under these settings; by Spark's defaults where one is missing."""
    return StateLayout(
        partitions=_number(settings.get(PARTITIONS), 200),
        provider=settings.get(PROVIDER, ""),
        checkpoint_format=_number(settings.get(CHECKPOINT_FORMAT), 1),
        changelog=settings.get(CHANGELOG, "").lower() == "true",
        encoding=settings.get(ENCODING, "unsaferow").lower(),
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.strip().isdigit() else otherwise


# The recorded options of sources and sinks: those that decide what is read and written.
#
# Other options are not recorded, so no credential is, whatever its name. Names in lower case.

SOURCE_OPTIONS = frozenset(
    {
        # files
        "pathglobfilter", "recursivefilelookup", "latestfirst", "filenameonly", "modifiedbefore", "modifiedafter",
        "cleansource", "maxfileage", "basepath", "mergeschema", "multiline", "wholetext", "linesep", "header", "sep",
        "delimiter", "quote", "escape", "comment", "nullvalue", "emptyvalue", "mode", "columnnameofcorruptrecord",
        "dateformat", "timestampformat", "timestampntzformat", "timezone", "locale", "encoding", "charset", "rowtag",
        "primitivesasstring", "prefersdecimal", "dropfieldifallnull", "ignoreleadingwhitespace",
        "ignoretrailingwhitespace", "enforceschema",
        # Kafka
        "kafka.bootstrap.servers", "subscribe", "subscribepattern", "assign", "startingoffsets",
        "startingoffsetsbytimestamp", "startingtimestamp", "failondataloss", "includeheaders",
        "kafka.isolation.level",
        # tables
        "ignorechanges", "ignoredeletes", "skipchangecommits", "readchangefeed", "startingversion",
        "stream-from-timestamp", "streaming-skip-delete-snapshots", "streaming-skip-overwrite-snapshots", "branch",
        # rate and socket
        "rowspersecond", "rampuptime", "rowsperbatch", "advancemillisperbatch", "starttimestamp", "host", "port",
        "includetimestamp",
    }
)  # fmt: skip
"""Of sources: what is read, and how."""

PACE_OPTIONS = frozenset(
    {"maxfilespertrigger", "maxbytespertrigger", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay"}
    | {"minpartitions", "maxrecordsperpartition", "numpartitions"}
)
"""Of sources: how much is read in one batch, and in how many parts. They change no result."""

SINK_OPTIONS = frozenset(
    {
        "topic", "kafka.bootstrap.servers", "includeheaders", "compression", "header", "sep", "delimiter", "linesep",
        "nullvalue", "dateformat", "timestampformat", "timezone", "encoding", "ignorenullfields", "mergeschema",
        "overwriteschema", "replacewhere", "partitionoverwritemode", "txnappid", "txnversion", "fanout-enabled",
        "branch", "retention",
    }
)  # fmt: skip
"""Of sinks."""


def kept_options(options: Mapping[str, str], kept: frozenset[str], hide: Callable[[str], str]) -> dict[str, str]:
    """The options named in ``kept``, sorted, their values passed through ``hide``, which removes secrets."""
    return {name.lower(): hide(value) for name, value in sorted(options.items()) if name.lower() in kept}
