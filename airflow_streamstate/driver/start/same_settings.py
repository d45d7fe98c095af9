"""A restore under settings that change what the values in its state mean is refused, and the settings are named.

An upgrade is told so by its plan, before anything is stopped, and goes another way. Whoever stops and deploys is told
here, before the checkpoint is built: Spark goes on in silence, and mixes what both settings made.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.driver.attempt.attempt import Attempt
from airflow_streamstate.driver.attempt.ports import StartableQuery
from airflow_streamstate.driver.start.plans import plan_of
from airflow_streamstate.errors import IncompatibleUpgradeError, OutcomeUnknownError, UnavailableError
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import last_recorded_plans
from airflow_streamstate.plan.rules_state import state_differences
from airflow_streamstate.plan.settings import SETTINGS
from airflow_streamstate.protocol.ids import is_of_upgrade


def check_same_settings(attempt: Attempt, name: str, startable: StartableQuery, deployment_id: str) -> None:
    """See that a query is not restored under settings by which its state means something else.

    Where nobody recorded the settings of before, or the plan cannot be read, nothing is known, and nothing is refused;
    nor on another Spark, which has defaults of its own. What an upgrade or a rollback starts was decided on already.

    Args:
        attempt: of the deployment that starts.
        name: of the query.
        startable: the script's writer.
        deployment_id: whose state is restored.

    Raises:
        IncompatibleUpgradeError: it is.
        UnavailableError: the store does not answer.
    """
    if is_of_upgrade(attempt.spec.request_id):
        return
    old = last_recorded_plans(attempt.control, deployment_id, {name}).get(name)
    if old is None or old.spark_version != attempt.spark_version:
        return
    if dict(startable.session_conf(SETTINGS)) == dict(old.settings):
        return  # mostly, and no plan is read for it
    changed = _changed(attempt, name, startable, old)
    if changed:
        raise IncompatibleUpgradeError(
            "settings of this session change what the values in the state mean",
            query_name=name,
            settings=changed,
            next_step="Deploy with them as they were (--conf), which goes on; for the new ones drain that then"
            f" (`streamstate drain {attempt.stream_id}`), and deploy again: a seed begins under them.",
        )


def _changed(attempt: Attempt, name: str, startable: StartableQuery, old: QueryPlan) -> list[str]:
    try:
        new = plan_of(attempt, name, startable)
    except (UnavailableError, OutcomeUnknownError):
        raise
    except Exception:  # as where it is recorded: no start waits for its plan to be understood
        return []
    names = old.settings.keys() & new.settings.keys()  # of others one of the two releases has no word
    was, now = (replace(one, settings={name: one.settings[name] for name in names}) for one in (old, new))
    return [found.reason for found in state_differences(was, now) if found.code == "setting-changed"]
