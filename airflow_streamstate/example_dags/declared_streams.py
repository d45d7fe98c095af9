"""### Make streams as their files declare them

Each file of the folder `streams` is one stream. A run compares the files with what runs, rehearses what has changed,
and asks a person under *Required Actions*. Then the streams with the label `tier: canary` are deployed, upgraded or
stopped; if they become well, the others follow, three at a time.
"""

import os
from datetime import timedelta

from airflow_streamstate.streams_dag import StreamsDag

# [START declared_streams]
dag = StreamsDag(
    os.environ.get("STREAMS_FOLDER", "streams"),
    dag_id="declared_streams",
    needs_approval=os.environ.get("STREAMS_NEED_APPROVAL", "yes") == "yes",
    approval_timeout=timedelta(hours=12),
    canary="tier=canary",
    wave=3,
    healthy_for_seconds=float(os.environ.get("STREAMS_HEALTHY_FOR_SECONDS", "60")),
    stop_after_failures=2,
    prune=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
)
# [END declared_streams]
