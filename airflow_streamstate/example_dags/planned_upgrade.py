"""### Plan an upgrade, then make it as planned

The new version is rehearsed before anything is stopped: its script runs once on a fork of the stream's state, without
its sink. If the state can be kept, the running version is stopped and the new one continues with it. If Spark
cannot read the state, or would mix results in it, the running version is drained, if the DAG allows it: open windows
are written early. Otherwise the stream runs on unchanged, and the task fails with the reason.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import Param, dag, task

from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.stop import DrainStreamOperator, StopStreamOperator

JOBS = Path(__file__).resolve().parent / "jobs"
FLIGHTS = os.environ.get("FLIGHTS_FOLDER", "/srv/flights")
PARAMS = {
    "stream_id": Param("flights", type="string", title="Stream", description="The stream to upgrade."),
    "application": Param(
        str(JOBS / "count_by_route.py"),
        type="string",
        minLength=1,
        title="Script",
        description="The new PySpark script.",
    ),
    "arguments": Param(
        ["--input", f"{FLIGHTS}/incoming", "--output", f"{FLIGHTS}/delays"],
        type="array",
        items={"type": "string"},
        title="Arguments",
        description="Of the script.",
    ),
    "allow_drain": Param(
        False, type="boolean", title="Drain where the state cannot be kept", description="Open windows come out early."
    ),
}


# [START planned_upgrade]
@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry finds what the earlier try started
    render_template_as_native_obj=True,
    params=PARAMS,
    doc_md=__doc__,
    tags=["streamstate"],
)
def planned_upgrade():
    version = {
        "stream_id": "{{ params.stream_id }}",
        "application": "{{ params.application }}",
        "arguments": "{{ params.arguments }}",
    }
    plan = PlanUpgradeOperator(
        task_id="plan", **version, fail_unless_it_fits=False, deadline_seconds=900, deferrable=True
    )

    @task.branch
    def keep_or_drain(report, params=None) -> str:
        if report["outcome"] == "fits":
            return "stop"
        if report["verdict"] == "needs-drain" and params["allow_drain"]:
            return "drain"
        raise ValueError(report["reason"])

    stop = StopStreamOperator(
        task_id="stop",
        stream_id=version["stream_id"],
        ignore_if_not_running=True,
        timeout_seconds=3600,
        deferrable=True,
    )
    drain = DrainStreamOperator(
        task_id="drain", stream_id=version["stream_id"], wait_for_completion=True, timeout_seconds=3600, deferrable=True
    )
    deploy = DeployStreamOperator(
        task_id="deploy",
        **version,
        snapshot_id="{{ (ti.xcom_pull('drain') or ti.xcom_pull('stop'))['snapshot_id'] }}",
        wait_until="healthy",
        timeout_seconds=900,
        deferrable=True,
        trigger_rule="none_failed_min_one_success",
    )
    keep_or_drain(plan.output) >> [stop, drain] >> deploy


# [END planned_upgrade]

planned_upgrade()
