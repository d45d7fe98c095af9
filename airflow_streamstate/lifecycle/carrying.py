"""Queries that a deployment never started, where the snapshot that it started from is gone, or damaged (1a.12, Law 5).

The snapshots that it took before that still hold them as they were: nobody ran them since. Without one of those they
are lost, and nothing takes an older place of theirs: that is told by name, and a start of them is refused.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.errors import DataError
from airflow_streamstate.lifecycle.home import Home
from airflow_streamstate.lifecycle.observation import Observation
from airflow_streamstate.protocol.events import Drained, Event, Finished, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.data import check_complete


def kept_by_own_snapshots(
    home: Home, control: StreamControl, seen: Observation, own: Collection[str]
) -> dict[str, SnapshotManifest]:
    """The newest snapshot of a deployment that has a query whole, for each query that it never started.

    Args:
        home: of the stream.
        control: the stream.
        seen: the deployment.
        own: the queries that were started in it, or have a checkpoint there.
    """
    found: dict[str, SnapshotManifest] = {}
    for event in seen.of_kind(Event, any_attempt=True):  # newest first
        if not isinstance(event, SnapshotReady | Stopped | Finished) or event.snapshot_id is None:
            continue
        if set(event.queries) <= {*own, *found}:
            continue
        manifest = control.readable_manifest(event.snapshot_id)
        if manifest is None or manifest.deployment_id != seen.deployment_id:
            continue
        for name in sorted({*manifest.queries} - {*own, *found}):
            try:
                check_complete(home.checkpoints, manifest, [name])
            except DataError:
                continue  # an older one may be whole
            found[name] = manifest
    return found


def lost_with_start(control: StreamControl, seen: Observation, end: SnapshotManifest) -> tuple[str, ...]:
    """What is to be said of queries that went with the snapshot which a deployment started from.

    Args:
        control: the stream.
        seen: the deployment, ended.
        end: the snapshot at its end.
    """
    start = seen.spec.start
    if start.snapshot_id is None or control.readable_manifest(start.snapshot_id) is not None:
        return ()
    known = _queries_of_start(control, start)
    if known is None:
        return (
            f"snapshot {start.snapshot_id}, from which {seen.deployment_id} started, is gone or damaged: a query that"
            f" {seen.deployment_id} never started is lost with it, and refused by name where it is started again;"
            " --fresh-query starts it with nothing",
        )
    return tuple(
        f"query {name} is lost: {seen.deployment_id} never started it, and snapshot {start.snapshot_id}, which had it,"
        f" is gone or damaged; where it is started again it is refused, unless --fresh-query {name} starts it with"
        " nothing"
        for name in sorted(known - set(end.queries))
    )


def _queries_of_start(control: StreamControl, start: StartPlan) -> frozenset[str] | None:
    """Which queries a start snapshot had, by what its own deployment said of it; None where it said nothing."""
    if start.predecessor_id is None:
        return None
    for entry in control.journal(start.predecessor_id).events():
        event = entry.event
        if isinstance(event, SnapshotReady | Stopped | Finished | Drained) and event.snapshot_id == start.snapshot_id:
            return frozenset(event.queries)
    return None
