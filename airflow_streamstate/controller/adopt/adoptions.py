"""The verb ``adopt``: a query that ran without us goes on as a stream, with its query id and its batch ids (Law 9).

The order of it: the adoption is recorded, the log is barred, the query meets the barrier, its checkpoint is copied and
looked at again, the copy is a snapshot; then the adoption says ``taken``, the stream comes to be, stopped at that
snapshot, and is deployed as any other. A call that was cut short is gone on with by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from airflow_streamstate.checkpoint.entries import BarrierMark
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.control.adoption import adoption_register
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.adopt.barring import Report, bar
from airflow_streamstate.controller.adopt.foreign import (
    OpenPlace,
    open_foreign,
    opener,
    refuse_unconditional,
)
from airflow_streamstate.controller.adopt.giving_up import GivenUp, give_up
from airflow_streamstate.controller.adopt.holding import HOLD_SECONDS, Hold, take_hold
from airflow_streamstate.controller.adopt.requests import AdoptRequest
from airflow_streamstate.controller.adopt.taking import (
    ADOPTED_ID,
    Barred,
    bar_stopped,
    failed_to_take_back,
    put_back,
    record,
    remove_copies,
    take_snapshot,
)
from airflow_streamstate.controller.adoption_guard import refuse_stream
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.deploy import Deployer
from airflow_streamstate.controller.deploy.deploying import OnStart
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.resolved_request import ResolvedRequest, resolve_request
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol.adoptions import Adoption
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.settings import default_settings

TAKE_BACK_SECONDS = 30.0
TAKE_BACK_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class AdoptedView(DeploymentView):
    """The deployment that goes on with an adopted query.

    Attributes:
        adopted: where it goes on from: ``deployment_id snapshot_id queries{name: {checkpoint, query_id, batch_id,
            planned_batch_id}}``.
    """

    adopted: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """As every deployment's, and ``adopted``."""
        return {**super().to_json(), "adopted": dict(self.adopted)}


