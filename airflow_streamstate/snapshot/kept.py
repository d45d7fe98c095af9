"""Which snapshots of a deployment still hold the queries that it never started, where its start is gone (Law 5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, UnavailableError
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import Finished, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.snapshot.data import check_complete
from airflow_streamstate.snapshot.placing import SnapshotPlaces


def kept_by_own_snapshots(
    control: StreamControl,
    places: SnapshotPlaces,
    deployment_id: str,
    events: Sequence[Event | None],
    own: Collection[str],
) -> dict[str, SnapshotManifest]:
    """The newest snapshot of a deployment that has a query whole, for each query that it never started.

    Args:
        control: the stream.
        places: where the data of its snapshots may lie.
        deployment_id: of the deployment.
        events: of it, all attempts, in order; None for those that could not be read.
        own: the queries that were started in it, or have a checkpoint there.
    """
    found: dict[str, SnapshotManifest] = {}
    for event in reversed(events):
        if not isinstance(event, SnapshotReady | Stopped | Finished) or event.snapshot_id is None:
            continue
        if set(event.queries) <= {*own, *found}:
            continue
        manifest = control.readable_manifest(event.snapshot_id)
        if manifest is None or manifest.deployment_id != deployment_id:
            continue
        for name in sorted({*manifest.queries} - {*own, *found}):
            try:
                check_complete(places.of(manifest), manifest, [name])
            except (DataError, UnavailableError):
                continue  # an older one may be whole
            found[name] = manifest
    return found
