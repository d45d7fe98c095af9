"""The gap of an upgrade: how long no query of the stream ran while it was moved, as an audit tells it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.lifecycle.auditing.standstills import Standstill, standstills
from airflow_streamstate.protocol.ids import order_of


def gap_of(found: Sequence[Standstill], asked_at: datetime) -> float | None:
    """All standstills together that have come to their end since an upgrade was asked for; None where none has.

    The way back of a version that failed is in it, and so is the time before, of a stream that did not run.

    Args:
        found: of the stream, or of its deployments from the old version on.
        asked_at: when it was asked for.
    """
    moved = [(one.until_at - one.from_at).total_seconds() for one in found if one.until_at and one.until_at > asked_at]
    return round(sum(moved), 3) if moved else None


def gap_until_now(control: StreamControl, old_deployment_id: str, asked_at: datetime) -> float | None:
    """The same while the upgrade is under way.

    Args:
        control: the stream.
        old_deployment_id: the deployment that was current when it was asked for.
        asked_at: when that was.
    """
    ids = [one for one in control.deployment_ids() if order_of(one) >= order_of(old_deployment_id)]
    said = [entry.event for one in ids for entry in control.journal(one).events() if entry.event is not None]
    beats = {one: control.heartbeat(one) for one in ids}
    return gap_of(standstills(said, {one: beat for one, beat in beats.items() if beat is not None}), asked_at)
