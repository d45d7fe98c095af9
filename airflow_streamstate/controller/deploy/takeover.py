"""Taking over from a deployment that ended without a snapshot: fence its logs, then take the snapshot (1a.8).

Idempotent, also for two controllers at once: a fence over an unused log harms nothing, and the snapshot of one end has
one id. ``still_ours`` stops a controller that has lost the stream before each fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from airflow_streamstate.checkpoint.barrier import put_fence, take_back_fence
from airflow_streamstate.checkpoint.log import BarrierMark, Checkpoint, Position
from airflow_streamstate.checkpoint.repair import DrainCommitted, DrainPending, Foreign, classify
from airflow_streamstate.checkpoint.state_files import has_begun_planned
from airflow_streamstate.clock import Clock
from airflow_streamstate.control.journal import had_checkpoint, missing_checkpoint, newest_spark, spark_that_wrote
from airflow_streamstate.control.stream import StreamControl, identities_taken_over, identities_when_planned
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import ConflictError, InvalidRequestError, VersionConflictError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Event, Finished, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.positions import SourceIdentity
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.capture import QueryToCapture, capture
from airflow_streamstate.snapshot.location import kept_by_own_snapshots

StillOurs = Callable[[], None]


class ResumedError(VersionConflictError):
    """The deployment to take over has a newer attempt."""


def take_over(
    home: Home,
    control: StreamControl,
    seen: Observation,
    snapshot_id: str,
    request_id: str,
    *,
    may_discard: bool,
    still_ours: StillOurs,
    kept_at: str | None = None,
) -> SnapshotManifest:
    """Fence every checkpoint of a deployment that is proven ended, and keep its end as a ``stopped`` snapshot.

    Args:
        snapshot_id: the same at every try.
        may_discard: state of a flush that was committed and never reported may be dropped (Law 16).
        still_ours: as in ``fence``.
        kept_at: the place of the snapshot, as ``DeploymentSpec.snapshots``; None for the deployment's own place, which
            may be lost.

    Raises:
        ConflictError: its drain was interrupted after its flush had started.
        DataError: a checkpoint is damaged.
        SnapshotNotFoundError, DataError: it has no checkpoint, and its start snapshot is gone or damaged.
    """
    checkpoints = built_checkpoints(home, seen)
    for name, checkpoint in checkpoints.items():
        _refuse_unfinished_drain(name, checkpoint, seen, may_discard=may_discard)
    existing = control.manifest(snapshot_id)
    if existing is not None:
        return existing
    holders = holders_of(home, control, seen, checkpoints)
    queries = to_capture(control, seen, checkpoints, holders)
    carried = [holder.spark_version for name, holder in holders.items() if name not in checkpoints]
    fence(checkpoints, seen, request_id, home.clock, still_ours)
    return capture(
        control,
        home.checkpoints,
        snapshot_id=snapshot_id,
        snapshot_kind="stopped",
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        fencing_token=seen.spec.fencing_token,
        taken_by="controller",
        queries=queries,
        spark_version=newest_spark((written_by(control, seen, checkpoints), *carried)),
        places=home.places,
        kept_at=seen.spec.version.snapshots if kept_at is None else kept_at,
    )


def written_by(
    control: StreamControl,
    seen: Observation,
    checkpoints: Mapping[str, Checkpoint],
    found: Mapping[str, Position] | None = None,
    *,
    with_planned: bool = True,
) -> str:
    """The newest version of Spark that may have written these checkpoints of a deployment; "" where it is unknown.

    Args:
        found: the position of each; None to read them.
        with_planned: count the files of an uncommitted batch, too.

    Raises:
        DataError: a checkpoint is damaged.
    """
    snapshot_id = seen.spec.start.snapshot_id
    start = None if snapshot_id is None else control.readable_manifest(snapshot_id)
    positions: dict[str, int | None] = dict.fromkeys(() if start is None else start.queries)
    if found is None:
        found = {name: checkpoint.position() for name, checkpoint in checkpoints.items()}
    positions |= {name: position.batch_id for name, position in found.items()}
    planned = found if with_planned else {}
    begun = [name for name, position in planned.items() if has_begun_planned(checkpoints[name], position)]
    is_start_lost = snapshot_id is not None and start is None
    return spark_that_wrote(_events(seen), positions, start, begun, is_start_lost=is_start_lost)


def _refuse_unfinished_drain(name: str, checkpoint: Checkpoint, seen: Observation, *, may_discard: bool) -> None:
    finding = classify(checkpoint, seen.deployment_id)
    beneath = finding.beneath if isinstance(finding, Foreign) else finding
    if isinstance(beneath, DrainPending):
        # The sink may hold the flush; a restore would run the same batch id over other bounds (Law 14).
        raise ConflictError(
            "the drain of this deployment was cut short in its flush, so the sink may hold its batch already",
            deployment_id=seen.deployment_id,
            query_name=name,
            flush_batch_id=beneath.drain_id,
            next_step=f"`streamstate drain {seen.stream_id}` runs that batch to its end; then deploy.",
        )
    if isinstance(beneath, DrainCommitted) and not may_discard:
        raise ConflictError(
            "the drain of this deployment was flushed and not finished, so the state that it left was not counted",
            deployment_id=seen.deployment_id,
            query_name=name,
            next_step=f"`streamstate drain {seen.stream_id}` finishes it; --allow-state-loss drops that state.",
        )


def fence(
    checkpoints: dict[str, Checkpoint], seen: Observation, request_id: str, clock: Clock, still_ours: StillOurs
) -> None:
    """Put a fence on top of each log, so that a driver that still lives can claim no other batch.

    ``still_ours`` raises where the register has moved: a fence would end an attempt that was started since, or make
    it skip a batch while it starts up (1a.2). It is called before and after each put: a fence that a newer attempt of
    this deployment would meet is removed; one that a successor may have taken for its own stays.

    Raises:
        DataError: a log is damaged.
    """
    for checkpoint in checkpoints.values():
        mark = BarrierMark(
            kind="fence",
            stream_id=seen.stream_id,
            deployment_id=seen.deployment_id,
            attempt=seen.attempt,
            command_id=request_id,
            write_id=clock.new_uuid(),
        )
        fence_id = put_fence(checkpoint, mark, before_each=still_ours)
        try:
            still_ours()
        except ResumedError:
            take_back_fence(checkpoint, fence_id, mark)
            raise


def built_checkpoints(home: Home, seen: Observation) -> dict[str, Checkpoint]:
    """The deployment's own checkpoints by query, without half-built ones (1a.10)."""
    folder = layout.checkpoints_folder(seen.stream_id, seen.deployment_id)
    found = {}
    for name in home.checkpoints.list_folders(folder):
        try:
            query_name = layout.query_name_of(name)
        except InvalidRequestError:
            continue  # not a folder of streamstate's
        checkpoint = Checkpoint(home.checkpoints, f"{folder}/{name}")
        if checkpoint.exists():
            found[query_name] = checkpoint
    return found


