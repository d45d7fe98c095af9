from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkValueError, StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from airflow_streamstate.driver.spark.interception import RehearsalQuery, SupervisedQuery


class Logical:
    """A query as the deciding half shows it, without Spark."""

    def __init__(self, *, ended: bool = False, failure: str | None = None) -> None:
        self.name = "counts"
        self.ended = ended
        self.query_id: str | None = None
        self.failed_run = None
        self.checkpoint = SimpleNamespace(prefix="orders/d-1/counts")
        self.stops = 0
        self.waits_in_vain = 0
        self._failure = failure

    def is_active(self) -> bool:
        return not self.ended

    def failure(self) -> str | None:
        return self._failure if self.ended else None

    def failure_to_raise(self) -> str | None:
        return self.failure()

    def give_failure(self) -> str | None:
        return self.failure()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        assert self.ended or timeout_seconds is not None
        return self.ended

    def wait_in_vain(self) -> None:
        self.waits_in_vain += 1

    def stop(self) -> None:
        self.stops += 1


def _handle(logical: Logical) -> SupervisedQuery:
    writer = SimpleNamespace(runs=[], settings=SimpleNamespace(query_name="counts"))
    return SupervisedQuery(cast("Any", logical), cast("Any", writer))


def test_a_query_that_was_never_started_looks_like_one_that_was_stopped() -> None:
    """What ``start()`` hands back once the latch is closed (1a.11)."""
    handle = _handle(Logical(ended=True))
    assert isinstance(handle, StreamingQuery)
    assert not handle.isActive
    assert handle.awaitTermination() is None
    assert handle.awaitTermination(3) is True
    assert handle.exception() is None
    assert (handle.lastProgress, handle.recentProgress, handle.name) == (None, [], "counts")
    assert handle.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
    assert handle.id == handle.runId == _handle(Logical()).runId
    assert handle._logical.waits_in_vain == 0
    handle.processAllAvailable()
    assert handle._logical.waits_in_vain == 1
    handle.explain()
    handle.stop()


def test_a_timeout_keeps_its_meaning() -> None:
    """False while it runs; what Spark refuses is refused."""
    handle = _handle(Logical())
    assert handle.awaitTermination(0.1) is False
    for timeout in (0, -1, "soon"):
        with pytest.raises(PySparkValueError):
            handle.awaitTermination(cast("Any", timeout))


def test_a_failure_without_a_run_is_still_sparks_exception() -> None:
    """What the script catches for a failed query it catches here too."""
    handle = _handle(Logical(ended=True, failure="the flush of counts failed"))
    with pytest.raises(StreamingQueryException, match="the flush of counts failed"):
        handle.awaitTermination()
    with pytest.raises(StreamingQueryException):
        handle.awaitTermination(1)
    assert "the flush of counts failed" in str(handle.exception())
    assert handle.has_failed


def test_the_scripts_own_stop_goes_to_what_decides() -> None:
    """A stop of the script is no stop of the deployment."""
    logical = Logical()
    _handle(logical).stop()
    assert logical.stops == 1


def test_a_rehearsed_query_has_the_progress_of_the_batches_that_its_start_ran() -> None:
    """As a running one would give it, under its own name and ids and not those of the trial; none before a batch."""
    report = {
        "id": "7d5b2c0e-5c0f-4a58-8a55-52ac66a1f0a1", "runId": "7d5b2c0e-5c0f-4a58-8a55-52ac66a1f0a2",
        "name": "streamstate-rehearsal", "timestamp": "2026-03-01T10:00:00.000Z", "batchId": 7, "batchDuration": 12,
        "numInputRows": 3, "stateOperators": [], "sources": [], "sink": {"description": "noop", "numOutputRows": 3},
    }  # fmt: skip
    reports: list[dict[str, object]] = []
    writer = SimpleNamespace(runs=[], trial_reports=reports, settings=SimpleNamespace(query_name="counts"))
    handle = RehearsalQuery(cast("Any", Logical(ended=True)), cast("Any", writer))
    assert (handle.lastProgress, handle.recentProgress) == (None, [])
    reports += [report, {**report, "batchId": 8}]
    last = handle.lastProgress
    assert last is not None
    assert (last["batchId"], last.batchId, last["numInputRows"], last["name"]) == (8, 8, 3, "counts")
    assert str(last.runId) == handle.runId
    assert [progress["batchId"] for progress in handle.recentProgress] == [7, 8]