class Adoptions:
    """Adopts queries.

    Args:
        means: of the controller.
        deployer: deploys what was adopted.
        open_place: opens a folder that checkpoints lie in; None for whatever a URI names.
    """

    def __init__(self, context: ControllerContext, deployer: Deployer, open_place: OpenPlace | None = None) -> None:
        self._context = context
        self._home = context.home
        self._clock = context.clock
        self._deployer = deployer
        self._open_place = open_place or opener(context.home)

    def adopt(
        self, request: AdoptRequest, on_start: OnStart = lambda _: None, report: Report = lambda _: None
    ) -> AdoptedView:
        """Go on with a query that ran without us, as a stream. The same call again goes on where the last was cut.

        Args:
            request: what is asked for.
            on_start: as in ``Controller.deploy``.
            report: told where it stands.

        Raises:
            InvalidRequestError: what is asked for cannot be.
            ConflictError: another adopts it, or has; it is not stopped; the stream exists.
            DeadlineExceededError: a running query did not meet its barrier; its log is as it was.
            UnsupportedCheckpointError, DataError: the checkpoint is of a format not known here, or damaged.
        """
        resolved = resolve_request(request.deploy)
        stream_id = request.deploy.stream_id
        control = self._home.control(stream_id, begins=True)
        places = {} if _has_gone_on(control) else request.checkpoints
        checkpoints = {name: open_foreign(self._home, uri, self._open_place) for name, uri in places.items()}
        _refuse_same(checkpoints)
        self._check_launch(resolved)
        hold = take_hold(self._context, control, self._wanted(request))
        request_id = request.deploy.request_id or f"adopt-{hold.adoption.adoption_id}"
        barriers = {name: self._barrier(hold.adoption, checkpoint) for name, checkpoint in checkpoints.items()}
        try:
            if hold.adoption.status == "open":
                manifest = self._take(hold, control, barriers, request, report)
            else:
                manifest = control.need_manifest(hold.adoption.snapshot_id)
            register = control.register()
            if register is None or register.value.deployment_id == ADOPTED_ID:
                with _saying_what_stays(stream_id):
                    resolved.pin(self._home.guarded)  # may take its time
                    hold.confirm()
                    self._refuse_gone_on(barriers, manifest)
                    record(self._context, control, manifest, resolved, request_id, confirm=hold.confirm)
                    # Who has removed one before he could see the stream does not put it back.
                    self._refuse_gone_on(barriers, manifest)
            elif control.request(request_id) is None:
                raise ConflictError(
                    "this stream was adopted, and has gone on since",
                    stream_id=stream_id,
                    deployment_id=register.value.deployment_id,
                    next_step="Deploy it as any other stream.",
                )
        finally:
            with suppress(StreamStateError):
                hold.release()
        with _saying_what_stays(stream_id):
            view = self._deployer.deploy(resolved, request_id, on_start)
        return AdoptedView(**vars(view), adopted=_adopted(hold.adoption, manifest))

    def give_up(self, stream_id: str) -> GivenUp:
        """Take the barriers of an adoption back, so that its query may be started as it was; raises as ``give_up``."""
        return give_up(self._context, stream_id, self._open_place)

    def _wanted(self, request: AdoptRequest) -> Adoption:
        now = self._clock.now()
        return Adoption(
            stream_id=request.deploy.stream_id,
            adoption_id=self._clock.new_uuid(),
            checkpoints=dict(request.checkpoints),
            is_stopped=request.is_stopped,
            status="open",
            take=0,
            held_by=self._clock.new_uuid(),
            held_until=now + timedelta(seconds=HOLD_SECONDS),
            begun_at=now,
            requested_by=self._context.requested_by,
            write_id=self._clock.new_uuid(),
        )

    def _check_launch(self, resolved: ResolvedRequest) -> None:
        """What could never be launched is refused before anything is barred for it."""
        spec = resolved.version.as_spec(
            stream_id=resolved.stream_id,
            deployment_id=ADOPTED_ID,
            fencing_token=1,
            start=StartPlan(mode="fresh"),
            checkpoints_uri=self._home.checkpoints.uri,
            default=default_settings(self._home.home.uri),
            request_id="",
            requested_by=self._context.requested_by,
            reason=resolved.reason,
            created_at=self._clock.now(),
        )
        self._context.drivers.check(spec, 1)

    def _barrier(self, adoption: Adoption, checkpoint: Checkpoint) -> OutsideBarrier:
        mark = BarrierMark(
            kind="fence",
            stream_id=adoption.stream_id,
            deployment_id=ADOPTED_ID,
            attempt=adoption.take,
            command_id=adoption.adoption_id,
            write_id=self._clock.new_uuid(),
        )
        return OutsideBarrier(checkpoint, mark)

    def _take(
        self,
        hold: Hold,
        control: StreamControl,
        barriers: Mapping[str, OutsideBarrier],
        request: AdoptRequest,
        report: Report,
    ) -> SnapshotManifest:
        """The snapshot of the barred query; where that cannot be, the barrier is taken back (Law 12)."""
        refuse_stream(control)  # nothing of an adoption that is only begun lies in this home but its own record
        try:
            for barrier in barriers.values():
                refuse_unconditional(barrier.checkpoint)
            if any(barrier.found(barrier.checkpoint.position()) is None for barrier in barriers.values()):
                # Behind a barrier that was not there all the time the log may have moved: another snapshot, then.
                hold.change(take=hold.adoption.take + 1)
            if request.is_stopped:
                barred = bar_stopped(barriers, request.checkpoints)
            else:
                barred = {name: self._bar(hold, one, request, report) for name, one in barriers.items()}
            manifest = take_snapshot(self._home, hold, control, barred, report)
            hold.change(status="taken", snapshot_id=manifest.snapshot_id)
        except BaseException as error:
            self._undo(hold, control, barriers, error)
            raise
        return manifest

    def _bar(self, hold: Hold, barrier: OutsideBarrier, request: AdoptRequest, report: Report) -> Barred:
        placed = bar(
            barrier, self._clock, request.deadline_seconds, go_on=hold.keep, confirm=hold.confirm, report=report
        )
        position = barrier.checkpoint.position()
        return Barred(barrier, replace(position, barriers=()), placed.barrier_id)

    def _undo(
        self, hold: Hold, control: StreamControl, barriers: Mapping[str, OutsideBarrier], error: BaseException
    ) -> None:
        """Take the barriers back, as long as the adoption is ours and not done; then what was copied goes, too."""
        left = ""
        try:
            hold.confirm()
            if hold.adoption.status != "open":
                return  # that it is done was written, though nobody said so: the next call goes on
            left = "; ".join(map(str, self._take_back(hold, barriers)))
            with suppress(UnavailableError, OutcomeUnknownError, InvalidRequestError, DataError):
                remove_copies(self._home, hold, control, barriers.values())
        except ConflictError as lost:
            left = self._left_by_late(hold, control, barriers, lost)
        except StreamStateError as failure:
            left = str(failure)
        except KeyboardInterrupt:
            left = "it was interrupted while it was taken back"
        if not left:
            return
        advice = (
            f"Its barrier may still lie in the log, so that the query cannot be started ({left}): give the same command"
            " again, or --give-up."
        )
        if isinstance(error, KeyboardInterrupt):
            raise OutcomeUnknownError("the adoption was interrupted", next_step=advice) from error
        if isinstance(error, StreamStateError):
            error.next_step = f"{error.next_step} {advice}".strip()

    def _left_by_late(
        self, hold: Hold, control: StreamControl, barriers: Mapping[str, OutsideBarrier], lost: ConflictError
    ) -> str:
        """Who slept while another had the adoption: what was put since it was given up goes, since nobody else knows of
        it (Law 12); what was removed since it was taken is put back (Law 14)."""
        try:
            if hold.is_given_up():
                return "; ".join(map(str, failed_to_take_back(barriers.values())))
            put_back(hold, control, barriers.values())
        except StreamStateError as failure:
            return str(failure)
        return str(lost)

    def _take_back(self, hold: Hold, barriers: Mapping[str, OutsideBarrier]) -> list[StreamStateError]:
        """Again and again for a while: a store that does not answer now may do so in a moment (Law 12)."""
        deadline = self._clock.monotonic_seconds() + TAKE_BACK_SECONDS
        while True:
            failures = failed_to_take_back(barriers.values())
            may_pass = any(isinstance(one, UnavailableError | OutcomeUnknownError) for one in failures)
            if not may_pass or self._clock.monotonic_seconds() >= deadline:
                return failures
            self._clock.sleep(TAKE_BACK_POLL_SECONDS)
            hold.confirm()

    def _refuse_gone_on(self, barriers: Mapping[str, OutsideBarrier], manifest: SnapshotManifest) -> None:
        """The last look before a driver of ours runs: nobody may have run these batches meanwhile (Law 14)."""
        for name, barrier in barriers.items():
            position = manifest.queries[name].position
            known = position.batch_id if position.planned_batch_id is None else position.planned_batch_id
            if barrier.has_gone_on((-1 if known is None else known) + 1):
                raise ConflictError(
                    "somebody has removed the barrier of this adoption, and may have run the query since",
                    query_name=name,
                    checkpoint=f"{barrier.checkpoint.store.uri}/{barrier.checkpoint.prefix}",
                    next_step="Give it up with --give-up; then adopt the query again, under another name.",
                )


