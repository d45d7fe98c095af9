"""The timeline of a stream: its deployments, their attempts, and what happened to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.data_events import Repositioned, Skipped
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Claimed,
    Drained,
    DrainFailed,
    Draining,
    Failed,
    QueryFailed,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.heartbeat import Heartbeat
from airflow_streamstate.protocol.records import DeploymentSpec

MARKED: Mapping[type[Event], str] = {
    SnapshotReady: "snapshot",
    Draining: "drain",
    Drained: "drained",
    DrainFailed: "drain failed",
    Stopped: "stopped",
    QueryFailed: "query failed",
    Skipped: "batch skipped",
    Repositioned: "offsets set",
}
"""Events that are shown as a mark, and the word for each."""


def timeline(
    specs: Sequence[DeploymentSpec],
    events: Mapping[str, Sequence[Event]],
    beats: Mapping[str, Heartbeat],
    current_id: str | None,
    *,
    is_alive: bool,
    now: datetime,
) -> dict[str, Any]:
    """Deployments with their attempts, and marks, oldest first.

    Args:
        events, beats: by deployment.
        current_id: the deployment that is current.
        is_alive: whether a driver of that one runs, as far as is known: then its last attempt ends now.
    """
    lanes, marks = [], []
    for spec in specs:
        said = list(events.get(spec.deployment_id, ()))
        runs_now = is_alive and spec.deployment_id == current_id
        lanes.append(_lane(spec, said, beats.get(spec.deployment_id), now if runs_now else None))
        marks += [mark for event in said if (mark := _mark(event)) is not None]
    return {"now": format_time(now), "deployments": lanes, "marks": sorted(marks, key=lambda mark: str(mark["at"]))}


def _lane(
    spec: DeploymentSpec, said: Sequence[Event], beat: Heartbeat | None, until_now: datetime | None
) -> dict[str, Any]:
    numbers = sorted({event.attempt for event in said if event.attempt > 0})
    attempts = []
    for number in numbers:
        own = [event for event in said if event.attempt == number]
        end = next((event for event in own if isinstance(event, TERMINAL_EVENTS)), None)
        last_at = own[-1].at if end is None else end.at
        if end is None and beat is not None and beat.attempt == number:
            last_at = max(last_at, beat.at)
        runs_now = until_now is not None and number == numbers[-1] and end is None
        claimed = next((event for event in own if isinstance(event, Claimed)), None)
        attempts.append(
            {
                "attempt": number,
                "from_at": format_time(own[0].at),
                "until_at": format_time(until_now if runs_now and until_now is not None else last_at),
                "is_running": runs_now,
                "end": None if end is None else end.kind.lower(),
                "why": end.error if isinstance(end, Failed) else "",
                "reason": "" if claimed is None else claimed.reason,
            }
        )
    return {
        "deployment_id": spec.deployment_id,
        "version": spec.version_label or spec.application.name,
        "mode": spec.start.mode,
        "snapshot_id": spec.start.snapshot_id,
        "predecessor_id": spec.start.predecessor_id,
        "created_at": format_time(spec.created_at),
        "requested_by": spec.requested_by,
        "reason": spec.reason,
        "attempts": attempts,
    }


def _mark(event: Event) -> dict[str, Any] | None:
    word = MARKED.get(type(event))
    if word is None:
        return None
    snapshot_id = getattr(event, "snapshot_id", None) or ""
    query_name = getattr(event, "query_name", "")
    return {
        "at": format_time(event.at),
        "word": word,
        "deployment_id": event.deployment_id,
        "text": " ".join(part for part in (str(snapshot_id), query_name) if part),
    }
