"""Builds the recorded plan from Spark's JSON of an analyzed plan, and from facts that the driver knows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from airflow_streamstate.errors import DataError
from airflow_streamstate.older_python import zipped
from airflow_streamstate.plan.expressions import (
    Column,
    ExpressionText,
    columns_of,
    object_name,
    origin_of,
    terms_below,
    without_alias,
)
from airflow_streamstate.plan.model import (
    Expression,
    OperatorInput,
    OperatorKind,
    PlannedSink,
    PlannedSource,
    PlanNode,
    QueryPlan,
    StateOperator,
    Window,
    state_layout,
)
from airflow_streamstate.plan.nodes import (
    RELATIONS,
    WINDOW,
    Describer,
    Node,
    after_children,
    conjuncts,
    is_nameless,
    plan_tree,
)
from airflow_streamstate.protocol.positions import WatermarkSpec

# Spark's ``IncrementalExecution`` goes through the planned tree from the top down, left to right, and gives the next
# id to each operator that keeps state; so the topmost has id 0.

_KINDS: dict[str, tuple[OperatorKind, str]] = {
    "Aggregate": ("aggregate", "stateStoreSave"),
    "Distinct": ("aggregate", "stateStoreSave"),
    "Deduplicate": ("deduplicate", "dedupe"),
    "DeduplicateWithinWatermark": ("deduplicate_within_watermark", "dedupeWithinWatermark"),
    "Join": ("stream_join", "symmetricHashJoin"),
    "FlatMapGroupsWithState": ("flat_map_groups_with_state", "flatMapGroupsWithState"),
    "FlatMapGroupsInPandasWithState": ("apply_in_pandas_with_state", "applyInPandasWithState"),
    "TransformWithState": ("transform_with_state", "transformWithStateExec"),
    "TransformWithStateInPySpark": ("transform_with_state", "transformWithStateInPySparkExec"),
    "GlobalLimit": ("global_limit", "globalLimit"),
}
_SESSION: tuple[OperatorKind, str] = ("session_window", "sessionWindowStateStoreSaveExec")
_OF_ROWS = (213, 214)  # pyspark's PythonEvalType of a processor over rows, without and with initial state
_LIMIT = "GlobalLimit"
_SHOWN_IN_PATH = 6


@dataclass
class Walked:
    """The result of a walk from the top down.

    Attributes:
        operators: in the order of their ids.
        nodes: the recorded tree.
        source_paths: the place of each source, by its number.
    """

    operators: tuple[StateOperator, ...] = ()
    nodes: tuple[PlanNode, ...] = ()
    source_paths: dict[int, str] = field(default_factory=dict)


@dataclass
class _Draft:
    node: Node
    sides: list[Node]
    path: str
    limit: int | None
    next_below: list[list[int]]


@dataclass(frozen=True)
class _Stop:
    node: Node
    depth: int
    above: tuple[int, int] | None  # the operator above, and its side
    path: tuple[str, ...]


def walk(root: Node, output_mode: str, watermarks: Sequence[WatermarkSpec]) -> Walked:
    """Number the operators of a described plan; ``watermarks`` are in the order of the plan."""
    drafts: list[_Draft] = []
    nodes: list[PlanNode] = []
    walked = Walked()
    merged: set[int] = set()
    stack = [_Stop(root, 0, None, ())]
    while stack:
        stop = stack.pop()
        node, above = stop.node, stop.above
        operator_id = None
        if id(node) not in merged and is_operator(node, output_mode):
            operator_id = len(drafts)
            if above is not None:
                drafts[above[0]].next_below[above[1]].append(operator_id)
            drafts.append(_draft(node, _path((*stop.path, node.kind)), merged))
        source = node.number if node.kind in RELATIONS else None
        if source is not None:
            walked.source_paths.setdefault(source, _path((*stop.path, node.kind)))
        if not node.is_unseen:
            nodes.append(PlanNode(node.kind, node.text, stop.depth, operator_id, source))
        stack.extend(reversed(list(_below(stop, operator_id))))
    walked.operators = tuple(_operator(number, draft, watermarks) for number, draft in enumerate(drafts))
    walked.nodes = tuple(nodes)
    return walked


def is_operator(node: Node, output_mode: str) -> bool:
    """Whether Spark keeps state for a node."""
    if node.kind not in _KINDS or not node.is_streaming:
        return False
    if node.kind == "Join":
        return all(child.is_streaming for child in node.children)
    if node.kind == _LIMIT:
        return output_mode == "append" or not node.children[0].has_aggregate
    return True


def _below(stop: _Stop, operator_id: int | None) -> Iterator[_Stop]:
    node = stop.node
    depth = stop.depth if node.is_unseen else stop.depth + 1
    for side, child in enumerate(node.children):
        above = (operator_id, min(side, 1 if node.kind == "Join" else 0)) if operator_id is not None else stop.above
        path = stop.path
        if len(node.children) > 1:
            path = (*path, f"{node.kind}[{side}]")
        elif operator_id is not None:
            path = (*path, node.kind)
        yield _Stop(child, depth, above, path[-_SHOWN_IN_PATH - 1 :])


def _path(kinds: tuple[str, ...]) -> str:
    shown = kinds[-_SHOWN_IN_PATH:]
    return " > ".join(("…", *shown) if len(kinds) > len(shown) else shown)


def _draft(node: Node, path: str, merged: set[int]) -> _Draft:
    limit = None
    sides = node.children[: 2 if node.kind == "Join" else 1]
    if node.kind == _LIMIT:
        limit = _limit_of(node)
        inner = _limit_below(node)
        while inner is not None:  # Spark merges limits on top of each other
            merged.add(id(inner))
            limit = None if limit is None else min(limit, _limit_of(inner) or limit)
            sides = inner.children
            inner = _limit_below(inner)
    return _Draft(node, [_without_own_window(node, side) for side in sides], path, limit, [[] for _ in sides])


def _limit_of(node: Node) -> int | None:
    text = node.terms["limitExpr"][0].text
    return int(text) if text.isdigit() else None


def _limit_below(node: Node) -> Node | None:
    below = node.children[0]
    while below.kind == "Project" or below.is_unseen:
        if len(below.children) != 1:
            return None
        below = below.children[0]
    return below if below.kind == _LIMIT else None


def _without_own_window(node: Node, below: Node) -> Node:
    """What feeds an aggregation, below the projection of the window that is its own key."""
    if node.kind != "Aggregate":
        return below
    keys = {term.expr_id for term in node.terms.get("groupingExpressions", ())}
    found = below
    while found.is_unseen or found.kind == WINDOW:
        if found.kind == WINDOW and not any(column.expr_id in keys and column.window for column in found.columns):
            break
        found = found.children[0]
    return found


def _operator(number: int, draft: _Draft, watermarks: Sequence[WatermarkSpec]) -> StateOperator:
    node = draft.node
    kind, spark_name = _KINDS[node.kind]
    if node.kind == "TransformWithStateInPySpark" and not _takes_rows(node):
        spark_name = "transformWithStateInPandasExec"
    inputs = tuple(
        OperatorInput(side.digest, side.line, side.expressions(), side.sources, tuple(below), _specs(side, watermarks))
        for side, below in zipped(draft.sides, draft.next_below)
    )
    keys, windows = _keys(node)
    if any(window.kind == "session" for window in windows):
        kind, spark_name = _SESSION
    operator = StateOperator(number, kind, spark_name, inputs, draft.path, keys=keys, windows=windows)
    return replace(operator, limit=draft.limit, **_more(node))


def _takes_rows(node: Node) -> bool:
    """Whether a Python processor gets rows, not frames of pandas; Spark names the two differently."""
    return any(term.fields.get("evalType") in _OF_ROWS for term in node.terms.get("functionExpr", ()))


def _specs(node: Node, watermarks: Sequence[WatermarkSpec]) -> tuple[WatermarkSpec, ...]:
    return tuple(watermarks[number] for number in node.watermarks if number < len(watermarks))


def _keys(node: Node) -> tuple[tuple[Expression, ...], tuple[Window, ...]]:
    terms = _key_terms(node)
    by_id = {column.expr_id: column for child in node.children for column in child.columns}
    names = {
        without_alias(term).text: str(term.fields["name"])
        for term in node.terms.get("aggregateExpressions", ())
        if term.kind == "Alias"
    }
    keys, windows = [], []
    for term in terms:
        column = by_id.get(term.expr_id) if term.expr_id is not None else None
        keys.append(_key(term, column, names.get(term.text, ""), by_id))
        window = column.window if column is not None else term.window
        if window is not None:
            windows.append(window)
    return tuple(keys), tuple(windows)


def _key(term: ExpressionText, column: Column | None, name: str, by_id: dict[int, Column]) -> Expression:
    if column is None:
        return Expression(term.text, term.type, name, origin=origin_of(term, by_id))
    return Expression(term.text, term.type or column.type, column.name, column.is_event_time, column.origin)


def _key_terms(node: Node) -> list[ExpressionText]:
    if node.kind == "Join":
        pairs = _equal_pairs(node)
        return [left for left, _ in pairs] + [right for _, right in pairs]
    if node.kind == "Distinct":
        return [_as_term(column) for column in node.children[0].columns]
    if "groupingAttributesLen" in node.fields:
        return [_as_term(column) for column in node.children[0].columns[: int(node.fields["groupingAttributesLen"])]]
    for name in ("groupingExpressions", "groupingAttributes", "keys"):
        if name in node.terms:
            return node.terms[name]
    return []


def _as_term(column: Column) -> ExpressionText:
    return ExpressionText("AttributeReference", column.name, column.type, (), {}, column.expr_id)


def _equal_pairs(node: Node) -> list[tuple[ExpressionText, ExpressionText]]:
    """What must be equal on both sides: the keys of a join's state."""
    left, right = ({column.expr_id for column in child.columns} for child in node.children)
    pairs = []
    for part in (part for term in node.terms.get("condition", ()) for part in conjuncts(term)):
        if part.kind not in ("EqualTo", "EqualNullSafe"):
            continue
        one, other = part.children
        if _is_of(one, left) and _is_of(other, right):
            pairs.append((one, other))
        elif _is_of(one, right) and _is_of(other, left):
            pairs.append((other, one))
    return pairs


