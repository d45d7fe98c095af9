"""How many rows a batch gave to a file sink, of which Spark's progress does not tell.

The executed plan counts: from its root down, past what gives on each row as it comes, the first operator that has a
counter has counted just the rows that were written.
"""

from __future__ import annotations

from typing import Any

from airflow_streamstate.driver.spark.jvm import scala_option, scala_sequence

_COUNTER = "numOutputRows"
_GIVES_ON_EACH_ROW = frozenset({"ProjectExec", "WholeStageCodegenExec", "InputAdapter"})


def rows_given_to_file_sink(execution: Any, batch_id: int) -> int | None:
    """The rows of the last batch that this JVM ``StreamExecution`` ran.

    Args:
        execution: of a query that has ended, so that nothing changes meanwhile.
        batch_id: the batch that is meant.

    Returns:
        None where the sink is another, the last batch was another, or the plan does not tell.
    """
    # Other sinks either report by themselves, or may run the plan more than once.
    if execution.sink().getClass().getSimpleName() != "FileStreamSink":
        return None
    last = execution.lastExecution()
    if last is None or last.currentBatchId() != batch_id:
        return None
    node = last.executedPlan()
    while True:
        counter = scala_option(node.metrics().get(_COUNTER))
        if counter is not None:
            return int(counter.value())
        children = scala_sequence(node.children())
        if len(children) != 1 or node.getClass().getSimpleName() not in _GIVES_ON_EACH_ROW:
            return None
        node = children[0]
