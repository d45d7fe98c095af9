"""Spark's progress reports: parses one, and counts over all reports of a run.

Spark keeps the last hundred reports, so a caller has to count at least that often.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_streamstate.driver.attempt.ports import OperatorRows, QueryProgress, SkippedBySink
from airflow_streamstate.driver.spark.jvm import jvm_answers
from airflow_streamstate.protocol.codec import parse_time

EPOCH = "1970-01-01T00:00:00.000Z"
STATE_LOAD = "rocksdbLoadLatencyMs"
Ran = Callable[[Collection[int], bool], Mapping[int, bool]]
"""Of each of these batches, whether its plan ran; batches without a record are left out. The second argument means
that this is the last question: then records that Spark is still writing are waited for."""
LOOKS = 3
"""After this many polls a batch without a record counts as skipped."""
REMEMBERED = 99  # Spark's default
_SHOWN = 10


def ran_a_batch(raw: Mapping[str, Any]) -> bool:
    """Whether a batch was executed, and so committed; the report of an idle trigger has the next batch's id."""
    return "addBatch" in (raw.get("durationMs") or {})


def looks_skipped(raw: Mapping[str, Any]) -> bool:
    """Whether the offsets of a source moved on in this executed batch although no row was read.

    The report looks so when a sink skips a batch that it holds, and also for input without a row (empty files, aborted
    transactions). A first batch that only finds where the source starts moves nothing on.
    """
    if not ran_a_batch(raw) or _count(raw.get("numInputRows")) > 0:
        return False
    sources = [source for source in raw.get("sources") or () if isinstance(source, Mapping)]
    return any(
        source.get("startOffset") is not None and source.get("endOffset") not in (None, source.get("startOffset"))
        for source in sources
    )


def parse_progress(executed: Mapping[str, Any], newest: Mapping[str, Any]) -> QueryProgress:
    """The progress of an executed batch, with the current rates.

    Args:
        newest: the report of the last trigger; the same object as ``executed`` if that executed a batch.
    """
    sources = [source for source in executed.get("sources") or () if isinstance(source, Mapping)]
    operators = [operator for operator in executed.get("stateOperators") or () if isinstance(operator, Mapping)]
    output_rows = (executed.get("sink") or {}).get("numOutputRows")
    watermark = (executed.get("eventTime") or {}).get("watermark")
    return QueryProgress(
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
        state_memory_bytes=_state_memory_bytes(operators),
    )


def _state_memory_bytes(operators: Sequence[Mapping[str, Any]]) -> int | None:
    used = [operator.get("memoryUsedBytes") for operator in operators]
    return sum(map(_count, used)) if operators and None not in used else None


def _state_load_ms(operators: Sequence[Mapping[str, Any]]) -> int | None:
    """Measured by the RocksDB store only."""
    measured = [(operator.get("customMetrics") or {}).get(STATE_LOAD) for operator in operators]
    return sum(map(_count, measured)) if operators and None not in measured else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _rate(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _offset(value: object) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _texts(metrics: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in metrics.items()} if isinstance(metrics, Mapping) else {}


class Reports:
    """The reports of one run, each counted once.

    Args:
        ran: distinguishes batches that read no row from those that were skipped; None if that is not known.
    """

    def __init__(self, jquery: Any, ran: Ran | None = None) -> None:
        self._jquery = jquery
        self._ran = ran
        self._suspected: dict[int, int] = {}
        self._counted_id: int | None = None
        self._dropped_rows = 0
        self._read_rows = 0
        self._skipped = 0
        self._first_skipped: int | None = None
        self._newest_skipped: deque[int] = deque(maxlen=_SHOWN)
        self.has_missed_batches = False

    @property
    def dropped_rows(self) -> int:
        """Rows dropped as late, of all that was counted."""
        return self._dropped_rows

    @property
    def read_rows(self) -> int:
        """Rows of input, of all that was counted."""
        return self._read_rows

    @property
    def skipped(self) -> SkippedBySink:
        """Batches that moved offsets and read nothing, of all that was counted."""
        return SkippedBySink(self._skipped, tuple(self._newest_skipped), self._first_skipped)

    def count(self, newest: dict[str, Any], *, is_last: bool = False) -> None:
        """Count what was executed since the last time.

        Args:
            is_last: the run has ended, so that a batch without a record counts as skipped now.
        """
        self._count(newest)
        self._judge(is_last=is_last or self._ran is None)

    def _judge(self, *, is_last: bool) -> None:
        verdicts = self._ran(self._suspected, is_last) if self._ran is not None and self._suspected else {}
        for batch_id, looks in sorted(self._suspected.items()):
            has_run = verdicts.get(batch_id)
            if has_run is None and looks + 1 < LOOKS and not is_last:
                self._suspected[batch_id] = looks + 1
                continue
            del self._suspected[batch_id]
            if has_run:
                continue
            self._first_skipped = min(batch_id, self._first_skipped if self._first_skipped is not None else batch_id)
            self._skipped += 1
            self._newest_skipped.append(batch_id)

    def _count(self, newest: dict[str, Any]) -> None:
        newest_id, last = int(newest["batchId"]), self._counted_id
        if newest_id == last:
            return
        can_drop, passed = bool(newest.get("stateOperators")), list[int]()
        if last is not None and newest_id == last + 1:
            reports = [newest]
        elif not can_drop:
            reports = self.after(-1 if last is None else last, passed=passed)
        else:
            reports = self.after(-1 if last is None else last)
            missing = len(reports) >= REMEMBERED if last is None else len(reports) < newest_id - last
            self.has_missed_batches = self.has_missed_batches or missing
        self._counted_id = newest_id
        self._read_rows += sum(passed) + sum(_count(report.get("numInputRows")) for report in reports)
        for report in reversed(reports):
            self._dropped_rows += parse_progress(report, report).dropped_rows
            if looks_skipped(report):
                self._suspected[int(report["batchId"])] = 0

    def after(self, batch_id: int, *, passed: list[int] | None = None) -> list[dict[str, Any]]:
        """The reports of executed batches above this one that Spark still has, newest first.

        Args:
            passed: where given, those that read rows are left out, which saves most of the work; it gets their rows.
        """
        found: list[dict[str, Any]] = []
        with jvm_answers():
            reports = self._jquery.recentProgress()
            for index in range(len(reports) - 1, -1, -1):
                if int(reports[index].batchId()) <= batch_id:
                    break
                if passed is not None and (rows := int(reports[index].numInputRows())) > 0:
                    passed.append(rows)
                    continue
                raw = json.loads(str(reports[index].json()))
                if ran_a_batch(raw):
                    found.append(raw)
        return found
