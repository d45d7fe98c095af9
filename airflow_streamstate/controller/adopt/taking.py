"""From a barred checkpoint to a stopped stream: copy, look again, snapshot; then the records, the register last.

Until the adoption says ``taken`` nothing but the barrier has changed anything that is not ours, and it is taken back
whenever something fails. From then on the stream goes on, and every step may be done again by whoever comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from airflow_streamstate.checkpoint.log import Checkpoint, Position
from airflow_streamstate.checkpoint.outside import OutsideBarrier
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.adopt.foreign import need_position
from airflow_streamstate.controller.adopt.holding import Hold
from airflow_streamstate.controller.adoption_guard import refuse_stream
from airflow_streamstate.controller.context import ControllerContext
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.request.resolved_request import ResolvedRequest
from airflow_streamstate.errors import ConflictError, ObjectExistsError, StreamStateError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Stopped
from airflow_streamstate.protocol.ids import deployment_id_for, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.register import StreamRegister
from airflow_streamstate.protocol.settings import default_settings
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.copy_checkpoint import copy_checkpoint
from airflow_streamstate.store.base import ManyAtOnce, Store
from airflow_streamstate.store.transfer import delete_many, keys_below, until_done

FIRST_TOKEN = 1
ADOPTED_ID = deployment_id_for(FIRST_TOKEN)
"""The deployment that stands for the query as it ran without us."""
_ADOPTED = "adopt"
"""In place of the id of a command: nobody ordered this end."""


@dataclass(frozen=True)
class Barred:
    """One query's checkpoint behind its barrier.

    Attributes:
        position: where it stands, without the barrier.
        barrier_id: where the barrier lies.
    """

    barrier: OutsideBarrier
    position: Position
    barrier_id: int

    @property
    def checkpoint(self) -> Checkpoint:
        """The query's own."""
        return self.barrier.checkpoint


def bar_stopped(barriers: Mapping[str, OutsideBarrier], uris: Mapping[str, str]) -> dict[str, Barred]:
    """Bar queries that do not run, so that nobody starts them again beside us.

    Raises:
        ConflictError: one has planned a batch meanwhile.
        InvalidRequestError, DataError: as ``need_position``.
    """
    positions = {name: need_position(barrier.checkpoint, uris[name]) for name, barrier in barriers.items()}
    barred = {}
    for name, barrier in barriers.items():
        position = positions[name]
        barrier_id = barrier.put_over(position)
        barred[name] = Barred(barrier, Position(position.batch_id, position.planned), barrier_id)
    return barred


def take_snapshot(
    home: Home, hold: Hold, control: StreamControl, barred: Mapping[str, Barred], report: Callable[[str], None]
) -> SnapshotManifest:
    """Copy barred checkpoints to the adopted deployment's own place, and take the snapshot at its end of them.

    Raises:
        ConflictError: one went on meanwhile; or another has gone on with this adoption.
        ObjectMissingError, SnapshotCorruptError, DataError: a checkpoint is damaged.
    """
    refuse_stream(control)
    copies: dict[str, Checkpoint] = {}
    for name, one in barred.items():
        report(f"copying the checkpoint of {name}")
        folder = layout.checkpoint_folder(control.stream_id, ADOPTED_ID, name)
        copies[name] = Checkpoint(home.checkpoints, folder)
        if copies[name].query_id() not in (None, one.checkpoint.query_id()):
            raise ConflictError(
                "a checkpoint of another query has come to lie where the copy of this one would",
                stream_id=control.stream_id,
                checkpoint=f"{home.checkpoints.uri}/{folder}",
                next_step="Another home keeps its own there: give it up, and adopt the query under another name.",
            )
        copy_checkpoint(one.checkpoint, one.position, copies[name], go_on=hold.keep)
    refuse_moved(barred)
    hold.keep()
    if not _is_of(control.manifest(_snapshot_id(hold)), barred):
        hold.change(take=hold.adoption.take + 1)  # a call that was cut short has taken it elsewhere in these logs
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
    with ThreadPoolExecutor(1, "streamstate-adopt") as pool:  # there a link is a copy, which may take its time
        return until_done(pool.submit(captured), hold.keep)


def _snapshot_id(hold: Hold) -> str:
    return snapshot_id_for(ADOPTED_ID, "stopped", hold.adoption.take)


def _is_of(manifest: SnapshotManifest | None, barred: Mapping[str, Barred]) -> bool:
    """Whether this snapshot, if it is there, is of these logs where they are barred now (Law 14)."""
    there = {} if manifest is None else manifest.queries
    return manifest is None or {
        name: (query.position.batch_id, query.position.planned_batch_id) for name, query in there.items()
    } == {name: (one.position.batch_id, one.position.planned_id) for name, one in barred.items()}


