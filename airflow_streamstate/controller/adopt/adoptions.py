"""The verb ``adopt``: a query that ran without streamstate becomes a stream, with its batch ids (Law 9)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from airflow_streamstate.checkpoint.barrier import OutsideBarrier
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.stream import StreamControl, adoption_register
from airflow_streamstate.controller.adopt.adopted_stream import (
    ADOPTED_ID,
    HOLD_SECONDS,
    Barred,
    GivenUp,
    Hold,
    adopted_spec,
    bar_stopped,
    failed_to_take_back,
    give_up,
    outside_barrier,
    put_back,
    record,
    remove_copies,
    take_hold,
    take_snapshot,
)
from airflow_streamstate.controller.adopt.foreign import (
    OpenPlace,
    Report,
    bar,
    open_foreign,
    opener,
    refuse_unconditional,
)
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.deploy.deployment import Deployer, OnStart
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.views import DeploymentView
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.stream_guards import refuse_stream
from airflow_streamstate.errors import (
    ConflictError,
    DataError,
    InvalidRequestError,
    OutcomeUnknownError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.forms import selected
from airflow_streamstate.protocol.ids import encode_query_name
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import ADOPT_SECONDS, Adoption, StartPlan
from airflow_streamstate.store.open import local_folder
from airflow_streamstate.store.options import plain_uri

# The request to adopt a query that ran without streamstate.


@dataclass(frozen=True)
class AdoptRequest:
    """A request to make a stream of one or more queries.

    Attributes:
        deploy: the script that continues with them.
        checkpoints: the URI of each query's checkpoint, by query name.
        is_stopped: the user states that nothing runs on the checkpoints.
        deadline_seconds: how long a running query has to meet its barrier.

    Raises:
        InvalidRequestError: no checkpoint, a malformed name or URI, or several queries that run.
    """

    deploy: DeployRequest
    checkpoints: Mapping[str, str]
    is_stopped: bool = False
    deadline_seconds: float = ADOPT_SECONDS

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise InvalidRequestError("no checkpoint was named", next_step="Name the folder of the query's checkpoint.")
        for name, uri in self.checkpoints.items():
            encode_query_name(name)
            check_place(uri)
        if len(self.checkpoints) > 1 and not self.is_stopped:
            raise InvalidRequestError(
                "several queries that run cannot be adopted at once: the first that ends may end its driver, and cut"
                " the others' batches",
                queries=sorted(self.checkpoints),
                next_step="Stop the application yourself, and adopt them with --stopped.",
            )


def check_place(uri: str) -> None:
    """Check that a URI holds a place and no secret, since it is recorded and shown; raises InvalidRequestError."""
    scheme, separator, rest = uri.partition("://")
    host = rest.partition("/")[0]
    is_place = ":" not in host and "?" not in rest and ("@" not in host or scheme.strip() in ("abfs", "abfss"))
    if separator and scheme.strip() != "file" and not is_place:
        raise InvalidRequestError(
            "this URI of a checkpoint holds more than a place: a key, a password, a port or a query; it is not shown",
            next_step="Give scheme://bucket/folder; credentials come from the environment, or the connection.",
        )


def read_checkpoints(words: Sequence[str]) -> dict[str, str]:
    """Parse words ``[NAME=]URI``; without a name the query has that of its checkpoint's folder (1a.12).

    Raises:
        InvalidRequestError: a name or a place is given twice, or is missing.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, uri = word.partition("=")
        if not equals or "/" in name or ":" in name:
            name, uri = "", word
        check_place(uri)
        uri = plain_uri(uri) if uri.strip() else ""
        if uri and "://" not in uri and ":" not in uri.partition("/")[0]:
            uri = str(local_folder(uri))  # the next call may come from another working directory
        name = name or uri.rpartition("/")[2]
        if not uri or not name or uri.endswith(":"):
            raise InvalidRequestError(
                "this names no checkpoint", checkpoint=word, next_step="Give NAME=URI: a query and its folder."
            )
        if name in found or uri in found.values():
            raise InvalidRequestError(
                "two checkpoints are given for one query, or one for two",
                query_name=name,
                checkpoint=uri,
                next_step="Give each once, as NAME=URI.",
            )
        found[name] = uri
    return found


# A stream that was deployed and never ran a query makes way for an adoption under its name.
#
# Its driver refused to start a query that ran without streamstate before, and named the adoption as the next step.
# Nothing but records of that is removed.

Delete = Callable[[str], object]
"""Deletes the stream of this id, if it has ended."""


def make_way(home: Home, control: StreamControl, delete: Delete) -> bool:
    """Delete the stream where it never ran a query; whether it did. An adopted stream stays, whatever it ran.

    Raises:
        ConflictError: it runs, or may run.
        UnavailableError: the home does not answer.
    """
    adoption = adoption_register(control).read()
    if adoption is not None and adoption.value.status != "given_up":
        return False
    register = control.register()
    if register is None or register.value.deployment_id is None or _has_run(home, control):
        return False
    delete(control.stream_id)
    return True


