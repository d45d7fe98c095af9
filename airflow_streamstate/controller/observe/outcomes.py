"""The outcome of an order, how a deployment ended, and its last committed batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, State, checkpoint_of
from airflow_streamstate.controller.observe.pending_orders import OutcomeKind
from airflow_streamstate.controller.observe.views import Outcome, QueryStatus
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Event,
    Expired,
    Failed,
    Fenced,
    Finished,
    Ignored,
    QueryStarted,
    Rejected,
    Skipped,
    SnapshotReady,
    Stopped,
)

_END_OF_STATE: Mapping[State, OutcomeKind] = {
    "drained": "drained",
    "stopped": "stopped",
    "finished": "finished",
    "failed": "failed",
    "fenced": "fenced",
    "lost": "lost",
}
_GOOD_ENDS: Mapping[str, OutcomeKind] = {
    Drained.kind: "drained",
    Stopped.kind: "stopped",
    Finished.kind: "finished",
    SnapshotReady.kind: "snapshot_ready",
}


def decide_command_outcome(seen: Observation, command_id: str, command_kind: str = "") -> Outcome | None:
    """What became of a command; None while it is under way.

    ``command_kind``: its kind, where it is known although no event has named it yet.
    """
    state = seen.state
    status = seen.command_status(command_id)
    kind, event = command_kind or status.kind, status.end
    number = seen.number_of(event)
    if isinstance(event, Drained | Stopped | SnapshotReady):
        return _from_event(seen, event, number, state, kind)
    if isinstance(event, DrainFailed):
        asked_back = command_id in event.also_answers
        return _drain_failed(seen, event, number, state, CancelRequest.kind if asked_back else kind)
    if isinstance(event, Skipped):
        return _end(seen, "skipped", state, event, number, reason=event.reason, command_kind=SkipRequest.kind)
    if isinstance(event, Ignored | Rejected | Expired):
        return _unobeyed(seen, event, number, state, kind)
    return decide_end(seen, kind)


def decide_end(seen: Observation, command_kind: str = "") -> Outcome | None:
    """How a deployment ended; None while it has not."""
    state = seen.state
    outcome = _END_OF_STATE.get(state)
    if outcome is None:
        return None
    event: Event | None = seen.drained or seen.terminal
    if event is None:
        return _end(seen, outcome, state, reason=seen.why, command_kind=command_kind)
    return _from_event(seen, event, seen.number_of(event), state, command_kind)


def decide_drain_outcome(seen: Observation, *, is_pending: bool) -> Outcome | None:
    """What the drain of this deployment, by any client, came to; None while one may still come.

    ``is_pending``: a drain waits to be obeyed.
    """
    end = decide_end(seen, DrainNotification.kind)
    if end is not None and end.outcome == "drained":
        return end
    failed = next(seen.of_kind(DrainFailed), None)
    if end is not None and failed is not None and failed.then != "runs_on":
        return _drain_failed(seen, failed, seen.number_of(failed), end.state)
    if end is not None or is_pending:
        return end
    last = next((event for event in seen.of_kind(Event) if _is_word_on_drain(event)), None)
    if isinstance(last, DrainFailed) and last.then == "runs_on":
        return _drain_failed(seen, last, seen.number_of(last), seen.state)
    if isinstance(last, Expired | Rejected):
        return _unobeyed(seen, last, seen.number_of(last), seen.state, DrainNotification.kind)
    return None


def _is_word_on_drain(event: Event) -> bool:
    if isinstance(event, Accepted | Expired):
        return event.command.get("kind") == DrainNotification.kind
    return isinstance(event, Rejected | DrainFailed)


def _from_event(seen: Observation, event: Event, number: int, state: State, kind: str) -> Outcome:
    if isinstance(event, Finished) and event.unfinished:
        # The state is kept, which is all that a stop or a snapshot asks for.
        outcome: OutcomeKind = "stopped" if kind in (StopRequest.kind, SnapshotRequest.kind) else "failed"
        snapshot_id, reason = event.snapshot_id, event.sentence
        return _end(seen, outcome, state, event, number, snapshot_id, event.queries, reason=reason, command_kind=kind)
    if isinstance(event, Drained | Stopped | Finished | SnapshotReady):
        reason = event.reason if isinstance(event, Drained) else ""
        return _end(
            seen,
            _GOOD_ENDS[event.kind],
            state,
            event,
            number,
            event.snapshot_id,
            event.queries,
            reason=reason,
            command_kind=kind,
        )
    if isinstance(event, Failed):
        return _end(
            seen, "failed", state, event, number, reason=event.sentence, traceback=event.traceback, command_kind=kind
        )
    if isinstance(event, Fenced):
        reason = f"replaced by {event.current_deployment_id or 'no deployment'} attempt {event.current_attempt}"
        return _end(seen, "fenced", state, event, number, reason=reason, command_kind=kind)
    return _end(seen, "failed", state, event, number, reason=event.kind, command_kind=kind)


def _drain_failed(
    seen: Observation, event: DrainFailed, number: int, state: State, kind: str = DrainNotification.kind
) -> Outcome | None:
    """None until the state of the deployment after the failed drain is known."""
    end = decide_end(seen)
    if end is None and event.then != "runs_on" and event.cause != "cancelled":
        return None
    of_query = f"the flush of query {event.query_name} failed" if event.query_name else "it failed"
    what = of_query if event.cause == "flush" else "it was called off"
    runs_on = event.then == "runs_on"
    return _end(
        seen,
        "cancelled" if event.cause == "cancelled" else "drain_failed",
        state,
        event,
        number,
        end.snapshot_id if end is not None and not runs_on else None,
        end.queries if end is not None and not runs_on else {},
        reason=f"{what}: {event.error}{'; the stream runs on' if runs_on else ''}",
        traceback=end.traceback if end is not None else "",
        command_kind=kind or DrainNotification.kind,
    )


def _unobeyed(seen: Observation, event: Ignored | Rejected | Expired, number: int, state: State, kind: str) -> Outcome:
    end = decide_end(seen, kind)
    if isinstance(event, Ignored) and end is not None and end.is_what_was_ordered:
        return end  # ignored because what it asked for had happened already
    if isinstance(event, Ignored) and end is not None and end.outcome == "fenced":
        return _end(seen, "fenced", state, event, number, reason=event.reason, command_kind=kind)
    if isinstance(event, Expired):
        return _end(seen, "expired", state, event, number, reason="it had expired when it was read", command_kind=kind)
    outcome: OutcomeKind = "ignored" if isinstance(event, Ignored) else "rejected"
    return _end(seen, outcome, state, event, number, reason=event.reason, command_kind=kind)


def _end(seen: Observation, outcome: OutcomeKind, state: State, *facts: Any, **more: Any) -> Outcome:
    return Outcome(seen.stream_id, seen.deployment_id, outcome, state, *facts, **more)


# The last committed batch of queries whose driver left no final event about them, by their own checkpoints.


def with_commits(home: Home, seen: Observation, queries: Mapping[str, QueryStatus]) -> dict[str, QueryStatus]:
    """The queries with what their logs show, unless the driver lives or has reported where it ended.

    A heartbeat may be older than the last commits. A log that cannot be read leaves what the heartbeat reported.
    """
    found = dict(queries)
    end = seen.drained or seen.terminal
    if seen.state in ALIVE or isinstance(end, Drained | Stopped | Finished):
        return found
    for name in {*found, *(event.query_name for event in seen.of_kind(QueryStarted))}:
        with suppress(StreamStateError):
            committed = checkpoint_of(home, seen, name).commit_ids()
            if committed:
                found[name] = _committed(found.get(name), committed[-1])
    return found


def with_newer(queries: Mapping[str, QueryStatus], before: Mapping[str, QueryStatus]) -> dict[str, QueryStatus]:
    """The queries, with the batches that an earlier look at the logs had found."""
    found = dict(queries)
    for name, earlier in before.items():
        if earlier.batch_id is not None and not earlier.is_active:
            found[name] = _committed(found.get(name), earlier.batch_id)
    return found


def _committed(known: QueryStatus | None, batch_id: int) -> QueryStatus:
    if known is None:
        return QueryStatus(batch_id)
    if known.batch_id is not None and known.batch_id >= batch_id:
        return known
    return dataclasses.replace(known, batch_id=batch_id, committed_at=None, state_rows=None, watermark_at=None)
