"""The refusals of what a silent driver would not obey, each with the way that works. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.errors import ConflictError

AskedVerb = Literal["stop", "drain", "cancel", "snapshot", "deploy", "resume", "upgrade"]
_WAYS: Mapping[AskedVerb, str] = {
    "stop": "`streamstate stop {stream} --deadline 60 --on-deadline kill` ends its driver if it does not wake until"
    " then, and keeps its end",
    "drain": "`streamstate kill {stream}` ends its driver; then `streamstate drain {stream}` starts one that only"
    " flushes",
    "cancel": "`streamstate kill {stream}` ends its driver",
    "snapshot": "`streamstate kill {stream}` ends its driver; then `streamstate resume {stream}`, and ask again",
    "deploy": "`streamstate kill {stream}` ends its driver; then deploy again: it continues from the last commit",
    "resume": "`streamstate kill {stream}` ends its driver; then `streamstate resume {stream}` continues from the last"
    " commit",
    "upgrade": "`streamstate kill {stream}` ends its driver; then upgrade: the new version continues from the last"
    " commit",
}


def silent_error(seen: Observation, verb: AskedVerb) -> ConflictError:
    """The refusal of this verb for a stream that is ``silent``."""
    return ConflictError(
        "the stream is silent: its driver lives, and has given no sign of life, so it would obey nobody",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        state=seen.state,
        silent_for_seconds=round(seen.heartbeat_age_seconds or 0.0, 1),
        next_step=f"{_WAYS[verb].format(stream=seen.stream_id)}. `streamstate status {seen.stream_id}` shows if it"
        " wakes.",
    )