@contextmanager
def _saying_what_stays(stream_id: str) -> Iterator[None]:
    """Whatever fails once the query is taken: it has ended, and nothing is taken back any more."""
    advice = (
        "The old query has ended, and its barrier stays: the same command goes on;"
        f" `streamstate adopt {stream_id} --give-up` takes it back, as long as nothing has gone on from it."
    )
    try:
        yield
    except ConflictError:
        raise  # by another, who is told himself
    except KeyboardInterrupt as error:
        raise OutcomeUnknownError("the adoption was interrupted", next_step=advice) from error
    except StreamStateError as error:
        error.next_step = f"{error.next_step} {advice}".strip()
        raise


def _has_gone_on(control: StreamControl) -> bool:
    """Whether the stream goes on by itself: by then the old checkpoint may have been deleted."""
    stored, adoption = control.register(), adoption_register(control).read()
    is_taken = adoption is not None and adoption.value.status == "taken"
    return is_taken and stored is not None and stored.value.deployment_id not in (None, ADOPTED_ID)


def _refuse_same(checkpoints: Mapping[str, Checkpoint]) -> None:
    """One log under two names, or a copy of one: both would go on under one query id (Law 9)."""
    names: dict[str | None, str] = {}
    for name, checkpoint in checkpoints.items():
        other = names.setdefault(checkpoint.query_id(), name)
        if other != name:
            raise InvalidRequestError(
                "two checkpoints are of one query",
                queries=[other, name],
                query_id=checkpoint.query_id(),
                next_step="Adopt the one that the query last ran on.",
            )


def _adopted(adoption: Adoption, manifest: SnapshotManifest) -> dict[str, object]:
    return {
        "deployment_id": manifest.deployment_id,
        "snapshot_id": manifest.snapshot_id,
        "queries": {
            name: {
                "checkpoint": adoption.checkpoints[name],
                "query_id": query.query_id,
                "batch_id": query.position.batch_id,
                "planned_batch_id": query.position.planned_batch_id,
            }
            for name, query in sorted(manifest.queries.items())
        },
    }
