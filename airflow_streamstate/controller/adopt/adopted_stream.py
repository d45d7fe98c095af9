"""From a checkpoint with a barrier to a stopped stream, under a lease; or back, if the adoption is abandoned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from airflow_streamstate.checkpoint.barrier import OutsideBarrier
from airflow_streamstate.checkpoint.log import BarrierMark, Checkpoint, Position
from airflow_streamstate.control.objects import Lease, Register, Stored
from airflow_streamstate.control.stream import StreamControl, adoption_lost, adoption_register
from airflow_streamstate.controller.adopt.foreign import OpenPlace, need_position, place_of
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import NOT_ENDED
from airflow_streamstate.controller.request.patch import beside_checkpoints
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.controller.stream_guards import refuse_stream
from airflow_streamstate.errors import (
    ConflictError,
    DeploymentNotFoundError,
    InvalidRequestError,
    ObjectExistsError,
    OutcomeUnknownError,
    StreamNotFoundError,
    StreamStateError,
    UnavailableError,
    VersionConflictError,
)
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import QueryStarted, Stopped
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import deployment_id_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import Adoption, DeploymentSpec, Retirement, StartPlan, StreamRegister
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.copies import copy_checkpoint
from airflow_streamstate.store.base import ManyAtOnce, Store
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.store.transfer import delete_many, keys_below, until_done

# One controller at a time holds an adoption, by a lease in its register; another can take an expired lease.

HOLD_SECONDS = 60.0
RENEW_SECONDS = 20.0
PATIENCE_SECONDS = 40.0
"""How long ``keep`` tolerates a home that does not answer; then the barrier is withdrawn."""
SURE_SECONDS = 50.0
"""How long after the last write no other controller can hold the adoption, though the register does not answer."""
CHANGE_TRIES = 2
"""The second try reads back a write whose answer was lost; more tries would outlast ``SURE_SECONDS``."""


class Hold:
    """An adoption that this process alone works on; ``control``: of the stream that it creates."""

    def __init__(
        self, context: ControllerContext, control: StreamControl, stored: Stored[Adoption], lease: Lease
    ) -> None:
        self.context = context
        self.control = control
        self._register = adoption_register(control)
        self._stored = stored
        self._lease = lease

    @property
    def adoption(self) -> Adoption:
        """The adoption as this process last wrote it."""
        return self._stored.value

    def keep(self) -> None:
        """Renew the lease if it is due; cheap to call often.

        Raises:
            ConflictError: another controller has taken the adoption.
            UnavailableError, OutcomeUnknownError: the register could not be written for too long.
        """
        if self._lease.is_due(RENEW_SECONDS / HOLD_SECONDS):
            self._change_unless_silent(PATIENCE_SECONDS)

    def confirm(self) -> None:
        """Renew the lease before an act that must not meet another controller's; raises as ``keep``.

        A home that is full, read-only, silent or refuses expired credentials is tolerated for a while, so that barriers
        can be withdrawn (Law 12).
        """
        self._change_unless_silent(SURE_SECONDS)

    def _change_unless_silent(self, sure_seconds: float) -> None:
        try:
            self.change()
        except (UnavailableError, OutcomeUnknownError, InvalidRequestError):
            if self._lease.age_seconds >= sure_seconds:
                raise

    def has_been_taken(self) -> bool:
        """Whether any controller has completed this adoption, so that a stream relies on its barrier."""
        there = self._register.read()
        known = None if there is None else (there.value.adoption_id, there.value.status)
        return known == (self.adoption.adoption_id, "taken")

    def is_given_up(self) -> bool:
        """Whether this adoption ended without a stream, so that its barriers have to go."""
        there = self._register.read()
        if there is None:
            return False  # removed with its stream, which may have continued: the barriers stay (Law 14)
        return there.value.adoption_id != self.adoption.adoption_id or there.value.status == "given_up"

    def change(self, **changes: Any) -> None:
        """Write the adoption and renew the lease; raises as ``keep``."""
        with self._lease.renewed() as held_until:

            def edit(there: Adoption) -> Adoption:
                if there.held_by != self.adoption.held_by:
                    raise adoption_lost(there.stream_id)
                return replace(there, **{"held_until": held_until, **changes})

            self._stored = self._register.update(edit, tries=CHANGE_TRIES)

    def release(self) -> None:
        """End the lease; raises as ``keep``."""
        self.change(held_until=self.context.clock.now())


def take_hold(context: ControllerContext, control: StreamControl, wanted: Adoption) -> Hold:
    """Start this adoption, or continue an existing one of the same checkpoints.

    Raises:
        ConflictError: another controller holds it, it has other checkpoints, the stream exists without it, or its
            folders are not empty.
    """
    lease = Lease(context.clock, HOLD_SECONDS)
    register = adoption_register(control)
    stored = register.read()
    if stored is None or stored.value.status == "given_up":
        refuse_stream(control)
        _refuse_left(context.home, control)
        context.home.begin(context.requested_by)
        begun = wanted if stored is None else replace(wanted, take=stored.value.take + 1)
        try:
            with lease.renewed() as held_until:
                begun = replace(begun, held_until=held_until)
                held = register.create(begun) if stored is None else register.update(lambda _: begun, since=stored)
        except (ObjectExistsError, VersionConflictError):
            raise _under_way(control.stream_id) from None
        return Hold(context, control, held, lease)
    there = stored.value
    if dict(there.checkpoints) != dict(wanted.checkpoints):
        raise ConflictError(
            "this stream's adoption was started with other checkpoints",
            stream_id=control.stream_id,
            checkpoints=dict(there.checkpoints),
            next_step=f"Name these; or `streamstate adopt {control.stream_id} --give-up` first.",
        )
    held = _go_on_with(context, register, stored, lease, is_stopped=wanted.is_stopped)
    return Hold(context, control, held, lease)


def hold_to_end(context: ControllerContext, control: StreamControl) -> Hold | None:
    """Hold the existing adoption to give it up; None without one. Raises ConflictError where it is held."""
    lease = Lease(context.clock, HOLD_SECONDS)
    register = adoption_register(control)
    stored = register.read()
    if stored is None:
        return None
    held = _go_on_with(context, register, stored, lease, is_stopped=stored.value.is_stopped)
    return Hold(context, control, held, lease)


def _go_on_with(
    context: ControllerContext,
    register: Register[Adoption],
    stored: Stored[Adoption],
    lease: Lease,
    *,
    is_stopped: bool,
) -> Stored[Adoption]:
    there = stored.value
    if there.held_until > context.clock.now():
        raise _under_way(there.stream_id, there)
    held_by = context.clock.new_uuid()
    try:
        with lease.renewed() as held_until:
            return register.update(
                lambda now: replace(now, is_stopped=is_stopped, held_by=held_by, held_until=held_until), since=stored
            )
    except VersionConflictError:
        raise _under_way(there.stream_id) from None


def _refuse_left(home: Home, control: StreamControl) -> None:
    """Check that the folders of the copy and its snapshot are empty: a failed adoption removes them whole.

    They may hold files of an earlier stream, or of a different home that keeps its checkpoints at the same place.
    """
    for store in dict.fromkeys((home.checkpoints, home.home)):
        for folder in (layout.deployments_folder(control.stream_id), layout.snapshots_folder(control.stream_id)):
            if next(iter(store.list_objects(f"{folder}/")), None) is not None:
                raise ConflictError(
                    "another stream of this name has files where the adopted query would be copied to",
                    stream_id=control.stream_id,
                    folder=f"{store.uri}/{folder}",
                    next_step="Adopt the query under another name; or move that folder away, if no stream uses it.",
                )


def _under_way(stream_id: str, adoption: Adoption | None = None) -> ConflictError:
    facts = {} if adoption is None else {"requested_by": adoption.requested_by, "begun_at": adoption.begun_at}
    return ConflictError(
        "another adoption of this stream is under way",
        stream_id=stream_id,
        **facts,
        next_step=f"Wait for it; if it was cut short, the same command continues with it after {HOLD_SECONDS:.0f} s.",
    )


FIRST_TOKEN = 1
ADOPTED_ID = deployment_id_for(FIRST_TOKEN)
"""The deployment that represents the query before its adoption."""
_ADOPTED = "adopt"
"""The command id of its ``Stopped`` event."""


def outside_barrier(adoption: Adoption, checkpoint: Checkpoint, write_id: str) -> OutsideBarrier:
    """The barrier of this adoption for a foreign checkpoint, not put yet."""
    mark = BarrierMark("fence", adoption.stream_id, ADOPTED_ID, adoption.take, adoption.adoption_id, write_id)
    return OutsideBarrier(checkpoint, mark)


@dataclass(frozen=True)
class Barred:
    """A query's checkpoint behind its barrier.

    Attributes:
        position: without the barrier.
        barrier_id: the batch id of the barrier.
    """

    barrier: OutsideBarrier
    position: Position
    barrier_id: int

    @property
    def checkpoint(self) -> Checkpoint:
        return self.barrier.checkpoint


def bar_stopped(barriers: Mapping[str, OutsideBarrier], uris: Mapping[str, str]) -> dict[str, Barred]:
    """Put barriers over queries that do not run, so that they cannot be started alongside the stream.

    Raises:
        ConflictError: a query has planned a batch in the meantime.
        InvalidRequestError, DataError: as ``need_position``.
    """
    positions = {name: need_position(barrier.checkpoint, uris[name]) for name, barrier in barriers.items()}
    barred = {}
    for name, barrier in barriers.items():
        position = positions[name]
        barrier_id = barrier.put_over(position)
        barred[name] = Barred(barrier, Position(position.batch_id, position.planned), barrier_id)
    return barred


def take_snapshot(hold: Hold, barred: Mapping[str, Barred], report: Callable[[str], None]) -> SnapshotManifest:
    """Copy the checkpoints to the place of the adopted deployment, and take the snapshot of the copies.

    Raises:
        ConflictError: a query continued in the meantime, or another controller has taken the adoption.
        ObjectMissingError, SnapshotCorruptError, DataError: a checkpoint is damaged.
    """
    home, control = hold.context.home, hold.control
    refuse_stream(control)
    copies: dict[str, Checkpoint] = {}
    for name, one in barred.items():
        report(f"copying the checkpoint of {name}")
        folder = layout.checkpoint_folder(control.stream_id, ADOPTED_ID, name)
        copies[name] = Checkpoint(home.checkpoints, folder)
        if copies[name].query_id() not in (None, one.checkpoint.query_id()):
            raise ConflictError(
                "a checkpoint of another query is in the place of this query's copy",
                stream_id=control.stream_id,
                checkpoint=f"{home.checkpoints.uri}/{folder}",
                next_step="Another home uses that place: give the adoption up, and adopt the query under another name.",
            )
        copy_checkpoint(one.checkpoint, one.position, copies[name], go_on=hold.keep)
    refuse_moved(barred)
    hold.keep()
    if not _is_of(control.manifest(_snapshot_id(hold)), barred):
        hold.change(take=hold.adoption.take + 1)  # an interrupted call took that snapshot at other positions
    captured = partial(
        capture,
        control,
        home.checkpoints,
        snapshot_id=_snapshot_id(hold),
        snapshot_kind="stopped",
        deployment_id=ADOPTED_ID,
        attempt=hold.adoption.take,
        fencing_token=FIRST_TOKEN,
        taken_by="controller",
        queries={name: QueryToCapture(checkpoint=copy) for name, copy in copies.items()},
    )
    if not isinstance(home.checkpoints, ManyAtOnce):
        return captured()
    with ThreadPoolExecutor(1, "streamstate-adopt") as pool:  # a server copies, which may outlast the lease
        return until_done(pool.submit(captured), hold.keep)


def _snapshot_id(hold: Hold) -> str:
    return snapshot_id_for(ADOPTED_ID, "stopped", hold.adoption.take)


def _is_of(manifest: SnapshotManifest | None, barred: Mapping[str, Barred]) -> bool:
    """Whether an existing snapshot has the positions at which these logs are barred now (Law 14)."""
    return manifest is None or {
        name: (query.position.batch_id, query.position.planned_batch_id) for name, query in manifest.queries.items()
    } == {name: (one.position.batch_id, one.position.planned_id) for name, one in barred.items()}


def failed_to_take_back(
    barriers: Iterable[OutsideBarrier], confirm: Callable[[], None] = lambda: None
) -> list[StreamStateError]:
    """Take each barrier back, also where another one fails; returns the failures.

    ``confirm`` is called before each, and raises where another controller has taken the adoption.
    """
    failures: list[StreamStateError] = []
    for barrier in barriers:
        confirm()
        try:
            barrier.take_back()
        except StreamStateError as failure:
            failures.append(failure)
    return failures


def put_back(hold: Hold, barriers: Iterable[OutsideBarrier]) -> None:
    """Put back the barriers that this call removed, where another controller has made a stream of the adoption.

    Raises:
        UnavailableError: the adoption cannot be read, or a log cannot be written.
    """
    stored = hold.control.register() if hold.has_been_taken() else None
    if stored is not None and stored.value.retirement is None:
        for barrier in barriers:
            barrier.put_back()


def remove_copies(hold: Hold, barriers: Iterable[OutsideBarrier]) -> None:
    """Remove the copies of a failed adoption, since the disk may be full. Raises as ``remove_snapshots``."""
    folder = layout.deployment_folder(hold.control.stream_id, ADOPTED_ID)
    _remove(hold, barriers, {hold.context.home.checkpoints: [folder]})


def remove_snapshots(hold: Hold, barriers: Iterable[OutsideBarrier]) -> None:
    """Remove the copies and snapshots of an adoption that is abandoned: a later stream uses the same names (Law 2).

    Only objects listed before the lease was confirmed are removed: a later controller's snapshot has another name.

    Raises:
        ConflictError: another controller has taken the adoption.
    """
    home, stream_id = hold.context.home, hold.control.stream_id
    folders = [layout.deployment_folder(stream_id, ADOPTED_ID), layout.snapshots_folder(stream_id)]
    _remove(hold, barriers, dict.fromkeys((home.checkpoints, home.home), folders))


def _remove(hold: Hold, barriers: Iterable[OutsideBarrier], folders: Mapping[Store, Sequence[str]]) -> None:
    doomed = [
        (store, [key for one in there for key in keys_below(store, f"{one}/")]) for store, there in folders.items()
    ]
    own = {None, *(barrier.checkpoint.query_id() for barrier in barriers)}
    copies, place = hold.context.home.checkpoints, layout.checkpoints_folder(hold.control.stream_id, ADOPTED_ID)
    found = (Checkpoint(copies, f"{place}/{name}") for name in copies.list_folders(place))
    holds_another = any(checkpoint.query_id() not in own for checkpoint in found)  # which is never removed (Law 4)
    hold.confirm()
    if hold.control.register() is None and not holds_another:
        for store, keys in doomed:
            delete_many(store, keys)


def refuse_moved(barred: Mapping[str, Barred]) -> None:
    """Check that no log has moved since its barrier was put; raises ConflictError."""
    for name, one in barred.items():
        found = one.checkpoint.position()
        if one.barrier.has_gone_on(one.barrier_id) or Position(found.batch_id, found.planned) != one.position:
            raise ConflictError(
                "this query is not stopped: its log moved while it was copied",
                query_name=name,
                checkpoint=f"{one.checkpoint.store.uri}/{one.checkpoint.prefix}",
                batch_id=found.batch_id,
                next_step="Leave out --stopped; or end whatever runs on this checkpoint, and adopt again.",
            )


def adopted_spec(
    context: ControllerContext, request: DeployRequest, start: StartPlan, request_id: str
) -> DeploymentSpec:
    """The record of the adopted deployment; ``request_id``: of the deploy that follows."""
    home = context.home
    version = request.settled(default_settings(home.home.uri))
    return DeploymentSpec(
        stream_id=request.stream_id,
        deployment_id=ADOPTED_ID,
        fencing_token=FIRST_TOKEN,
        version=beside_checkpoints(version, home.checkpoints.uri),
        start=start,
        checkpoints_uri=home.checkpoints.uri,
        request_id=request_id,
        requested_by=context.requested_by,
        reason=request.reason,
        created_at=context.clock.now(),
    )


def record(hold: Hold, manifest: SnapshotManifest, request: DeployRequest, request_id: str) -> None:
    """Create the stream, stopped at the snapshot. Idempotent.

    ``give_up`` takes the hold first and then reads the register; here the register is written first and then the hold
    confirmed: of two calls at once at least one sees the other (Law 14).

    Args:
        request: its files are pinned.
        request_id: of the deploy that follows.

    Raises:
        ConflictError: another controller has taken the adoption; this call created no stream.
    """
    context, control, clock = hold.context, hold.control, hold.context.clock
    start = StartPlan(mode="restore", snapshot_id=manifest.snapshot_id)
    with suppress(ObjectExistsError):
        control.create_spec(adopted_spec(context, request, start, request_id))
    journal = control.journal(ADOPTED_ID)
    entries = list(journal.events())
    said = [entry.event for entry in entries if isinstance(entry.event, Stopped)]
    if not any(event.snapshot_id == manifest.snapshot_id for event in said):
        stopped = Stopped(
            stream_id=control.stream_id,
            deployment_id=ADOPTED_ID,
            attempt=manifest.attempt,
            at=clock.now(),
            write_id=clock.new_uuid(),
            snapshot_id=manifest.snapshot_id,
            queries={name: query.position for name, query in manifest.queries.items()},
            command_id=_ADOPTED,
        )
        journal.append(stopped, after=entries[-1].number if entries else 0)
    register = StreamRegister(
        stream_id=control.stream_id,
        fencing_token=FIRST_TOKEN,
        deployment_id=ADOPTED_ID,
        attempt=manifest.attempt,
        attempt_mode="run",
        intent=None,
        **context.signed(),
    )
    try:
        stored = control.create_register(register)
    except ObjectExistsError:
        return  # another call wrote the same register
    try:
        hold.confirm()
    except StreamStateError:
        with suppress(StreamStateError):  # another controller may have moved it, and continues with it
            context.home.home.delete(layout.register_key(control.stream_id), stored.version)
        raise


# Giving an adoption up: takes its barriers back, so that the query can be started again as before.
#
# Possible until a driver of the stream has run a batch (Law 14). A stream that was created by then is retired.


@dataclass(frozen=True)
class GivenUp(View):
    """An adoption that was abandoned.

    Attributes:
        checkpoints: by query, where the barrier was withdrawn.
        missing: by query, where the checkpoint was removed in the meantime.
        is_retired: a stream had been created, and is retired.
    """

    form: ClassVar[str] = "stream_id given_up=checkpoints missing retired=is_retired"

    stream_id: str
    checkpoints: dict[str, str]
    missing: dict[str, str]
    is_retired: bool


def give_up(context: ControllerContext, stream_id: str, open_place: OpenPlace) -> GivenUp:
    """Give the adoption of a stream up, so that its query can be started again as before. Idempotent.

    Raises:
        StreamNotFoundError: the stream was never adopted.
        ConflictError: another controller holds the adoption; a driver of the stream runs or has run its queries; or a
            barrier cannot be withdrawn.
        InvalidRequestError: its record names a checkpoint at a place that is not allowed for the home.
    """
    control = context.home.control(stream_id)
    hold = hold_to_end(context, control)
    if hold is None:
        raise StreamNotFoundError(
            "this stream has no adoption",
            stream_id=stream_id,
            home=context.home.home.uri,
            next_step="Check the stream's name, and the home.",
        )
    try:
        adoption, is_retired = hold.adoption, False
        for uri in adoption.checkpoints.values():
            # A barrier is removed there, or put back: by the record alone, which others may have written.
            context.home.config.allowed.check_store(uri, stream_id=stream_id)
        if adoption.status == "taken":
            is_retired = _retire(hold)
        # Also for an adoption that was abandoned before: a controller that slept may have put its barrier since.
        barriers, failures = _barriers(hold, open_place)
        try:
            failures += map(str, failed_to_take_back(barriers.values(), hold.confirm))
            if failures:
                raise ConflictError(
                    "a barrier of this adoption could not be withdrawn",
                    stream_id=stream_id,
                    reasons=failures,
                    next_step="Repair that, and give it up again; a stream whose old checkpoint is gone is retired"
                    " instead.",
                )
            if adoption.status == "given_up":
                stored = control.register()
                is_retired = stored is not None and stored.value.retirement is not None
            else:
                if adoption.status == "taken":
                    is_retired = _retire(hold)  # a stream created since the first poll
                remove_snapshots(hold, barriers.values())
                # Last: under another adoption's id no controller would take the barriers back. With a snapshot id the
                # adoption has a retired stream, and is never continued.
                hold.change(status="given_up", snapshot_id=adoption.snapshot_id if is_retired else "")
        except ConflictError:
            put_back(hold, barriers.values())
            raise
    finally:
        with suppress(StreamStateError):
            hold.release()
    places = adoption.checkpoints.items()
    return GivenUp(
        stream_id,
        {name: uri for name, uri in places if name in barriers},
        {name: uri for name, uri in places if name not in barriers},
        is_retired,
    )


def _barriers(hold: Hold, open_place: OpenPlace) -> tuple[dict[str, OutsideBarrier], list[str]]:
    """The barrier of each query whose checkpoint is still there, and the reasons for what is unknown."""
    adoption = hold.adoption
    failures: list[str] = []
    barriers = {}
    for name, uri in adoption.checkpoints.items():
        try:
            checkpoint = place_of(uri, open_place)  # unchecked: a damaged checkpoint is no obstacle here
            if not _is_gone(checkpoint, hold):
                barriers[name] = outside_barrier(adoption, checkpoint, adoption.write_id)
        except StreamStateError as failure:
            failures.append(str(failure))
    return barriers, failures


def _is_gone(checkpoint: Checkpoint, hold: Hold) -> bool:
    """Whether the checkpoint was removed, so that there is nothing to take back.

    Raises:
        InvalidRequestError: it was, and its copy may be all that is left of its state (Law 16); or its folder is not on
            this machine, or not mounted.
    """
    if checkpoint.exists() or checkpoint.offset_ids():
        return False
    if hold.adoption.status == "given_up":
        return True
    if isinstance(checkpoint.store, LocalStore) and not checkpoint.store.root.is_dir():
        raise InvalidRequestError(
            "this machine has no such folder",
            folder=str(checkpoint.store.root),
            next_step="Give the adoption up on the machine that has it; if it was removed for good, create it empty.",
        )
    if hold.adoption.status == "taken" or hold.control.snapshot_ids():
        raise InvalidRequestError(
            "the checkpoint is gone, and the stream has the only copy",
            checkpoint=f"{checkpoint.store.uri}/{checkpoint.prefix}",
        )
    return True


def _retire(hold: Hold) -> bool:
    """Retire a stream that was created: it must not be deployed from the snapshot of a query that runs on."""
    context, stored = hold.context, hold.control.register()
    if stored is None:
        return False
    _refuse_begun(hold, stored)
    if stored.value.retirement is None:
        retirement = Retirement(context.clock.now(), context.requested_by, "its adoption was abandoned")
        # Fails where a deploy has moved the register since the check.
        context.update_register(hold.control, lambda register: replace(register, retirement=retirement), since=stored)
    return True


def _refuse_begun(hold: Hold, stored: Stored[StreamRegister]) -> None:
    control = hold.control
    for deployment_id in control.deployment_ids():
        said = [entry.event for entry in control.journal(deployment_id).events()]
        if any(isinstance(event, QueryStarted) for event in said) or _has_run(hold, deployment_id):
            raise ConflictError(
                "this stream has continued with the adopted query: started as it was, that would run the same batches",
                stream_id=control.stream_id,
                deployment_id=deployment_id,
                next_step="Deploy or roll back the stream instead.",
            )
    if stored.value.deployment_id is None:
        return
    seen = hold.context.observer.look(control, stored, stored.value.deployment_id)
    state = seen.state
    if state in (*NOT_ENDED, "lost"):
        raise ConflictError(
            f"a driver of this stream is {state}, and may start the adopted query at any moment",
            stream_id=control.stream_id,
            deployment_id=seen.deployment_id,
            next_step=f"`streamstate kill {control.stream_id}` ends it; then give the adoption up.",
        )


def _has_run(hold: Hold, deployment_id: str) -> bool:
    """Whether a log of the deployment has moved: a driver may have been killed before it reported a query's start."""
    home, control = hold.context.home, hold.control
    try:
        spec = control.spec(deployment_id)
    except DeploymentNotFoundError:
        return False
    home.check_place(spec)
    for name, query in control.need_manifest(hold.adoption.snapshot_id).queries.items():
        folder = layout.checkpoint_folder(control.stream_id, deployment_id, name)
        checkpoint = Checkpoint(home.checkpoints, folder)
        if not checkpoint.exists():
            continue
        found = checkpoint.position()
        if found.batch_id != query.position.batch_id or found.planned_id not in (None, query.position.planned_batch_id):
            return True
    return False
