"""The decisions about starts: pure functions from an observation to a closed union."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_streamstate.controller.observe.observation import (
    ALIVE,
    Observation,
    OneTimeSources,
    State,
    consent,
    silent_error,
)
from airflow_streamstate.errors import (
    ConflictError,
    IncompatibleUpgradeError,
    InputLostError,
    InvalidRequestError,
    StreamStateError,
)
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.protocol.events import Finished, Stopped
from airflow_streamstate.protocol.ids import deployment_id_for, fencing_token_of, snapshot_id_for
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.records import RequestRecord, StartPlan, StreamRegister
from airflow_streamstate.protocol.terms.version import StartMode

if TYPE_CHECKING:
    from airflow_streamstate.controller.request.requests import Change

UNCOUNTED = "not counted"
INTENT_SECONDS = 60.0
"""An older intent counts as abandoned; an owner that wakes up later loses the compare-and-swap."""


@dataclass(frozen=True)
class Refused:
    """The request must not be carried out."""

    error: StreamStateError


@dataclass(frozen=True)
class Begin:
    """Move the register to this deployment; ``is_new``: the request has no record yet."""

    deployment_id: str
    fencing_token: int
    is_new: bool


@dataclass(frozen=True)
class Became:
    """The request has become the current deployment."""

    deployment_id: str


def decide_request(
    record: RequestRecord | None, register: StreamRegister | None, request_id: str, now: datetime
) -> Begin | Became | Refused:
    """Which deployment a deploy request is to become, or has become (Law 2)."""
    current = None if register is None else register.deployment_id
    token = 0 if register is None else register.fencing_token
    intent = None if register is None else register.intent
    if record is not None:
        wanted = fencing_token_of(record.deployment_id)
        if record.deployment_id == current:
            return Became(record.deployment_id)
        if wanted <= token:
            return Refused(
                ConflictError(
                    "a newer deployment than the one of this request is current",
                    deployment_id=record.deployment_id,
                    current_deployment_id=current,
                    moved_by=None if register is None else register.updated_by,
                    next_step="Deploy with a new request id if you still want this version.",
                )
            )
    if register is not None and intent is not None and intent.request_id != request_id:
        refused = refuse_other_intent(register, request_id, now)
        if refused is not None:
            return refused
        token = max(token, fencing_token_of(intent.deployment_id))
    if record is not None:
        return Begin(record.deployment_id, fencing_token_of(record.deployment_id), is_new=False)
    return Begin(deployment_id_for(token + 1), token + 1, is_new=True)


def refuse_other_intent(register: StreamRegister, request_id: str, now: datetime) -> Refused | None:
    """Refused while the deploy of a different request is under way; None where the stream is free."""
    intent = register.intent
    if intent is None or intent.request_id == request_id:
        return None
    age_seconds = (now - intent.requested_at).total_seconds()
    if age_seconds >= INTENT_SECONDS:
        return None
    return Refused(
        ConflictError(
            "another deployment of this stream is under way",
            deployment_id=intent.deployment_id,
            requested_by=intent.requested_by,
            begun_seconds_ago=round(age_seconds, 1),
            next_step=f"Wait for it; if it was abandoned, try again after {INTENT_SECONDS:.0f} seconds.",
        )
    )


@dataclass(frozen=True)
class UseSnapshot:
    """Start from the snapshot at the predecessor's end; a drained one cannot be taken again."""

    snapshot_id: str
    is_drained: bool = False


@dataclass(frozen=True)
class TakeOver:
    """Prove the predecessor's driver ended, fence its checkpoints, and take the snapshot of this id now (1a.8)."""

    snapshot_id: str


