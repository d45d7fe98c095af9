"""### Act on a stream

What the buttons of the page *Streams* run, each in a separate DAG, so that Airflow's rights decide who may do what.
Each takes a stream, the connection of its home, and a reason, and can be triggered like any other DAG.
"""

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, Param, task

from airflow_streamstate.hooks.configuration import page_conn_ids
from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.base import requester_of
from airflow_streamstate.operators.deploy import ResumeStreamOperator
from airflow_streamstate.operators.snapshot import SnapshotStreamOperator
from airflow_streamstate.operators.stop import DrainStreamOperator, StopStreamOperator
from airflow_streamstate.operators.upgrade import RollbackStreamOperator

# [START act_on_stream]
HOMES = list(page_conn_ids())  # those of Airflow's configuration; a run for another home is refused
PARAMS = {
    "stream_id": Param(type="string", pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", title="Stream"),
    "conn_id": Param(*HOMES[:1], type="string", enum=HOMES, title="Connection of its home"),
    "reason": Param(
        "", type="string", maxLength=500, title="Why", description="Kept with everything that is recorded."
    ),
}
EVERY = {
    "schedule": None,
    "start_date": datetime(2026, 1, 1, tzinfo=timezone.utc),
    "catchup": False,
    "default_args": {"retries": 1, "retry_delay": timedelta(seconds=10)},  # a retry finds what the earlier try started
    "is_paused_upon_creation": False,
    "doc_md": __doc__,
    "tags": ["streamstate", "act"],
}
ON_STREAM = {
    "stream_id": "{{ params.stream_id }}",
    "streamstate_conn_id": "{{ params.conn_id }}",
    "reason": "{{ params.reason }}",  # the signed-in user is recorded with it
    "deferrable": True,
}

with DAG("streamstate_stop", params=PARAMS, **EVERY):
    StopStreamOperator(task_id="stop", **ON_STREAM)

with DAG("streamstate_drain", params=PARAMS, **EVERY):
    DrainStreamOperator(task_id="drain", wait_for_completion=True, timeout_seconds=3600, **ON_STREAM)

with DAG("streamstate_snapshot", params=PARAMS, **EVERY):
    SnapshotStreamOperator(task_id="snapshot", **ON_STREAM)

with DAG("streamstate_resume", params=PARAMS, **EVERY):
    ResumeStreamOperator(task_id="resume", **ON_STREAM)

with DAG("streamstate_rollback", params=PARAMS, **EVERY):
    RollbackStreamOperator(task_id="rollback", **ON_STREAM)

ON_UPGRADE = {**PARAMS, "upgrade_id": Param(type="string", pattern="^u-[0-9a-f]{12}$", title="Upgrade")}
ANSWER = {
    **ON_UPGRADE,
    "approve": Param(
        type="boolean", title="Approve its plan", description="No: it is refused, and the stream runs on."
    ),
}
CANCEL = {
    **ON_UPGRADE,
    "after_stop": Param(
        "rollback",
        enum=["rollback", "finish"],
        title="After the stop",
        description="What to do with an upgrade whose old version was already ordered to stop.",
    ),
}


def upgrades_of(context):
    """The upgrades of the home, in the name of the user who has triggered the run."""
    conn_id = context["params"]["conn_id"]
    return StreamStateHook(conn_id, requested_by=requester_of(context)).client.upgrades


with DAG("streamstate_answer_upgrade", params=ANSWER, **EVERY):

    @task
    def answer(**context) -> dict:
        params = context["params"]
        given = upgrades_of(context).approve(
            params["stream_id"], params["upgrade_id"], is_approved=params["approve"], reason=params["reason"]
        )
        return {"is_approved": given.is_approved, "given_by": given.given_by}

    answer()

with DAG("streamstate_continue_upgrade", params=ON_UPGRADE, **EVERY):

    @task
    def continue_upgrade(**context) -> dict:
        params, upgrades = context["params"], upgrades_of(context)
        view = upgrades.run(params["stream_id"], params["upgrade_id"], timeout_seconds=3600, on_step=print)
        if error := view.as_error():
            raise error
        return view.to_json()

    continue_upgrade()

with DAG("streamstate_cancel_upgrade", params=CANCEL, **EVERY):

    @task
    def cancel_upgrade(**context) -> dict:
        params, upgrades = context["params"], upgrades_of(context)
        which = (params["stream_id"], params["upgrade_id"])
        upgrades.cancel(*which, after_stop=params["after_stop"], reason=params["reason"])
        view = upgrades.run(*which, timeout_seconds=3600, on_step=print)
        if not view.is_end_of_cancel(params["after_stop"]):
            raise view.as_error() or RuntimeError("the upgrade was over before it could be cancelled")
        return view.to_json()

    cancel_upgrade()
# [END act_on_stream]
