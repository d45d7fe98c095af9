"""Timers of processing time in the state of a checkpoint, read with Spark's own state reader."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from airflow_streamstate.driver.spark.state_rows import stores_of

_PROCESSING_TIME = "ProcessingTime"
_MODE = "timeMode"


def last_timer_ms(spark: Any, checkpoint_uri: str, timed_out_ids: Collection[int]) -> int | None:
    """When the last timer or timeout of processing time is due, at the last committed batch.

    Args:
        spark: the session.
        checkpoint_uri: the query's checkpoint.
        timed_out_ids: the operators whose state carries a timeout of processing time; those with timers of their own
            say so themselves.

    Returns:
        Milliseconds since 1970; None where no such timer is set.
    """
    found = []
    for row in stores_of(spark, checkpoint_uri):
        operator_id = int(row["operatorId"])
        reader = spark.read.format("statestore").option("operatorId", operator_id)
        if _has_timers(row):
            timers = reader.option("readRegisteredTimers", "true").load(checkpoint_uri)
            found.append(timers.selectExpr("max(expiration_timestamp_ms)").first()[0])
        elif operator_id in timed_out_ids:
            # -1 stands for none.
            state = reader.load(checkpoint_uri).where("value.timeoutTimestamp > 0")
            found.append(state.selectExpr("max(value.timeoutTimestamp)").first()[0])
    return max((int(due_ms) for due_ms in found if due_ms is not None), default=None)


def _has_timers(row: Any) -> bool:
    described = row.asDict().get("operatorProperties") or "{}"
    return bool(json.loads(described).get(_MODE) == _PROCESSING_TIME)
