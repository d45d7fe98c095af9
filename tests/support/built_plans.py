"""Plans built by hand, for what no script of the truth table shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import (
    Expression,
    OperatorInput,
    OperatorKind,
    PlannedSink,
    PlannedSource,
    PlanNode,
    QueryPlan,
    StateLayout,
    StateOperator,
    StateVariable,
    Window,
)
from airflow_streamstate.protocol.positions import WatermarkSpec

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TOPIC = PlannedSource("kafka", "kafka", "subscribe:orders", path="StreamingRelation")
WINDOW = Window("tumbling", "ts", 60_000, 60_000, 0)


def operator(operator_id: int = 0, kind: OperatorKind = "aggregate", **facts: Any) -> StateOperator:
    """An operator: a count per window and key over the first source, unless given otherwise."""
    usual: dict[str, Any] = {
        "inputs": (OperatorInput(f"digest-{operator_id}", f"orders {operator_id}", sources=(0,)),),
        "path": f"Aggregate {operator_id}",
        "keys": (Expression("window", "struct", "window", True), Expression("k", "string", "k")),
        "windows": (WINDOW,),
        "aggregates": (Expression("Count(1)", "bigint", "n"),),
    }
    if kind not in ("aggregate", "session_window"):
        usual |= {"windows": (), "aggregates": ()}
    return StateOperator(operator_id, kind, "stateStoreSave", **{**usual, **facts})


def plan(*operators: StateOperator, **facts: Any) -> QueryPlan:
    """A plan of these operators, side by side over one topic; of one count where none is given."""
    found = operators or (operator(),)
    nodes = [PlanNode("Union", "", 0)]
    for each in found:
        nodes += [
            PlanNode(each.path.partition(" ")[0], "", 1, each.operator_id),
            PlanNode("StreamingRelation", "", 2, None, 0),
        ]
    usual: dict[str, Any] = {
        "query_name": "counts",
        "spark_version": "4.2.0",
        "output_mode": "append",
        "trigger": "processing_time",
        "sources": (TOPIC,),
        "sink": PlannedSink("file:parquet", "parquet", "/out", "file", "batch_id"),
        "watermarks": (WatermarkSpec("ts", 10_000),),
        "operators": found,
        "state": StateLayout(200, ROCKSDB),
        "settings": {"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
        "nodes": tuple(nodes),
        "columns": (Expression("k", "string", "k"), Expression("n", "bigint", "n")),
    }
    return QueryPlan(**{**usual, **facts})


def without_state(**facts: Any) -> QueryPlan:
    """A plan that keeps no state."""
    nodes = (PlanNode("Filter", "(v > 1)", 0), PlanNode("StreamingRelation", "", 1, None, 0))
    usual: dict[str, Any] = {"operators": (), "watermarks": (), "nodes": nodes}
    return replace(plan(), **{**usual, **facts})


def processor(*variables: StateVariable, known: bool = True, **facts: Any) -> StateOperator:
    """A ``transformWithState`` with these variables."""
    usual: dict[str, Any] = {
        "keys": (Expression("k", "string", "k"),),
        "time_mode": "EventTime",
        "variables": variables if known else None,
    }
    return operator(0, "transform_with_state", **{**usual, **facts})


def describe(old: QueryPlan, new: QueryPlan) -> list[tuple[str, str, str]]:
    """What a comparison of two plans reports about each difference: its code, its path, its reason."""
    return [(each.code, each.path, each.reason) for each in compare(old, new).differences]
