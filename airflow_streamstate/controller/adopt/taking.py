"""From a checkpoint behind a barrier to a stopped stream: copy, check again, snapshot; then the records, register last.

Until the adoption is ``taken``, a failure takes the barrier back, which is the only change of the foreign checkpoint.
After that every step is idempotent, and any controller completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from airflow_streamstate.checkpoint.entries import BarrierMark
from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.controller.adopt.foreign import need_position
from airflow_streamstate.controller.adopt.holding import Hold
from airflow_streamstate.controller.adoption_guard import refuse_stream
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.request.patch import beside_checkpoints
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import ConflictError, ObjectExistsError, StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.adoptions import Adoption
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.ids import deployment_id_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import DeploymentSpec, StartPlan
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.copy_checkpoint import copy_checkpoint
from airflow_streamstate.store.base import ManyAtOnce, Store
from airflow_streamstate.store.transfer import delete_many, keys_below, until_done

FIRST_TOKEN = 1
ADOPTED_ID = deployment_id_for(FIRST_TOKEN)
"""The deployment that stands for the query before its adoption."""
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
    """Put barriers over queries that do not run, so that they cannot be started beside the stream.

    Raises:
        ConflictError: a query has planned a batch meanwhile.
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
        ConflictError: a query went on meanwhile, or another controller has taken the adoption.
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
    """Remove the copies and snapshots of an adoption that is given up: a later stream uses the same names (Law 2).

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
        with suppress(StreamStateError):  # another controller may have moved it, and goes on with it
            context.home.home.delete(layout.register_key(control.stream_id), stored.version)
        raise
