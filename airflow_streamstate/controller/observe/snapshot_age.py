"""The bound on the age of a snapshot that a deployment starts from (``--max-snapshot-age``)."""

from __future__ import annotations

from datetime import datetime

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import IncompatibleUpgradeError
from airflow_streamstate.protocol.manifest import SnapshotManifest


def refuse_old_end(
    seen: Observation, kept: SnapshotManifest | None, max_age_seconds: float | None, now: datetime
) -> None:
    """Refuse the end of a deployment that is too old to start from; raises IncompatibleUpgradeError.

    ``kept``: the snapshot at that end. Where there is none, or a controller took it (perhaps long after), the last
    heartbeat counts.
    """
    taken_at = kept.taken_at if kept is not None and kept.taken_by == "agent" else seen.silent_since_at
    refuse_old(taken_at, None if kept is None else kept.snapshot_id, max_age_seconds, now)


def refuse_old(taken_at: datetime, snapshot_id: str | None, max_age_seconds: float | None, now: datetime) -> None:
    """Refuse what was taken before this bound, None for no bound; raises IncompatibleUpgradeError."""
    age_seconds = (now - taken_at).total_seconds()
    if max_age_seconds is None or age_seconds <= max_age_seconds:
        return
    raise IncompatibleUpgradeError(
        "the state to start from is older than was allowed",
        snapshot_id=snapshot_id,
        taken_at=taken_at,
        snapshot_age_seconds=round(age_seconds, 1),
        max_snapshot_age_seconds=max_age_seconds,
        next_step="Allow more with --max-snapshot-age, if what was missed since may be read now.",
    )