def _is_of(term: ExpressionText, columns: set[int]) -> bool:
    used = {one.expr_id for one in terms_below(term, "AttributeReference")}
    return bool(used) and used <= columns


def _more(node: Node) -> dict[str, Any]:
    """Fields that only some kinds have."""
    fields = node.fields
    found: dict[str, Any] = {
        "aggregates": _aggregates(node),
        "output_mode": object_name(fields.get("outputMode")).lower(),
        "time_mode": object_name(fields.get("timeMode")),
        "timeout": object_name(fields.get("timeout")),
        "state_schema": columns_of(fields.get("stateType")),
        "has_initial_state": fields.get("hasInitialState") is True,
        "function": _function(node),
    }
    if node.kind == "Join":
        found["join_type"] = object_name(fields.get("joinType"))
        found["condition"] = " AND ".join(term.text for term in node.terms.get("condition", ()))
    return found


def _function(node: Node) -> str:
    terms = [term for term in node.terms.get("functionExpr", ()) if not is_nameless(term)]
    return str(terms[0].fields.get("name", "")) if terms else ""


def _aggregates(node: Node) -> tuple[Expression, ...]:
    """Each function once, as Spark keeps it, in the order of the plan."""
    by_id = {column.expr_id: column for child in node.children for column in child.columns}
    found: dict[str, Expression] = {}
    for term in node.terms.get("aggregateExpressions", ()):
        name = str(term.fields["name"]) if term.kind == "Alias" else ""
        for function in terms_below(term, "AggregateExpression"):
            origin = origin_of(function, by_id)
            found.setdefault(function.text, Expression(function.text, function.type, name, origin=origin))
    return tuple(found.values())


