"""### Take a snapshot of a stream every hour

One task orders the snapshot, the other one waits in the triggerer. While it waits, it repeats the order under the same
request id to a restarted driver or a newer version, so that one hour is one snapshot however often a task is tried. A
run that is so late that its request is out of date takes none.
"""

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import dag

from airflow_streamstate.operators.snapshot import SnapshotStreamOperator
from airflow_streamstate.sensors.streamstate import SnapshotReadySensor


# [START scheduled_snapshots]
@dag(
    schedule=os.environ.get("SCHEDULED_SNAPSHOTS_SCHEDULE", "0 * * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry finds what the earlier try requested
    doc_md=__doc__,
    tags=["streamstate"],
)
def scheduled_snapshots():
    ask = SnapshotStreamOperator(
        task_id="ask",
        stream_id="flights",
        requested_at="{{ dag_run.run_after }}",
        ttl_seconds=1800,
        reason="every hour",
        wait_for_completion=False,
    )

    ready = SnapshotReadySensor(
        task_id="ready",
        stream_id="flights",
        request_id="{{ ti.xcom_pull('ask')['request_id'] }}",
        timeout=900,
        deferrable=True,
    )

    ask >> ready


# [END scheduled_snapshots]

scheduled_snapshots()
