"""The timeline of a stream: its deployments, their attempts, and what happened to them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_streamstate.control.command_status import ordered_by
from airflow_streamstate.controller.lineage.not_running import last_beats, last_sign
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    TERMINAL_EVENTS,
    Claimed,
    Failed,
    Finished,
)
from airflow_streamstate.protocol.heartbeat import Heartbeat
from airflow_streamstate.protocol.records import DeploymentSpec
from airflow_streamstate.protocol.views import selected

SILENT = "its driver has ended without a last word"


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
        signs = {name: beat for name, beat in beats.items() if name == spec.deployment_id}
        is_current = spec.deployment_id == current_id
        attempts = _attempts(said, last_beats(said, signs), is_current, now if is_alive and is_current else None)
        lanes.append(_lane(spec, attempts))
        marks += [mark for event in said if (mark := _mark(event)) is not None]
        marks += [_silent_end(spec, one) for one in attempts if one["why"] == SILENT]
    return {"now": format_time(now), "deployments": lanes, "marks": sorted(marks, key=lambda mark: str(mark["at"]))}


def _attempts(
    said: Sequence[Event],
    beats: Mapping[tuple[str, int], datetime],
    is_current: bool,
    until_now: datetime | None,
) -> list[dict[str, Any]]:
    """The attempts of a deployment; that which runs ends at ``until_now``."""
    numbers = sorted({event.attempt for event in said if event.attempt > 0})
    found = []
    for number in numbers:
        own = [event for event in said if event.attempt == number]
        end = next((event for event in own if isinstance(event, TERMINAL_EVENTS)), None)
        is_last = is_current and number == numbers[-1]
        runs_now = is_last and end is None and until_now is not None
        is_silent = end is None and not is_last
        until_at = last_sign(own, beats) if end is None else end.at
        claimed = next((event for event in own if isinstance(event, Claimed)), None)
        found.append(
            {
                "attempt": number,
                "from_at": format_time(own[0].at),
                "until_at": format_time(until_now if runs_now and until_now is not None else until_at),
                "is_running": runs_now,
                "end": "failed" if is_silent else None if end is None else _word_of(end),
                "why": SILENT if is_silent else _why_ended(end, own),
                "reason": "" if claimed is None else claimed.reason,
            }
        )
    return found


def _word_of(end: Event) -> str:
    return "failed" if isinstance(end, Finished) and end.unfinished else end.kind.lower()


def _why_ended(end: Event | None, said: Sequence[Event]) -> str:
    """The error of a failure; who ordered another end, and why."""
    if end is None:
        return ""
    if isinstance(end, Finished):
        return end.sentence
    return end.error if isinstance(end, Failed) else ordered_by(end, said)


def _lane(spec: DeploymentSpec, attempts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "deployment_id": spec.deployment_id,
        "version": spec.version.version_label or spec.version.application.name,
        **selected(spec, "**start created_at requested_by reason"),
        "attempts": attempts,
    }


def _silent_end(spec: DeploymentSpec, attempt: Mapping[str, Any]) -> dict[str, Any]:
    text = f"attempt {attempt['attempt']}: {SILENT}"
    return {"at": attempt["until_at"], "word": "failed", "deployment_id": spec.deployment_id, "text": text}


def _mark(event: Event) -> dict[str, Any] | None:
    if not event.mark:
        return None
    snapshot_id = getattr(event, "snapshot_id", None) or ""
    query_name = getattr(event, "query_name", "")
    text = " ".join(part for part in (str(snapshot_id), query_name) if part)
    return selected(event, "at word=mark deployment_id") | {"text": text}