def decide_predecessor(
    seen: Observation, request: Change, drain: DrainNotification | None
) -> UseSnapshot | TakeOver | Refused:
    """Where a new deployment gets its predecessor's end from (1a.9).

    Args:
        seen: the predecessor.
        drain: a drain of the predecessor without an answer.
    """
    state = seen.state
    if seen.drained is not None:
        return UseSnapshot(seen.drained.snapshot_id, is_drained=True)
    if state in ALIVE:
        return Refused(_alive(seen, state))
    if state == "silent":
        return Refused(silent_error(seen, "deploy"))
    if state == "lost" and not request.terms.assume_dead:
        return Refused(_lost(seen))
    if drain is not None and request.terms.start not in ("restore", "fresh"):
        return Refused(
            ConflictError(
                "a drain of this stream is not finished",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                state=state,
                command_id=drain.command_id,
                requested_by=drain.requested_by,
                next_step=f"`streamstate drain {seen.stream_id}` finishes it; --start restore keeps the state.",
            )
        )
    terminal = seen.terminal
    if isinstance(terminal, Stopped | Finished) and terminal.snapshot_id is not None:
        return UseSnapshot(terminal.snapshot_id)
    return TakeOver(snapshot_id_for(seen.deployment_id, "stopped", seen.attempt))


def _alive(seen: Observation, state: State) -> ConflictError:
    what = state if state in ("launching", "degraded") else "running"
    hint = "stop, drain or upgrade it first"
    if state == "launching" and seen.is_unlaunched:
        hint = f"`streamstate resume {seen.stream_id}` starts it, `streamstate kill {seen.stream_id}` gives it up"
    return ConflictError(
        f"the stream is {what}: {hint}",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        state=state,
        deployed_by=seen.spec.requested_by,
        next_step=f"`streamstate upgrade {seen.stream_id}` with the same options rehearses the new version and hands"
        f" over to it; or `streamstate stop {seen.stream_id}` keeps the state, then deploy again.",
    )


def _lost(seen: Observation) -> ConflictError:
    reason = "" if seen.launch_status is None else seen.launch_status.reason
    return ConflictError(
        "it is unknown whether the old driver has ended",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        attempt=seen.attempt,
        silent_since_at=seen.silent_since_at,
        reason=reason,
        next_step="Look on the machine where it ran. Only when it is surely dead: --assume-dead.",
    )


def decide_expected_snapshot(request: Change, predecessor_id: str | None, snapshot_id: str | None) -> Refused | None:
    """Refused where a request names another snapshot than the one at the predecessor's end (Law 14)."""
    if request.terms.snapshot_id in (None, snapshot_id) or predecessor_id is None:
        return None
    return Refused(
        ConflictError(
            "this snapshot is not the one at the end of the current deployment; an older one would run other batches"
            " under batch ids that the sink may hold already, so that rows would be lost or doubled",
            snapshot_id=request.terms.snapshot_id,
            current_deployment_id=predecessor_id,
            snapshot_at_its_end=snapshot_id,
            next_step=f"Deploy from {snapshot_id}, the default without a snapshot; `streamstate rollback"
            f" {request.stream_id} --snapshot {request.terms.snapshot_id}` goes back, and undoes the sinks to it.",
        )
    )


@dataclass(frozen=True)
class Start:
    """How the deployment starts, and human-readable notes on it."""

    plan: StartPlan
    notes: tuple[str, ...] = ()