def failed_to_take_back(
    barriers: Iterable[OutsideBarrier], confirm: Callable[[], None] = lambda: None
) -> list[StreamStateError]:
    """Take each barrier back, whatever becomes of the others; of each where that cannot be, why.

    ``confirm`` is called before each, and raises where another counts on it by now.
    """
    failures: list[StreamStateError] = []
    for barrier in barriers:
        confirm()
        try:
            barrier.take_back()
        except StreamStateError as failure:
            failures.append(failure)
    return failures


def put_back(hold: Hold, control: StreamControl, barriers: Iterable[OutsideBarrier]) -> None:
    """What this call has removed lies there again, where another has made a stream of the adoption meanwhile, or goes
    on with one that was retired.

    Raises:
        UnavailableError: the adoption cannot be read, or a log not written.
    """
    stored = control.register() if hold.has_been_taken() else None
    if stored is not None and stored.value.retirement is None:
        for barrier in barriers:
            barrier.put_back()


def remove_copies(home: Home, hold: Hold, control: StreamControl, barriers: Iterable[OutsideBarrier]) -> None:
    """Remove what was copied for an adoption that has come to nothing: nobody needs it, and the disk may be full.

    Raises:
        ConflictError: as ``remove_snapshots``.
    """
    folder = layout.deployment_folder(control.stream_id, ADOPTED_ID)
    _remove(home, hold, control, barriers, {home.checkpoints: [folder]})


def _holds_others(home: Home, control: StreamControl, barriers: Iterable[OutsideBarrier]) -> bool:
    """Whether a query that was never to be adopted has its checkpoint where the copies lie (Law 4)."""
    own = {barrier.checkpoint.query_id() for barrier in barriers}
    folder = layout.checkpoints_folder(control.stream_id, ADOPTED_ID)
    found = (Checkpoint(home.checkpoints, f"{folder}/{name}") for name in home.checkpoints.list_folders(folder))
    return any(checkpoint.query_id() not in {None, *own} for checkpoint in found)


def remove_snapshots(home: Home, hold: Hold, control: StreamControl, barriers: Iterable[OutsideBarrier]) -> None:
    """Remove what an adoption that is given up left under names that a later stream would give its own (Law 2).

    Only what was there while it was surely held: another, who has gone on since, takes a snapshot of another name.

    Raises:
        ConflictError: another has gone on with it.
    """
    folders = [layout.deployment_folder(control.stream_id, ADOPTED_ID), layout.snapshots_folder(control.stream_id)]
    _remove(home, hold, control, barriers, dict.fromkeys((home.checkpoints, home.home), folders))


def _remove(
    home: Home,
    hold: Hold,
    control: StreamControl,
    barriers: Iterable[OutsideBarrier],
    folders: Mapping[Store, Sequence[str]],
) -> None:
    doomed = [
        (store, [key for one in there for key in keys_below(store, f"{one}/")]) for store, there in folders.items()
    ]
    is_of_others = _holds_others(home, control, barriers)
    hold.confirm()
    if control.register() is None and not is_of_others:
        for store, keys in doomed:
            delete_many(store, keys)


def refuse_moved(barred: Mapping[str, Barred]) -> None:
    """See that nothing of these logs has moved since they were barred: the second look.

    Raises:
        ConflictError: one has.
    """
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


def record(
    context: ControllerContext,
    control: StreamControl,
    manifest: SnapshotManifest,
    resolved: ResolvedRequest,
    request_id: str,
    *,
    confirm: Callable[[], None],
) -> None:
    """Make it a stream that has stopped where the snapshot stands; twice is once.

    Who gives the adoption up takes its hold first, and then looks for a register; here the register comes first, and
    then the look at the hold: of two at once at least one sees the other (Law 14).

    Args:
        means: of the controller.
        control: the stream.
        manifest: of the snapshot.
        resolved: what goes on with it; pinned.
        request_id: under which that will be deployed.
        confirm: raises where the adoption is worked on by another.

    Raises:
        ConflictError: it is; there is no stream by this call.
    """
    home, clock = context.home, context.clock
    spec = resolved.version.as_spec(
        stream_id=resolved.stream_id,
        deployment_id=ADOPTED_ID,
        fencing_token=FIRST_TOKEN,
        start=StartPlan(mode="restore", snapshot_id=manifest.snapshot_id),
        checkpoints_uri=home.checkpoints.uri,
        default=default_settings(home.home.uri),
        request_id=request_id,
        requested_by=context.requested_by,
        reason=resolved.reason,
        created_at=clock.now(),
    )
    with suppress(ObjectExistsError):
        control.create_spec(spec)
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
        return  # whoever was first wrote the same
    try:
        confirm()
    except StreamStateError:
        with suppress(StreamStateError):  # who has moved it goes on with it
            home.home.delete(layout.register_key(control.stream_id), stored.version)
        raise
