"""### Run a job every hour that reads what there is, and ends

The job's trigger is `availableNow`. It was deployed once; each run of this DAG is its next attempt, with the recorded
code, on its own checkpoints: it reads what came since the last run, and no row twice. If a run fails, a try starts the
next attempt where the failed one had committed last.
"""

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import dag

from airflow_streamstate.operators.deploy import ResumeStreamOperator


# [START scheduled_job]
@dag(
    schedule=os.environ.get("SCHEDULED_JOB_SCHEDULE", "0 * * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,  # two attempts of one deployment never run at once
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["streamstate"],
)
def scheduled_job():
    ResumeStreamOperator(
        task_id="run",
        stream_id="flights",
        reason="{{ run_id }}",
        wait_until="finished",
        timeout_seconds=3000,
        on_kill_action="stop",  # after the batch in flight; the next run continues
        deferrable=True,
    )


# [END scheduled_job]

scheduled_job()
