"""What a change would do, known before it is made: the recorded plans, their comparison, and the rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.idempotency import request_id_or_new
from airflow_streamstate.controller.rehearsal.rehearsals import Rehearsals, RehearsalView
from airflow_streamstate.controller.request.changes import Change
from airflow_streamstate.controller.scratch_driver import LATE_SECONDS
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, UnavailableError
from airflow_streamstate.launch.known_bad import brought_names, known_bad_among
from airflow_streamstate.plan.codes import difference
from airflow_streamstate.plan.comparison import compare_deployments
from airflow_streamstate.plan.differences import DeploymentComparison, compared, gravest
from airflow_streamstate.plan.kept_state import kept_operators, with_kept_state
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.plan.report import PlanReport, report_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.rehearsals import Rehearsal, RehearsalVerdict, SeedTrial

Report = Callable[[str], None]
DEADLINE_SECONDS = 300.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RecordedPlans:
    """The plans of the current deployment of a stream, as they were when its queries started.

    Attributes:
        queries: those whose plan is recorded, by name.
        unknown: those that run, or ran, without a recorded plan.
        notes: releases among what it brings along that are known to fail, one sentence each.
    """

    stream_id: str
    deployment_id: str
    queries: Mapping[str, QueryPlan]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Planning:
    """Tells what a change would do.

    Args:
        means: of the controller.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._clock = context.clock
        self._rehearsals = Rehearsals(context)

    def recorded(self, stream_id: str) -> RecordedPlans:
        """The plans of the current deployment.

        Raises:
            StreamNotFoundError: there is none.
        """
        seen = self._context.observer.observe(stream_id)
        control = self._context.home.control(stream_id)
        plans = recorded_plans(control, seen.deployment_id)
        unknown = _unplanned(control, seen.deployment_id, plans)
        spark = next((plan.spark_version for plan in plans.values()), "")
        bad = _known_bad(_brought(control, seen.deployment_id), spark)
        return RecordedPlans(stream_id, seen.deployment_id, plans, unknown, bad)

    def begin(
        self,
        request: Change,
        *,
        request_id: str | None = None,
        runs_batches: bool = True,
        deadline_seconds: float = DEADLINE_SECONDS,
        waits_seconds: float | None = None,
        refuses: tuple[str, ...] = (),
        seeds: SeedTrial = "never",
        snapshot_id: str | None = None,
    ) -> RehearsalView:
        """Launch the changed version in a rehearsal: its script runs once, its queries do not.

        The same request id finds a rehearsal that is under way; one that is over is begun anew.

        Args:
            request: the change.
            request_id: names the request over all its tries; None for a new one.
            runs_batches: run an empty batch of each query on a fork of its state; else read its plan alone.
            deadline_seconds: until when it must be over.
            waits_seconds: for how long from now its driver, where it is accepted, waits to be handed over
                (``Rehearsals.is_waiting``); None for not at all.
            refuses: verdicts of a plan by which it is refused whatever Spark says: no batch is run then.
            seeds: whether its queries are also tried as they would be seeded after a drain.
            snapshot_id: what it is tried on; None for what the current deployment has by now.

        Raises:
            StreamNotFoundError: the stream was never deployed.
            InvalidRequestError: what is asked for cannot be, or could not be launched.
            SnapshotNotFoundError: the snapshot that it would start from is gone.
            IncompatibleUpgradeError, InputLostError: it cannot start from what the current deployment left, as a
                deploy would say.
        """
        return self._rehearsals.begin(
            request,
            request_id_or_new(request_id, self._clock),
            runs_batches=runs_batches,
            deadline_seconds=deadline_seconds,
            waits_seconds=waits_seconds,
            refuses=refuses,
            seeds=seeds,
            snapshot_id=snapshot_id,
        )

    def is_over(self, stream_id: str, rehearsal_id: str) -> bool:
        """Whether there is something to report; changes nothing. Raises InvalidRequestError: no such rehearsal."""
        return self._rehearsals.is_over(stream_id, rehearsal_id)

    def is_waiting(self, stream_id: str, rehearsal_id: str) -> bool:
        """Whether the driver of an accepted rehearsal waits to be handed over. Raises as ``is_over``."""
        return self._rehearsals.is_waiting(stream_id, rehearsal_id)

    def waiting_end(self, stream_id: str, rehearsal_id: str) -> str:
        """Why it will not wait (any more), one line; "" while it may. Raises as ``is_over``."""
        return self._rehearsals.waiting_end(stream_id, rehearsal_id)

    def describe(self, stream_id: str, rehearsal_id: str) -> str:
        """Where a rehearsal stands, in one line for people who wait. Raises InvalidRequestError: no such rehearsal."""
        return self._rehearsals.describe(stream_id, rehearsal_id)

    def report(self, stream_id: str, rehearsal_id: str) -> PlanReport:
        """End the rehearsal, whatever it does, remove what it made, and report. Twice is once. A driver that is to wait
        is left alone: ``give_up`` ends it.

        Raises:
            InvalidRequestError: no such rehearsal.
        """
        control = self._context.home.control(stream_id)
        brought = _brought(control, rehearsal_id)  # its record is removed with it
        rehearsal, verdict = self._rehearsals.report(stream_id, rehearsal_id)
        bad = _known_bad(brought, verdict.spark_version)
        return report_of(rehearsal, verdict, self._compare(control, rehearsal, verdict), bad)

    def wait(self, view: RehearsalView, on_progress: Report | None = None) -> PlanReport:
        """Wait until a rehearsal is over, which it is at its deadline, and report."""

        def look() -> bool | None:
            with suppress(UnavailableError):  # says nothing about the rehearsal
                if self.is_over(view.stream_id, view.rehearsal_id):
                    return True
                if on_progress is not None:
                    on_progress(self._rehearsals.describe(view.stream_id, view.rehearsal_id))
            return None

        left = (view.deadline_at - self._clock.now()).total_seconds() + LATE_SECONDS
        poll(self._clock, look, timeout_seconds=max(left, 0.0), pause_seconds=lambda: POLL_SECONDS)
        return self.report(view.stream_id, view.rehearsal_id)

    def begun_by(self, stream_id: str, request_ids: Iterable[str]) -> list[str]:
        """The rehearsals that these requests became, whatever has become of them; sorted."""
        return self._rehearsals.begun_by(stream_id, request_ids)

    def give_up(self, stream_id: str, rehearsal_id: str) -> None:
        """End a rehearsal for which nobody waits any more, and remove what it made."""
        self._rehearsals.give_up(stream_id, rehearsal_id)

    def sweep(self, stream_id: str) -> None:
        """Remove what rehearsals left whose controller died."""
        self._rehearsals.sweep(stream_id)

    def _compare(self, control: StreamControl, rehearsal: Rehearsal, verdict: RehearsalVerdict) -> DeploymentComparison:
        """What can be compared; a query of which one plan is not known is as grave as what nobody can see."""
        old = {
            name: self._with_kept_state(rehearsal, name, plan)
            for name, plan in recorded_plans(control, rehearsal.deployment_id).items()
        }
        new = recorded_plans(control, rehearsal.rehearsal_id)
        unplanned = _unplanned(control, rehearsal.deployment_id, old)
        found = compare_deployments(
            {name: plan for name, plan in old.items() if name in new or name not in verdict.queries},
            {name: plan for name, plan in new.items() if name in old or name not in unplanned},
        )
        queries = dict(found.queries)
        for name in verdict.queries:
            if name not in new:
                queries[name] = compared([difference("not-comparable", "", f"the new plan of {name} cannot be read")])
            elif name in unplanned:
                reason = f"{name} was started by a release that recorded no plan"
                queries[name] = compared([difference("not-comparable", "", reason)])
        return DeploymentComparison(gravest(each.verdict for each in queries.values()), queries)

    def _with_kept_state(self, rehearsal: Rehearsal, name: str, plan: QueryPlan) -> QueryPlan:
        """With the variables of its processors, which its first batches left in its checkpoint, and no plan tells."""
        if not any(operator.kind == "transform_with_state" for operator in plan.operators):
            return plan
        folder = layout.checkpoint_folder(rehearsal.stream_id, rehearsal.deployment_id, name)
        checkpoint = Checkpoint(self._context.home.checkpoints, folder)
        try:
            batch_id = checkpoint.position().batch_id
            kept = () if batch_id is None else kept_operators(checkpoint, batch_id, len(plan.operators))
        except DataError:
            return plan  # whoever goes on from it is told
        return with_kept_state(plan, kept)


def _brought(control: StreamControl, deployment_id: str) -> tuple[str, ...]:
    """What a version brings along; of one without a record nothing."""
    try:
        spec = control.spec(deployment_id)
    except (DeploymentNotFoundError, DataError):
        return ()
    return brought_names(spec.packages, spec.jars, spec.conf)


def _known_bad(brought: tuple[str, ...], spark_version: str) -> tuple[str, ...]:
    """What of it is known to fail, one sentence each."""
    return tuple(found.sentence for found in known_bad_among(brought, spark_version))


def _unplanned(control: StreamControl, deployment_id: str, plans: Mapping[str, QueryPlan]) -> tuple[str, ...]:
    events = control.journal(deployment_id).events()
    names = {entry.event.query_name for entry in events if isinstance(entry.event, QueryStarted)}
    return tuple(sorted(names - set(plans)))
