"""### Upgrade a stream

Starts the next version of a streaming job, manually (*Trigger DAG* has a form, with the flights job as the default) or
on a schedule.

- `state = drain`: the running version takes no new input, writes all its state, and ends; the next one continues at the
  next row with empty state. **Open windows are written early**, so use this for upgrades that the state cannot survive:
  another grouping key, another aggregation.
- `state = keep`: the running version ends after its batch in flight; the next one continues with its state. Nothing is
  written early. Use this whenever the new version can read the old state: the plan comes before the stop, and fails the
  run where it cannot.

The new version is in service when each of its queries has committed a batch, or has found no input.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import Param, dag, task

from airflow_streamstate.operators.deploy import DeployStreamOperator
from airflow_streamstate.operators.plan import PlanUpgradeOperator
from airflow_streamstate.operators.stop import DrainStreamOperator, StopStreamOperator
from airflow_streamstate.sensors.streamstate import DrainCompleteSensor

JOBS = Path(__file__).resolve().parent / "jobs"
FLIGHTS = os.environ.get("FLIGHTS_FOLDER", "/srv/flights")

# [START params]
PARAMS = {
    "stream_id": Param(
        "flights",
        type="string",
        pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        title="Stream",
        description="The stream to upgrade; `streamstate list` lists them.",
    ),
    "application": Param(
        str(JOBS / "count_by_route.py"),
        type="string",
        minLength=1,
        title="Script of the next version",
        description="Path of a PySpark script that the worker can read. It needs no change for us.",
    ),
    "arguments": Param(
        ["--input", f"{FLIGHTS}/incoming", "--output", f"{FLIGHTS}/delays"],
        type="array",
        items={"type": "string"},
        title="Its arguments",
        description="One per line. They are shown here: give secrets through a connection or the environment.",
    ),
    "master": Param("local[2]", type="string", minLength=1, title="Spark master"),
    "spark_conn_id": Param(
        None,
        type=["null", "string"],
        title="Spark connection",
        description="An Airflow connection of type spark that has the master instead.",
    ),
    "conf": Param(
        {},
        type="object",
        additionalProperties={"type": "string"},
        title="Spark configuration",
        description="As `spark-submit --conf` takes it.",
    ),
    "state": Param(
        "drain",
        type="string",
        enum=["drain", "keep"],
        title="What becomes of the state",
        description="`keep` it if the new version can read it; `drain` it (open windows are written early) if not.",
    ),
    "start": Param(
        None,
        type=["null", "string"],
        enum=[None, "restore", "seed", "fresh"],
        title="How it starts",
        description="Empty: by the snapshot at the old version's end. `fresh` forgets the old version's offsets.",
    ),
    "allow_state_loss": Param(
        False,
        type="boolean",
        title="Discard what could not be flushed",
        description="Otherwise no new version starts after a drain that leaves rows of state.",
    ),
    "expires_in_seconds": Param(
        600,
        type="integer",
        minimum=1,
        maximum=86_400,
        title="Deadline of the order",
        description="The old version's end does not start later than this many seconds after the order.",
    ),
    "healthy_deadline_seconds": Param(
        900,
        type="integer",
        minimum=1,
        maximum=86_400,
        title="Deadline of the first batch",
        description="The task fails if the new version has not committed a batch by then. It runs on nevertheless.",
    ),
    "reason": Param(
        "", type="string", maxLength=500, title="Why", description="Kept with everything that is recorded."
    ),
}
# [END params]


# [START upgrade_stream]
@dag(
    schedule=os.environ.get("UPGRADE_STREAM_SCHEDULE"),  # by default not set: by hand only
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry finds what the earlier try started
    render_template_as_native_obj=True,
    params=PARAMS,
    doc_md=__doc__,
    tags=["streamstate"],
)
def upgrade_stream():
    @task.branch
    def keep_or_drain(params=None) -> str:
        if params["state"] == "drain":
            return "drain"
        return "stop" if params["start"] == "fresh" else "plan"

    drain = DrainStreamOperator(
        task_id="drain",
        stream_id="{{ params.stream_id }}",
        allow_state_loss="{{ params.allow_state_loss }}",
        expires_in_seconds="{{ params.expires_in_seconds }}",
        reason="{{ params.reason }}",
    )

    drained = DrainCompleteSensor(
        task_id="drained",
        stream_id="{{ params.stream_id }}",
        deployment_id="{{ ti.xcom_pull('drain')['deployment_id'] }}",
        command_id="{{ ti.xcom_pull('drain')['command_id'] }}",
        poke_interval=2,
        timeout=3600,
        deferrable=True,
    )

    # What would be refused after the stop is refused here, while the old version runs.
    plan = PlanUpgradeOperator(
        task_id="plan",
        stream_id="{{ params.stream_id }}",
        application="{{ params.application }}",
        arguments="{{ params.arguments }}",
        master="{{ None if params.spark_conn_id else params.master }}",
        spark_conn_id="{{ params.spark_conn_id }}",
        conf="{{ params.conf }}",
        deadline_seconds="{{ params.healthy_deadline_seconds }}",
        deferrable=True,
    )

    stop = StopStreamOperator(
        task_id="stop",
        stream_id="{{ params.stream_id }}",
        expires_in_seconds="{{ params.expires_in_seconds }}",
        reason="{{ params.reason }}",
        ignore_if_not_running=True,  # a version that has failed is upgraded, too
        timeout_seconds=3600,
        deferrable=True,
        trigger_rule="none_failed_min_one_success",
    )

    deploy = DeployStreamOperator(
        task_id="deploy",
        stream_id="{{ params.stream_id }}",
        application="{{ params.application }}",
        arguments="{{ params.arguments }}",
        master="{{ None if params.spark_conn_id else params.master }}",
        spark_conn_id="{{ params.spark_conn_id }}",
        conf="{{ params.conf }}",
        start="{{ params.start }}",
        snapshot_id="{{ None if params.start == 'fresh' else "
        "(ti.xcom_pull('drained') or ti.xcom_pull('stop'))['snapshot_id'] }}",
        allow_state_loss="{{ params.allow_state_loss }}",
        reason="{{ params.reason }}",
        wait_until="healthy",
        timeout_seconds="{{ params.healthy_deadline_seconds }}",
        deferrable=True,
        trigger_rule="none_failed_min_one_success",
    )

    choice = keep_or_drain()
    choice >> drain >> drained >> deploy
    choice >> [plan, stop]
    plan >> stop >> deploy


# [END upgrade_stream]

upgrade_stream()
