"""### End a stream for good

Its state is kept in a last snapshot, which is copied to another place before the stream is retired. With *Delete* the
stream is removed from its home; a deploy from the other place can bring it back.
"""

import os
from datetime import timedelta

from airflow.sdk import Param, dag

from airflow_streamstate.operators.snapshot import MirrorSnapshotsOperator
from airflow_streamstate.operators.stop import RetireStreamOperator, StopStreamOperator

MIRROR = os.environ.get("RETIRED_STREAMS_MIRROR", "/mnt/elsewhere/streams")

# [START retire_stream]
PARAMS = {
    "stream_id": Param(
        "flights",
        type="string",
        pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        title="Stream",
    ),
    "reason": Param("", type="string", title="Reason", description="Kept with what is recorded."),
    "delete": Param(
        False,
        type="boolean",
        title="Delete",
        description="Remove everything of it from its home, snapshots and pins among it.",
    ),
}


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10), "stream_id": "{{ params.stream_id }}"},
    params=PARAMS,
    doc_md=__doc__,
    tags=["streamstate"],
)
def retire_stream():
    stopped = StopStreamOperator(task_id="stopped", reason="{{ params.reason }}", deferrable=True)

    mirrored = MirrorSnapshotsOperator(task_id="mirrored", mirrors=[MIRROR], execution_timeout=timedelta(hours=2))

    retired = RetireStreamOperator(task_id="retired", reason="{{ params.reason }}", delete="{{ params.delete }}")

    stopped >> mirrored >> retired


# [END retire_stream]

retire_stream()
