"""What operators, sensors and the trigger wait for, and one look at it: the same look, whoever waits and however.

A look never waits, and changes nothing but that it asks again for a snapshot which nobody has taken up in time. It
tells what came, or why it cannot come any more, or that it still may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.observe.outcomes import FULFILLED_BY
from airflow_streamstate.controller.observe.views import Outcome, OutcomeKind
from airflow_streamstate.controller.upgrade.upgrades import describe_holder
from airflow_streamstate.controller.wait.waiting import late_drain
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    DeploymentFailedError,
    StreamStateError,
)
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import DrainNotification, SkipRequest, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.events import Drained, DrainFailed, Finished, SnapshotReady, Stopped
from airflow_streamstate.protocol.manifest import SnapshotManifest

Wanted = Literal[
    "drained", "stopped", "snapshot", "healthy", "caught_up", "finished", "skipped", "rehearsed", "upgrade", "free"
]
WANTED: tuple[Wanted, ...] = (
    "drained", "stopped", "snapshot", "healthy", "caught_up", "finished", "skipped", "rehearsed", "upgrade", "free",
)  # fmt: skip
_FULFILLED_BY: Mapping[str, frozenset[OutcomeKind]] = {
    "drained": FULFILLED_BY[DrainNotification.kind],
    "stopped": FULFILLED_BY[StopRequest.kind],
    "snapshot": FULFILLED_BY[SnapshotRequest.kind],
    "finished": FULFILLED_BY[StopRequest.kind],
    "skipped": FULFILLED_BY[SkipRequest.kind],
}


@dataclass(frozen=True)
class WaitCondition:
    """What is waited for. Plain JSON, so that a trigger can carry it through a database.

    Attributes:
        wanted: the deployment drained, stopped, healthy, caught up or ended, a snapshot of it complete, a batch of it
            skipped, a rehearsal over, something to be done of an upgrade, or no upgrade that holds the stream.
        stream_id: the stream.
        deployment_id: whose end or snapshot it is; of ``rehearsed`` the rehearsal, of ``upgrade`` the upgrade, of
            ``free`` the upgrade that held the stream when the wait began.
        command_id: the order, to know its own ends too; None for whoever orders it.
        snapshot_id: for ``snapshot``: that one; None for any.
        request_id: for ``snapshot``: what it was asked under, of whichever deployment it comes; None for no such.
        behind_at_most: for ``caught_up``: so much may be left of each source.
    """

    wanted: Wanted
    stream_id: str
    deployment_id: str
    command_id: str | None = None
    snapshot_id: str | None = None
    request_id: str | None = None
    behind_at_most: int = 0

    def to_json(self) -> dict[str, Any]:
        """The watch as a plain JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Any) -> WaitCondition:
        """The watch in this object; unknown fields are ignored (Law 7).

        Raises:
            ValueError: it is none.
        """
        if not isinstance(raw, Mapping) or raw.get("wanted") not in WANTED:
            raise ValueError("no known watch")
        values: dict[str, Any] = {field.name: raw.get(field.name) for field in fields(cls)}
        if not all(isinstance(values[name], str) for name in ("stream_id", "deployment_id")):
            raise ValueError("a watch without stream or deployment")
        ids = [values[name] for name in ("command_id", "snapshot_id", "request_id")]
        if not all(each is None or isinstance(each, str) for each in ids):
            raise ValueError("a watch whose ids are no texts")
        values["behind_at_most"] = values["behind_at_most"] or 0  # one of before there was any
        if type(values["behind_at_most"]) is not int:
            raise ValueError("a watch whose bound is no number")
        return cls(**values)


@dataclass(frozen=True)
class WaitResult:
    """What a look saw.

    Attributes:
        outcome: ``pending``: it may still come; ``done``: it came; ``over``: it cannot come any more.
        result: of ``done``; plain JSON, the same whoever looked.
        error: of ``over``: why.
    """

    outcome: Literal["pending", "done", "over"]
    result: dict[str, Any] | None = None
    error: StreamStateError | None = None

    def need_result(self) -> dict[str, Any]:
        """The result; raises the error where there is none."""
        if self.error is not None:
            raise self.error
        return dict(self.result or {})


PENDING = WaitResult("pending")
UNANSWERED = "unanswered"
"""The fact of a ``DeadlineExceededError`` of which nothing was seen at the deadline: why the home gave no answer."""


def look(controller: Controller, watch: WaitCondition) -> WaitResult:
    """Look once.

    Raises:
        StreamNotFoundError, DeploymentNotFoundError: there is no such thing to watch.
        UnavailableError: the home did not answer, which says nothing about the stream.
    """
    return _LOOKS[watch.wanted](controller, watch)


