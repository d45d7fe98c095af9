"""### Upgrade a stream, in one task

The new version is rehearsed on a fork of the real state while the old one runs; if it cannot work, the task fails with
the reason, and nothing is stopped. Otherwise the old version ends after its batch in flight and the new one continues
with its state. If the new one does not commit its batches in time, it is abandoned, and the old one continues without a
lost or doubled row. Each step is in the log of the task; a retry continues.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import Param, dag

from airflow_streamstate.operators.upgrade import UpgradeStreamOperator

JOBS = Path(__file__).resolve().parent / "jobs"
FLIGHTS = os.environ.get("FLIGHTS_FOLDER", "/srv/flights")
PARAMS = {
    "stream_id": Param("flights", type="string", minLength=1, title="Stream"),
    "application": Param(
        str(JOBS / "count_by_origin_v2.py"),
        type=["null", "string"],
        title="Script of the next version",
        description="Empty: as it is, with other arguments or settings; with nothing new it is a restart.",
    ),
    "arguments": Param(
        ["--input", f"{FLIGHTS}/incoming", "--output", f"{FLIGHTS}/delays"],
        type=["null", "array"],
        items={"type": "string"},
        title="Its arguments",
        description="All of them. Empty: as they are.",
    ),
    "conf": Param(
        {},
        type="object",
        additionalProperties={"type": "string"},
        title="Spark configuration",
        description="Laid over what is set now.",
    ),
    "allow_drain": Param(
        False, type="boolean", title="Drain where the state cannot be kept", description="Open windows come out early."
    ),
    "warm": Param(
        True, type="boolean", title="Launch it before the old one is stopped", description="If there is room for two."
    ),
    "healthy_batches": Param(3, type="integer", minimum=1, title="Batches that prove it"),
    "healthy_deadline_seconds": Param(
        300, type="integer", minimum=1, maximum=86_400, title="Deadline of those", description="Then it is rolled back."
    ),
    "reason": Param("", type="string", maxLength=500, title="Why", description="Kept with what is recorded."),
}


# [START upgrade_in_one_task]
@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a try continues what the one before started
    render_template_as_native_obj=True,
    params=PARAMS,
    doc_md=__doc__,
    tags=["streamstate"],
)
def upgrade_in_one_task():
    UpgradeStreamOperator(
        task_id="upgrade",
        stream_id="{{ params.stream_id }}",
        application="{{ params.application }}",
        arguments="{{ params.arguments }}",
        conf="{{ params.conf }}",
        allow_drain="{{ params.allow_drain }}",
        warm="{{ params.warm }}",
        healthy_batches="{{ params.healthy_batches }}",
        healthy_deadline_seconds="{{ params.healthy_deadline_seconds }}",
        reason="{{ params.reason }}",
        on_kill_action="rollback",
        deferrable=True,
    )


# [END upgrade_in_one_task]

upgrade_in_one_task()
