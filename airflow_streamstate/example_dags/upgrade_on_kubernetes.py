"""### Upgrade a stream whose driver is a pod

The driver runs in the namespace `streams` and outlives worker, triggerer and scheduler: a task that is killed finds it
again. Trigger the DAG with another image, or after a change of the script. The state is kept, and the old version comes
back where the new one does not get healthy. The first version may run anywhere: the upgrade moves the stream into the
namespace. No volume is shared with the worker.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import Param, dag

from airflow_streamstate.operators.upgrade import UpgradeStreamOperator

FLIGHTS = os.environ.get("FLIGHTS_URI", "s3a://my-bucket/flights")

# [START upgrade_on_kubernetes]
STREAM = "flights-on-kubernetes"
POD_TEMPLATE = """
spec:
  nodeSelector: {pool: streams}
  containers:
    - name: driver
      resources: {requests: {cpu: "1", memory: 2Gi}, limits: {memory: 2Gi}}
"""
VERSION = {
    "application": Path(__file__).resolve().parent / "jobs" / "count_by_origin_v2.py",
    "arguments": ["--input", f"{FLIGHTS}/incoming", "--output", f"{FLIGHTS}/delays"],
    "launcher": "kubernetes",
    "launcher_conn_id": "kubernetes_default",
    "launcher_options": {
        "namespace": "streams",
        "image": "{{ params.image }}",
        "service_account": "streamstate-driver",
    },
    "pod_template": POD_TEMPLATE,
    "conf": {"spark.executor.instances": "2"},
}


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    params={"image": Param("registry.example.com/spark:4.2.0", type="string", description="with Spark and a Python")},
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry finds what the earlier try started
    doc_md=__doc__,
    tags=["streamstate"],
)
def upgrade_on_kubernetes():
    UpgradeStreamOperator(
        task_id="upgrade",
        stream_id=STREAM,
        **VERSION,
        reason="{{ params.image }}",
        timeout_seconds=1800,
        deferrable=True,
    )


# [END upgrade_on_kubernetes]

upgrade_on_kubernetes()