def has_committed(home: Home, control: StreamControl, seen: Observation) -> bool:
    """Whether this deployment committed a batch itself, beyond what it started from."""
    checkpoints = built_checkpoints(home, seen)
    snapshot_id, manifest = seen.spec.start.snapshot_id, None
    if snapshot_id is not None:  # without a checkpoint, a start snapshot that is gone or damaged is an error
        manifest = control.readable_manifest(snapshot_id) if checkpoints else control.need_manifest(snapshot_id)
    before = {} if manifest is None else manifest.queries
    for name, checkpoint in checkpoints.items():
        batch_id = checkpoint.position().batch_id
        start = before.get(name)
        if batch_id is not None and (start is None or start.position.batch_id != batch_id):
            return True
    return False


def has_committed_since(home: Home, seen: Observation, attempt: int) -> bool:
    """Whether this deployment committed a batch in this attempt or a later one."""
    checkpoints = built_checkpoints(home, seen)
    began: dict[str, int | None] = {}
    for event in seen.of_kind(QueryStarted, any_attempt=True):  # newest first, so the oldest of a query wins
        if event.attempt >= attempt:
            began[event.query_name] = event.batch_id
    return any(
        name in checkpoints and checkpoints[name].position().batch_id != batch_id for name, batch_id in began.items()
    )


def carried_queries(
    control: StreamControl, seen: Observation | None, manifest: SnapshotManifest | None
) -> frozenset[str]:
    """Queries that a deployment never started and left as its start snapshot had them (1a.12).

    Args:
        manifest: the snapshot at its end.
    """
    if seen is None or manifest is None or seen.spec.start.snapshot_id in (None, manifest.snapshot_id):
        return frozenset()  # an adopted deployment starts and ends at one snapshot
    started = _started(seen)
    names = [
        name
        for name, query in manifest.queries.items()
        if name not in started and (query.position.batch_id, query.position.planned_batch_id) != (None, None)
    ]
    before = control.readable_manifest(str(seen.spec.start.snapshot_id)) if names else None
    return frozenset(name for name in names if before and before.queries.get(name) == manifest.queries[name])


def holders_of(
    home: Home, control: StreamControl, seen: Observation, checkpoints: dict[str, Checkpoint]
) -> dict[str, SnapshotManifest]:
    """The snapshot that holds each query as it was before this deployment.

    Where its start snapshot is gone, the deployment's own snapshots hold the queries that it never started.
    """
    snapshot_id = seen.spec.start.snapshot_id
    if snapshot_id is None:
        return {}
    manifest = control.readable_manifest(snapshot_id)
    if manifest is not None:
        return dict.fromkeys(manifest.queries, manifest)
    kept = _kept_by_own_snapshots(home, control, seen, checkpoints)
    if not checkpoints and not kept:
        control.need_manifest(snapshot_id)
    return kept


