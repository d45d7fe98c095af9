"""Finds the snapshots of a deployment that still hold the queries it never started (Law 5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError, UnavailableError
from airflow_streamstate.protocol import layout
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
    """For each query that a deployment never started, its newest snapshot that has the query whole.

    Args:
        events: of the deployment, all attempts, in order; None for those that could not be read.
        own: the queries that were started in it, or have a checkpoint there.

    Raises:
        UnavailableError: a query is held only by snapshots whose place does not answer: it is not lost yet.
    """
    found: dict[str, SnapshotManifest] = {}
    silent: dict[str, tuple[SnapshotManifest, UnavailableError]] = {}
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
            except DataError:
                continue  # an older one may be whole
            except UnavailableError as error:
                silent.setdefault(name, (manifest, error))
                continue
            found[name] = manifest
    for name in sorted(set(silent) - set(found)):
        raise _silent(control, name, *silent[name])
    return found


def _silent(
    control: StreamControl, query_name: str, manifest: SnapshotManifest, error: UnavailableError
) -> UnavailableError:
    key = layout.manifest_key(control.stream_id, manifest.snapshot_id)
    return UnavailableError(
        "a query that was never started is held by a snapshot whose place does not answer",
        stream_id=control.stream_id,
        query_name=query_name,
        snapshot_id=manifest.snapshot_id,
        place=manifest.data_uri,
        reason=error.message,
        next_step=f"Mount or reach it; if it is lost for good, so is the query: delete {key} from the home.",
    )
