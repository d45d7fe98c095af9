"""What the script holds instead of Spark's ``StreamingQuery``: the same class, speaking for the logical query (1a.11).

A barrier ends Spark's query with an error and a drain starts it once more; the script sees neither. What it asks about
progress goes to the run of now.
"""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.errors import PySparkValueError, StreamingQueryException
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from airflow_streamstate.driver.attempt.logical_query import LogicalQuery
from airflow_streamstate.driver.spark.spark_query import SparkQueryRun, SparkWriter

_STOPPED = {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
_NO_PLAN = "No physical plan. Waiting for data."
_KEPT_PROGRESS = 100


class SupervisedQuery(StreamingQuery):  # type: ignore[misc]  # pyspark is not looked into
    """A query of the script under a deployment.

    Args:
        logical: what decides about it.
        writer: what it was started from; knows its runs in Spark. None of them where the latch was closed before.
    """

    def __init__(self, logical: LogicalQuery, writer: SparkWriter) -> None:
        # Not the parent's: which JVM query stands behind this handle changes.
        self._logical = logical
        self._writer = writer

    @property
    def _runs(self) -> list[SparkQueryRun]:
        return self._writer.runs

    @property
    def _jsq(self) -> Any:
        return self._runs[-1].jquery

    @property
    def id(self) -> str:
        return self._logical.query_id or self.runId

    @property
    def runId(self) -> str:  # noqa: N802  Spark's name
        if self._runs:
            return self._runs[-1].query_run_id
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self._logical.checkpoint.prefix))

    @property
    def name(self) -> str | None:
        return self._writer.settings.query_name

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._logical.is_active()

    @property
    def status(self) -> dict[str, Any]:
        return super().status if self._runs else dict(_STOPPED)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:  # noqa: N802
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:  # noqa: N802
        reports = [StreamingQuery(run.jquery).recentProgress for run in self._runs]
        return [progress for reported in reports for progress in reported][-_KEPT_PROGRESS:]

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        check_timeout(timeout, zero_is_allowed=False)
        is_over = self._logical.await_termination(timeout)
        if is_over:
            self.raise_failure()
        return None if timeout is None else is_over

    def exception(self) -> StreamingQueryException | None:
        text = self._logical.give_failure()
        if text is None:
            return None
        found = None if self._failed_run is None else StreamingQuery(self._failed_run.jquery).exception()
        return found or StreamingQueryException(text)

    def stop(self) -> None:
        self._logical.stop()

    def processAllAvailable(self) -> None:  # noqa: N802
        if not self._runs:
            return
        while True:
            run = self._logical.run
            try:
                super().processAllAvailable()
                return
            except StreamingQueryException:
                # Its own failure, or our barrier: the log knows, and so does the logical query soon.
                if not self._logical.await_another_run(run):
                    self.raise_failure()
                    return

    def explain(self, extended: bool = False) -> None:
        if self._runs:
            super().explain(extended)
        else:
            print(_NO_PLAN)

    # for the manager

    @property
    def is_over(self) -> bool:
        """Whether it is over for the script; costs no call to the JVM."""
        return self._logical.ended

    @property
    def is_held_back(self) -> bool:
        """Whether its failure is not raised yet, because other queries are to run on."""
        return self._logical.is_held_back

    def wait_in_vain(self) -> None:
        """As ``LogicalQuery.wait_in_vain``."""
        self._logical.wait_in_vain()

    @property
    def has_failed(self) -> bool:
        """Whether it is over by a failure of its own."""
        return self._logical.failure() is not None

    @property
    def run_ids(self) -> set[str]:
        """Spark's ids of all its runs."""
        return {run.query_run_id for run in self._runs}

    def raise_failure(self) -> None:
        """Raise what ended it, as Spark raises it; nothing for a query that did not fail.

        Raises:
            StreamingQueryException: the JVM's own, of the run that failed.
        """
        text = self._logical.failure_to_raise()
        if text is None:
            return
        if self._failed_run is not None and self._failed_run.has_ended():
            self._failed_run.jquery.awaitTermination()
        raise StreamingQueryException(text)

    @property
    def _failed_run(self) -> SparkQueryRun | None:
        failed = self._logical.failed_run
        return failed if isinstance(failed, SparkQueryRun) else None


def check_timeout(timeout: float | None, *, zero_is_allowed: bool) -> None:
    """Refuse the timeouts that pyspark refuses, in its words.

    Raises:
        PySparkValueError: not a number, or not positive.
    """
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or timeout < 0 or (timeout == 0 and not zero_is_allowed):
        raise PySparkValueError(
            errorClass="VALUE_NOT_POSITIVE",
            messageParameters={"arg_name": "timeout", "arg_value": type(timeout).__name__},
        )
