"""Replays: recorded batches of a deployment run again into files, by a driver beside the stream.

A replay is recorded as a rehearsal, and its driver ends, and is removed, as that of one. The stream, its checkpoints,
its sinks and its records are not touched (Law 4).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from airflow_streamstate.checkpoint.moved_sources import plain_moves
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.spark_moves import refuse_spark
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.drivers.places import ATTEMPT
from airflow_streamstate.controller.observe.observation import NOT_ENDED, Observation
from airflow_streamstate.controller.rehearsal.rehearsals import Rehearsals, Report
from airflow_streamstate.controller.rehearsal.replay_choice import (
    batch_chosen,
    check_out,
    chosen_queries,
    last_batches,
)
from airflow_streamstate.controller.request.patch import DEFAULT_MASTER, beside_checkpoints
from airflow_streamstate.controller.request.requests import ChangeRequest, change_request
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    ObjectMissingError,
    StreamStateError,
)
from airflow_streamstate.plan.replay_report import ReplayedVersions, ReplayReport, replay_report
from airflow_streamstate.plan.report import PlanReport, queries_to_replay, with_replay
from airflow_streamstate.protocol.ids import rehearsal_id_for
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.rehearsals import REPLAY_SECONDS, Rehearsal, ReplayTerms
from airflow_streamstate.protocol.terms.upgrade import RehearsalTerms
from airflow_streamstate.snapshot.placing import known_places

OLD, NEW = "old", "new"
ROWS_FOLDER = "streamstate-replay-"
"""Begins the name of a temporary folder for rows."""
NOT_THERE = (InvalidRequestError, IncompatibleUpgradeError, InputLostError, DataError, ObjectMissingError)
"""Errors by which nothing can be replayed, and which say nothing about the new version."""


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """What is to run again.

    Attributes:
        change: what is different from the recorded version, its ``master`` above all; its ``stream_id`` is the stream.
        batch_id: one batch; None for the newest ones.
        last: so many of the newest ones.
        deployment_id: whose batches; None for the current deployment.
        query_name: None for all queries.
        among: of these queries those that have a batch which can be replayed, the others being noted; None for all,
            each of which must have one.
        out: a folder of this machine that is empty or absent; None for ``replay-STREAM-BATCH`` in the current one.
        part: a folder below that one for the rows; "" for none.
        compared_with: the view of a replay that is over: its batches run, and their rows are compared with its rows.
        notes: for people, kept with the replay.
        keeps_state: as in ``ReplayTerms``; set for two versions.
        calls_foreach_batch, debugger: as in ``ReplayTerms``; of two versions the new one's alone.
    """

    change: ChangeRequest
    batch_id: int | None = None
    last: int = 1
    deployment_id: str | None = None
    query_name: str | None = None
    among: Collection[str] | None = None
    out: str | None = None
    part: str = ""
    compared_with: ReplayView | None = None
    deadline_seconds: float = REPLAY_SECONDS
    notes: tuple[str, ...] = ()
    keeps_state: bool = False
    calls_foreach_batch: bool = False
    debugger: str = ""

    def in_recorded_version(self, recorded: ChangeRequest) -> ReplayRequest:
        """The first of two runs, into ``OUT/old``; ``recorded``: what is different in it, its ``master`` above all."""
        return replace(self, change=recorded, part=OLD, keeps_state=True, calls_foreach_batch=False, debugger="")

    def in_new_version(self, old: ReplayView) -> ReplayRequest:
        """The second run, into ``OUT/new``: the same batches, compared with those of the first."""
        out = str(Path(old.out).with_name(NEW))
        return replace(self, out=out, part="", deployment_id=old.deployment_id, compared_with=old, keeps_state=True)


@dataclass(frozen=True)
class ReplayView:
    """A replay as it was begun.

    Attributes:
        batches: by query, the batches that run.
        out: the absolute path of the folder that gets their rows.
        compared_with: that of the replay with whose rows these are compared; "" for none.
    """

    stream_id: str
    replay_id: str
    deployment_id: str
    batches: Mapping[str, tuple[int, ...]]
    out: str
    deadline_at: datetime
    compared_with: str = ""


@dataclass(frozen=True)
class PlannedReplay:
    """The two runs of a change that was planned.

    Attributes:
        recorded: what is different in the run of the recorded version.
        why_not: why nothing is to run; else "".
    """

    request: ReplayRequest
    recorded: ChangeRequest
    why_not: str = ""


Watched = Callable[[ReplayView], AbstractContextManager[Report]]
"""Called with a replay that was begun: the context in which it is waited for, which gives what reports the progress."""


class Replays:
    """The replays of the streams of one home."""

    def __init__(self, context: ControllerContext, rehearsals: Rehearsals) -> None:
        self._context = context
        self._rehearsals = rehearsals
        self._home = context.home
        self._clock = context.clock

    def begin(self, request: ReplayRequest) -> ReplayView:
        """Choose the batches, and launch the driver that runs them. The stream may run meanwhile.

        Raises:
            StreamNotFoundError, DeploymentNotFoundError: it does not exist.
            InvalidRequestError: there is no such query or batch, or it was cleaned up; the folder cannot be used; the
                driver could not be launched.
            ConflictError: the folder is not empty.
            IncompatibleUpgradeError: the Spark of this machine cannot read the checkpoints.
            DataError: a checkpoint is damaged.
        """
        change = request.change
        control = self._home.need_stream(change.stream_id)
        seen = self._context.observer.observe(change.stream_id, request.deployment_id)
        self._rehearsals.sweep(change.stream_id)
        batches, left_out = self._chosen(request, seen)
        newest = max(ids[-1] for ids in batches.values())
        out = check_out(request.out or str(Path.cwd() / f"replay-{change.stream_id}-{newest}"), self._kept(control))
        out = str(Path(out) / request.part)
        terms = ReplayTerms(
            batches,
            out,
            "" if request.compared_with is None else request.compared_with.out,
            keeps_state=request.keeps_state,
            calls_foreach_batch=request.calls_foreach_batch,
            debugger=request.debugger,
        )
        now, request_id = self._clock.now(), self._clock.new_uuid()
        rehearsal = self._rehearsals.record(
            control,
            Rehearsal(
                stream_id=change.stream_id,
                rehearsal_id=rehearsal_id_for(request_id, 1),
                deployment_id=seen.deployment_id,
                terms=RehearsalTerms(),
                created_at=now,
                deadline_at=now + timedelta(seconds=request.deadline_seconds),
                requested_by=self._context.requested_by,
                request_id=request_id,
                request_digest=change.digest,
                write_id=self._clock.new_uuid(),
                notes=(*request.notes, *change.notes(seen.spec.version), *left_out),
                replay=terms,
            ),
        )
        try:
            version = change.applied_to(control.with_found_modules(seen.spec).version, self._home.guarded)
            # Its rows go into a folder of this machine, wherever the stream itself runs.
            version = replace(version, launcher=None, master=version.master or DEFAULT_MASTER)
            spec = DeploymentSpec(
                stream_id=change.stream_id,
                deployment_id=rehearsal.rehearsal_id,
                fencing_token=seen.spec.fencing_token,
                start=StartPlan("fresh", move_sources=plain_moves(change.terms.move_sources)),
                checkpoints_uri=seen.spec.checkpoints_uri,
                version=beside_checkpoints(version, seen.spec.checkpoints_uri),
                request_id=request_id,
                requested_by=self._context.requested_by,
                reason=change.reason,
                created_at=now,
            )
            self._context.drivers.check(spec, ATTEMPT)
            refuse_spark(self._home, control, self._context.drivers, spec, seen)
            self._context.drivers.launch(control, self._rehearsals.create_spec(control, spec), ATTEMPT)
        except StreamStateError as error:
            self._rehearsals.withdraw(control, rehearsal.rehearsal_id, error)
            raise
        return _view(rehearsal, terms)

    def find(self, stream_id: str, rehearsal_id: str) -> ReplayView | None:
        """The replay of this id; None where that is another rehearsal, or there is none any more."""
        rehearsal = self._home.control(stream_id).rehearsal(rehearsal_id)
        return None if rehearsal is None or rehearsal.replay is None else _view(rehearsal, rehearsal.replay)

    def find_compared(self, view: ReplayView) -> ReplayView | None:
        """The replay with whose rows those of another one are compared."""
        known = (self.find(view.stream_id, each) for each in self._home.control(view.stream_id).rehearsal_ids())
        return next((each for each in known if each is not None and each.out == view.compared_with), None)

    def _chosen(
        self, request: ReplayRequest, seen: Observation
    ) -> tuple[Mapping[str, tuple[int, ...]], tuple[str, ...]]:
        """By query its batches, and a sentence for each query that is left out."""
        if request.compared_with is not None:
            return request.compared_with.batches, ()
        checkpoints = chosen_queries(built_checkpoints(self._home, seen), seen.deployment_id, request.query_name)
        chosen: dict[str, tuple[int, ...]] = {}
        left_out: dict[str, InvalidRequestError] = {}
        for name, checkpoint in sorted(checkpoints.items()):
            if request.among is not None and name not in request.among:
                continue
            try:
                if request.batch_id is not None:
                    chosen[name] = batch_chosen(name, checkpoint, request.batch_id)
                else:
                    runs = seen.state in NOT_ENDED and name not in seen.failed_queries
                    chosen[name] = last_batches(name, checkpoint, request.last, runs=runs)
            except InvalidRequestError as error:
                if request.among is None:
                    raise
                left_out[name] = error
        if not chosen:
            raise next(
                iter(left_out.values()),
                InvalidRequestError(
                    "no query of this deployment has a checkpoint whose batches can be replayed",
                    deployment_id=seen.deployment_id,
                    queries=sorted(checkpoints),
                    next_step="Replay once a query has read rows.",
                ),
            )
        return chosen, tuple(f"query {name}: {error.message}" for name, error in left_out.items())

    def wait(self, view: ReplayView, on_progress: Report | None = None) -> ReplayReport:
        """Wait until a replay is over, at its deadline at the latest; then as ``report``."""
        self._rehearsals.wait_over(view.stream_id, view.replay_id, view.deadline_at, on_progress)
        return self.report(view)

    def report(self, view: ReplayView) -> ReplayReport:
        """End a replay, remove what it made beside its files, and report; idempotent."""
        rehearsal, verdict = self._rehearsals.conclude(view.stream_id, view.replay_id)
        return replay_report(rehearsal, view.batches, view.out, verdict)

    def give_up(self, view: ReplayView) -> None:
        """End a replay early, without a report."""
        self._rehearsals.give_up(view.stream_id, view.replay_id)

    # begun, waited for, and ended

    def run(self, request: ReplayRequest, watched: Watched) -> tuple[ReplayView, ReplayReport]:
        """Run a replay to its end; what interrupts the wait ends it. Raises as ``begin``."""
        view = self.begin(request)
        try:
            with watched(view) as on_progress:
                return view, self.wait(view, on_progress)
        except BaseException:
            with suppress(StreamStateError):  # its driver ends at its deadline
                self.give_up(view)
            raise

    def run_both(self, request: ReplayRequest, recorded: ChangeRequest, watched: Watched) -> ReplayedVersions:
        """Run the recorded version into ``OUT/old``, then the version that is asked for over the same batches into
        ``OUT/new``, and compare their rows. Raises as ``begin``.

        Args:
            recorded: what is different in the run of the recorded version, its ``master`` above all.
        """
        request.change.digest  # noqa: B018 - refuses a script that is not there before the recorded one runs
        view, old = self.run(request.in_recorded_version(recorded), watched)
        _, new = self.run(request.in_new_version(view), watched)
        return ReplayedVersions(old, new)

    def check_folder(self, stream_id: str, out: str) -> None:
        """Check a folder for the rows. Raises StreamNotFoundError, InvalidRequestError and ConflictError, as
        ``begin``."""
        check_out(out, self._kept(self._home.need_stream(stream_id)))

    # of a plan

    def planned(
        self, report: PlanReport, change: ChangeRequest, last: int, out: str, deadline_seconds: float
    ) -> PlannedReplay:
        """The two runs of a change that was planned; arguments as ``add_to``.

        Raises:
            ConflictError: the change is another one by now.
        """
        names, why_not = queries_to_replay(report)
        rehearsal = self._home.control(report.stream_id).rehearsal(report.rehearsal_id)
        if not why_not and rehearsal is not None and rehearsal.request_digest != change.digest:
            raise ConflictError(
                "the script, or a file of it, was changed while it was planned",
                stream_id=report.stream_id,
                rehearsal_id=report.rehearsal_id,
                next_step="Plan it anew.",
            )
        request = ReplayRequest(
            change=on_this_machine(change),
            last=last,
            deployment_id=report.deployment_id,
            among=names,
            out=out,
            deadline_seconds=deadline_seconds,
        )
        return PlannedReplay(
            request, change_request(report.stream_id, master=DEFAULT_MASTER, reason=change.reason), why_not
        )

    def add_to(
        self,
        report: PlanReport,
        change: ChangeRequest,
        last: int,
        watched: Watched,
        *,
        out: str | None = None,
        deadline_seconds: float = REPLAY_SECONDS,
    ) -> PlanReport:
        """The report of a plan with the newest batches of each query, run in the recorded version and in the new one.

        Where nothing can be replayed, the report says why, and its own outcome stands.

        Args:
            change: what was planned.
            last: so many batches of each query.
            out: the folder for the rows; None for a temporary one, which is removed.
            deadline_seconds: for each of the two runs.

        Raises:
            ConflictError: the change is another one by now; the folder is not empty.
            UnavailableError: the store does not answer.
        """
        with ExitStack() as stack:
            folder = out or stack.enter_context(
                tempfile.TemporaryDirectory(prefix=ROWS_FOLDER, ignore_cleanup_errors=True)
            )
            planned = self.planned(report, change, last, folder, deadline_seconds)
            if planned.why_not:
                return replace(report, not_replayed=planned.why_not)
            try:
                both = self.run_both(planned.request, planned.recorded, watched)
            except NOT_THERE as error:
                return replace(report, not_replayed=error.message)
        return with_replay(report, both if out else both.without_files())

    def _kept(self, control: StreamControl) -> set[str]:
        kept = {self._home.home.uri, self._home.checkpoints.uri, *known_places(control)}
        for deployment_id in control.deployment_ids():
            with suppress(StreamStateError):
                kept.update(control.spec(deployment_id).version.mirrors)
        return {uri for uri in kept if uri}


def on_this_machine(change: ChangeRequest) -> ChangeRequest:
    """The change with a driver on this machine."""
    return replace(change, patch=change.patch.but(master=DEFAULT_MASTER, spark_conn_id=None))


def _view(rehearsal: Rehearsal, terms: ReplayTerms) -> ReplayView:
    return ReplayView(
        rehearsal.stream_id,
        rehearsal.rehearsal_id,
        rehearsal.deployment_id,
        terms.batches,
        terms.out,
        rehearsal.deadline_at,
        terms.compared_with,
    )