def _has_run(home: Home, control: StreamControl) -> bool:
    if control.snapshot_ids():
        return True
    for deployment_id in control.deployment_ids():
        if any(isinstance(entry.event, QueryStarted) for entry in control.journal(deployment_id).events()):
            return True
        home.check_place(control.spec(deployment_id))
        # A driver may have been killed before it reported a query's start.
        if home.checkpoints.list_folders(layout.checkpoints_folder(control.stream_id, deployment_id)):
            return True
    return False


TAKE_BACK_SECONDS = 30.0
TAKE_BACK_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class AdoptedView(DeploymentView):
    """The deployment that continues with an adopted query.

    Attributes:
        adopted: its start: ``deployment_id snapshot_id queries{name: {checkpoint, query_id, batch_id,
            planned_batch_id}}``.
    """

    adopted: Mapping[str, object] = field(default_factory=dict)


class Adoptions:
    """Adopts queries, and gives adoptions up.

    Args:
        delete: deletes a stream that never ran a query.
        open_place: opens the parent folder of a checkpoint, for tests.
    """

    def __init__(
        self, context: ControllerContext, deployer: Deployer, delete: Delete, open_place: OpenPlace | None = None
    ) -> None:
        self._delete = delete
        self._context = context
        self._home = context.home
        self._clock = context.clock
        self._deployer = deployer
        self._open_place = open_place or opener(context.home)

    def adopt(
        self, request: AdoptRequest, on_start: OnStart = lambda _: None, report: Report = lambda _: None
    ) -> AdoptedView:
        """Make a stream of a query that ran without streamstate. The same call again completes an interrupted one.

        Args:
            on_start: as in ``Controller.deploy``.
            report: gets the progress as text.

        Raises:
            InvalidRequestError: the request is malformed, or cannot be carried out.
            ConflictError: another controller adopts the query, or has; it is not stopped; the stream exists.
            DeadlineExceededError: a running query did not meet its barrier; its log is as before.
            UnsupportedCheckpointError, DataError: the checkpoint has an unknown format, or is damaged.
        """
        deploy = request.deploy
        stream_id = request.deploy.stream_id
        control = self._home.control(stream_id, begins=True)
        places = {} if _has_gone_on(control) else request.checkpoints
        checkpoints = {name: open_foreign(self._home, uri, self._open_place) for name, uri in places.items()}
        _refuse_same(checkpoints)
        self._context.drivers.check(adopted_spec(self._context, deploy, StartPlan(mode="fresh"), ""), 1)
        if make_way(self._home, control, self._delete):
            report(f"stream {stream_id} never ran a query: its records are removed")
        hold = take_hold(self._context, control, self._wanted(request))
        request_id = request.deploy.request_id or f"adopt-{hold.adoption.adoption_id}"
        barriers = {
            name: outside_barrier(hold.adoption, checkpoint, self._clock.new_uuid())
            for name, checkpoint in checkpoints.items()
        }
        try:
            if hold.adoption.status == "open":
                manifest = self._take(hold, barriers, request, report)
            else:
                manifest = control.need_manifest(hold.adoption.snapshot_id)
            register = control.register()
            if register is None or register.value.deployment_id == ADOPTED_ID:
                with _advising_that_the_barrier_stays(stream_id):
                    deploy.pin(self._home.guarded)  # may outlast the lease
                    hold.confirm()
                    self._refuse_gone_on(barriers, manifest)
                    record(hold, manifest, deploy, request_id)
                    # Again: a controller that removed a barrier before it could see the stream does not put it back.
                    self._refuse_gone_on(barriers, manifest)
            elif control.request(request_id) is None:
                raise ConflictError(
                    "this stream was adopted, and has continued since",
                    stream_id=stream_id,
                    deployment_id=register.value.deployment_id,
                    next_step="Deploy it as any other stream.",
                )
        finally:
            with suppress(StreamStateError):
                hold.release()
        with _advising_that_the_barrier_stays(stream_id):
            view = self._deployer.deploy(deploy, request_id, on_start)
        return AdoptedView(**vars(view), adopted=_adopted(hold.adoption, manifest))

    def give_up(self, stream_id: str) -> GivenUp:
        """As ``giving_up.give_up``."""
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

    def _take(
        self, hold: Hold, barriers: Mapping[str, OutsideBarrier], request: AdoptRequest, report: Report
    ) -> SnapshotManifest:
        """Put the barriers and take the snapshot; a failure takes the barriers back (Law 12)."""
        refuse_stream(hold.control)
        try:
            for barrier in barriers.values():
                refuse_unconditional(barrier.checkpoint)
            if any(barrier.found(barrier.checkpoint.position()) is None for barrier in barriers.values()):
                # The log may have moved while a barrier was missing: a new take gets a new snapshot id.
                hold.change(take=hold.adoption.take + 1)
            if request.is_stopped:
                barred = bar_stopped(barriers, request.checkpoints)
            else:
                barred = {name: self._bar(hold, one, request, report) for name, one in barriers.items()}
            manifest = take_snapshot(hold, barred, report)
            hold.change(status="taken", snapshot_id=manifest.snapshot_id)
        except BaseException as error:
            self._undo(hold, barriers.values(), error)
            raise
        return manifest

    def _bar(self, hold: Hold, barrier: OutsideBarrier, request: AdoptRequest, report: Report) -> Barred:
        placed = bar(
            barrier, self._clock, request.deadline_seconds, go_on=hold.keep, confirm=hold.confirm, report=report
        )
        position = barrier.checkpoint.position()
        return Barred(barrier, replace(position, barriers=()), placed.barrier_id)

    def _undo(self, hold: Hold, barriers: Collection[OutsideBarrier], error: BaseException) -> None:
        """Take the barriers back and remove the copies, while this controller holds the open adoption."""
        left = ""
        try:
            hold.confirm()
            if hold.adoption.status != "open":
                return  # the write of ``taken`` landed without an answer: the next call continues
            left = "; ".join(map(str, self._take_back(hold, barriers)))
            with suppress(UnavailableError, OutcomeUnknownError, InvalidRequestError, DataError):
                remove_copies(hold, barriers)
        except ConflictError as lost:
            left = _clean_up_lost(hold, barriers, lost)
        except StreamStateError as failure:
            left = str(failure)
        except KeyboardInterrupt:
            left = "it was interrupted while it was withdrawn"
        if not left:
            return
        advice = (
            f"Its barrier may still be in the log, so that the query cannot be started ({left}): run the same command"
            " again, or --give-up."
        )
        if isinstance(error, KeyboardInterrupt):
            raise OutcomeUnknownError("the adoption was interrupted", next_step=advice) from error
        if isinstance(error, StreamStateError):
            error.next_step = f"{error.next_step} {advice}".strip()

    def _take_back(self, hold: Hold, barriers: Collection[OutsideBarrier]) -> list[StreamStateError]:
        """Retry for a while where the store does not answer (Law 12)."""
        deadline = self._clock.monotonic_seconds() + TAKE_BACK_SECONDS
        while True:
            failures = failed_to_take_back(barriers)
            may_pass = any(isinstance(one, UnavailableError | OutcomeUnknownError) for one in failures)
            if not may_pass or self._clock.monotonic_seconds() >= deadline:
                return failures
            self._clock.sleep(TAKE_BACK_POLL_SECONDS)
            hold.confirm()

    def _refuse_gone_on(self, barriers: Mapping[str, OutsideBarrier], manifest: SnapshotManifest) -> None:
        """The last check before a driver runs: the old query must not have run these batches since (Law 14)."""
        for name, barrier in barriers.items():
            position = manifest.queries[name].position
            known = position.batch_id if position.planned_batch_id is None else position.planned_batch_id
            if barrier.has_gone_on((-1 if known is None else known) + 1):
                raise ConflictError(
                    "the barrier of this adoption was removed, and the query may have run since",
                    query_name=name,
                    checkpoint=f"{barrier.checkpoint.store.uri}/{barrier.checkpoint.prefix}",
                    next_step="Give it up with --give-up; then adopt the query again, under another name.",
                )


