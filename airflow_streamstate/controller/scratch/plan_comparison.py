"""The plans of a change: the recorded ones, and their comparison with those of a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import DataError, DeploymentNotFoundError
from airflow_streamstate.launch.known_bad import brought_names, known_bad_among
from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.comparison import compare_deployments
from airflow_streamstate.plan.differences import DeploymentComparison, compared, gravest
from airflow_streamstate.plan.kept_state import kept_operators, with_kept_state
from airflow_streamstate.plan.migrating import settled
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.moved_sources import moved_plans
from airflow_streamstate.plan.recorded import plan_behind, recorded_plans
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.scratch import ScratchRun, ScratchVerdict


@dataclass(frozen=True)
class RecordedPlans:
    """The plans of the current deployment of a stream, as they were when its queries started.

    Attributes:
        queries: the recorded plans, by query.
        unknown: queries that were started without a recorded plan.
        notes: one sentence for each library of the deployment with a known bug.
    """

    stream_id: str
    deployment_id: str
    queries: Mapping[str, QueryPlan]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def current_plans(context: ControllerContext, stream_id: str) -> RecordedPlans:
    """The plans of the current deployment. Raises StreamNotFoundError."""
    seen = context.observer.observe(stream_id)
    control = context.home.control(stream_id)
    plans = recorded_plans(control, seen.deployment_id)
    unknown = _unplanned(control, seen.deployment_id, plans)
    spark = next((plan.spark_version for plan in plans.values()), "")
    bad = known_bad(brought_by(control, seen.deployment_id), spark)
    return RecordedPlans(stream_id, seen.deployment_id, plans, unknown, bad)


def compare_plans(home: Home, control: StreamControl, run: ScratchRun, verdict: ScratchVerdict) -> DeploymentComparison:
    """The comparison of the plans of a rehearsal with the recorded ones; a query with one unknown plan is not
    comparable."""
    recorded = recorded_plans(control, run.deployment_id)
    for name in verdict.queries.keys() - recorded.keys():
        before = plan_behind(control, run.deployment_id, name)
        if before is not None:  # its start was refused
            recorded[name] = before
    old = {name: _with_kept_state(home, run, name, plan) for name, plan in recorded.items()}
    old = moved_plans(old, run.rehearsal.move_sources)
    new = recorded_plans(control, run.run_id)
    unplanned = _unplanned(control, run.deployment_id, old)
    found = compare_deployments(
        {name: plan for name, plan in old.items() if name in new or name not in verdict.queries},
        {name: plan for name, plan in new.items() if name in old or name not in unplanned},
    )
    queries = {
        name: each if name not in new else settled(each, new[name], run.rehearsal.rewrite, _migrated(verdict, name))
        for name, each in found.queries.items()
    }
    for name in verdict.queries:
        if name not in new:
            queries[name] = compared([difference("not-comparable", "", f"the new plan of {name} cannot be read")])
        elif name in unplanned:
            reason = f"{name} was started by a release that recorded no plan"
            queries[name] = compared([difference("not-comparable", "", reason)])
    return DeploymentComparison(gravest(each.verdict for each in queries.values()), queries)


def _migrated(verdict: ScratchVerdict, name: str) -> set[int]:
    """The operators of a query whose state went through a migration."""
    query = verdict.queries.get(name)
    return set() if query is None else {table.operator_id for table in query.rewritten if table.is_migrated}


def _with_kept_state(home: Home, run: ScratchRun, name: str, plan: QueryPlan) -> QueryPlan:
    """The plan with the state variables of its processors, which only a checkpoint with a batch has."""
    if not any(operator.kind == "transform_with_state" for operator in plan.operators):
        return plan
    folder = layout.checkpoint_folder(run.stream_id, run.deployment_id, name)
    checkpoint = Checkpoint(home.checkpoints, folder)
    try:
        batch_id = checkpoint.position().batch_id
        kept = () if batch_id is None else kept_operators(checkpoint, batch_id, len(plan.operators))
    except DataError:
        return plan  # a start from this checkpoint reports the damage
    return with_kept_state(plan, kept)


def brought_by(control: StreamControl, deployment_id: str) -> tuple[str, ...]:
    """The libraries of a version; none where it has no readable record."""
    try:
        spec = control.spec(deployment_id)
    except (DeploymentNotFoundError, DataError):
        return ()
    return brought_names(spec.version.packages, spec.version.jar_names, spec.version.conf)


def known_bad(brought: tuple[str, ...], spark_version: str) -> tuple[str, ...]:
    """One sentence for each library with a known bug."""
    return tuple(found.sentence for found in known_bad_among(brought, spark_version))


def _unplanned(control: StreamControl, deployment_id: str, plans: Mapping[str, QueryPlan]) -> tuple[str, ...]:
    events = control.journal(deployment_id).events()
    names = {entry.event.query_name for entry in events if isinstance(entry.event, QueryStarted)}
    return tuple(sorted(names - set(plans)))