def _started(seen: Observation) -> set[str]:
    return {event.query_name for event in seen.of_kind(QueryStarted, any_attempt=True)}


def _kept_by_own_snapshots(
    home: Home, control: StreamControl, seen: Observation, others: Iterable[str]
) -> dict[str, SnapshotManifest]:
    """The deployment's own snapshot that holds each query which it never started and which is not in ``others``."""
    return kept_by_own_snapshots(control, home.places, seen.deployment_id, _events(seen), {*others, *_started(seen)})


def lost_with_start(home: Home, control: StreamControl, seen: Observation, end: SnapshotManifest) -> tuple[str, ...]:
    """Notes on queries that an ended deployment never started and whose start snapshot is gone or damaged (1a.12).

    Its own earlier snapshots may still hold such a query unchanged. Without one the query is lost: no older position
    replaces it, and a start of it is refused (Law 5).
    """
    start = seen.spec.start
    if start.snapshot_id is None or control.readable_manifest(start.snapshot_id) is not None:
        return ()
    kept = _kept_by_own_snapshots(home, control, seen, end.queries)
    left = tuple(
        f"query {name} is not in snapshot {end.snapshot_id}: {seen.deployment_id} never started it; snapshot"
        f" {holder.snapshot_id} still has it as it was"
        for name, holder in sorted(kept.items())
    )
    known = _queries_of_start(control, start)
    if known is None:
        return (
            *left,
            f"snapshot {start.snapshot_id}, from which {seen.deployment_id} started, is gone or damaged: a query that"
            f" {seen.deployment_id} never started, and that no later snapshot has, is lost with it; a start of it is"
            " refused, unless --allow-new-query starts it with nothing",
        )
    return left + tuple(
        f"query {name} is lost: {seen.deployment_id} never started it, and snapshot {start.snapshot_id}, which had it,"
        f" is gone or damaged; a start of it is refused, unless --allow-new-query {name} starts it with nothing"
        for name in sorted(known - {*end.queries, *kept})
    )


def _queries_of_start(control: StreamControl, start: StartPlan) -> frozenset[str] | None:
    """The queries of a start snapshot, by the events of its deployment; None if no event names them."""
    if start.predecessor_id is None:
        return None
    for entry in control.journal(start.predecessor_id).events():
        event = entry.event
        if isinstance(event, SnapshotReady | Stopped | Finished | Drained) and event.snapshot_id == start.snapshot_id:
            return frozenset(event.queries)
    return None


def to_capture(
    control: StreamControl,
    seen: Observation,
    checkpoints: dict[str, Checkpoint],
    holders: dict[str, SnapshotManifest],
) -> dict[str, QueryToCapture]:
    """The parts of a snapshot of these checkpoints, by query.

    Args:
        holders: as ``holders_of`` returns them.

    Raises:
        DataError: a checkpoint is gone.
    """
    # The events come newest first, so the first one of each query with sources counts.
    started: dict[str, QueryStarted] = {}
    for event in seen.of_kind(QueryStarted, any_attempt=True):
        if event.query_name not in started or not started[event.query_name].sources:
            started[event.query_name] = event
    every_event = _events(seen)
    queries = {}
    for name in sorted({*holders, *checkpoints, *started}):
        holder, event_of = holders.get(name), started.get(name)
        carried = holder.queries[name] if holder is not None else None
        sources = event_of.sources if event_of is not None else ()
        watermarks = event_of.watermarks if event_of is not None else ()
        if event_of is None and carried is not None:
            watermarks = carried.watermarks
        if name not in checkpoints and had_checkpoint(every_event, name):
            folder = layout.checkpoint_folder(seen.stream_id, seen.deployment_id, name)
            raise missing_checkpoint(name, folder)
        queries[name] = QueryToCapture(
            checkpoint=checkpoints.get(name),
            carried=carried,
            carried_snapshot_id=holder.snapshot_id if holder is not None else None,
            sources=sources or (carried.sources if carried is not None else ()),
            watermarks=watermarks,
            identities_at=partial(_identities_at, control, seen, name, carried),
        )
    return queries


def _identities_at(
    control: StreamControl, seen: Observation, name: str, carried: QuerySnapshot | None, batch_id: int | None
) -> tuple[SourceIdentity, ...]:
    said = identities_when_planned(_events(seen), name, batch_id, control.readable_manifest)
    return said or identities_taken_over(carried, name, seen.spec.start)


def _events(seen: Observation) -> list[Event | None]:
    return [entry.event for entry in seen.events]
