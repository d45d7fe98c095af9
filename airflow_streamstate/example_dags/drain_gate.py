"""### A back-fill that waits for a drain

Another team's DAG, which must not start before the stream has written all its state, and does not order the drain
itself. It waits for the drain of the deployment that was current when the run started, whatever orders it; a later
version does not hide it. If that deployment ends in another way, or is not drained within a day, the back-fill is
skipped.
"""

from datetime import timedelta

from airflow.sdk import Param, dag, task

from airflow_streamstate.sensors.streamstate import DrainCompleteSensor

# [START drain_gate]
PARAMS = {
    "stream_id": Param(
        "flights",
        type="string",
        pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        title="Stream",
    ),
    "deployment_id": Param(
        None,
        type=["null", "string"],
        pattern="^d-[0-9]{4,12}$",
        title="Deployment",
        description="Whose drain to wait for. Empty: the one that is current when the run starts.",
    ),
}


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a try finds what the one before started
    render_template_as_native_obj=True,
    params=PARAMS,
    doc_md=__doc__,
    tags=["streamstate"],
)
def drain_gate():
    drained = DrainCompleteSensor(
        task_id="drained",
        stream_id="{{ params.stream_id }}",
        deployment_id="{{ params.deployment_id }}",
        soft_fail=True,
        mode="reschedule",
        poke_interval=5,
        timeout=86_400,
    )

    @task
    def backfill(drain: dict) -> str:
        return f"everything that {drain['deployment_id']} read, up to {drain['end_offsets']}, is written"

    backfill(drained.output)


# [END drain_gate]

drain_gate()