_FREE_TEXTS = ("value", "name", "sourceName", "comment")


@dataclass(frozen=True)
class PlanFacts:
    """What the text of a plan does not contain.

    Attributes:
        query_name, spark_version, output_mode, trigger, sink, settings, pinned: as in ``model.QueryPlan``.
        watermarks: in the order of the plan.
        sources: in the order of the offset lines, without columns and path; () where unknown.
        places: of each of these, which source of the plan it is, counted from the top, left to right.
        hide: removes secrets from a text.
    """

    query_name: str
    spark_version: str
    output_mode: str
    trigger: str
    sink: PlannedSink
    watermarks: tuple[WatermarkSpec, ...] = ()
    sources: tuple[PlannedSource, ...] = ()
    places: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    hide: Callable[[str], str] = str


def read_plan(analyzed: str, facts: PlanFacts) -> QueryPlan:
    """The plan of a query.

    Args:
        analyzed: ``queryExecution().analyzed().toJSON()`` of the frame that is written.

    Raises:
        DataError: Spark wrote it in an unknown form.
    """
    try:
        return _read(analyzed, facts)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(
            "the plan of this query cannot be read",
            query_name=facts.query_name,
            spark_version=facts.spark_version,
            reason=f"{type(error).__name__}: {str(error)[:200]}",
            next_step="Nothing need be done for the query; changes of its plan cannot be detected before an upgrade.",
        ) from None


