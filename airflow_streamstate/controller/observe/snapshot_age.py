"""How old a snapshot may be that something starts from: who has set a bound is not surprised by last week's state."""

from __future__ import annotations

from datetime import datetime

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import IncompatibleUpgradeError, InvalidRequestError
from airflow_streamstate.protocol.manifest import SnapshotManifest

MAX_SECONDS = 10 * 365 * 86_400.0


def check_max_age(seconds: float | None) -> None:
    """Raises InvalidRequestError where this is no bound."""
    if seconds is not None and not 0 < seconds <= MAX_SECONDS:
        raise InvalidRequestError(
            "this is no age of a snapshot",
            max_snapshot_age_seconds=seconds,
            next_step="Use a number of seconds above 0.",
        )


def refuse_old_end(
    seen: Observation, kept: SnapshotManifest | None, max_age_seconds: float | None, now: datetime
) -> None:
    """See that the end of a deployment is young enough to start from.

    Args:
        seen: the deployment.
        kept: the snapshot at its end; None where nobody kept one, so that its last sign of life counts. So it does
            where a controller took it, however long after.
        max_age_seconds: the bound; None for none.
        now: when it would start.

    Raises:
        IncompatibleUpgradeError: it is older.
    """
    if kept is not None and kept.taken_by == "agent":
        refuse_old(kept.taken_at, kept.snapshot_id, max_age_seconds, now)
    else:
        refuse_old(seen.silent_since_at, None if kept is None else kept.snapshot_id, max_age_seconds, now)


def refuse_old(taken_at: datetime, snapshot_id: str | None, max_age_seconds: float | None, now: datetime) -> None:
    """See that what was taken then is not older than this; raises as ``refuse_old_end``."""
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