def decide_start(
    request: Change,
    predecessor_id: str | None,
    manifest: SnapshotManifest | None,
    carried: Collection[str] = (),
) -> Start | Refused:
    """How a deployment starts (Laws 5, 11, 14, 16).

    Args:
        predecessor_id: the current deployment; None for a stream's first.
        manifest: the snapshot at the predecessor's end; None for a stream's first deployment, or a fresh start.
        carried: queries of it that the predecessor never started and carried on unchanged (1a.12).
    """
    if predecessor_id is None:
        return _first_start(request)
    if request.terms.start == "fresh" or manifest is None:
        plan = StartPlan(
            mode="fresh",
            predecessor_id=predecessor_id,
            allow_new_queries=request.terms.allow_new_queries,
            begins_anew=request.terms.start == "fresh",
        )
        return Start(plan, ("it starts with empty state, as requested: batch ids start again at 0",))
    if not manifest.queries:
        return _start_after_nothing(request, predecessor_id)
    mode = _mode_of(manifest)
    if request.terms.start not in (None, mode):
        return Refused(_contradiction(request, manifest, mode))
    if request.rewrite is not None and mode != "restore":
        return Refused(
            InvalidRequestError(
                "the stream is drained, so there is no state to rewrite: a seed starts in the new form",
                snapshot_id=manifest.snapshot_id,
                next_step="Leave the rewrite out; for another number of partitions give the setting (--conf"
                " spark.sql.shuffle.partitions=N).",
            )
        )
    left = _state_left(manifest)
    if left and not request.terms.allow_state_loss:
        return Refused(
            IncompatibleUpgradeError(
                "the drain could not flush all state, and a seed would drop what is left"
                if UNCOUNTED not in left.values()
                else "the state that the drain left was not counted, and a seed would drop it",
                snapshot_id=manifest.snapshot_id,
                state_left=left,
                next_step="`streamstate rollback` with --snapshot goes back to the snapshot from before the drain,"
                " which has that state; --allow-state-loss drops it.",
            )
        )
    plan = StartPlan(
        mode=mode,
        snapshot_id=manifest.snapshot_id,
        predecessor_id=predecessor_id,
        allow_state_loss=request.terms.allow_state_loss,
        allow_new_queries=request.terms.allow_new_queries,
        accept_lost_input=request.terms.accept_lost_input,
        rewrite=request.rewrite,
        accept_hazards=request.terms.accept_hazards and mode == "restore",
    )
    return Start(plan, _notes(manifest, left, carried))


def _first_start(request: Change) -> Start | Refused:
    if request.terms.start in ("restore", "seed") or request.terms.snapshot_id is not None:
        return Refused(
            InvalidRequestError(
                "this stream was never deployed, so it has no state to start from",
                stream_id=request.stream_id,
                start=request.terms.start,
                snapshot_id=request.terms.snapshot_id,
                next_step="Check the stream's name; a stream's first deployment starts fresh.",
            )
        )
    begins_anew = request.terms.start == "fresh"
    return Start(StartPlan(mode="fresh", allow_new_queries=request.terms.allow_new_queries, begins_anew=begins_anew))


def _start_after_nothing(request: Change, predecessor_id: str) -> Start | Refused:
    if request.terms.start is not None:
        return Refused(
            InvalidRequestError(
                "the deployment before never started a query, so there is no state to start from",
                deployment_id=predecessor_id,
                start=request.terms.start,
                next_step="Leave out --start, or use --start fresh.",
            )
        )
    plan = StartPlan(mode="fresh", predecessor_id=predecessor_id, allow_new_queries=request.terms.allow_new_queries)
    note = f"{predecessor_id} never started a query: there is no position, and each query starts where its options say"
    return Start(plan, (note,))


def _mode_of(manifest: SnapshotManifest) -> StartMode:
    """A snapshot with state is restored, a drained one is seeded; each query goes by its own entry."""
    positions = [query for query in manifest.queries.values() if query.position.batch_id is not None]
    flushed = bool(positions) and all(query.drained for query in positions)
    return "seed" if manifest.snapshot_kind == "drained" or flushed else "restore"


def _contradiction(request: Change, manifest: SnapshotManifest, mode: StartMode) -> IncompatibleUpgradeError:
    why = (
        "a drained snapshot holds positions and no state, so it can only be seeded"
        if mode == "seed"
        else "this snapshot holds state, so it can only be restored; a seed needs a drain first"
    )
    return IncompatibleUpgradeError(
        why,
        start=request.terms.start,
        snapshot_id=manifest.snapshot_id,
        snapshot_kind=manifest.snapshot_kind,
        next_step=f"Leave out --start, or use --start {mode}.",
    )


