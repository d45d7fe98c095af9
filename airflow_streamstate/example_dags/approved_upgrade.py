"""### Upgrade a stream when a person has approved the plan

The new version is rehearsed, and its plan waits for a person under *Required Actions*. An approval covers all that the
plan names, including a drain or a hazard. If the script, its arguments or the running version have changed since, the
task fails and nothing is stopped. A rejection, or a day without an answer, changes nothing.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

try:
    from airflow.providers.standard.operators.hitl import ApprovalOperator
except Exception as missing:  # the provider raises its own exception if Airflow is too old
    raise RuntimeError("approved_upgrade needs Airflow 3.1 or newer: older ones cannot ask a person") from missing

from airflow.sdk import Param, dag

from airflow_streamstate.hooks.rendered import plain_markdown
from airflow_streamstate.operators.plan import PlanUpgradeOperator, answer_within
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator

JOBS = Path(__file__).resolve().parent / "jobs"
FLIGHTS = os.environ.get("FLIGHTS_FOLDER", "/srv/flights")
PARAMS = {
    "stream_id": Param("flights", type="string", minLength=1, title="Stream"),
    "application": Param(
        str(JOBS / "count_by_route.py"), type="string", minLength=1, title="Script", description="The new version."
    ),
    "arguments": Param(
        ["--input", f"{FLIGHTS}/incoming", "--output", f"{FLIGHTS}/delays"],
        type="array",
        items={"type": "string"},
        title="Arguments",
        description="Of the script.",
    ),
    "replay_batches": Param(
        3,
        type="integer",
        minimum=0,
        maximum=100,
        title="Replay",
        description="This many recorded batches run in both versions, and their rows are compared.",
    ),
    "warm": Param(
        True, type="boolean", title="Launch it before the old one is stopped", description="If there is room for two."
    ),
}

# [START approved_upgrade]
PLAN = """
{% set plan = ti.xcom_pull('plan') %}
The verdict is **{{ plan.verdict | plain }}**. {{ plan.reason | plain }}

{% for name, query in plan.queries.items() %}{% for each in query.differences %}
- {{ name | plain }}: {{ each.code | plain }} ({{ each.verdict | plain }}): {{ each.reason.rstrip('.') | plain }}.
{#- #} {{ each.remedy | plain }}
{% endfor %}{% endfor %}
{% if plan.not_replayed %}No batch was replayed: {{ plan.not_replayed | plain }}.{% endif %}

{% for name, query in (plan.replay or {"queries": {}}).queries.items() %}{% for batch in query.batches %}
- {{ name | plain }}, batch {{ batch.batch_id }}, replayed in both versions:
{%- if batch.comparison %} {{ batch.comparison.same }} rows are the same,
{%- if batch.comparison.changed is not none %} {{ batch.comparison.changed }} changed,{% endif %}
{{ batch.comparison.only_old }} only in the old one, {{ batch.comparison.only_new }} only in the new one
{% if batch.comparison.changed_rows %}

  | key | old | new |
  |---|---|---|
{% for row in batch.comparison.changed_rows %}  | {{ [row.key, row.old, row.new] | map('plain') | join(' | ') }} |
{% endfor %}
{% endif %}{% for row in batch.comparison.samples_old %}
    - only old: {{ row | plain }}
{% endfor %}{% for row in batch.comparison.samples_new %}
    - only new: {{ row | plain }}
{% endfor %}{% else %} not compared{% endif %}
{% endfor %}{% endfor %}
"""


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry continues what the earlier try started
    render_template_as_native_obj=True,
    user_defined_filters={"plain": plain_markdown},  # no row or name of a stream becomes a link in the form
    params=PARAMS,
    doc_md=__doc__,
    tags=["streamstate"],
)
def approved_upgrade():
    change = {
        "stream_id": "{{ params.stream_id }}",
        "application": "{{ params.application }}",
        "arguments": "{{ params.arguments }}",
    }
    plan = PlanUpgradeOperator(
        task_id="plan",
        **change,
        replay_batches="{{ params.replay_batches }}",
        fail_unless_it_fits=False,
        deadline_seconds=900,
        deferrable=True,
    )

    approve = ApprovalOperator(
        task_id="approve",
        subject="Upgrade {{ params.stream_id }}?",
        body=PLAN,
        defaults="Reject",
        **answer_within(timedelta(days=1)),
    )

    upgrade = UpgradeStreamOperator(
        task_id="upgrade",
        **change,
        rehearsal_id="{{ ti.xcom_pull('plan')['rehearsal_id'] }}",
        allow_drain=True,
        accept_hazards=True,
        warm="{{ params.warm }}",
        on_kill_action="rollback",
        deferrable=True,
    )

    plan >> approve >> upgrade


# [END approved_upgrade]

approved_upgrade()
