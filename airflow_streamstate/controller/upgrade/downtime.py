"""What an upgrade cost, as an audit tells it: the downtime of each query, and the time in which no query ran."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.lineage.downtimes import downtimes
from airflow_streamstate.controller.lineage.not_running import NotRunning, not_running
from airflow_streamstate.protocol.downtimes import Downtime
from airflow_streamstate.protocol.ids import order_of


def not_running_seconds(found: Sequence[NotRunning], asked_at: datetime) -> float | None:
    """All periods without a query that have ended since an upgrade was asked for, added up; None where none has.

    The way back of a version that failed is in it, and so is the time before, of a stream that did not run.

    Args:
        found: of the stream, or of its deployments from the old version on.
        asked_at: when it was asked for.
    """
    moved = [(one.until_at - one.from_at).total_seconds() for one in found if one.until_at and one.until_at > asked_at]
    return round(sum(moved), 3) if moved else None


def downtimes_since(found: Sequence[Downtime], asked_at: datetime) -> tuple[Downtime, ...]:
    """Those that have ended since an upgrade was asked for, or last. Arguments as ``not_running_seconds``.

    One that ended at a time that nothing tells counts by the last moment of it that is known.
    """
    return tuple(one for one in found if _last_known_at(one, asked_at) >= asked_at)


def _last_known_at(one: Downtime, now: datetime) -> datetime:
    if one.until_at is not None or not one.has_ended:
        return one.until_at or now
    return max((mark.at for mark in one.marks), default=one.from_at)


def cost_until_now(
    home: Home, stream_id: str, old_deployment_id: str, asked_at: datetime
) -> tuple[float | None, tuple[Downtime, ...]]:
    """Both while the upgrade is under way.

    Args:
        home: where the stream lies.
        stream_id: the stream.
        old_deployment_id: the deployment that was current when it was asked for.
        asked_at: when that was.
    """
    control = home.control(stream_id)
    ids = [one for one in control.deployment_ids() if order_of(one) >= order_of(old_deployment_id)]
    said = [entry.event for one in ids for entry in control.journal(one).events() if entry.event is not None]
    beats = {one: beat for one in ids if (beat := control.heartbeat(one)) is not None}
    seconds = not_running_seconds(not_running(said, beats), asked_at)
    return seconds, downtimes_since(downtimes(home, control, ids, said, beats), asked_at)
