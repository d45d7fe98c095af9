"""A position that a start with nothing left behind: no later deploy starts with nothing because of that (Law 5)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.controller.request.requests import DeployRequest
from airflow_streamstate.errors import ConflictError, DeploymentNotFoundError
from airflow_streamstate.protocol.events import QueryStarted
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan


@dataclass(frozen=True)
class LeftBehind:
    """Where the stream stood before deployments that were started fresh, and ran no query.

    Attributes:
        deployment_id: the last one that ran a query, or was to go on from a snapshot.
        snapshot_id: the newest one of it that can be read, else the one that it was to go on from; None for neither.
    """

    deployment_id: str
    snapshot_id: str | None


def left_behind(control: StreamControl, seen: Observation | None) -> LeftBehind | None:
    """What lies behind a deployment that was started fresh, and behind those before it that ran no query either.

    Asked only of a deployment that ended without a position.

    Args:
        control: the stream.
        seen: the deployment; None for none.

    Returns:
        None where the stream never had a position, as far as its records reach.
    """
    start: StartPlan | None = None if seen is None else seen.spec.start
    while start is not None and start.mode == "fresh" and start.predecessor_id is not None:
        deployment_id = start.predecessor_id
        events = (entry.event for entry in control.journal(deployment_id).events())
        if any(isinstance(event, QueryStarted) for event in events):
            return LeftBehind(deployment_id, _newest_snapshot(control, deployment_id))
        try:
            start = control.spec(deployment_id).start
        except DeploymentNotFoundError:  # pruned, which keeps what has a position
            return None
        if start.mode != "fresh":  # it had one without a query of its own, as what was adopted has
            return LeftBehind(deployment_id, _newest_snapshot(control, deployment_id) or start.snapshot_id)
    return None


def refuse_to_fall_back(
    control: StreamControl, request: DeployRequest, seen: Observation | None, end: SnapshotManifest | None
) -> None:
    """See that whoever did not ask for a start with nothing gets none.

    Args:
        control: the stream.
        request: what is asked for.
        seen: the deployment before; None for none.
        end: the snapshot at its end, if there is one.

    Raises:
        ConflictError: the deployment before was started so, and ran no query; the stream had a position before it.
    """
    if request.start == "fresh" or end is None or end.queries:
        return
    found = left_behind(control, seen)
    if seen is None or found is None:
        return
    way = f"`streamstate rollback {seen.stream_id} --snapshot {found.snapshot_id or 'ID'}` goes on from there"
    raise ConflictError(
        "the deployment before was started with nothing, by name, and ran no query; the stream has a position from"
        " before it, and does not start with nothing again by itself",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        position_of=found.deployment_id,
        snapshot_id=found.snapshot_id,
        next_step=f"{way}; --start fresh gives the position up.",
    )


def _newest_snapshot(control: StreamControl, deployment_id: str) -> str | None:
    manifests = (control.readable_manifest(one) for one in control.snapshot_ids())
    of_it = [
        found for found in manifests if found is not None and found.deployment_id == deployment_id and found.queries
    ]
    return max(of_it, key=lambda found: found.taken_at).snapshot_id if of_it else None