def out_of_time(controller: Controller, watch: WaitCondition, deadline: str) -> DeadlineExceededError:
    """The error of a wait that ended; says what there was to see at its end (Law 6)."""
    message = f"what was waited for ({watch.wanted}) did not come before the deadline; the stream goes on"
    facts: dict[str, object] = {
        "stream_id": watch.stream_id,
        "deployment_id": watch.deployment_id,
        "deadline": deadline,
    }
    try:
        facts["last_seen"] = _described(controller, watch)
    except StreamStateError as error:
        message = f"the home did not answer before the deadline, so whether it came ({watch.wanted}) is not known"
        facts[UNANSWERED] = str(error)
    return DeadlineExceededError(message, **facts, next_step="Run the task again to wait on, or raise its time.")


def _described(controller: Controller, watch: WaitCondition) -> str:
    if watch.wanted == "upgrade":
        state = controller.upgrades.view(watch.stream_id, watch.deployment_id).state
        return f"phase {state.phase}{f': {state.last.text}' if state.last.text else ''}"
    if watch.wanted == "free":
        holder = controller.upgrades.holder(watch.stream_id)
        return "no upgrade holds the stream" if holder is None else describe_holder(holder)
    where = controller.status(watch.stream_id).deployment_id if watch.request_id is not None else watch.deployment_id
    described = controller.describe(watch.stream_id, where)
    if watch.wanted != "caught_up":
        return described
    return f"{described}; {controller.starts.left_in_words(watch.stream_id, where, at_most=watch.behind_at_most)}"


def end_result(outcome: Outcome) -> dict[str, Any]:
    """``{deployment_id, snapshot_id, end_offsets, watermark_at, state_rows_left}`` of an ended deployment.

    Offsets per query, one text per source; the earliest watermark of a query that has one; rows over all queries, None
    where nobody counted those of a query that has committed a batch.
    """
    positions = outcome.queries
    watermarks = [position.watermark_at for position in positions.values() if position.watermark_at is not None]
    rows = [position.state_rows_left for position in positions.values() if position.batch_id is not None]
    counted = [count for count in rows if count is not None]
    return {
        "deployment_id": outcome.deployment_id,
        "snapshot_id": outcome.snapshot_id,
        "end_offsets": {name: list(position.end_offsets) for name, position in sorted(positions.items())},
        "watermark_at": format_time(min(watermarks)) if watermarks else None,
        "state_rows_left": sum(counted) if rows and counted == rows else None,
    }


def snapshot_result(manifest: SnapshotManifest) -> dict[str, Any]:
    """``{deployment_id, snapshot_id, kind, files, bytes, queries{NAME:{batch_id}}}`` of a complete snapshot."""
    return {
        "deployment_id": manifest.deployment_id,
        "snapshot_id": manifest.snapshot_id,
        "kind": manifest.snapshot_kind,
        "files": manifest.files_count,
        "bytes": manifest.size_bytes,
        "queries": {name: {"batch_id": query.position.batch_id} for name, query in sorted(manifest.queries.items())},
    }


def skip_result(outcome: Outcome) -> dict[str, Any]:
    """``{deployment_id, query, batch_id, moves}`` of a skipped batch."""
    skipped = outcome.event
    if not isinstance(skipped, Skipped):
        raise TypeError("what says that a batch was skipped is no Skipped")
    return {
        "deployment_id": outcome.deployment_id,
        "query": skipped.query_name,
        "batch_id": skipped.batch_id,
        "moves": [asdict(move) for move in skipped.moves],
    }


def _look_for_drain(controller: Controller, watch: WaitCondition) -> WaitResult:
    if watch.command_id is not None:
        outcome = controller.outcome_of_command(watch.stream_id, watch.deployment_id, watch.command_id)
    else:
        outcome = controller.drain_outcome(watch.stream_id, watch.deployment_id)
    return _sighting(controller, watch, outcome, end_result)


def _look_for_stop(controller: Controller, watch: WaitCondition) -> WaitResult:
    if watch.command_id is not None:
        outcome = controller.outcome_of_command(watch.stream_id, watch.deployment_id, watch.command_id)
    else:
        outcome = controller.end_outcome(watch.stream_id, watch.deployment_id)
    return _sighting(controller, watch, outcome, end_result)


def _look_for_skip(controller: Controller, watch: WaitCondition) -> WaitResult:
    outcome = controller.outcome_of_command(watch.stream_id, watch.deployment_id, str(watch.command_id))
    return _sighting(controller, watch, outcome, skip_result)


def _look_for_finish(controller: Controller, watch: WaitCondition) -> WaitResult:
    def result(outcome: Outcome) -> dict[str, Any]:
        return controller.status(outcome.stream_id, outcome.deployment_id).to_json()

    return _sighting(controller, watch, controller.end_outcome(watch.stream_id, watch.deployment_id), result)


def _look_for_health(controller: Controller, watch: WaitCondition) -> WaitResult:
    try:
        status = controller.is_healthy(watch.stream_id, watch.deployment_id)
    except (DeploymentFailedError, ConflictError) as error:
        return WaitResult("over", error=error)
    return PENDING if status is None else WaitResult("done", result=status.to_json())


