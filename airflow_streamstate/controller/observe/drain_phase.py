"""How far a drain of a deployment has come with each query, by its events alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from airflow_streamstate.control.command_status import CommandStatus
from airflow_streamstate.controller.observe.observation import Observation
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Draining,
    Finished,
    QueryStarted,
    Rejected,
    Stopped,
)

DrainPhase = Literal["accepted", "flushing", "drained", "failed"]


def drain_phases(seen: Observation) -> dict[str, DrainPhase]:
    """Where the last drain of the deployment stands, per query; queries that it does not concern are left out.

    ``accepted``: the query reads nothing new, or ends its batch · ``flushing``: its flush batch was announced ·
    ``drained``: that batch is committed · ``failed``: the drain failed at this query. A drain that was rejected or
    called off, or after which a later attempt runs, gives nothing.
    """
    status = seen.command_status(_last_drain(seen))
    if not (status.is_begun or status.is_flushing) or _means_nothing(status, seen):
        return {}
    flushes = status.flush_batch_ids or {}
    phases: dict[str, DrainPhase] = dict.fromkeys(_started_queries(seen, status), "accepted")
    phases |= dict.fromkeys(flushes, "flushing")
    phases |= dict.fromkeys(status.failed_queries, "failed")
    ends = [entry.event for entry in seen.events if isinstance(entry.event, Drained | Stopped | Finished)]
    for end in ends:
        for name, position in end.queries.items():
            # Where the deployment ended says which flushes are committed (Law 13).
            if name in flushes and position.batch_id == flushes[name]:
                phases[name] = "drained"
            elif isinstance(end, Drained):
                phases.pop(name, None)  # carried on unflushed, or there was nothing to flush
    return phases


def _last_drain(seen: Observation) -> str:
    """The drain command that was begun last; "" for none."""
    for event in seen.of_kind(Event, any_attempt=True):
        if isinstance(event, Draining) or (
            isinstance(event, Accepted) and event.command.get("kind") == DrainNotification.kind
        ):
            return event.command_id
    return ""


def _means_nothing(status: CommandStatus, seen: Observation) -> bool:
    """Whether the queries run on as if no drain had been asked for, or it failed in an attempt that is over."""
    end = status.end
    if isinstance(end, Rejected):
        return True
    if not isinstance(end, DrainFailed):
        return False
    return end.then == "runs_on" or (seen.drained is None and end.attempt != seen.attempt)


def _started_queries(seen: Observation, status: CommandStatus) -> Iterator[str]:
    """The queries that had started when the drain failed; all where it did not fail."""
    for entry in seen.events:
        if entry.event is status.end and isinstance(entry.event, DrainFailed):
            return
        if isinstance(entry.event, QueryStarted):
            yield entry.event.query_name
