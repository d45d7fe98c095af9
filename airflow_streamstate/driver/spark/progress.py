"""Parses Spark's progress reports (JSON). Imports no pyspark."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_streamstate.driver.attempt.ports import OperatorRows, Progress
from airflow_streamstate.protocol.codec import parse_time

EPOCH = "1970-01-01T00:00:00.000Z"
STATE_LOAD = "rocksdbLoadLatencyMs"


def ran_a_batch(raw: Mapping[str, Any]) -> bool:
    """Whether a batch was executed, and so committed; the report of an idle trigger has the next batch's id."""
    return "addBatch" in (raw.get("durationMs") or {})


def looks_skipped(raw: Mapping[str, Any]) -> bool:
    """Whether the offsets of a source moved on in this executed batch although no row was read.

    The report looks so when a sink skips a batch that it holds, and also for input without a row (empty files, aborted
    transactions). A first batch that only finds where the source begins moves nothing on.
    """
    if not ran_a_batch(raw) or _count(raw.get("numInputRows")) > 0:
        return False
    sources = [source for source in raw.get("sources") or () if isinstance(source, Mapping)]
    return any(
        source.get("startOffset") is not None and source.get("endOffset") not in (None, source.get("startOffset"))
        for source in sources
    )


def parse_progress(executed: Mapping[str, Any], newest: Mapping[str, Any]) -> Progress:
    """The progress of an executed batch, with the current rates.

    Args:
        newest: the report of the last trigger; the same object as ``executed`` where that executed a batch.
    """
    sources = [source for source in executed.get("sources") or () if isinstance(source, Mapping)]
    operators = [operator for operator in executed.get("stateOperators") or () if isinstance(operator, Mapping)]
    output_rows = (executed.get("sink") or {}).get("numOutputRows")
    watermark = (executed.get("eventTime") or {}).get("watermark")
    return Progress(
        batch_id=int(executed["batchId"]),
        input_rows=_count(executed.get("numInputRows")),
        # Spark reports -1 for a sink that does not count.
        output_rows=output_rows if isinstance(output_rows, int) and output_rows >= 0 else None,
        state=tuple(
            OperatorRows(str(operator.get("operatorName", "")), index, _count(operator.get("numRowsTotal")))
            for index, operator in enumerate(operators)
        ),
        watermark_at=None if watermark in (None, EPOCH) else parse_time(str(watermark)),
        source_descriptions=tuple(str(source.get("description", "")) for source in sources),
        end_offsets=tuple(_offset(source.get("endOffset")) for source in sources),
        input_rows_per_second=_rate(newest.get("inputRowsPerSecond")),
        processed_rows_per_second=_rate(newest.get("processedRowsPerSecond")),
        dropped_rows=sum(_count(operator.get("numRowsDroppedByWatermark")) for operator in operators),
        is_idle=newest is not executed,
        source_metrics=tuple(_texts(source.get("metrics")) for source in sources),
        triggered_at=parse_time(str(executed["timestamp"])) if executed.get("timestamp") else None,
        durations_ms={str(part): _count(took) for part, took in (executed.get("durationMs") or {}).items()},
        state_load_ms=_state_load_ms(operators),
    )


def _state_load_ms(operators: Sequence[Mapping[str, Any]]) -> int | None:
    """Measured by the RocksDB store only."""
    measured = [(operator.get("customMetrics") or {}).get(STATE_LOAD) for operator in operators]
    return sum(map(_count, measured)) if operators and None not in measured else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _offset(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _texts(metrics: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in metrics.items()} if isinstance(metrics, Mapping) else {}
