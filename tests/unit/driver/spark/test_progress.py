from __future__ import annotations

from datetime import datetime, timezone

from airflow_streamstate.driver.attempt.ports import OperatorRows
from airflow_streamstate.driver.spark.progress import looks_skipped, parse_progress, ran_a_batch

EXECUTED = {
    "batchId": 6,
    "numInputRows": 40,
    "inputRowsPerSecond": 8.0,
    "processedRowsPerSecond": 20.5,
    "durationMs": {"addBatch": 184, "triggerExecution": 294},
    "eventTime": {"watermark": "2026-11-21T11:48:59.738Z"},
    "stateOperators": [
        {"operatorName": "stateStoreSave", "numRowsTotal": 2, "numRowsDroppedByWatermark": 3, "memoryUsedBytes": 900},
        {"operatorName": "dedupe", "numRowsTotal": 5, "numRowsDroppedByWatermark": 1, "memoryUsedBytes": 100},
    ],
    "sources": [
        {"description": "FileStreamSource[file:/in]", "endOffset": {"logOffset": 4}},
        {"description": "RateStreamV2", "endOffset": 5},
        {"description": "Empty", "endOffset": None},
    ],
    "sink": {"description": "FileSink[/out]", "numOutputRows": -1},
}
IDLE = {
    "batchId": 7,
    "numInputRows": 0,
    "inputRowsPerSecond": 0.0,
    "processedRowsPerSecond": 0.0,
    "durationMs": {"latestOffset": 1, "triggerExecution": 1},
}


def test_a_progress_is_read_whole() -> None:
    """What Spark reports of an executed batch: rows, state per operator, watermark, where each source ended."""
    progress = parse_progress(EXECUTED, EXECUTED)
    assert progress.batch_id == 6
    assert progress.input_rows == 40
    assert progress.state == (OperatorRows("stateStoreSave", 0, 2), OperatorRows("dedupe", 1, 5))
    assert progress.watermark_at == datetime(2026, 11, 21, 11, 48, 59, 738000, tzinfo=timezone.utc)
    assert progress.source_descriptions == ("FileStreamSource[file:/in]", "RateStreamV2", "Empty")
    assert progress.end_offsets == ('{"logOffset":4}', "5", "-")
    assert progress.dropped_rows == 4
    assert progress.state_memory_bytes == 1_000
    assert parse_progress(IDLE, IDLE).state_memory_bytes is None
    assert progress.input_rows_per_second == 8.0


def test_a_sink_that_does_not_count_has_no_output_rows() -> None:
    """Spark's -1 is not a number of rows."""
    assert parse_progress(EXECUTED, EXECUTED).output_rows is None
    counted = {**EXECUTED, "sink": {"numOutputRows": 9}}
    assert parse_progress(counted, counted).output_rows == 9


def test_an_idle_query_keeps_its_last_batch_and_has_the_rates_of_now() -> None:
    """A trigger that found no input reports under the next batch's id, which was never run."""
    progress = parse_progress(EXECUTED, IDLE)
    assert progress.batch_id == 6
    assert progress.input_rows_per_second == 0.0
    assert progress.processed_rows_per_second == 0.0
    assert ran_a_batch(EXECUTED)
    assert not ran_a_batch(IDLE)
    assert not ran_a_batch({})


def test_no_watermark_and_strange_rates_are_none() -> None:
    """Before the first event Spark shows 1970; a division by no time gives infinity or nothing."""
    raw = {"batchId": 0, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}, "inputRowsPerSecond": float("inf")}
    progress = parse_progress(raw, raw)
    assert progress.watermark_at is None
    assert progress.input_rows_per_second is None
    assert progress.processed_rows_per_second is None
    assert progress.state == ()


def test_offsets_that_moved_without_a_row_look_like_a_skip() -> None:
    """One source is enough; what does not move, was not executed, or read rows does not."""
    moved = {"startOffset": {"logOffset": 3}, "endOffset": {"logOffset": 4}}
    stands = {"startOffset": {"logOffset": 3}, "endOffset": {"logOffset": 3}}
    skipped = {**EXECUTED, "numInputRows": 0, "sources": [stands, moved]}
    assert looks_skipped(skipped)
    assert not looks_skipped({**skipped, "numInputRows": 1})
    assert not looks_skipped({**skipped, "sources": [stands, {"startOffset": None, "endOffset": None}]})
    assert not looks_skipped({**skipped, "durationMs": {"latestOffset": 1}})
    # The first batch of a query that starts at the end of a topic: nothing was passed over.
    assert not looks_skipped({**skipped, "sources": [{"startOffset": None, "endOffset": {"flights": {"0": 7}}}]})


def test_a_batch_was_committed_when_its_trigger_was_over() -> None:
    """By start and duration of its trigger; else None."""
    timed = {**EXECUTED, "timestamp": "2026-11-21T11:49:00.500Z"}
    assert parse_progress(timed, IDLE).committed_at == datetime(2026, 11, 21, 11, 49, 0, 794000, tzinfo=timezone.utc)
    for broken in (EXECUTED, {**timed, "durationMs": {"addBatch": 3}}):
        assert parse_progress(broken, broken).committed_at is None
