"""What watchers do about a stream's failures, in words for ``status``, ``list`` and ``home doctor``. Pure."""

from __future__ import annotations

from datetime import timedelta

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.codec import format_time


def gave_up_of(seen: Observation) -> str:
    """Why watchers start no attempt after the failure of this current one; "" where they do, or it has not failed."""
    record = seen.register.restarts
    if not seen.is_current or record is None or seen.register.restart_policy.on_failure == "nothing":
        return ""
    return record.gave_up if (record.deployment_id, record.attempt) == (seen.deployment_id, seen.attempt) else ""


def describe_restarts(seen: Observation) -> str:
    """The restart policy of a current deployment and what came of it, in one line; "" for ``nothing``."""
    register = seen.register
    policy, record = register.restart_policy, register.restarts
    if policy.on_failure == "nothing" or not seen.is_current:
        return ""
    if record is None or (record.deployment_id, record.attempt) != (seen.deployment_id, seen.attempt):
        return policy.on_failure
    if gave_up := gave_up_of(seen):
        return f"given up: {gave_up}"
    if record.is_told:
        return f"{policy.on_failure}: told at {format_time(record.recorded_at)}"
    if record.is_started:
        count = len(record.ages_seconds)
        return f"{policy.on_failure}: restarted at {format_time(record.recorded_at)}, {count} of {policy.max_restarts}"
    due_at = record.recorded_at + timedelta(seconds=record.backoff_seconds or 0.0)
    return f"{policy.on_failure}: attempt {record.attempt + 1} is due at {format_time(due_at)}"