def _clean_up_lost(hold: Hold, barriers: Collection[OutsideBarrier], lost: ConflictError) -> str:
    """After losing the adoption, withdraw barriers put after it was abandoned (Law 12), and put back barriers removed
    after it was taken (Law 14); what may be left, as text."""
    try:
        if hold.is_given_up():
            return "; ".join(map(str, failed_to_take_back(barriers)))
        put_back(hold, barriers)
    except StreamStateError as failure:
        return str(failure)
    return str(lost)


@contextmanager
def _advising_that_the_barrier_stays(stream_id: str) -> Iterator[None]:
    """Add to a failure after the query was taken that the barrier stays."""
    advice = (
        "The old query has ended, and its barrier stays: the same command continues;"
        f" `streamstate adopt {stream_id} --give-up` withdraws it, as long as nothing has continued from it."
    )
    try:
        yield
    except ConflictError:
        raise  # another controller continues with it
    except KeyboardInterrupt as error:
        raise OutcomeUnknownError("the adoption was interrupted", next_step=advice) from error
    except StreamStateError as error:
        error.next_step = f"{error.next_step} {advice}".strip()
        raise


def _has_gone_on(control: StreamControl) -> bool:
    """Whether the stream has continued from the adoption: the old checkpoint may have been deleted then."""
    stored, adoption = control.register(), adoption_register(control).read()
    is_taken = adoption is not None and adoption.value.status == "taken"
    return is_taken and stored is not None and stored.value.deployment_id not in (None, ADOPTED_ID)


def _refuse_same(checkpoints: Mapping[str, Checkpoint]) -> None:
    """Refuse two checkpoints with one query id, for example a copy (Law 9)."""
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
        **selected(manifest, "deployment_id snapshot_id"),
        "queries": {
            name: {"checkpoint": adoption.checkpoints[name]}
            | selected(query, "query_id batch_id=position.batch_id planned_batch_id=position.planned_batch_id")
            for name, query in sorted(manifest.queries.items())
        },
    }
