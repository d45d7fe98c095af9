"""Rehearsals: begin one, look whether it is over, end it, and remove what it made.

A rehearsal is neither a deployment nor an attempt: it does not touch the register, claims nothing, and writes no event
of the stream. Its record comes first, with its deadline, so that any later controller can remove the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_streamstate.checkpoint.moved_sources import plain_moves
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.decide import Refused, Start, decide_start
from airflow_streamstate.controller.deploy.deploying import refuse_sent_once
from airflow_streamstate.controller.deploy.moving_sources import moving
from airflow_streamstate.controller.deploy.renaming import renaming
from airflow_streamstate.controller.deploy.spark_moves import refuse_spark
from airflow_streamstate.controller.deploy.takeover import (
    built_checkpoints,
    carried_queries,
    holders_of,
    to_capture,
    written_by,
)
from airflow_streamstate.controller.drivers.places import ATTEMPT
from airflow_streamstate.controller.drivers.warm import is_handed_over, is_to_wait
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.idempotency import check_same_request, request_id_or_new
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.rehearsal.partitions import (
    SuggestedPartitions,
    check_changes,
    suggest_partitions,
)
from airflow_streamstate.controller.rehearsal.planning import (
    RecordedPlans,
    brought_by,
    compare_plans,
    current_plans,
    known_bad,
)
from airflow_streamstate.controller.request.patch import beside_checkpoints
from airflow_streamstate.controller.request.requests import Change
from airflow_streamstate.controller.scratch_driver import END_SECONDS, LATE_SECONDS, LAUNCHES, ScratchDriver, is_late
from airflow_streamstate.controller.wait.waiting import poll
from airflow_streamstate.controller.wait.watching import log_tail_of, secrets_seen
from airflow_streamstate.errors import (
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.plan.recorded import recorded_plans
from airflow_streamstate.plan.report import PlanReport, report_of
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.events import Drained, Finished, Stopped
from airflow_streamstate.protocol.ids import rehearsal_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.redaction import shortened
from airflow_streamstate.protocol.rehearsals import (
    DEADLINE_SECONDS,
    Rehearsal,
    RehearsalOutcome,
    RehearsalVerdict,
    SeedTrial,
)
from airflow_streamstate.protocol.terms.declaration import values_of
from airflow_streamstate.protocol.terms.upgrade import RehearsalTerms
from airflow_streamstate.snapshot.capture import capture

RAN_ON = "the script ran on"
"""Begins the note of a rehearsal whose script never ended by itself, so that its driver cannot wait."""


def start_of(home: Home, control: StreamControl, seen: Observation, request: Change, rehearsal_id: str) -> Start:
    """How the changed version would start: as a deploy now, or from the current position of a running stream, which is
    captured under the rehearsal's id.

    Raises:
        SnapshotNotFoundError: the snapshot at the end of the deployment is gone.
        IncompatibleUpgradeError: a drain left state that the request does not drop.
        InputLostError: a source sends each row once, and going on without its offset is not accepted.
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
    where no query has begun a batch."""
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


Report = Callable[[str], None]
POLL_SECONDS = 0.5
KEPT_REPORTS = 20
MAX_LINE_CHARACTERS = 1_000
DEFAULT_TERMS = RehearsalTerms()
_RECORD = "rehearsal.json"
_KEPT = (_RECORD, "verdict.json", "plans")
_OF_THE_ATTEMPT = (LAUNCHES, "waiting.json", "handover.json")
"""Also kept where the driver has become an attempt."""


@dataclass(frozen=True)
class RehearsalView:
    """A rehearsal as it was begun.

    Attributes:
        deployment_id: the current deployment, which the new version would follow.
        start: how the new version would start.
        notes: notes on the start for people, one sentence each.
    """

    stream_id: str
    rehearsal_id: str
    deployment_id: str
    start: StartPlan
    deadline_at: datetime
    notes: tuple[str, ...] = ()


class Rehearsals:
    """The rehearsals of the streams of one home."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._home = context.home
        self._clock = context.clock

    def recorded(self, stream_id: str) -> RecordedPlans:
        """The plans of the current deployment. Raises StreamNotFoundError."""
        return current_plans(self._context, stream_id)

    def suggest_partitions(self, stream_id: str) -> list[SuggestedPartitions]:
        """A number of partitions for each query with state. Raises StreamNotFoundError."""
        return suggest_partitions(self._context, stream_id)

    # begin

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

        The same request id finds a rehearsal that is under way; after its end it begins a new one.

        Args:
            request_id: the same for every retry of this request; None for a new request.
            terms: what is tried.
            deadline_seconds: when the rehearsal must be over, from now.
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
        rehearsal = self._under_way(control, request_id, request.digest)
        if rehearsal is None:
            rewrite = request.rewrite
            check_changes(recorded_plans(control, seen.deployment_id), seen.spec.start.rewrite, rewrite)
            now = self._clock.now()
            rehearsal = self.record(
                control,
                Rehearsal(
                    stream_id=control.stream_id,
                    rehearsal_id=self._next_id(control, request_id),
                    deployment_id=seen.deployment_id,
                    terms=RehearsalTerms(**values_of(RehearsalTerms, terms)),
                    created_at=now,
                    deadline_at=now + timedelta(seconds=deadline_seconds),
                    requested_by=self._context.requested_by,
                    request_id=request_id,
                    request_digest=request.digest,
                    write_id=self._clock.new_uuid(),
                    allow_new_queries=request.terms.allow_new_queries,
                    waits_until=None if waits_seconds is None else now + timedelta(seconds=waits_seconds),
                    refuses=refuses,
                    seeds=seeds,
                    notes=request.notes(seen.spec.version),
                    rewrite=rewrite,
                    move_sources=plain_moves(request.terms.move_sources),
                ),
            )
        try:
            version = request.applied_to(control.with_found_modules(seen.spec).version, self._home.guarded)
            spec = DeploymentSpec(
                stream_id=seen.stream_id,
                deployment_id=rehearsal.rehearsal_id,
                fencing_token=seen.spec.fencing_token,
                version=beside_checkpoints(version, seen.spec.checkpoints_uri),
                start=StartPlan("fresh"),
                checkpoints_uri=seen.spec.checkpoints_uri,
                request_id=request_id,
                requested_by=self._context.requested_by,
                reason=request.reason,
                created_at=rehearsal.created_at,
            )
            self._context.drivers.check(spec, ATTEMPT)
            if snapshot_id is None:
                refuse_spark(self._home, control, self._context.drivers, spec, seen)
                start = start_of(self._home, control, seen, request, rehearsal.rehearsal_id)
            else:
                start = _decided(control, seen, request, control.need_manifest(snapshot_id))
            spec = self.create_spec(control, replace(spec, start=start.plan))
            self._context.drivers.launch(control, spec, ATTEMPT)
        except StreamStateError as error:
            self.withdraw(control, rehearsal.rehearsal_id, error)
            raise
        return RehearsalView(
            control.stream_id,
            rehearsal.rehearsal_id,
            rehearsal.deployment_id,
            spec.start,
            rehearsal.deadline_at,
            start.notes,
        )

    def _under_way(self, control: StreamControl, request_id: str, digest: str) -> Rehearsal | None:
        """The rehearsal of this request that is not over, or whose driver waits."""
        mine = [
            known
            for known in self.begun_by(control.stream_id, [request_id])
            if control.verdict(known) is None or self._is_left_alone(control, self._need(control, known))
        ]
        rehearsal = control.rehearsal(mine[-1]) if mine else None
        if rehearsal is not None:
            check_same_request(rehearsal, digest)
        return rehearsal

    def begun_by(self, stream_id: str, request_ids: Iterable[str]) -> list[str]:
        """The ids of all rehearsals that these requests began, sorted."""
        control = self._home.control(stream_id)
        starts = tuple(f"{rehearsal_id_for(each, 1).rpartition('-')[0]}-" for each in request_ids)
        return sorted(known for known in control.rehearsal_ids() if known.startswith(starts))

    def _next_id(self, control: StreamControl, request_id: str) -> str:
        known = self.begun_by(control.stream_id, [request_id])
        number = 1 + max((int(rehearsal_id.rpartition("-")[2]) for rehearsal_id in known), default=0)
        return rehearsal_id_for(request_id, number)

    def record(self, control: StreamControl, rehearsal: Rehearsal) -> Rehearsal:
        """Record a rehearsal before anything else of it (Law 1); the one that is recorded."""
        with suppress(ObjectExistsError):  # two calls of the same request at once
            control.create_rehearsal(rehearsal)
        return control.rehearsal(rehearsal.rehearsal_id) or rehearsal

    def create_spec(self, control: StreamControl, spec: DeploymentSpec) -> DeploymentSpec:
        """Record what a rehearsal runs; the one that is recorded."""
        try:
            control.create_spec(spec)
        except ObjectExistsError:
            return control.spec(spec.deployment_id)  # by an earlier call, whose driver may run
        return spec

    def withdraw(self, control: StreamControl, rehearsal_id: str, error: StreamStateError) -> None:
        """Remove a rehearsal that cannot begin; the next call finds one that may have begun."""
        if isinstance(error, UnavailableError | OutcomeUnknownError):
            return
        with suppress(StreamStateError):
            if self._driver(control, rehearsal_id).handle() is None:
                self._remove(control, rehearsal_id, everything=True)

    # observe

    def is_over(self, stream_id: str, rehearsal_id: str) -> bool:
        """Whether there is a verdict, or none can come any more; writes nothing.

        Raises:
            InvalidRequestError: the stream has no such rehearsal.
        """
        control = self._home.control(stream_id)
        rehearsal = self._need(control, rehearsal_id)
        if control.verdict(rehearsal_id) is not None or self._is_late(rehearsal):
            return True
        return self._driver(control, rehearsal_id).has_ended()

    def describe(self, stream_id: str, rehearsal_id: str) -> str:
        """The status of a rehearsal in one line. Raises as ``is_over``."""
        control = self._home.control(stream_id)
        handle = self._driver(control, rehearsal_id).handle()
        left = (self._need(control, rehearsal_id).deadline_at - self._clock.now()).total_seconds()
        state = "not launched" if handle is None else self._context.observer.status(handle).state
        return f"its driver is {state}; {max(left, 0):.0f} s are left"

    def _need(self, control: StreamControl, rehearsal_id: str) -> Rehearsal:
        rehearsal = control.rehearsal(rehearsal_id)
        if rehearsal is None:
            raise InvalidRequestError(
                "this stream has no such rehearsal",
                stream_id=control.stream_id,
                rehearsal_id=rehearsal_id,
                next_step="Rehearse again: reports are kept for a while only.",
            )
        return rehearsal

    def _is_late(self, rehearsal: Rehearsal) -> bool:
        return is_late(rehearsal.deadline_at, self._clock.now())

    def _driver(self, control: StreamControl, rehearsal_id: str) -> ScratchDriver:
        return ScratchDriver(self._context, control, rehearsal_id, _RECORD)

    def is_waiting(self, stream_id: str, rehearsal_id: str) -> bool:
        """Whether its driver lives and waits to be handed over (``Drivers.hand_over``); writes nothing. Raises as
        ``is_over``."""
        control = self._home.control(stream_id)
        if self.waiting_end(stream_id, rehearsal_id) or control.waiting(rehearsal_id) is None:
            return False
        handle = self._driver(control, rehearsal_id).handle()
        return handle is not None and self._context.observer.status(handle).state == "running"

    def waiting_end(self, stream_id: str, rehearsal_id: str) -> str:
        """Why its driver will never wait (again); "" while it may. Raises as ``is_over``."""
        control = self._home.control(stream_id)
        rehearsal = self._need(control, rehearsal_id)
        verdict, now = control.verdict(rehearsal_id), self._clock.now()
        if rehearsal.waits_until is None:
            return "it was not asked to wait"
        if is_handed_over(control, rehearsal_id):
            return "it was handed over"
        if verdict is not None and not verdict.can_take_over:
            return f"its rehearsal was not accepted: {verdict.why_not}".removesuffix(": ")
        if verdict is None and self._is_late(rehearsal):
            return "its rehearsal was not over at its deadline"
        if now >= rehearsal.waits_until:
            return f"it waited until {format_time(rehearsal.waits_until)}"
        handle = self._driver(control, rehearsal_id).handle()
        status = None if handle is None else self._context.observer.status(handle)
        is_unseen = status is None or status.state == "unknown"
        if verdict is not None and is_unseen and self._is_removed(control, rehearsal_id):
            return "its driver has ended"
        if status is None or not (status.has_ended or status.reported_end):
            return ""
        ran_on = [] if verdict is None else [note for note in verdict.notes if note.startswith(RAN_ON)]
        return f"its driver has ended: {'; '.join((*ran_on, status.reason))}"

    def _is_left_alone(self, control: StreamControl, rehearsal: Rehearsal) -> bool:
        """Whether its driver is to live on after its verdict: it waits, or is about to."""
        rehearsal_id = rehearsal.rehearsal_id
        if not is_to_wait(rehearsal, control.verdict(rehearsal_id), self._clock.now()):
            return False
        return not is_handed_over(control, rehearsal_id) and not self._driver(control, rehearsal_id).has_ended()

    # end

    def wait(self, view: RehearsalView, on_progress: Report | None = None) -> PlanReport:
        """Wait until a rehearsal is over, at its deadline at the latest, and report."""
        self.wait_over(view.stream_id, view.rehearsal_id, view.deadline_at, on_progress)
        return self.report(view.stream_id, view.rehearsal_id)

    def wait_over(
        self, stream_id: str, rehearsal_id: str, deadline_at: datetime, on_progress: Report | None = None
    ) -> None:
        """Wait until a rehearsal is over, at its deadline at the latest."""

        def look() -> bool | None:
            with suppress(UnavailableError):  # the store is away; the rehearsal may go on
                if self.is_over(stream_id, rehearsal_id):
                    return True
                if on_progress is not None:
                    on_progress(self.describe(stream_id, rehearsal_id))
            return None

        left = (deadline_at - self._clock.now()).total_seconds() + LATE_SECONDS
        poll(self._clock, look, timeout_seconds=max(left, 0.0), pause_seconds=lambda: POLL_SECONDS)

    def report(self, stream_id: str, rehearsal_id: str) -> PlanReport:
        """``conclude`` a rehearsal and report on it; but a driver that waits, or is about to, is left alone."""
        control = self._home.control(stream_id)
        brought = brought_by(control, rehearsal_id)  # before ``conclude``, which removes the spec
        rehearsal = self._need(control, rehearsal_id)
        verdict = control.verdict(rehearsal_id)
        if verdict is None or not self._is_left_alone(control, rehearsal):
            rehearsal, verdict = self.conclude(stream_id, rehearsal_id)
        comparison = compare_plans(self._home, control, rehearsal, verdict)
        return report_of(rehearsal, verdict, comparison, known_bad(brought, verdict.spark_version))

    def conclude(self, stream_id: str, rehearsal_id: str) -> tuple[Rehearsal, RehearsalVerdict]:
        """End a rehearsal, remove what it made, and return its verdict; idempotent. Raises as ``is_over``.

        A driver that was handed over belongs to a deployment: it is not ended, and its launch and its log stay.
        """
        control = self._home.control(stream_id)
        rehearsal = self._need(control, rehearsal_id)
        verdict = control.verdict(rehearsal_id)
        if not is_handed_over(control, rehearsal_id):
            ends_by_itself = verdict is not None and not is_to_wait(rehearsal, verdict, self._clock.now())
            self._driver(control, rehearsal_id).end(END_SECONDS if ends_by_itself else 0.0)
        verdict = verdict or control.verdict(rehearsal_id) or self._given(control, rehearsal)
        self._remove(control, rehearsal_id)
        return rehearsal, verdict

    def _given(self, control: StreamControl, rehearsal: Rehearsal) -> RehearsalVerdict:
        """Record the verdict for a driver that gave none."""
        outcome, error, tail = self._why_none(control, rehearsal)
        verdict = RehearsalVerdict(
            stream_id=control.stream_id,
            rehearsal_id=rehearsal.rehearsal_id,
            outcome=outcome,
            queries={},
            error=error,
            seconds=round((self._clock.now() - rehearsal.created_at).total_seconds(), 3),
            given_by="controller",
            given_at=self._clock.now(),
            write_id=self._clock.new_uuid(),
            log_tail=tail,
        )
        try:
            control.create_verdict(verdict)
        except ObjectExistsError:
            return control.verdict(rehearsal.rehearsal_id) or verdict
        return verdict

    def _why_none(self, control: StreamControl, rehearsal: Rehearsal) -> tuple[RehearsalOutcome, str, str]:
        handle = self._driver(control, rehearsal.rehearsal_id).handle()
        if self._clock.now() >= rehearsal.deadline_at:
            return "deadline", f"it was not over at its deadline, {format_time(rehearsal.deadline_at)}", ""
        if handle is None:
            return "failed", "its driver was never launched", ""
        reason = self._context.observer.status(handle).reason
        try:
            spec = control.spec(rehearsal.rehearsal_id)
        except StreamStateError:
            return "failed", "its driver ended without a verdict", ""
        tail = log_tail_of(self._context, spec, handle)
        secrets = secrets_seen(spec, handle)
        words = shortened(f"its driver ended without a verdict: {reason}", secrets, MAX_LINE_CHARACTERS, in_a_line=True)
        return "failed", words, tail

    def give_up(self, stream_id: str, rehearsal_id: str) -> None:
        """End a rehearsal early, its waiting driver included, without a report."""
        with suppress(InvalidRequestError):
            self.conclude(stream_id, rehearsal_id)

    # remove

    def sweep(self, stream_id: str) -> None:
        """Remove what rehearsals left that are over or past their deadline, and the oldest reports."""
        control = self._home.control(stream_id)
        over: dict[str, datetime] = {}
        for rehearsal_id in control.rehearsal_ids():
            with suppress(StreamStateError):  # the next sweep tries again
                ended_at = self._swept(control, rehearsal_id)
                if ended_at is not None:
                    over[rehearsal_id] = ended_at
        for rehearsal_id in sorted(over, key=lambda known: over[known])[:-KEPT_REPORTS]:
            with suppress(StreamStateError):
                self._remove(control, rehearsal_id, everything=True)

    def _swept(self, control: StreamControl, rehearsal_id: str) -> datetime | None:
        """Remove what one rehearsal left; when it ended, or None for one that is not over or was handed over."""
        rehearsal = self._need(control, rehearsal_id)
        verdict = control.verdict(rehearsal_id)
        if self._is_left_alone(control, rehearsal):
            return None
        if is_handed_over(control, rehearsal_id):
            if self._has_leftovers(control, rehearsal_id):
                self._remove(control, rehearsal_id)
            return None  # it has the log of a deployment's driver, and goes with that deployment
        if verdict is None and not (self._is_late(rehearsal) or self._driver(control, rehearsal_id).has_ended()):
            return None
        if verdict is None or self._has_leftovers(control, rehearsal_id):
            _, verdict = self.conclude(control.stream_id, rehearsal_id)
        return verdict.given_at

    def _is_removed(self, control: StreamControl, rehearsal_id: str) -> bool:
        """Whether what its driver ran is removed, which comes after the proof of the driver's end."""
        return self._home.home.head(layout.spec_key(control.stream_id, rehearsal_id)) is None

    def _has_leftovers(self, control: StreamControl, rehearsal_id: str) -> bool:
        folder = layout.deployment_folder(control.stream_id, rehearsal_id)
        stores = (self._home.home, self._home.checkpoints)
        is_kept = is_handed_over(control, rehearsal_id)
        kept = {*_KEPT, *(_OF_THE_ATTEMPT if is_kept else ())}
        found = {name for store in stores for name in store.list_folders(folder)} - kept
        if found or self._home.home.head(layout.spec_key(control.stream_id, rehearsal_id)) is not None:
            return True
        # A work dir belongs to one machine: the controller that concluded the rehearsal may not have seen this folder.
        return not is_kept and self._home.launch_path(f"{folder}/launches").exists()

    def _remove(self, control: StreamControl, rehearsal_id: str, *, everything: bool = False) -> None:
        kept: tuple[str, ...] = () if everything else _KEPT
        if is_handed_over(control, rehearsal_id):
            kept = (*_KEPT, *_OF_THE_ATTEMPT)
        self._driver(control, rehearsal_id).remove(kept)
