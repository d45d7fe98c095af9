"""What Spark has run of a query, by its own records: the plan of a batch, and tasks that are at work still.

Whether it ran a plan is told by its record of SQL executions (what its page "SQL" shows).

A sink that skips a batch never touches its plan: the execution ends without a counter that moved. Input of which a
filter, pushed down into Parquet, ORC or JSON, left nothing has ``numInputRows`` 0, too, and yet its plan ran.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from airflow_streamstate.driver.spark.jvm import jvm_is_gone

LOOKED_AT = 200
NOTED_WITHIN_MS = 2_000
_BATCH = re.compile(r"\bbatch = (\d+)\b")


def plans_that_ran(jquery: Any, batch_ids: Collection[int], *, is_last: bool = False) -> dict[int, bool]:
    """Of each of these batches of a run, whether its plan ran; those of which Spark has no record are left out.

    Args:
        jquery: the JVM's ``StreamingQuery``.
        batch_ids: batches that were executed.
        is_last: nobody will ask again: what Spark has not noted down yet is waited for, a moment.
    """
    found: dict[int, bool] = {}
    try:
        if is_last:
            _let_spark_note(jquery)
        store = jquery.sparkSession().sharedState().statusStore()
        run_id = str(jquery.runId().toString())
        first = max(0, int(store.executionsCount()) - LOOKED_AT)
        executions = store.executionsList(first, LOOKED_AT)
        for index in range(executions.size() - 1, -1, -1):
            if len(found) == len(batch_ids):
                break
            execution = executions.apply(index)
            batch = _BATCH.search(str(execution.description())) if run_id in str(execution.description()) else None
            if batch is None or int(batch[1]) not in batch_ids or int(batch[1]) in found:
                continue
            # What a sink runs for itself hangs below the batch's own; what has not ended may count yet.
            if execution.rootExecutionId() == execution.executionId() and execution.completionTime().isDefined():
                found[int(batch[1])] = store.executionMetrics(execution.executionId()).size() > 0
    except (Py4JError, AttributeError, TypeError) as error:
        if jvm_is_gone(error):
            raise
    return found


def _let_spark_note(jquery: Any) -> None:
    with contextlib.suppress(Py4JJavaError):  # it is busy for longer
        jquery.sparkSession().sparkContext().listenerBus().waitUntilEmpty(NOTED_WITHIN_MS)


def has_running_tasks(jquery: Any, query_run_id: str) -> bool:
    """Whether a task of a run is at work, by Spark's own status of its jobs; True also where Spark does not tell.

    Args:
        jquery: the JVM's ``StreamingQuery``.
        query_run_id: its run, which is the name of the group of its jobs.
    """
    try:
        tracker = jquery.sparkSession().sparkContext().statusTracker()
        for job_id in tracker.getJobIdsForGroup(query_run_id):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.get().stageIds() if job.isDefined() else ():
                stage = tracker.getStageInfo(stage_id)
                if stage.isDefined() and int(stage.get().numActiveTasks()) > 0:
                    return True
    except (Py4JError, AttributeError, TypeError) as error:
        if jvm_is_gone(error):
            raise
        return True
    return False
