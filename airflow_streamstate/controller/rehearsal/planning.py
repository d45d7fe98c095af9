"""The plans of a change: the recorded ones, their comparison, and the report of a rehearsal."""

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
        queries: the recorded plans, by query.
        unknown: queries that were started without a recorded plan.
        notes: one sentence for each library of the deployment with a known bug.
    """

    stream_id: str
    deployment_id: str
    queries: Mapping[str, QueryPlan]
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Planning:
    """The plans and rehearsals of the streams of one home."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._clock = context.clock
        self._rehearsals = Rehearsals(context)

    def recorded(self, stream_id: str) -> RecordedPlans:
        """The plans of the current deployment. Raises StreamNotFoundError."""
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

        The same request id finds a rehearsal that is under way; after its end it begins a new one.

        Args:
            request_id: the same for every retry of this request; None for a new request.
            runs_batches: run an empty batch of each query on a fork of its state; else read its plan alone.
            deadline_seconds: when the rehearsal must be over, from now.
            waits_seconds: how long from now the driver of an accepted rehearsal waits to be handed over
                (``Rehearsals.is_waiting``); None: it does not wait.
            refuses: plan verdicts that refuse the change without a batch.
            seeds: whether its queries are also tried as seeded after a drain.
            snapshot_id: the state that is forked; None for the current deployment's newest.

        Raises:
            StreamNotFoundError: the stream was never deployed.
            InvalidRequestError: the request is wrong, or its driver could not be launched.
            SnapshotNotFoundError: the snapshot that it would start from is gone.
            IncompatibleUpgradeError, InputLostError: a deploy could not start from what the current deployment left.
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
        """As ``Rehearsals.is_over``."""
        return self._rehearsals.is_over(stream_id, rehearsal_id)

    def is_waiting(self, stream_id: str, rehearsal_id: str) -> bool:
        """As ``Rehearsals.is_waiting``."""
        return self._rehearsals.is_waiting(stream_id, rehearsal_id)

    def waiting_end(self, stream_id: str, rehearsal_id: str) -> str:
        """As ``Rehearsals.waiting_end``."""
        return self._rehearsals.waiting_end(stream_id, rehearsal_id)

    def describe(self, stream_id: str, rehearsal_id: str) -> str:
        """As ``Rehearsals.describe``."""
        return self._rehearsals.describe(stream_id, rehearsal_id)

    def report(self, stream_id: str, rehearsal_id: str) -> PlanReport:
        """As ``Rehearsals.report``, with the comparison of the plans."""
        control = self._context.home.control(stream_id)
        brought = _brought(control, rehearsal_id)  # before the report, which removes the spec
        rehearsal, verdict = self._rehearsals.report(stream_id, rehearsal_id)
        bad = _known_bad(brought, verdict.spark_version)
        return report_of(rehearsal, verdict, self._compare(control, rehearsal, verdict), bad)

    def wait(self, view: RehearsalView, on_progress: Report | None = None) -> PlanReport:
        """Wait until a rehearsal is over, at its deadline at the latest, and report."""

        def look() -> bool | None:
            with suppress(UnavailableError):  # the store is away; the rehearsal may go on
                if self.is_over(view.stream_id, view.rehearsal_id):
                    return True
                if on_progress is not None:
                    on_progress(self._rehearsals.describe(view.stream_id, view.rehearsal_id))
            return None

        left = (view.deadline_at - self._clock.now()).total_seconds() + LATE_SECONDS
        poll(self._clock, look, timeout_seconds=max(left, 0.0), pause_seconds=lambda: POLL_SECONDS)
        return self.report(view.stream_id, view.rehearsal_id)

    def begun_by(self, stream_id: str, request_ids: Iterable[str]) -> list[str]:
        """As ``Rehearsals.begun_by``."""
        return self._rehearsals.begun_by(stream_id, request_ids)

    def give_up(self, stream_id: str, rehearsal_id: str) -> None:
        """As ``Rehearsals.give_up``."""
        self._rehearsals.give_up(stream_id, rehearsal_id)

    def sweep(self, stream_id: str) -> None:
        """As ``Rehearsals.sweep``."""
        self._rehearsals.sweep(stream_id)

    def _compare(self, control: StreamControl, rehearsal: Rehearsal, verdict: RehearsalVerdict) -> DeploymentComparison:
        """The comparison of the recorded plans; a query with one unknown plan is not comparable."""
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
        """The plan with the state variables of its processors, which only a checkpoint with a batch has."""
        if not any(operator.kind == "transform_with_state" for operator in plan.operators):
            return plan
        folder = layout.checkpoint_folder(rehearsal.stream_id, rehearsal.deployment_id, name)
        checkpoint = Checkpoint(self._context.home.checkpoints, folder)
        try:
            batch_id = checkpoint.position().batch_id
            kept = () if batch_id is None else kept_operators(checkpoint, batch_id, len(plan.operators))
        except DataError:
            return plan  # a start from this checkpoint reports the damage
        return with_kept_state(plan, kept)


def _brought(control: StreamControl, deployment_id: str) -> tuple[str, ...]:
    """The libraries of a version; none where it has no readable record."""
    try:
        spec = control.spec(deployment_id)
    except (DeploymentNotFoundError, DataError):
        return ()
    return brought_names(spec.packages, spec.jars, spec.conf)


def _known_bad(brought: tuple[str, ...], spark_version: str) -> tuple[str, ...]:
    """One sentence for each library with a known bug."""
    return tuple(found.sentence for found in known_bad_among(brought, spark_version))


def _unplanned(control: StreamControl, deployment_id: str, plans: Mapping[str, QueryPlan]) -> tuple[str, ...]:
    events = control.journal(deployment_id).events()
    names = {entry.event.query_name for entry in events if isinstance(entry.event, QueryStarted)}
    return tuple(sorted(names - set(plans)))