def _read(analyzed: str, facts: PlanFacts) -> QueryPlan:
    root = plan_tree(json.loads(analyzed, object_hook=_hiding(facts.hide)))
    relations = sorted(
        (node for node in after_children(root) if node.kind in RELATIONS), key=lambda node: node.number or 0
    )
    sources, numbers = _sources(relations, facts)
    for node in relations:
        node.number = numbers[node.number or 0]
    watermarks = [f"{each.column}, {each.delay_ms} ms" for each in facts.watermarks]
    Describer([_source_text(source) for source in sources], watermarks).describe(root)
    walked = walk(root, facts.output_mode, facts.watermarks)
    columns = {node.number: node.expressions() for node in relations}
    return QueryPlan(
        query_name=facts.query_name,
        spark_version=facts.spark_version,
        output_mode=facts.output_mode,
        trigger=facts.trigger,
        sources=tuple(
            replace(source, columns=columns.get(number, ()), path=walked.source_paths.get(number, ""))
            for number, source in enumerate(sources)
        ),
        sink=facts.sink,
        watermarks=facts.watermarks,
        operators=walked.operators,
        state=state_layout(facts.settings),
        settings=dict(sorted(facts.settings.items())),
        nodes=walked.nodes,
        pinned=dict(sorted(facts.pinned.items())),
        columns=root.expressions(),
    )


def _hiding(hide: Callable[[str], str]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A JSON hook that removes secrets from literals and names."""
    hidden = cache(hide)

    def hook(node: dict[str, Any]) -> dict[str, Any]:
        for field_name in _FREE_TEXTS:
            if isinstance(node.get(field_name), str):
                node[field_name] = hidden(node[field_name])
        return node

    return hook


def _sources(relations: list[Node], facts: PlanFacts) -> tuple[tuple[PlannedSource, ...], dict[int, int]]:
    """The sources in the order of the offset lines, and for each place in the plan the number of its source."""
    if facts.sources and len(facts.sources) == len(relations) and sorted(facts.places) == list(range(len(relations))):
        return facts.sources, {place: number for number, place in enumerate(facts.places)}
    stated = tuple(
        PlannedSource(
            str(node.fields.get("sourceName", "")).partition("[")[0].lower(),
            identity=str(node.fields.get("sourceName", "")),
        )
        for node in relations
    )
    return stated, {number: number for number in range(len(relations))}


def _source_text(source: PlannedSource) -> str:
    return " ".join(part for part in (source.format, source.identity, source.name) if part)
