"""What became of an order, and how a deployment ended. Pure.

Each end of an order and of a deployment has an outcome, so that no wait is for what cannot come (Law 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from airflow_streamstate.controller.observe.observation import Observation, State
from airflow_streamstate.controller.observe.views import OutcomeKind
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import (
    Accepted,
    Drained,
    DrainFailed,
    Expired,
    Failed,
    Fenced,
    Finished,
    Ignored,
    Rejected,
    SnapshotReady,
    Stopped,
)
from airflow_streamstate.protocol.positions import QueryPosition

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
FULFILLED_BY: Mapping[str, frozenset[OutcomeKind]] = {
    DrainNotification.kind: frozenset({"drained"}),
    CancelRequest.kind: frozenset({"cancelled"}),
    StopRequest.kind: frozenset({"stopped", "finished", "drained"}),
    # A snapshot at the end of the deployment is as good, and newer.
    SnapshotRequest.kind: frozenset({"snapshot_ready", "stopped", "finished", "drained"}),
    SkipRequest.kind: frozenset({"skipped"}),
    "": frozenset({"drained", "stopped", "finished", "snapshot_ready", "skipped"}),
}
"""The ends that fulfil an order of each kind; of an unknown one (``""``), any good end."""


@dataclass(frozen=True)
class End:
    """An end, before the snapshot's manifest was looked up.

    Attributes:
        event, number: what said so; None and 0 where the state alone does.
        queries: where each query ended.
        reason, traceback: one sentence; the job's own words.
        command_kind: the kind of the order; "" where unknown, or for the end of a deployment.
    """

    outcome: OutcomeKind
    state: State
    event: Event | None = None
    number: int = 0
    snapshot_id: str | None = None
    queries: Mapping[str, QueryPosition] = field(default_factory=dict)
    reason: str = ""
    traceback: str = ""
    command_kind: str = ""

    @property
    def is_of_itself(self) -> bool:
        """Whether the stream had read all there was, and ended by itself."""
        return self.outcome == "finished" or (isinstance(self.event, Drained) and bool(self.event.reason))

    @property
    def is_what_was_ordered(self) -> bool:
        """Whether the order was fulfilled, perhaps by another end."""
        return self.outcome in FULFILLED_BY.get(self.command_kind, FULFILLED_BY[""])


def decide_command_outcome(seen: Observation, command_id: str, command_kind: str = "") -> End | None:
    """What became of a command; None while it is under way.

    ``command_kind``: its kind, where it is known although no event has named it yet.
    """
    state = seen.state
    status = seen.command_status(command_id)
    kind, event = command_kind or status.kind, status.end
    number = seen.number_of(event)
    if isinstance(event, Drained | Stopped | SnapshotReady):
        return _from_event(event, number, state, kind)
    if isinstance(event, DrainFailed):
        asked_back = command_id in event.also_answers
        return _drain_failed(seen, event, number, state, CancelRequest.kind if asked_back else kind)
    if isinstance(event, Skipped):
        return End("skipped", state, event, number, reason=event.reason, command_kind=SkipRequest.kind)
    if isinstance(event, Ignored | Rejected | Expired):
        return _unobeyed(seen, event, number, state, kind)
    return decide_end(seen, kind)


def decide_end(seen: Observation, command_kind: str = "") -> End | None:
    """How a deployment ended; None while it has not."""
    state = seen.state
    outcome = _END_OF_STATE.get(state)
    if outcome is None:
        return None
    event: Event | None = seen.drained or seen.terminal
    if event is None:
        return End(outcome, state, reason=seen.why, command_kind=command_kind)
    return _from_event(event, seen.number_of(event), state, command_kind)


def decide_drain_outcome(seen: Observation, *, is_pending: bool) -> End | None:
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


def _from_event(event: Event, number: int, state: State, kind: str) -> End:
    if isinstance(event, Finished) and event.unfinished:
        # The state is kept, which is all that a stop or a snapshot asks for.
        outcome: OutcomeKind = "stopped" if kind in (StopRequest.kind, SnapshotRequest.kind) else "failed"
        snapshot_id, reason = event.snapshot_id, event.sentence
        return End(outcome, state, event, number, snapshot_id, event.queries, reason=reason, command_kind=kind)
    if isinstance(event, Drained | Stopped | Finished | SnapshotReady):
        reason = event.reason if isinstance(event, Drained) else ""
        return End(
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
        return End("failed", state, event, number, reason=event.sentence, traceback=event.traceback, command_kind=kind)
    if isinstance(event, Fenced):
        reason = f"replaced by {event.current_deployment_id or 'no deployment'} attempt {event.current_attempt}"
        return End("fenced", state, event, number, reason=reason, command_kind=kind)
    return End("failed", state, event, number, reason=event.kind, command_kind=kind)


def _drain_failed(
    seen: Observation, event: DrainFailed, number: int, state: State, kind: str = DrainNotification.kind
) -> End | None:
    """None until it is known where the deployment stands after the failed drain."""
    end = decide_end(seen)
    if end is None and event.then != "runs_on" and event.cause != "cancelled":
        return None
    of_query = f"the flush of query {event.query_name} failed" if event.query_name else "it failed"
    what = of_query if event.cause == "flush" else "it was called off"
    runs_on = event.then == "runs_on"
    return End(
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


def _unobeyed(seen: Observation, event: Ignored | Rejected | Expired, number: int, state: State, kind: str) -> End:
    end = decide_end(seen, kind)
    if isinstance(event, Ignored) and end is not None and end.is_what_was_ordered:
        return end  # ignored because what it asked for had happened already
    if isinstance(event, Ignored) and end is not None and end.outcome == "fenced":
        return End("fenced", state, event, number, reason=event.reason, command_kind=kind)
    if isinstance(event, Expired):
        return End("expired", state, event, number, reason="it had expired when it was read", command_kind=kind)
    outcome: OutcomeKind = "ignored" if isinstance(event, Ignored) else "rejected"
    return End(outcome, state, event, number, reason=event.reason, command_kind=kind)
