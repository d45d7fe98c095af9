"""### Bring what is in this folder into service, every night

Compares the script, its arguments and its configuration with what runs, and upgrades the stream if they differ. The
state is kept. Without a change the stream is not touched, nor where the state would not fit: the plan comes first.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import dag, task

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.stop import StopStreamOperator

FLIGHTS = os.environ.get("FLIGHTS_FOLDER", "/srv/flights")

# [START scheduled_upgrade]
STREAM = "flights"
VERSION = {
    "application": Path(__file__).resolve().parent / "jobs" / "count_by_origin_v2.py",
    "arguments": ["--input", f"{FLIGHTS}/incoming", "--output", f"{FLIGHTS}/delays"],
    "master": "local[2]",
    "conf": {},
}


@dag(
    schedule=os.environ.get("SCHEDULED_UPGRADE_SCHEDULE", "0 4 * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry finds what the earlier try started
    doc_md=__doc__,
    tags=["streamstate"],
)
def scheduled_upgrade():
    @task.short_circuit
    def something_changed() -> bool:
        return not StreamStateHook().is_running(STREAM, **VERSION)

    # What would be refused after the stop is refused here, while the old version runs.
    plan = PlanUpgradeOperator(task_id="plan", stream_id=STREAM, **VERSION, deadline_seconds=900, deferrable=True)

    stop = StopStreamOperator(
        task_id="stop", stream_id=STREAM, ignore_if_not_running=True, timeout_seconds=3600, deferrable=True
    )

    deploy = DeployStreamOperator(
        task_id="deploy",
        stream_id=STREAM,
        **VERSION,
        snapshot_id="{{ ti.xcom_pull('stop')['snapshot_id'] }}",
        start="restore",
        reason="scheduled upgrade {{ ds }}",
        wait_until="healthy",
        timeout_seconds=900,
        deferrable=True,
    )

    something_changed() >> plan >> stop >> deploy


# [END scheduled_upgrade]

scheduled_upgrade()
