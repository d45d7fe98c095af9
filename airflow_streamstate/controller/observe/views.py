"""What the verbs answer: frozen, plain, and with one JSON form each (``to_json``). No view holds a secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Literal

from airflow_streamstate.controller.lineage.repeats import Repeat, describe_repeats
from airflow_streamstate.controller.observe.caught_up import describe_behind, describe_since_snapshot, seconds_to_zero
from airflow_streamstate.controller.observe.drain_phase import DrainPhase
from airflow_streamstate.controller.observe.observation import State
from airflow_streamstate.controller.observe.pending_orders import PendingOrder
from airflow_streamstate.protocol.codec import format_time, to_json
from airflow_streamstate.protocol.data_events import Repositioned, Skipped
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.heartbeat import SourceLag
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.records import StartPlan

OutcomeKind = Literal[
    "drained", "stopped", "finished", "failed", "fenced", "expired", "rejected", "ignored", "drain_failed",
    "cancelled", "snapshot_ready", "lost", "killed", "skipped",
]  # fmt: skip


@dataclass(frozen=True)
class DeploymentView:
    """A deployment, as the verb that just acted on it leaves it.

    Attributes:
        start: how it starts: the choice, before anything runs.
        notes: what a person should know about that choice, in sentences.
    """

    stream_id: str
    deployment_id: str
    attempt: int
    state: State
    start: StartPlan
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """``stream_id deployment_id attempt state start{mode,snapshot_id,predecessor_id} notes``."""
        return {
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "attempt": self.attempt,
            "state": self.state,
            "start": start_json(self.start),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class SnapshotFacts:
    """What a snapshot is, in short."""

    snapshot_id: str
    kind: str
    files: int
    size_bytes: int


@dataclass(frozen=True)
class CommandView:
    """An order as it is recorded.

    Attributes:
        command_id: names it.
        number, key: where it lies; None where it was answered without being written.
        state: of the deployment, when the order was recorded.
        outcome: what answers it, where that is known already.
        request_id: of a snapshot, what it was asked under; "" for all else.
    """

    stream_id: str
    deployment_id: str
    command_id: str
    number: int | None
    key: str | None
    state: State
    verb: Literal["stop", "drain", "cancel", "snapshot", "skip"]
    outcome: Outcome | None = None
    request_id: str = ""

    def to_json(self) -> dict[str, object]:
        """``stream_id deployment_id command_id state``, of a snapshot ``request_id`` too; of an answered one also what
        ``Outcome.to_json`` has."""
        plain: dict[str, object] = {
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "command_id": self.command_id,
            "state": self.state,
        }
        if self.request_id:
            plain["request_id"] = self.request_id
        return {**plain, **self.outcome.to_json()} if self.outcome is not None else plain


@dataclass(frozen=True)
class Outcome:
    """The end of an order, or of a deployment.

    Attributes:
        outcome: which end; only ``lost`` may still change by itself.
        state: of the deployment.
        snapshot: the snapshot that the end made; None where it made none.
        queries: where each query ended.
        reason: one sentence, where the end is not the one that was ordered.
        traceback: the script's own, of a failure.
        event, number: what said so; None where no event did.
        command_id: the order; "" for the end of a deployment.
    """

    stream_id: str
    deployment_id: str
    outcome: OutcomeKind
    state: State
    snapshot: SnapshotFacts | None = None
    queries: Mapping[str, QueryPosition] = field(default_factory=dict)
    reason: str = ""
    traceback: str = ""
    event: Event | None = None
    number: int | None = None
    command_id: str = ""

    @property
    def snapshot_id(self) -> str | None:
        """The snapshot that the end made."""
        return None if self.snapshot is None else self.snapshot.snapshot_id

    def to_json(self) -> dict[str, object]:
        """``deployment_id state outcome snapshot_id kind files bytes queries{NAME:{batch_id,…}} reason``."""
        plain: dict[str, object] = {
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "command_id": self.command_id,
            "state": self.state,
            "outcome": self.outcome,
            "snapshot_id": self.snapshot_id,
            "queries": {name: position_json(position) for name, position in self.queries.items()},
            "reason": self.reason,
        }
        if self.snapshot is not None:
            plain |= {"kind": self.snapshot.kind, "files": self.snapshot.files, "bytes": self.snapshot.size_bytes}
        return plain


@dataclass(frozen=True)
class QueryStatus:
    """Where a running query stands, or where a checkpoint was left.

    Attributes:
        batch_id: last committed batch, as the heartbeat or the end said; None for none.
        committed_at: when that was seen; None where it was not seen.
        state_rows: None before the first progress.
        skipped_batches: batches of the current attempt that moved offsets and read nothing (``BatchesSkipped``).
        rows_behind: what its sources have and it has not read, by asking them; None where that cannot be told.
        drain_phase: how far the last drain has come with it; None where none has to do with it.
        lags: how far each source is ahead, in its own unit, and what was read of it since the newest snapshot.
        lags_at: when the sources were asked; None for not yet.
        behind_age_seconds: how long ago that was; None where it does not run: then nobody asks any more, and what was
            behind then is not said of now.
        caught_up, caught_up_why: whether it has read what there is, and by what that is known; None and "" where it
            does not run.
        batches_since_snapshot: committed batches that are not in the newest snapshot.
        batch_seconds: from one commit to the next, over the last batches; None before there were two.
        error: why it has failed in the current attempt, in one line; "" for a query that has not.
    """

    batch_id: int | None
    committed_at: datetime | None = None
    state_rows: int | None = None
    watermark_at: datetime | None = None
    idle_triggers: int = 0
    is_active: bool = False
    drain_phase: DrainPhase | None = None
    skipped_batches: int = 0
    rows_behind: int | None = None
    lags: tuple[SourceLag, ...] = ()
    lags_at: datetime | None = None
    caught_up: bool | None = None
    caught_up_why: str = ""
    batches_since_snapshot: int | None = None
    behind_age_seconds: float | None = None
    batch_seconds: float | None = None
    error: str = ""

    def to_json(self) -> dict[str, object]:
        """``batch_id committed_at state_rows watermark_at idle_triggers is_active drain_phase skipped_batches
        rows_behind lags[] lags_at behind behind_age_seconds seconds_to_zero caught_up caught_up_why
        batches_since_snapshot since_snapshot batch_seconds error``."""
        is_told = self.behind_age_seconds is not None
        return {
            "batch_id": self.batch_id,
            "committed_at": _time(self.committed_at),
            "state_rows": self.state_rows,
            "watermark_at": _time(self.watermark_at),
            "idle_triggers": self.idle_triggers,
            "is_active": self.is_active,
            "drain_phase": self.drain_phase,
            "skipped_batches": self.skipped_batches,
            "rows_behind": self.rows_behind,
            "lags": [asdict(lag) for lag in self.lags],
            "lags_at": _time(self.lags_at),
            "behind": (describe_behind(self.lags) or None) if is_told else None,
            "behind_age_seconds": self.behind_age_seconds,
            "seconds_to_zero": seconds_to_zero(self.lags) if is_told else None,
            "caught_up": self.caught_up,
            "caught_up_why": self.caught_up_why,
            "batches_since_snapshot": self.batches_since_snapshot,
            "since_snapshot": describe_since_snapshot(self.batches_since_snapshot, self.lags) or None,
            "batch_seconds": self.batch_seconds,
            "error": self.error,
        }


@dataclass(frozen=True)
class StreamStatus:
    """Where a stream stands.

    Attributes:
        state: ``Observation.state``; ``unreadable`` in a list, of a stream whose control objects
            cannot be read: nobody can tell where it stands.
        why: one lower-case sentence on that state.
        is_current: whether this deployment is the stream's current one.
        heartbeat_age_seconds: of the current attempt; None where it never beat.
        snapshot_age_seconds: of the newest snapshot of this deployment, or of what it started from; None for none.
        last_event, last_event_number: None and 0 where there is none.
        error: of a failed, degraded or unreadable one, its words, the cause first; "" otherwise.
        traceback: of a failed one, the script's own; of a degraded one, what Spark said of the query.
        next_step: of a failed or degraded one, what can be done about it; "" otherwise.
        intent: who is about to deploy; "" for nobody.
        attempt_reason: why the attempt was asked for, of its deploy, resume, drain or skip; "" where nothing was said.
        upgrade: the upgrade that holds the stream, how far it has come, and whose it is; "" for none.
        moves: batches of this deployment that were skipped, and queries that began elsewhere, as was asked for: the
            named gaps, and what was read again.
        orders: orders to this deployment that have not had their end.
        unreadable: events and orders of it that cannot be read: by key, what is wrong with each.
        repeats: batches of this deployment that ran again after a kill.
        remarks: per query, what a person should know of how it was started last, and of how its sources are read.
        proofs: of one that was waited for until it is healthy: by query, the batch that it has committed, or why none
            was due.
    """

    stream_id: str
    deployment_id: str
    attempt: int
    state: State | Literal["unreadable"]
    why: str
    start: StartPlan
    queries: Mapping[str, QueryStatus]
    is_current: bool
    fencing_token: int
    version_label: str = ""
    application: str = ""
    created_at: datetime | None = None
    heartbeat_age_seconds: float | None = None
    snapshot_age_seconds: float | None = None
    snapshot_id: str | None = None
    last_event: Event | None = None
    last_event_number: int = 0
    error: str = ""
    traceback: str = ""
    application_id: str = ""
    intent: str = ""
    attempt_reason: str = ""
    upgrade: str = ""
    moves: tuple[Skipped | Repositioned, ...] = ()
    running_since_at: datetime | None = None
    next_step: str = ""
    orders: tuple[PendingOrder, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    repeats: tuple[Repeat, ...] = ()
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proofs: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Everything, times as RFC 3339, the last event with its number."""
        last = None
        if self.last_event is not None:
            last = {"number": self.last_event_number, **to_json(self.last_event)}
        return {
            "stream_id": self.stream_id,
            "deployment_id": self.deployment_id,
            "attempt": self.attempt,
            "state": self.state,
            "why": self.why,
            "start": start_json(self.start),
            "queries": {name: query.to_json() for name, query in self.queries.items()},
            "is_current": self.is_current,
            "fencing_token": self.fencing_token,
            "version_label": self.version_label,
            "application": self.application,
            "created_at": _time(self.created_at),
            "heartbeat_age_seconds": self.heartbeat_age_seconds,
            "snapshot_age_seconds": self.snapshot_age_seconds,
            "snapshot_id": self.snapshot_id,
            "last_event": last,
            "error": self.error,
            "traceback": self.traceback,
            "application_id": self.application_id,
            "intent": self.intent,
            "attempt_reason": self.attempt_reason,
            "upgrade": self.upgrade,
            "moves": [move_json(event) for event in self.moves],
            "running_since_at": _time(self.running_since_at),
            "next_step": self.next_step,
            "orders": [order.to_json() for order in self.orders],
            "unreadable": dict(self.unreadable),
            "may_be_doubled": [one.to_json() for one in self.repeats if one.may_be_doubled],
            "repeats": describe_repeats(self.stream_id, self.repeats),
            "remarks": {name: list(said) for name, said in self.remarks.items()},
            "proofs": dict(self.proofs),
        }


