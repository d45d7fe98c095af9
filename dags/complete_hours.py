"""### Emit each complete hour of a stream as a partition of its asset

Every five minutes the task looks up to which event time the stream is complete, and emits each hour that is new, once.
Restarts, upgrades and drains of the stream only delay an hour. `hourly_report` runs on each.

The URI of the home stands here, too, since a DAG's assets are known before any connection is read.
"""

import os
from datetime import UTC, datetime

from airflow.sdk import dag

from airflow_streamstate.operators.complete import CompletePartitionsOperator, partitions_asset


# [START complete_hours]
@dag(
    schedule=os.environ.get("COMPLETE_HOURS_SCHEDULE", "*/5 * * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # one run at a time moves the cursor
    doc_md=__doc__,
    tags=["streamstate"],
)
def complete_hours():
    CompletePartitionsOperator(
        task_id="emit",
        stream_id="flights",
        asset=partitions_asset(os.environ.get("STREAMSTATE_HOME", "s3://streams/home"), "flights"),
        partition_seconds=3600,
        first_partition_at=os.environ.get("COMPLETE_HOURS_FIRST"),
    )


# [END complete_hours]

complete_hours()
