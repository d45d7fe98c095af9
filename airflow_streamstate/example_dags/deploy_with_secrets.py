"""### Deploy a stream that needs secrets

References take the place of secrets: the launcher looks them up at each start of the driver. Here the password of a
connection is an argument, a variable is a Spark setting, and an extra of the connection is in the environment.

The connection of the home allows them: `{"secrets": ["secret://airflow-connection/customer",
"secret://airflow-variable/customer_token"]}` in its field `allowed`.
"""

import os
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import dag

from airflow_streamstate.operators.deploy import DeployStreamOperator

JOBS = Path(__file__).resolve().parent / "jobs"
FLIGHTS = os.environ.get("FLIGHTS_FOLDER", "/srv/flights")


# [START deploy_with_secrets]
@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["streamstate"],
)
def deploy_with_secrets():
    DeployStreamOperator(
        task_id="deploy",
        stream_id="flights",
        application=JOBS / "count_for_customer.py",
        arguments=[
            "--input",
            f"{FLIGHTS}/incoming",
            "--output",
            f"{FLIGHTS}/delays",
            "--password=secret://airflow-connection/customer#password",
        ],
        conf={"spark.hadoop.customer.token": "secret://airflow-variable/customer_token"},
        environment={"CUSTOMER_API_KEY": "secret://airflow-connection/customer#extra.api_key"},
        master="local[2]",
        timeout_seconds=900,
        deferrable=True,
    )


# [END deploy_with_secrets]


deploy_with_secrets()
