"""What a rehearsal forks: what a deploy would start from now, or of a stream that runs its position of this moment."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.decide import Refused, Start, decide_start
from airflow_streamstate.controller.deploy.sent_once import refuse_sent_once
from airflow_streamstate.controller.deploy.takeover import (
    built_checkpoints,
    carried_queries,
    holders_of,
    to_capture,
    written_by,
)
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.request.changes import Change
from airflow_streamstate.protocol.events import Finished, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.capture import capture


def start_of(home: Home, control: StreamControl, seen: Observation, request: Change, rehearsal_id: str) -> Start:
    """How the changed version would start.

    Args:
        home: of the stream.
        control: the stream.
        seen: its current deployment.
        request: the change.
        rehearsal_id: under whose keys the position of a stream that runs is kept.

    Raises:
        SnapshotNotFoundError: the snapshot at the end of the deployment is gone.
        IncompatibleUpgradeError: a drain left state, and nobody asked to drop it.
        InputLostError: a source sends each row once, and going on without its offset is not accepted.
        ObjectMissingError, DataError: a checkpoint is damaged.
        UnavailableError: the stream outran every try; the same call may be repeated.
    """
    return _decided(control, seen, request, _end_of(control, seen) or _captured(home, control, seen, rehearsal_id))


def start_at(control: StreamControl, seen: Observation, request: Change, snapshot_id: str) -> Start:
    """How the changed version would start from this snapshot; arguments and errors as ``start_of``."""
    return _decided(control, seen, request, control.need_manifest(snapshot_id))


def _decided(control: StreamControl, seen: Observation, request: Change, manifest: SnapshotManifest | None) -> Start:
    deploying = request.as_deploy_request()
    carried = carried_queries(control, seen, manifest)
    decision = decide_start(deploying, seen.deployment_id, manifest, carried)
    if isinstance(decision, Refused):
        raise decision.error
    if manifest is None or decision.plan.snapshot_id is None:
        return decision
    return replace(decision, notes=(*decision.notes, *refuse_sent_once(deploying, manifest)))


def _end_of(control: StreamControl, seen: Observation) -> SnapshotManifest | None:
    """The snapshot at the end of a deployment that has ended and kept it."""
    end = seen.drained or seen.terminal
    snapshot_id = seen.drained.snapshot_id if seen.drained is not None else getattr(end, "snapshot_id", None)
    if snapshot_id is None or not (seen.drained is not None or isinstance(end, Stopped | Finished)):
        return None
    return control.need_manifest(snapshot_id)


def _captured(home: Home, control: StreamControl, seen: Observation, rehearsal_id: str) -> SnapshotManifest | None:
    """The last committed batch of every query by now, linked; None where none of them has committed any."""
    checkpoints = built_checkpoints(home, seen)
    queries = to_capture(control, seen, checkpoints, holders_of(home, control, seen, checkpoints))
    batches = [checkpoint.position().batch_id for checkpoint in checkpoints.values()]
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
    )
