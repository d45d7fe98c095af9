"""Queries that a deployment never started, where the snapshot that it started from is gone, or damaged (1a.12, Law 5).

The snapshots that it took before that still hold them as they were: nobody ran them since. Without one of those they
are lost, and nothing takes an older place of theirs: that is told by name, and a start of them is refused.
"""

from __future__ import annotations

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.events import Drained, Finished, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.snapshot.kept import kept_by_own_snapshots


def lost_with_start(home: Home, control: StreamControl, seen: Observation, end: SnapshotManifest) -> tuple[str, ...]:
    """What is to be said of queries that went with the snapshot which a deployment started from.

    Args:
        home: of the stream.
        control: the stream.
        seen: the deployment, ended.
        end: the snapshot at its end.
    """
    start = seen.spec.start
    if start.snapshot_id is None or control.readable_manifest(start.snapshot_id) is not None:
        return ()
    started = {event.query_name for event in seen.of_kind(QueryStarted, any_attempt=True)}
    events = [entry.event for entry in seen.events]
    kept = kept_by_own_snapshots(control, home.places, seen.deployment_id, events, {*end.queries, *started})
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
            f" {seen.deployment_id} never started, and that no later snapshot has, is lost with it, and refused by name"
            " where it is started again; --fresh-query starts it with nothing",
        )
    return left + tuple(
        f"query {name} is lost: {seen.deployment_id} never started it, and snapshot {start.snapshot_id}, which had it,"
        f" is gone or damaged; where it is started again it is refused, unless --fresh-query {name} starts it with"
        " nothing"
        for name in sorted(known - {*end.queries, *kept})
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
