"""Counting over the reports that Spark still remembers."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

pytest.importorskip("pyspark")

from airflow_streamstate.driver.attempt.ports import SkippedBySink
from airflow_streamstate.driver.spark.progress import LOOKS, REMEMBERED, Reports


def _report(batch_id: int, rows: int = 5, *, dropped: int | None = None, moved: bool = True) -> dict[str, Any]:
    operators = [] if dropped is None else [{"operatorName": "a", "numRowsDroppedByWatermark": dropped}]
    return {
        "batchId": batch_id,
        "numInputRows": rows,
        "durationMs": {"addBatch": 1},
        "stateOperators": operators,
        "sources": [{"startOffset": {"at": batch_id}, "endOffset": {"at": batch_id + (1 if moved else 0)}}],
    }


class _Report:
    def __init__(self, raw: dict[str, Any], asked: list[int]) -> None:
        self._raw = raw
        self._asked = asked

    def batchId(self) -> int:
        return int(self._raw["batchId"])

    def numInputRows(self) -> int:
        return int(self._raw["numInputRows"])

    def json(self) -> str:
        self._asked.append(self.batchId())
        return json.dumps(self._raw)


class _Query:
    """A query with these reports in Spark."""

    def __init__(self, *reports: dict[str, Any]) -> None:
        self.reports = list(reports)
        self.asked: list[int] = []

    def recentProgress(self) -> list[_Report]:
        return [_Report(raw, self.asked) for raw in self.reports]

    def count(self, reports: Reports) -> None:
        """Count as at a look at the newest."""
        reports.count(self.reports[-1])


def test_batches_that_moved_and_read_nothing_are_counted_once() -> None:
    """Over all batches since the last poll, the newest ten by their ids."""
    query = _Query(*(_report(batch_id, rows=0 if batch_id >= 3 else 5) for batch_id in range(20)))
    reports = Reports(query)
    query.count(reports)
    query.count(reports)
    assert reports.skipped == SkippedBySink(17, tuple(range(10, 20)), 3)
    query.reports += [_report(20, rows=0), _report(21), _report(22, rows=0, moved=False)]
    query.count(reports)
    assert reports.skipped == SkippedBySink(18, tuple(range(11, 21)), 3)


def test_a_batch_without_input_whose_offsets_stand_is_no_skip() -> None:
    """So a watermark that moved on brings windows out."""
    query = _Query(_report(0, rows=0, moved=False))
    reports = Reports(query)
    query.count(reports)
    assert reports.skipped == SkippedBySink()


def test_what_read_rows_and_drops_none_is_not_read_whole() -> None:
    """A query without state is asked for little: the agent takes a part of the driver."""
    query = _Query(*map(_report, range(50)))
    query.count(Reports(query))
    assert query.asked == []


def test_late_rows_are_added_up_over_all_batches() -> None:
    """Each report once, however many batches are between two polls."""
    query = _Query(_report(0, dropped=1), _report(1, dropped=2))
    reports = Reports(query)
    query.count(reports)
    query.reports.append(_report(2, dropped=4))
    query.count(reports)
    query.reports += [_report(3, dropped=8), _report(4, dropped=16)]
    query.count(reports)
    assert (reports.dropped_rows, reports.has_missed_batches) == (31, False)


@pytest.mark.parametrize("first", [5, REMEMBERED])
def test_batches_that_spark_forgot_are_not_guessed_at(first: int) -> None:
    """A count that misses some is reported as none, for good; without state there is nothing to miss."""
    query = _Query(*(_report(batch_id, dropped=1) for batch_id in range(first)))
    reports = Reports(query)
    query.count(reports)
    query.reports = [_report(batch_id, dropped=1) for batch_id in range(200, 210)]
    query.count(reports)
    assert reports.has_missed_batches
    stateless = Reports(_Query(*map(_report, range(REMEMBERED + 5))))
    stateless.count(_report(REMEMBERED + 4))
    assert not stateless.has_missed_batches


def test_a_batch_whose_plan_ran_was_not_skipped() -> None:
    """Rows that a filter kept from being read look like none; its record of the execution shows that the plan ran."""
    query = _Query(*(_report(batch_id, rows=0) for batch_id in range(1, 5)))
    verdicts = {1: True, 2: False}
    asked: list[set[int]] = []

    def ran(batch_ids: Collection[int], _is_last: bool) -> dict[int, bool]:
        asked.append(set(batch_ids))
        return {batch_id: verdicts[batch_id] for batch_id in batch_ids if batch_id in verdicts}

    reports = Reports(query, ran)
    query.count(reports)
    assert reports.skipped == SkippedBySink(1, (2,), 2)
    verdicts[3] = True
    query.count(reports)
    assert asked == [{1, 2, 3, 4}, {3, 4}]
    assert reports.skipped == SkippedBySink(1, (2,), 2)


def test_a_batch_of_which_nobody_can_tell_is_suspected_in_the_end() -> None:
    """After some polls, or when the query has ended: an alarm too many is better than one that is missing."""
    query = _Query(_report(1, rows=0))
    reports = Reports(query, lambda *_: {})
    for _ in range(LOOKS):
        assert reports.skipped == SkippedBySink()
        query.count(reports)
    assert reports.skipped == SkippedBySink(1, (1,), 1)
    reports = Reports(query, lambda *_: {})
    reports.count(query.reports[-1], is_last=True)
    assert reports.skipped == SkippedBySink(1, (1,), 1)