def move_json(event: Skipped | Repositioned) -> dict[str, object]:
    """A named gap, or what was read again, as JSON: ``query batch_id skipped at reason moves[]``."""
    return {
        "query": event.query_name,
        "batch_id": event.batch_id,
        "skipped": isinstance(event, Skipped),
        "at": format_time(event.at),
        "reason": event.reason,
        "moves": [asdict(move) for move in event.moves],
    }


def start_json(start: StartPlan) -> dict[str, object]:
    """How a deployment starts, as JSON."""
    return {"mode": start.mode, "snapshot_id": start.snapshot_id, "predecessor_id": start.predecessor_id}


def position_json(position: QueryPosition) -> dict[str, object]:
    """Where a query ended, as JSON."""
    return {
        "batch_id": position.batch_id,
        "end_offsets": list(position.end_offsets),
        "planned_batch_id": position.planned_batch_id,
        "watermark_at": _time(position.watermark_at),
        "state_rows_left": position.state_rows_left,
        "state_left": [
            {"operator": left.operator, "operator_id": left.operator_id, "rows": left.rows, "reason": left.reason}
            for left in position.state_left
        ],
        "rows_written_early": position.rows_written_early,
        "rows_dropped": position.rows_dropped,
        "open_windows_from_at": _time(position.open_windows_from_at),
        "open_windows_until_at": _time(position.open_windows_until_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)