def _state_left(manifest: SnapshotManifest) -> dict[str, object]:
    """Per drained query, the rows that its flush left, by operator; ``UNCOUNTED`` counts as some (Law 16)."""
    found: dict[str, object] = {}
    for name, query in manifest.queries.items():
        if not query.drained or query.position.batch_id is None:
            continue
        named = {left.operator: left.rows for left in query.position.state_left if left.rows > 0}
        rows = query.position.state_rows_left
        if named or rows != 0:
            found[name] = named or (UNCOUNTED if rows is None else rows)
    return found


def _notes(manifest: SnapshotManifest, left: dict[str, object], carried: Collection[str]) -> tuple[str, ...]:
    notes = []
    for name, query in sorted(manifest.queries.items()):
        position = query.position
        if position.batch_id is None and position.planned_batch_id is None:
            notes.append(f"query {name} never committed a batch: it starts where its options say")
        elif position.planned_batch_id is not None:
            notes.append(
                f"query {name} first runs batch {position.planned_batch_id}, which was planned and not committed"
            )
        if manifest.snapshot_kind == "drained" and not query.drained and position.batch_id is not None:
            notes.append(f"query {name} was not flushed by the drain: it is restored with its state")
        elif name in carried:
            notes.append(f"query {name} was never started by {manifest.deployment_id}: it continues as it was before")
    if left:
        notes.append(f"state that the drain could not flush is dropped, as requested: {left}")
    return tuple(notes)


@dataclass(frozen=True)
class LaunchSame:
    """Launch a driver for the current attempt, which never got one."""


@dataclass(frozen=True)
class NextAttempt:
    """Prove that the current attempt has ended, then start the next one."""


def decide_resume(
    seen: Observation,
    request_id: str,
    *,
    assume_dead: bool,
    has_drain: bool,
    one_time: OneTimeSources = MappingProxyType({}),
) -> LaunchSame | NextAttempt | Refused:
    """How the current deployment is resumed.

    Args:
        assume_dead: treat a driver of unknown state as dead.
        has_drain: a drain of the deployment is pending.
        one_time: queries that cannot start again in their own checkpoints; a drain starts none of them.
    """
    refused = refuse_other_intent(seen.register, request_id, seen.observed_at)
    if refused is not None:
        return refused
    state = seen.state
    if state == "drained":
        return Refused(
            ConflictError(
                "a drained deployment is never resumed: its watermark is at the end of time, all rows are late to it",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                next_step="Deploy: the new deployment continues at the drained offsets.",
            )
        )
    if state == "launching" and seen.is_unlaunched:
        # An attempt that exists to flush would do nothing without its drain command.
        return NextAttempt() if seen.register.attempt_mode == "drain" and not has_drain else LaunchSame()
    if state in ALIVE:
        shows = f"`streamstate status {seen.stream_id}` shows it."
        again = f"`streamstate stop {seen.stream_id}`, then resume: the failed query runs with the others."
        is_degraded = state == "degraded"
        return Refused(
            ConflictError(
                f"the stream is {state}: its other queries run" if is_degraded else f"the stream is {state} already",
                stream_id=seen.stream_id,
                deployment_id=seen.deployment_id,
                attempt=seen.attempt,
                state=state,
                next_step=again if is_degraded else shows,
            )
        )
    if state == "silent":
        return Refused(silent_error(seen, "resume"))
    if state == "lost" and not assume_dead:
        return Refused(_lost(seen))
    if one_time and not has_drain:
        return Refused(_sent_once(seen, one_time))
    return NextAttempt()


def _sent_once(seen: Observation, one_time: OneTimeSources) -> InputLostError:
    return InputLostError(
        "a source of this deployment cannot be read again, so no resume can continue from its offset",
        stream_id=seen.stream_id,
        deployment_id=seen.deployment_id,
        sources={name: dict(sources) for name, sources in one_time.items()},
        next_step=f"Deploy with {consent(one_time)}: the new deployment keeps the state and reads what arrives from its"
        " start on; what was sent since, or was read and not committed, is lost.",
    )
