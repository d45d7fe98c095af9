"""The plan of a query as it is kept: what decides its results and its state, without what differs each time.

Normalised means: no expression ids, no ids of a JVM, no addresses of objects, no random ids. Equal scripts have equal
plans, on each Spark that ``reading`` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.positions import WatermarkSpec

READING = 1
"""Number of the way in which plans are normalised: digests and texts of another number are not to be compared."""

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

WindowKind = Literal["tumbling", "sliding", "session"]

VariableKind = Literal["value", "list", "map", "timer"]


@dataclass(frozen=True)
class Expression:
    """A column or an expression of a plan.

    Attributes:
        text: normalised; columns by their names.
        type: Spark's short word for its type, e.g. ``bigint``; "" where the plan does not say.
        name: that it has in the output; "" for none.
        is_event_time: whether state by it can end by the watermark: a column with one, or a window over it.
        origin: the same in the columns of the sources, and of the stateful operators below; a digest where it is long.
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
        kind: ``tumbling``, ``sliding`` or ``session``.
        column: the expression of the time.
        duration_ms: its length; of a session: its gap, None where that is an expression of the row.
        slide_ms: between two starts; equal to the length of a tumbling one; None for a session.
        offset_ms: of the starts; None for a session.
        gap: of a session whose gap is an expression: its text; "" for all else.
    """

    kind: WindowKind
    column: str
    duration_ms: int | None
    slide_ms: int | None = None
    offset_ms: int | None = None
    gap: str = ""


@dataclass(frozen=True)
class StateVariable:
    """A variable of a ``transformWithState``.

    Attributes:
        name: by which the processor asks for it.
        kind: ``value``, ``list``, ``map`` or ``timer``.
        has_ttl: whether its values end by themselves.
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
        text: the same for people, one line.
        columns: of the rows that come.
        sources: the numbers of the sources below (``QueryPlan.sources``), ascending.
        operators: the ids of the stateful operators below that are the next ones, ascending.
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
        operator_id: Spark's number of it: its place, by which it finds its state.
        kind: what it is.
        spark_name: the name that Spark gives it in the metadata of its state, e.g. ``stateStoreSave``.
        inputs: what feeds it: one, of a join two, left before right.
        path: where it stands in the plan, for people: the kinds of the nodes from the top, ``Project > Aggregate``.
        keys: by which its state is kept, windows included; of a join: of both sides, left before right.
        windows: among the keys.
        aggregates: of an aggregation.
        join_type: ``Inner``, ``LeftOuter``, ``RightOuter``, ``FullOuter``, ``LeftSemi``; "" where it is no join.
        condition: of a join, whole; "" for none.
        function: the name of the user's function or processor; "" where there is none, or the plan does not say.
        output_mode: of an operator that has its own; "" for none.
        time_mode: of a ``transformWithState``: ``NoTime``, ``ProcessingTime`` or ``EventTime``; "" for others.
        timeout: of an operator with a timeout: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``.
        limit: of a limit: its rows; None for others.
        state_schema: of the user's state (``applyInPandasWithState``), DDL; "" where unknown.
        has_initial_state: of an operator that can be given some.
        variables: of a ``transformWithState``; None where nobody knows them yet.
        key_schema, value_schema: as the checkpoint has them; "" where there is none, or it does not say.
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
        """The digests of what feeds it: two operators of one shape are told apart by these."""
        return tuple(each.digest for each in self.inputs)


@dataclass(frozen=True)
class PlannedSource:
    """A source of a query, as it is kept.

    Attributes:
        format: lower case, e.g. ``kafka``, ``json``, ``rate``.
        adapter: the source connector that knows it; "" where none does.
        identity: what it reads, in that connector's words (path, topics, table), or what the plan calls it; no secrets.
        options: those that decide what is read and how, names in lower case; no secrets.
        columns: of its rows.
        name: that the script gave it, by which Spark finds its offset; "" for none.
        path: where it stands in the plan, for people.
        sends_once: why it cannot read again what it has read, by its connector; "" where it can, or that is not known.
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
    """The sink of a query, as it is kept.

    Attributes:
        kind: ``file:parquet``, ``memory``, ``foreachBatch``, ``console``, ``noop``, ``kafka``, ``delta``,
            ``table:NAME`` …: what the writer says.
        format: lower case; of a table: its provider, "" where nobody knows.
        target: where it is: path, table, topic; "" for none. No secrets.
        adapter: the sink connector that knows it; "" where none does.
        skips: by what it knows a batch that it was given before, and skips it: ``batch_id``,
            ``query_id_and_batch_id``, ``nothing`` or ``unknown``.
        options: those that decide what is written, names in lower case; no secrets.
        partitioned_by: columns.
    """

    kind: str
    format: str = ""
    target: str = ""
    adapter: str = ""
    skips: str = "unknown"
    options: Mapping[str, str] = field(default_factory=dict)
    partitioned_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateLayout:
    """How state is kept, as the session asks for it: a checkpoint that is there may hold Spark to another one.

    Attributes:
        partitions: of the state of each operator (``spark.sql.shuffle.partitions``).
        provider: class of the state store.
        checkpoint_format: ``spark.sql.streaming.stateStore.checkpointFormatVersion``; 1 where Spark has no other.
        changelog: whether RocksDB writes changelogs.
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
        text: its expressions; "" for none.
        depth: 0 for the top.
        operator_id: of a node that is a stateful operator; None for others.
        source: of a node that is a source: its number in ``QueryPlan.sources``; None for others.
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
        query_name: of the query, as everywhere else here.
        spark_version: that made it.
        output_mode: ``append``, ``update`` or ``complete``.
        trigger: as the writer says, e.g. ``processing_time``.
        sources: in the order of the lines of the offset log.
        sink: what it writes to.
        watermarks: in the order of the plan, from the top down.
        operators: in the order of their ids: number i is the one with id i.
        state: how their state is kept.
        settings: those of the session that change results or state, effective values (``plan.settings``).
        pinned: the same as the checkpoint's own log has them, where the query goes on: they win; {} for a fresh one.
        nodes: the tree, the node before its children, left to right.
        columns: of the rows that are written.
        reading: number of the way in which it was normalised.
    """

    query_name: str
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
        """Whether any operator keeps state."""
        return bool(self.operators)


@message
@dataclass(frozen=True)
class RecordedPlan(Message):
    """The plan that a query had when it was about to start.

    Attributes:
        number: of this plan of this query in its deployment, from 1; only a plan that differs gets one.
        attempt: the first one that started with it.
        write_id: of this record.
    """

    stream_id: str
    deployment_id: str
    query_name: str
    number: int
    attempt: int
    plan: QueryPlan
    write_id: str
    recorded_at: datetime
