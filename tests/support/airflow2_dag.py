"""A DAG for Airflow 2, which docs/start/airflow2.md quotes and tests/airflow/test_airflow2.py runs."""

# [START airflow2]
from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

from airflow.models.dag import DAG
from airflow.models.param import Param
from airflow.operators.bash import BashOperator

STREAMSTATE = os.environ.get("STREAMSTATE", "/opt/streamstate/bin/streamstate")
ENVIRONMENT = {"STREAMSTATE_HOME": os.environ.get("STREAMSTATE_HOME", "s3://my-bucket/streams")}
CHANGE = "{{ params.stream_id }} --app {{ params.application }}"
REQUEST = "--request-id {task}-$(echo '{{{{ dag_run.dag_id }}}} {{{{ run_id }}}}' | sha256sum | cut -c1-40)"

with DAG(
    "upgrade_by_shell",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    params={"stream_id": Param("flights", type="string"), "application": Param("/code/count.py", type="string")},
) as upgrade_by_shell:
    verbs = {
        "plan": f"{STREAMSTATE} plan {CHANGE} {REQUEST.format(task='plan')}",
        "upgrade": f"{STREAMSTATE} --json upgrade {CHANGE} --timeout 3600 {REQUEST.format(task='upgrade')}",
        "audit": f"{STREAMSTATE} audit {{{{ params.stream_id }}}}",
    }
    plan, upgrade, audit = (
        BashOperator(task_id=name, bash_command=command, env=ENVIRONMENT, append_env=True)
        for name, command in verbs.items()
    )
    plan >> upgrade >> audit
# [END airflow2]
