"""Replays: recorded batches of a deployment run again into files, by a driver beside the stream.

A replay is recorded as a rehearsal, and its driver ends, and is removed, as that of one. The stream, its checkpoints,
its sinks and its records are not touched (Law 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.spark_moves import refuse_spark
from airflow_streamstate.controller.deploy.takeover import built_checkpoints
from airflow_streamstate.controller.drivers.warm import ATTEMPT
from airflow_streamstate.controller.observe.observation import ALIVE, Observation
from airflow_streamstate.controller.rehearsal.rehearsals import Rehearsals, Report
from airflow_streamstate.controller.rehearsal.replay_choice import (
    batch_chosen,
    check_out,
    chosen_queries,
    last_batches,
)
from airflow_streamstate.controller.request.changes import ChangeRequest
from airflow_streamstate.controller.request.version import Version
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.ids import rehearsal_id_for
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.rehearsals import (
    Rehearsal,
    RehearsalVerdict,
    RehearsedQuery,
    ReplayedBatch,
    ReplayTerms,
)
from airflow_streamstate.snapshot.placing import known_places

DEADLINE_SECONDS = 600.0
ReplayOutcome = Literal["done", "failed", "refused", "deadline"]
NOT_STARTED = "the script did not start this query"


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """What is to run again.

    Attributes:
        change: what is different from the recorded version, its ``master`` above all; its ``stream_id`` is the stream.
        batch_id: one batch; None for the newest ones.
        last: so many of the newest ones.
        deployment_id: whose batches; None for the current deployment.
        query_name: None for all queries.
        out: a folder of this machine that is empty or absent; None for ``replay-STREAM-BATCH`` in the current one.
        part: a folder below that one for the rows; "" for none.
        compared_with: the view of a replay that is over: its batches run, and their rows are compared with its rows.
    """

    change: ChangeRequest
    batch_id: int | None = None
    last: int = 1
    deployment_id: str | None = None
    query_name: str | None = None
    out: str | None = None
    part: str = ""
    compared_with: ReplayView | None = None
    deadline_seconds: float = DEADLINE_SECONDS


@dataclass(frozen=True)
class ReplayView:
    """A replay as it was begun.

    Attributes:
        batches: by query, the batches that run.
        out: the absolute path of the folder that gets their rows.
    """

    stream_id: str
    replay_id: str
    deployment_id: str
    batches: Mapping[str, tuple[int, ...]]
    out: str
    deadline_at: datetime


@dataclass(frozen=True)
class ReplayedQuery:
    """What became of one query.

    Attributes:
        outcome: ``done``: each batch has run; ``failed`` in the script or in Spark; ``refused`` by a rule of this
            package.
        error: why it is not done, one line; "" where it is.
        batches: those that ran, and the one that failed.
    """

    outcome: ReplayOutcome
    error: str = ""
    batches: tuple[ReplayedBatch, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplayReport:
    """A replay at its end.

    Attributes:
        outcome: the worst of all queries; ``deadline``: it was not over in time.
        error: why the script or the driver did not come to its end; "" where it did.
        traceback, log_tail: of a script that failed, of a driver that died.
    """

    stream_id: str
    replay_id: str
    deployment_id: str
    out: str
    outcome: ReplayOutcome
    queries: Mapping[str, ReplayedQuery]
    seconds: float
    error: str = ""
    traceback: str = ""
    log_tail: str = ""
    spark_version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def has_same_rows(self) -> bool:
        """Whether every batch was compared and has the same rows."""
        compared = [batch.comparison for query in self.queries.values() for batch in query.batches]
        return all(comparison is not None and comparison.is_same for comparison in compared)

    def to_json(self) -> dict[str, Any]:
        """As the shell and Airflow show it."""
        return asdict(self)


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
        batches = self._chosen(request, seen)
        newest = max(ids[-1] for ids in batches.values())
        out = check_out(request.out or str(Path.cwd() / f"replay-{change.stream_id}-{newest}"), self._kept(control))
        out = str(Path(out) / request.part)
        now, request_id = self._clock.now(), self._clock.new_uuid()
        rehearsal = self._rehearsals.record(
            control,
            Rehearsal(
                stream_id=change.stream_id,
                rehearsal_id=rehearsal_id_for(request_id, 1),
                deployment_id=seen.deployment_id,
                runs_batches=True,
                created_at=now,
                deadline_at=now + timedelta(seconds=request.deadline_seconds),
                requested_by=self._context.requested_by,
                request_id=request_id,
                request_digest=change.digest,
                write_id=self._clock.new_uuid(),
                notes=change.notes(Version.of(seen.spec)),
                replay=ReplayTerms(batches, out, "" if request.compared_with is None else request.compared_with.out),
            ),
        )
        try:
            version = change.applied_to(Version.of(control.with_found_modules(seen.spec)), self._home.guarded)
            spec = version.as_spec(
                stream_id=change.stream_id,
                deployment_id=rehearsal.rehearsal_id,
                fencing_token=seen.spec.fencing_token,
                start=StartPlan("fresh"),
                checkpoints_uri=seen.spec.checkpoints_uri,
                default=seen.spec.settings,
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
        return ReplayView(
            change.stream_id, rehearsal.rehearsal_id, seen.deployment_id, batches, out, rehearsal.deadline_at
        )

    def _chosen(self, request: ReplayRequest, seen: Observation) -> Mapping[str, tuple[int, ...]]:
        if request.compared_with is not None:
            return request.compared_with.batches
        checkpoints = chosen_queries(built_checkpoints(self._home, seen), seen.deployment_id, request.query_name)
        return {
            name: last_batches(
                name, checkpoint, request.last, runs=seen.state in ALIVE and name not in seen.failed_queries
            )
            if request.batch_id is None
            else batch_chosen(name, checkpoint, request.batch_id)
            for name, checkpoint in sorted(checkpoints.items())
        }

    def wait(self, view: ReplayView, on_progress: Report | None = None) -> ReplayReport:
        """Wait until a replay is over, at its deadline at the latest; end it, remove what it made beside its files, and
        report."""
        self._rehearsals.wait_over(view.stream_id, view.replay_id, view.deadline_at, on_progress)
        rehearsal, verdict = self._rehearsals.conclude(view.stream_id, view.replay_id)
        return replay_report(rehearsal, view.batches, view.out, verdict)

    def give_up(self, view: ReplayView) -> None:
        """End a replay early, without a report."""
        self._rehearsals.give_up(view.stream_id, view.replay_id)

    def _kept(self, control: StreamControl) -> set[str]:
        kept = {self._home.home.uri, self._home.checkpoints.uri, *known_places(control)}
        for deployment_id in control.deployment_ids():
            with suppress(StreamStateError):
                kept.update(control.spec(deployment_id).mirrors)
        return {uri for uri in kept if uri}


def replay_report(
    rehearsal: Rehearsal, batches: Mapping[str, tuple[int, ...]], out: str, verdict: RehearsalVerdict
) -> ReplayReport:
    """The report of a replay that is over. Pure.

    Args:
        batches: by query, those that were asked for.
    """
    queries = {
        name: _query(verdict.queries.get(name), verdict.error or NOT_STARTED, is_late=verdict.outcome == "deadline")
        for name in batches
    }
    outcomes = {query.outcome for query in queries.values()}
    worst: tuple[ReplayOutcome, ...] = ("failed", "refused", "done")
    outcome = next(each for each in worst if each in outcomes) if verdict.outcome == "done" else verdict.outcome
    return ReplayReport(
        stream_id=rehearsal.stream_id,
        replay_id=rehearsal.rehearsal_id,
        deployment_id=rehearsal.deployment_id,
        out=out,
        outcome=outcome,
        queries=queries,
        seconds=verdict.seconds,
        error=verdict.error,
        traceback=verdict.traceback,
        log_tail=verdict.log_tail,
        spark_version=verdict.spark_version,
        notes=tuple(dict.fromkeys((*rehearsal.notes, *verdict.notes))),
    )


def _query(found: RehearsedQuery | None, why_not: str, *, is_late: bool) -> ReplayedQuery:
    if found is None:
        return ReplayedQuery("deadline" if is_late else "failed", why_not)
    outcome: ReplayOutcome = {"accepted": "done", "refused": "refused"}.get(found.outcome, "failed")  # type: ignore[assignment]
    return ReplayedQuery(outcome, found.error, found.replayed, found.notes)
