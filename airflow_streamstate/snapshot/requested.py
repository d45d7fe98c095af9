"""Finds the snapshot of a request, so that the same request to any deployment or attempt takes no second one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import Accepted, SnapshotReady
from airflow_streamstate.protocol.ids import is_snapshot_by_command, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest


def requested_snapshot(
    control: StreamControl, request_id: str, deployment_id: str, events: Sequence[Event | None]
) -> SnapshotManifest | None:
    """The complete snapshot of a request; None while there is none.

    Its manifest counts (Law 3): a driver that died right after it sent no event. In this deployment the commands that
    were begun name the candidates. In the deployments between the first that was asked and this one, every snapshot is
    a candidate that a command asked for.

    Args:
        deployment_id: the deployment that is asked now.
        events: of that deployment, all attempts, in order; None for those that could not be read.

    Raises:
        InvalidRequestError: this is no request id.
    """
    try:
        record = control.request(request_id)
    except DataError:
        record = None  # then the first deployment is not known
    for snapshot_id in _here(request_id, deployment_id, events):
        manifest = control.readable_manifest(snapshot_id)
        if manifest is not None and manifest.request_id == request_id:
            return manifest
    if record is not None and record.deployment_id == deployment_id:
        return None
    since = None if record is None else record.deployment_id
    for snapshot_id in _elsewhere(control, since, deployment_id):
        manifest = control.readable_manifest(snapshot_id)
        if manifest is not None and manifest.request_id == request_id:
            return manifest
    return None


def _here(request_id: str, deployment_id: str, events: Iterable[Event | None]) -> list[str]:
    found = []
    for event in events:
        if isinstance(event, SnapshotReady) and event.request_id == request_id:
            found.append(event.snapshot_id)
        elif isinstance(event, Accepted) and event.command.get("request_id") == request_id:
            found.append(snapshot_id_for(deployment_id, "live", event.command_number))
    return found


def _elsewhere(control: StreamControl, since: str | None, deployment_id: str) -> list[str]:
    """Snapshots of other deployments that commands asked for, those of the newest deployment first."""
    known = control.deployment_ids()
    begin = known.index(since) if since in known else 0
    end = known.index(deployment_id) if deployment_id in known else len(known)
    asked = known[begin:end]
    if not asked:
        return []
    there = control.snapshot_ids()
    return [one for other in reversed(asked) for one in reversed(there) if is_snapshot_by_command(one, other)]
