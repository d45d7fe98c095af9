"""The gap of an upgrade: from the last commit of the old version to the first of the new one."""

from __future__ import annotations

from datetime import datetime

from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.lifecycle.home import Home
from airflow_streamstate.lifecycle.observing.observation import Observation
from airflow_streamstate.lifecycle.starting.takeover import built_checkpoints
from airflow_streamstate.protocol.heartbeat import QueryBeat
from airflow_streamstate.protocol.manifest import SnapshotManifest


def gap_seconds(home: Home, old: Observation, new: Observation, handover: SnapshotManifest | None) -> float | None:
    """The longest gap of all queries; None where nobody can tell.

    By the clock of the store where it knows when a commit was written; else as the agents saw them committed.

    Args:
        home: of the stream.
        old, new: the deployments, of which the new one has begun.
        handover: the snapshot between the two; None for none.
    """
    before, after = built_checkpoints(home, old), built_checkpoints(home, new)
    gaps = []
    for name, query in {} if handover is None else dict(handover.queries).items():
        batch_id = query.position.batch_id
        if batch_id is None or name not in before or name not in after:
            continue
        from_at = before[name].committed_at(batch_id) or _seen_at(_beat(old, name))
        until_at = _first_at(after[name], batch_id) or _seen_at(_beat(new, name))
        if from_at is not None and until_at is not None:
            gaps.append(max((until_at - from_at).total_seconds(), 0.0))
    return round(max(gaps), 3) if gaps else None


def _first_at(checkpoint: Checkpoint, handover_batch_id: int) -> datetime | None:
    later = [batch_id for batch_id in checkpoint.commit_ids() if batch_id > handover_batch_id]
    return checkpoint.committed_at(min(later)) if later else None


def _beat(seen: Observation, query_name: str) -> QueryBeat | None:
    return None if seen.heartbeat is None else seen.heartbeat.queries.get(query_name)


def _seen_at(beat: QueryBeat | None) -> datetime | None:
    return None if beat is None else beat.committed_at
