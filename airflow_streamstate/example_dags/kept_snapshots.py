"""### Every week a snapshot that is known to be good, at two places, and its state as tables

The snapshot is read byte for byte, loaded by Spark, copied to another place, and exported as tables. Then snapshots
that are no longer needed are removed, by the retention of the stream. No task touches the stream, and each can be
retried.
"""

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import dag

from airflow_streamstate.operators.snapshot import (
    ExportStateOperator,
    MirrorSnapshotsOperator,
    PruneSnapshotsOperator,
    SnapshotStreamOperator,
    VerifySnapshotOperator,
)

MIRROR = os.environ.get("KEPT_SNAPSHOTS_MIRROR", "/mnt/elsewhere/streams")
TABLES = os.environ.get("KEPT_SNAPSHOTS_TABLES", "/mnt/tables")


# [START kept_snapshots]
@dag(
    schedule=os.environ.get("KEPT_SNAPSHOTS_SCHEDULE", "30 3 * * 0"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
    tags=["streamstate"],
)
def kept_snapshots():
    taken = SnapshotStreamOperator(task_id="taken", stream_id="flights", reason="every week", deferrable=True)
    snapshot_id = "{{ ti.xcom_pull('taken')['snapshot_id'] }}"

    verified = VerifySnapshotOperator(task_id="verified", stream_id="flights", snapshot_id=snapshot_id, deep=True)

    mirrored = MirrorSnapshotsOperator(
        task_id="mirrored",
        stream_id="flights",
        mirrors=[MIRROR],
        execution_timeout=timedelta(hours=2),
    )

    exported = ExportStateOperator(
        task_id="exported",
        stream_id="flights",
        snapshot_id=snapshot_id,
        out=TABLES + "/flights/{{ dag_run.run_after | ds }}",
        deadline_seconds=3600,
    )

    pruned = PruneSnapshotsOperator(task_id="pruned", stream_id="flights")

    taken >> verified >> [mirrored, exported] >> pruned


# [END kept_snapshots]

kept_snapshots()