def _look_for_zero(controller: Controller, watch: WaitCondition) -> WaitResult:
    try:
        status = controller.starts.is_caught_up(watch.stream_id, watch.deployment_id, at_most=watch.behind_at_most)
    except (DeploymentFailedError, ConflictError) as error:
        return WaitResult("over", error=error)
    return PENDING if status is None else WaitResult("done", result=status.to_json())


def _look_for_snapshot(controller: Controller, watch: WaitCondition) -> WaitResult:
    def result(snapshot_id: str) -> dict[str, Any]:
        return snapshot_result(controller.home.control(watch.stream_id).need_manifest(snapshot_id))

    if watch.request_id is not None or watch.command_id is not None:
        if watch.request_id is not None:
            outcome = controller.snapshot_requests.look(watch.stream_id, watch.request_id)
        else:
            outcome = controller.outcome_of_command(watch.stream_id, watch.deployment_id, str(watch.command_id))
        return _sighting(controller, watch, outcome, lambda end: result(str(end.snapshot_id)))
    found = watch.snapshot_id if watch.snapshot_id is not None else _newest_snapshot(controller, watch)
    if found is not None and controller.home.control(watch.stream_id).manifest(found) is not None:
        return WaitResult("done", result=result(found))
    outcome = controller.end_outcome(watch.stream_id, watch.deployment_id)
    if outcome is None or outcome.outcome == "lost":
        return PENDING
    return WaitResult("over", error=_ended_without(watch, outcome))


def _look_for_rehearsal(controller: Controller, watch: WaitCondition) -> WaitResult:
    if not controller.plans.is_over(watch.stream_id, watch.deployment_id):
        return PENDING
    return WaitResult("done", result={"rehearsal_id": watch.deployment_id})


def _look_for_work(controller: Controller, watch: WaitCondition) -> WaitResult:
    if not controller.upgrades.has_work(watch.stream_id, watch.deployment_id):
        return PENDING
    return WaitResult("done", result={"upgrade_id": watch.deployment_id})


def _look_for_freedom(controller: Controller, watch: WaitCondition) -> WaitResult:
    if controller.upgrades.holder(watch.stream_id) is not None:
        return PENDING
    return WaitResult("done", result={"stream_id": watch.stream_id})


def _newest_snapshot(controller: Controller, watch: WaitCondition) -> str | None:
    for entry in reversed(controller.events(watch.stream_id, watch.deployment_id)):
        if isinstance(entry.event, SnapshotReady | Drained | Stopped | Finished) and entry.event.snapshot_id:
            return entry.event.snapshot_id
    return None


def _sighting(
    controller: Controller, watch: WaitCondition, outcome: Outcome | None, result: Callable[[Outcome], dict[str, Any]]
) -> WaitResult:
    if outcome is None or outcome.outcome == "lost":  # lost is what may still change by itself
        return PENDING
    if outcome.outcome not in _FULFILLED_BY[watch.wanted] or (
        watch.wanted == "snapshot" and outcome.snapshot_id is None
    ):
        return WaitResult("over", error=_error_of(controller, watch, outcome))
    return WaitResult("done", result=result(outcome))


def _error_of(controller: Controller, watch: WaitCondition, outcome: Outcome) -> StreamStateError:
    if outcome.outcome in ("failed", "rejected", "ignored"):
        return controller.error_of(outcome)
    return _ended_without(watch, outcome)


def _ended_without(watch: WaitCondition, outcome: Outcome) -> StreamStateError:
    facts: dict[str, object] = {
        "stream_id": outcome.stream_id,
        "deployment_id": outcome.deployment_id,
        "state": outcome.state,
        "reason": outcome.reason,
        "snapshot_id": outcome.snapshot_id,
    }
    if isinstance(outcome.event, DrainFailed) and outcome.event.is_late:
        return late_drain(facts)
    next_step = f"`streamstate status {outcome.stream_id}` shows where the stream stands."
    if outcome.outcome in ("failed", "drain_failed"):
        what = "the deployment failed" if outcome.outcome == "failed" else "the drain failed"
        return DeploymentFailedError(what, **facts, traceback=outcome.traceback, next_step=next_step)
    # An order that expired is no wait that ended: nothing is gained by waiting once more.
    what = "the order had expired when it was read" if outcome.outcome == "expired" else f"it is {outcome.outcome}"
    message = f"{what}, so what was waited for ({watch.wanted}) cannot come"
    return ConflictError(message, **facts, next_step=next_step)


_LOOKS: Mapping[str, Callable[[Controller, WaitCondition], WaitResult]] = {
    "drained": _look_for_drain,
    "stopped": _look_for_stop,
    "finished": _look_for_finish,
    "skipped": _look_for_skip,
    "healthy": _look_for_health,
    "caught_up": _look_for_zero,
    "snapshot": _look_for_snapshot,
    "rehearsed": _look_for_rehearsal,
    "upgrade": _look_for_work,
    "free": _look_for_freedom,
}
