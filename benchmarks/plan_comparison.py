"""How long it takes to compare two plans of 200 operators with state, each with a filter that differs.

Compared with reading the two plans from their records, which every comparison has to do first.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from statistics import median

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.plan.comparison import compare
from airflow_streamstate.plan.model import (
    Expression,
    OperatorInput,
    PlannedSink,
    PlannedSource,
    PlanNode,
    QueryPlan,
    RecordedPlan,
    StateLayout,
    StateOperator,
    Window,
)
from airflow_streamstate.protocol.codec import from_bytes, to_bytes
from benchmarks.results import BenchmarkError, Goal, Number, Result, Side
from benchmarks.session import Session

NAME = "plan-comparison"
OPERATORS = 200
COLUMNS = 20
ROUNDS, QUICK_ROUNDS = 15, 5
GOAL_SECONDS = 0.05


def run(session: Session) -> list[Result]:
    """Measure it."""
    old, new = _plan(1), _plan(2)
    bodies = [_record(plan) for plan in (old, new)]
    rounds: list[dict[str, Number]] = []
    for _ in range(QUICK_ROUNDS if session.quick else ROUNDS):
        began = SYSTEM_CLOCK.monotonic_seconds()
        read = [from_bytes(body, key="plan", expected=RecordedPlan).plan for body in bodies]
        after = SYSTEM_CLOCK.monotonic_seconds()
        found = compare(*read)
        rounds.append({"read": after - began, "compare": SYSTEM_CLOCK.monotonic_seconds() - after})
        if len(found.differences) != OPERATORS:
            raise BenchmarkError(f"{len(found.differences)} differences where {OPERATORS} were made")
    compared, read_seconds = (median(float(each[name] or 0) for each in rounds) for name in ("compare", "read"))
    return [
        Result(
            NAME,
            Side(f"two plans of {OPERATORS} operators compared", compared, "s"),
            Side("the same read from their records", read_seconds, "s"),
            compared / read_seconds,
            "of that",
            Goal("50 ms for 200 operators", compared, "<=", GOAL_SECONDS, "s"),
            tuple(rounds),
        )
    ]


def _plan(limit: int) -> QueryPlan:
    """A chain of counts per window and key, each over a filter and a projection of many columns."""
    operators, nodes = [], []
    for number in range(OPERATORS):
        below = (number + 1,) if number + 1 < OPERATORS else ()
        fed = OperatorInput(f"{number}-{limit}", f"counts {number}", sources=(0,), operators=below)
        operators.append(
            StateOperator(
                number,
                "aggregate",
                "stateStoreSave",
                (fed,),
                f"Aggregate {number}",
                keys=(Expression("window", "struct", "window", True), Expression("k", "string", "k")),
                windows=(Window("tumbling", "ts", 60_000, 60_000, 0),),
                aggregates=(Expression("Sum(v)", "bigint", "v"),),
            )
        )
        columns = ", ".join(f"c{column}" for column in range(COLUMNS))
        nodes += [
            PlanNode("Aggregate", "by [window, k]: Sum(v) AS v", 3 * number, number),
            PlanNode("Filter", f"(v > {limit})", 3 * number + 1),
            PlanNode("Project", f"ts, k, (v * 2) AS v, {columns}", 3 * number + 2),
        ]
    nodes.append(PlanNode("StreamingRelation", "", 3 * OPERATORS, None, 0))
    return replace(_EMPTY, operators=tuple(operators), nodes=tuple(nodes))


_EMPTY = QueryPlan(
    "counts",
    "4.2.0",
    "append",
    "processing_time",
    (PlannedSource("kafka", "kafka", "subscribe:orders"),),
    PlannedSink("noop", "noop", skips="nothing"),
    (),
    (),
    StateLayout(200, "RocksDBStateStoreProvider"),
    {},
    (),
)


def _record(plan: QueryPlan) -> bytes:
    moment = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return to_bytes(RecordedPlan("orders", "d-0001", "counts", 1, 1, plan, "", moment))
