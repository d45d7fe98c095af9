"""The identities of a query's sources when a batch was planned, from its starts and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import Drained, Draining, Finished, QueryStarted, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import QuerySnapshot, SnapshotManifest
from airflow_streamstate.protocol.moved_sources import moved_query
from airflow_streamstate.protocol.positions import SourceIdentity
from airflow_streamstate.protocol.records import StartPlan

ManifestOf = Callable[[str], SnapshotManifest | None]
"""The manifest of a snapshot; None where there is none, or none that can be read."""


def identities_when_planned(
    events: Iterable[Event | None], query_name: str, batch_id: int | None, manifest_of: ManifestOf
) -> tuple[SourceIdentity, ...]:
    """The identities that hold for batches up to this one; () where unknown.

    A start speaks for the batches planned after it: if it found a planned batch, its sources need not be those of that
    batch. A snapshot speaks for its own batch and those after it. For a batch planned before all of them, the first
    start
    speaks.

    Args:
        events: of the deployment, all attempts, in order; None for unreadable ones.
        batch_id: the batch; None for none.
        manifest_of: reads the snapshots of the deployment.
    """
    known = [event for event in events if event is not None]
    starts = [event for event in known if isinstance(event, QueryStarted) and event.query_name == query_name]
    telling = [event for event in starts if event.identities]
    before = [event for event in telling if batch_id is not None and _newest_planned(event) < batch_id]
    # In a snapshot before its first start, a query is as it was before this deployment.
    oldest = max(map(_newest_planned, (*starts[:1], *before[-1:])), default=None)
    if batch_id is not None and oldest is not None:
        silent: set[int] = set()
        for attempt, snapshot_id in _snapshots_between(known, query_name, oldest, batch_id):
            if attempt in silent:
                continue
            manifest = manifest_of(snapshot_id)
            query = manifest.queries.get(query_name) if manifest is not None else None
            if query is None:
                continue
            if query.identities:
                return query.identities
            silent.add(attempt)  # it would have known at this batch what it knew at an older one
    return next((event.identities for event in (*reversed(before), *telling[:1])), ())


def _snapshots_between(events: Sequence[Event], query_name: str, after: int, upto: int) -> list[tuple[int, str]]:
    """(attempt, snapshot id) of the snapshots with the query at a batch in ``(after, upto]``, the newest position
    first.
    """
    found, drained_from = [], set[str | None]()
    for number, event in enumerate(events):
        if isinstance(event, Draining):
            if event.snapshot_id in drained_from:
                continue  # its queries are flushed after others, and have read on since that snapshot
            drained_from.add(event.snapshot_id)
        snapshot_id, batch_id = _captured(event, query_name)
        if snapshot_id is not None and batch_id is not None and after < batch_id <= upto:
            found.append((batch_id, number, event.attempt, snapshot_id))
    return [(attempt, snapshot_id) for _, _, attempt, snapshot_id in sorted(found, reverse=True)]


def _captured(event: Event, query_name: str) -> tuple[str | None, int | None]:
    """The snapshot that an event reports, and the last committed batch of the query in it."""
    if isinstance(event, SnapshotReady | Stopped | Finished | Drained):
        position = event.queries.get(query_name)
        return event.snapshot_id, None if position is None else position.batch_id
    if isinstance(event, Draining) and query_name in event.flush_batch_ids:
        return event.snapshot_id, event.flush_batch_ids[query_name] - 1
    return None, None


def identities_taken_over(known: QuerySnapshot | None, query_name: str, start: StartPlan) -> tuple[SourceIdentity, ...]:
    """The identities of a query's sources in the snapshot that it continues from, where no start has said them.

    Args:
        known: the query in that snapshot; None where it has none.
        start: of its deployment.
    """
    if known is None or known.drained:
        return ()  # a seed may have given the offsets to its sources in another order
    moved = moved_query(known, start.move_sources)
    if query_name in start.accept_lost_input:
        # The offsets may have been moved to another source of that name, whose marks are unknown.
        return tuple(replace(identity, marks={}) for identity in moved.identities)
    return moved.identities


def _newest_planned(event: QueryStarted) -> int:
    return max((number for number in (event.batch_id, event.planned_batch_id) if number is not None), default=-1)
