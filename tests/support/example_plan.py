"""One plan with every field filled; the golden file started as this."""

from __future__ import annotations

from airflow_streamstate.plan.model import (
    Expression,
    OperatorInput,
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

_WATERMARK = WatermarkSpec("event_time", 300_000)
_KEY = Expression("shop", "string", "shop", origin="upper(shop_code)")
_ROWS = (Expression("event_time", "timestamp", "event_time", True, "event_time"), _KEY)
EXAMPLE_PLAN = QueryPlan(
    query_name="counts per minute",
    spark_version="4.2.0",
    output_mode="append",
    trigger="processing_time",
    sources=(
        PlannedSource(
            "kafka", "kafka", "kafka orders at broker:9092", {"subscribe": "orders"}, _ROWS, "orders",
            "Aggregate > StreamingRelationV2",
        ),
    ),
    sink=PlannedSink("file:parquet", "parquet", "/data/counts", "file", "batch_id", {"compression": "zstd"}, ("day",)),
    watermarks=(_WATERMARK,),
    operators=(
        StateOperator(
            0, "stream_join", "symmetricHashJoin", (OperatorInput("0123456789abcdef", "StreamingRelationV2(kafka)"),),
            "Join", (_KEY,), join_type="LeftOuter", condition="(shop@1 = shop@2)",
        ),
        StateOperator(
            1, "aggregate", "stateStoreSave",
            (OperatorInput("fedcba9876543210", "Project(…)", _ROWS, (0,), (2,), (_WATERMARK,)),),
            "Join[0] > Aggregate", (_KEY,), (Window("sliding", "event_time", 600_000, 300_000, 0),),
            (Expression("Count(1)", "bigint", "n", origin="Count(1)"),),
        ),
        StateOperator(
            2, "transform_with_state", "transformWithStateInPySparkExec", (), "Join[1] > TransformWithStateInPySpark",
            function="counted", output_mode="append", time_mode="EventTime", timeout="NoTimeout", limit=5,
            state_schema="n bigint", has_initial_state=True,
            variables=(StateVariable("seen", "map", True, "shop string", "n bigint"), StateVariable("", "timer")),
            key_schema="shop string", value_schema="n bigint",
        ),
    ),
    state=StateLayout(8, "RocksDBStateStoreProvider", 2, True, "avro"),
    settings={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "8"},
    nodes=(PlanNode("Aggregate", "by [shop]: shop, Count(1) AS n", 0, 1), PlanNode("Relation", "kafka", 1, source=0)),
    pinned={"spark.sql.shuffle.partitions": "4"},
    columns=_ROWS,
)  # fmt: skip
