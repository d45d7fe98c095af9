"""### Emit each complete hour of a stream as a partition of its asset

Every five minutes the task looks up to which event time the stream is complete, and emits each hour that is new, once.
Restarts, upgrades and drains of the stream only delay an hour. `hourly_report` runs on each.

The asset names the home by its connection.
"""

import os
from datetime import datetime, timezone

from airflow.sdk import dag

from airflow_streamstate.assets import partitions_asset
from airflow_streamstate.operators.complete import CompletePartitionsOperator


# [START complete_hours]
@dag(
    schedule=os.environ.get("COMPLETE_HOURS_SCHEDULE", "*/5 * * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,  # one run at a time moves the cursor
    doc_md=__doc__,
    tags=["streamstate"],
)
def complete_hours():
    CompletePartitionsOperator(
        task_id="emit",
        stream_id="flights",
        asset=partitions_asset("streamstate_default", "flights"),
        partition_seconds=3600,
        first_partition_at=os.environ.get("COMPLETE_HOURS_FIRST"),
    )


# [END complete_hours]

complete_hours()
