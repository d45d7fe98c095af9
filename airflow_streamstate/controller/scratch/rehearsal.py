"""Rehearsals of a version, and the comparison of its plans with the recorded ones."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from airflow_streamstate.checkpoint.file_source import plain_moves
from airflow_streamstate.checkpoint.guards import line_of
from airflow_streamstate.checkpoint.log import Checkpoint, OffsetEntry
from airflow_streamstate.control.artifacts import read_pinned
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Refused, Start, decide_start
from airflow_streamstate.controller.deploy.deployment import refuse_sent_once
from airflow_streamstate.controller.deploy.start_plan import moving, refuse_spark, renaming
from airflow_streamstate.controller.deploy.takeover import (
    built_checkpoints,
    carried_queries,
    holders_of,
    to_capture,
    written_by,
)
from airflow_streamstate.controller.drivers.driver_places import ATTEMPT, is_handed_over, waits_until
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.request.requests import Change
from airflow_streamstate.controller.scratch.partitions import SuggestedPartitions, check_changes, suggest_partitions
from airflow_streamstate.controller.scratch.run import Report, ScratchRuns, is_late, spec_of_run
from airflow_streamstate.controller.stream_guards import check_same_request, request_id_or_new
from airflow_streamstate.errors import DataError, DeploymentNotFoundError, StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.launch.spark_home import version_of
from airflow_streamstate.launch.submit_options import brought_names, built_for_another, known_bad_among
from airflow_streamstate.plan.codes import Comparison, DeploymentComparison, compared, difference, gravest, refusing
from airflow_streamstate.plan.comparison import Kept, compare_deployments, notes_of_state
from airflow_streamstate.plan.model import QueryPlan
from airflow_streamstate.plan.record import (
    kept_operators,
    moved_plans,
    plan_behind,
    recorded_plans,
    settled,
    with_kept_state,
)
from airflow_streamstate.plan.report import PlanReport, notes_of_move, report_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import Drained, Finished, QueryStarted, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.scratch import (
    DEADLINE_SECONDS,
    Rehearsal,
    RehearsedQuery,
    ScratchRun,
    ScratchVerdict,
    SeedTrial,
)
from airflow_streamstate.protocol.terms.declaration import values_of
from airflow_streamstate.protocol.terms.order import RehearsalTerms
from airflow_streamstate.protocol.terms.version import Version
from airflow_streamstate.snapshot.capture import capture

# The plans of a change: the recorded ones, and their comparison with those of a rehearsal.


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
    version = _version_of(control, deployment_id)
    return () if version is None else brought_names(version.packages, version.jar_names, version.conf)


def _version_of(control: StreamControl, deployment_id: str) -> Version | None:
    try:
        return control.spec(deployment_id).version
    except (DeploymentNotFoundError, DataError):
        return None


def known_bad(brought: tuple[str, ...], spark_version: str) -> tuple[str, ...]:
    """One sentence for each library with a known bug."""
    return tuple(found.sentence for found in known_bad_among(brought, spark_version))


def _unplanned(control: StreamControl, deployment_id: str, plans: Mapping[str, QueryPlan]) -> tuple[str, ...]:
    events = control.journal(deployment_id).events()
    names = {entry.event.query_name for entry in events if isinstance(entry.event, QueryStarted)}
    return tuple(sorted(names - set(plans)))


RAN_ON = "the script ran on"
"""The first words of the note of a rehearsal whose script never ended by itself, so that its driver cannot wait."""


def start_of(home: Home, control: StreamControl, seen: Observation, request: Change, rehearsal_id: str) -> Start:
    """How the changed version would start: as a deploy now, or from the current position of a running stream, which is
    captured under the rehearsal's id.

    Raises:
        SnapshotNotFoundError: the snapshot at the end of the deployment is gone.
        IncompatibleUpgradeError: a drain left state that the request does not drop.
        InputLostError: a source sends each row once, and continuing without its offset is not accepted.
        ObjectMissingError, DataError: a checkpoint is damaged.
        UnavailableError: the stream outran every try; the same call may be repeated.
    """
    return _decided(control, seen, request, _end_of(control, seen) or _captured(home, control, seen, rehearsal_id))


def _decided(control: StreamControl, seen: Observation, request: Change, manifest: SnapshotManifest | None) -> Start:
    carried = carried_queries(control, seen, manifest)
    decision = decide_start(request, seen.deployment_id, manifest, carried)
    if isinstance(decision, Refused):
        raise decision.error
    if manifest is None or decision.plan.snapshot_id is None:
        return decision
    decision = renaming(decision, seen.spec.start, request.terms.rename_queries, manifest)
    decision = moving(decision, request.terms.move_sources, manifest)
    return replace(decision, notes=(*decision.notes, *refuse_sent_once(request, manifest)))


def _end_of(control: StreamControl, seen: Observation) -> SnapshotManifest | None:
    """The snapshot at the end of a deployment; None where it has not ended, or kept none."""
    end = seen.drained or seen.terminal
    if not isinstance(end, Drained | Stopped | Finished) or end.snapshot_id is None:
        return None
    return control.need_manifest(end.snapshot_id)


def _captured(home: Home, control: StreamControl, seen: Observation, rehearsal_id: str) -> SnapshotManifest | None:
    """A snapshot of the last committed batch of every query, with the batch at which it failed of one that did; None
    where no query has started a batch."""
    checkpoints = built_checkpoints(home, seen)
    queries = to_capture(control, seen, checkpoints, holders_of(home, control, seen, checkpoints))
    over = queries.keys() if _is_over(seen) else seen.failed_queries.keys()
    positions = {name: checkpoint.position() for name, checkpoint in checkpoints.items()}
    batches = [position.batch_id for position in positions.values()]
    batches += [position.planned_id for name, position in positions.items() if name in over]
    batches += [query.carried.position.batch_id for query in queries.values() if query.carried is not None]
    if all(batch_id is None for batch_id in batches):
        return None
    return capture(
        control,
        home.checkpoints,
        snapshot_id=rehearsal_id,
        snapshot_kind="live",
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        fencing_token=seen.spec.fencing_token,
        taken_by="controller",
        queries=queries,
        spark_version=written_by(control, seen, checkpoints),
        places=home.places,
        planned_of=over,
    )


def _is_over(seen: Observation) -> bool:
    """Whether no query of the deployment runs any more, so that a planned batch waits for the next start."""
    return seen.terminal is not None or (seen.launch_status is not None and seen.launch_status.has_ended)


DEFAULT_TERMS = RehearsalTerms()


@dataclass(frozen=True)
class RehearsalView:
    """A rehearsal as it was started.

    Attributes:
        deployment_id: the current deployment, which the new version would follow.
        start: how the new version would start.
        notes: human-readable notes on the start, one sentence each.
    """

    stream_id: str
    rehearsal_id: str
    deployment_id: str
    start: StartPlan
    deadline_at: datetime
    notes: tuple[str, ...] = ()


class Rehearsals(ScratchRuns):
    """The rehearsals of the streams of one home."""

    def recorded(self, stream_id: str) -> RecordedPlans:
        """The plans of the current deployment. Raises StreamNotFoundError."""
        return current_plans(self._context, stream_id)

    def suggest_partitions(self, stream_id: str) -> list[SuggestedPartitions]:
        """A number of partitions for each query with state. Raises StreamNotFoundError."""
        return suggest_partitions(self._context, stream_id)

    def begin(
        self,
        request: Change,
        request_id: str | None = None,
        *,
        terms: RehearsalTerms = DEFAULT_TERMS,
        deadline_seconds: float = DEADLINE_SECONDS,
        waits_seconds: float | None = None,
        refuses: tuple[str, ...] = (),
        seeds: SeedTrial = "never",
        snapshot_id: str | None = None,
    ) -> RehearsalView:
        """Launch the changed version in a rehearsal: its script runs once, its queries do not.

        The same request id finds a rehearsal that is under way; after its end it starts a new one.

        Args:
            request_id: the same for every retry of this request; None for a new request.
            terms: what is tried.
            deadline_seconds: when the rehearsal must have ended, from now.
            waits_seconds: how long from now the driver of an accepted rehearsal waits to be handed over
                (``is_waiting``); None: it does not wait.
            refuses: plan verdicts that refuse the change without a batch.
            seeds: whether its queries are also tried as seeded after a drain.
            snapshot_id: the state that is forked; None for the current deployment's newest.

        Raises:
            StreamNotFoundError: the stream was never deployed.
            InvalidRequestError: the request is wrong, or its driver could not be launched.
            SnapshotNotFoundError: the snapshot that it would start from is gone.
            IncompatibleUpgradeError, InputLostError: a deploy could not start from what the current deployment left.
        """
        request_id = request_id_or_new(request_id, self._clock)
        control = self._home.need_stream(request.stream_id)
        seen = self._context.observer.observe(request.stream_id)
        self.sweep(request.stream_id)
        run = self._under_way(control, request_id, request.digest)
        if run is None:
            rewrite = request.rewrite
            check_changes(recorded_plans(control, seen.deployment_id), seen.spec.start.rewrite, rewrite)
            waits_until = None if waits_seconds is None else self._clock.now() + timedelta(seconds=waits_seconds)
            run = self.record(
                control,
                request_id,
                Rehearsal(
                    RehearsalTerms(**values_of(RehearsalTerms, terms)),
                    allow_new_queries=request.terms.allow_new_queries,
                    waits_until=waits_until,
                    refuses=refuses,
                    seeds=seeds,
                    rewrite=rewrite,
                    move_sources=plain_moves(request.terms.move_sources),
                ),
                deployment_id=seen.deployment_id,
                deadline_seconds=deadline_seconds,
                digest=request.digest,
                notes=request.notes(seen.spec.version),
            )
        with self.beginning(control, run.run_id):
            version = request.applied_to(control.with_found_modules(seen.spec).version, self._home.guarded)
            spec = spec_of_run(run, seen.spec, version, StartPlan("fresh"), request.reason)
            self._context.drivers.check(spec, ATTEMPT)
            if snapshot_id is None:
                refuse_spark(self._home, control, self._context.drivers, spec, seen)
                start = start_of(self._home, control, seen, request, run.run_id)
            else:
                start = _decided(control, seen, request, control.need_manifest(snapshot_id))
            spec = self.launch(control, replace(spec, start=start.plan))
        return RehearsalView(control.stream_id, run.run_id, run.deployment_id, spec.start, run.deadline_at, start.notes)

    def _under_way(self, control: StreamControl, request_id: str, digest: str) -> ScratchRun | None:
        """The rehearsal of this request that is not over, or whose driver waits."""
        mine = [
            run_id
            for run_id in self.begun_by(control.stream_id, [request_id])
            if control.verdict(run_id) is None or self._is_left_alone(control, self.need(control, run_id))
        ]
        run = control.scratch_run(mine[-1]) if mine else None
        if run is not None:
            check_same_request(run, digest)
        return run

    # a driver that waits

    def is_waiting(self, stream_id: str, rehearsal_id: str) -> bool:
        """Whether its driver lives and waits to be handed over (``Drivers.hand_over``); writes nothing. Raises as
        ``is_over``."""
        control = self._home.control(stream_id)
        if self.waiting_end(stream_id, rehearsal_id) or control.waiting(rehearsal_id) is None:
            return False
        handle = self.driver(control, rehearsal_id).handle()
        return handle is not None and self._context.observer.status(handle).state == "running"

    def waiting_end(self, stream_id: str, rehearsal_id: str) -> str:
        """Why its driver will never wait (again); "" while it may. Raises as ``is_over``."""
        control = self._home.control(stream_id)
        run = self.need(control, rehearsal_id)
        verdict, until, now = control.verdict(rehearsal_id), waits_until(run), self._clock.now()
        if until is None:
            return "it was not asked to wait"
        if is_handed_over(control, rehearsal_id):
            return "it was handed over"
        if verdict is not None and not verdict.can_take_over:
            return f"its rehearsal was not accepted: {verdict.why_not}".removesuffix(": ")
        if verdict is None and is_late(run.deadline_at, now):
            return "its rehearsal was not over at its deadline"
        if now >= until:
            return f"it waited until {format_time(until)}"
        handle = self.driver(control, rehearsal_id).handle()
        status = None if handle is None else self._context.observer.status(handle)
        is_unseen = status is None or status.state == "unknown"
        if verdict is not None and is_unseen and self.is_removed(control, rehearsal_id):
            return "its driver has ended"
        if status is None or not (status.has_ended or status.reported_end):
            return ""
        ran_on = [] if verdict is None else [note for note in verdict.notes if note.startswith(RAN_ON)]
        return f"its driver has ended: {'; '.join((*ran_on, status.reason))}"

    # its end

    def wait(self, view: RehearsalView, on_progress: Report | None = None) -> PlanReport:
        """Wait until a rehearsal has ended, at its deadline at the latest, and report. What interrupts the wait ends
        the rehearsal."""
        with self.ended_if_interrupted(view.stream_id, view.rehearsal_id):
            self.wait_over(view.stream_id, view.rehearsal_id, view.deadline_at, on_progress)
            return self.report(view.stream_id, view.rehearsal_id)

    def report(self, stream_id: str, rehearsal_id: str) -> PlanReport:
        """``conclude`` a rehearsal and report on it; but a driver that waits, or is about to, is left alone."""
        control = self._home.control(stream_id)
        brought = brought_by(control, rehearsal_id)  # before ``conclude``, which removes the spec
        version = _version_of(control, rehearsal_id)
        run = self.need(control, rehearsal_id)
        verdict = control.verdict(rehearsal_id)
        if verdict is None or not self._is_left_alone(control, run):
            run, verdict = self.conclude(stream_id, rehearsal_id)
        comparison = compare_plans(self._home, control, run, verdict)
        of_another = self._of_another_spark(control, run, verdict, version, comparison)
        return report_of(run, verdict, comparison, (*known_bad(brought, verdict.spark_version), *of_another))

    def _of_another_spark(
        self,
        control: StreamControl,
        run: ScratchRun,
        verdict: ScratchVerdict,
        version: Version | None,
        comparison: DeploymentComparison,
    ) -> tuple[str, ...]:
        """What the version has to expect where it moves to another line of Spark."""
        if version is None:
            return ()
        recorded = recorded_plans(control, run.deployment_id)
        ran_on = {plan.spark_version for plan in recorded.values()}
        # A driver that cannot start reports no version.
        home = version.environment.get("SPARK_HOME")
        runs_on = verdict.spark_version or version_of(Path(home) if home else None)
        old, new = line_of(next(iter(sorted(ran_on)), "")), line_of(runs_on)
        if old is None or new is None or old == new:
            return ()
        brought = brought_names(version.packages, version.jar_names, version.conf)
        sources = {}
        for artifact in (version.application, *version.modules):
            with suppress(StreamStateError):
                body = read_pinned(control.home, control.stream_id, artifact)
                sources[artifact.name] = body.decode("utf-8", "replace")
        notes = notes_of_move(old, new, version.conf, sources)
        kept = _kept_states(self._home, run, recorded, verdict, comparison)
        return (*built_for_another(brought, runs_on), *notes_of_state(kept, runs_on), *notes)


def _kept_states(
    home: Home,
    run: ScratchRun,
    recorded: Mapping[str, QueryPlan],
    verdict: ScratchVerdict,
    comparison: DeploymentComparison,
) -> dict[str, Kept]:
    """The recorded queries with state that the new version continues, or would if it could; all if it started none.

    State that is rewritten for it moves in another way, which the rehearsal has tried.
    """
    found: dict[str, Kept] = {}
    if run.rehearsal.rewrite is not None:
        return found
    for name, plan in recorded.items():
        query = verdict.queries.get(name)
        is_gone = query is None and verdict.queries
        if not plan.is_stateful or is_gone or (query is not None and query.start in ("seeded", "fresh")):
            continue
        unfit = "" if query is None else _unfit(query, comparison.queries.get(name, Comparison()))
        found[name] = Kept(_with_kept_state(home, run, name, plan), _last_entry(home, run, name), unfit)
    return found


def _unfit(query: RehearsedQuery, comparison: Comparison) -> str:
    """Why a version does not continue with the state of a query, in a few words; "" where it does."""
    refused = refusing(comparison, accepts_hazards=False)
    if refused:
        return refused[0].code
    return {"refused": "its rehearsal was refused", "failed": "its rehearsal failed"}.get(query.outcome, "")


def _last_entry(home: Home, run: ScratchRun, name: str) -> OffsetEntry | None:
    """The newest entry of the offset log of a recorded query; None where it cannot be read."""
    checkpoint = Checkpoint(home.checkpoints, layout.checkpoint_folder(run.stream_id, run.deployment_id, name))
    with suppress(DataError):
        ids = checkpoint.offset_ids()
        return checkpoint.read_offset(ids[-1]) if ids else None
    return None
