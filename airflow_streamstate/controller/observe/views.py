"""What the verbs answer: frozen views, each with one JSON form (``to_json``; docs/reference/verbs.md). No secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from datetime import datetime
from typing import Literal

from airflow_streamstate.controller.lineage.repeats import Repeat, describe_repeats
from airflow_streamstate.controller.observe.caught_up import describe_behind, describe_since_snapshot, seconds_to_zero
from airflow_streamstate.controller.observe.drain_phase import DrainPhase
from airflow_streamstate.controller.observe.observation import State
from airflow_streamstate.controller.observe.pending_orders import PendingOrder
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time, to_json
from airflow_streamstate.protocol.data_events import Repositioned, Skipped
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.heartbeat import SourceLag
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.positions import QueryPosition
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.retention import RetentionPolicy

OutcomeKind = Literal[
    "drained", "stopped", "finished", "failed", "fenced", "expired", "rejected", "ignored", "drain_failed",
    "cancelled", "snapshot_ready", "lost", "killed", "skipped",
]  # fmt: skip


@dataclass(frozen=True)
class DeploymentView:
    """A deployment behind the verb that acted on it; ``notes``: sentences on how it starts, for people."""

    stream_id: str
    deployment_id: str
    attempt: int
    state: State
    start: StartPlan
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The fields."""
        return {**vars(self), "start": start_json(self.start), "notes": list(self.notes)}


@dataclass(frozen=True)
class SnapshotFacts:
    """A snapshot, in short."""

    snapshot_id: str
    kind: str
    files: int
    size_bytes: int

    @classmethod
    def of(cls, manifest: SnapshotManifest) -> SnapshotFacts:
        """Of a complete snapshot."""
        return cls(manifest.snapshot_id, manifest.snapshot_kind, manifest.files_count, manifest.size_bytes)


@dataclass(frozen=True)
class CommandView:
    """An order as it is recorded.

    Attributes:
        number, key: of its object; None where it was answered without being written.
        state: of the deployment, when the order was recorded.
        outcome: what answers it, where that is known already.
        request_id: of a snapshot; "" for other orders.
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
        """Ids and state; for a snapshot also ``request_id``; for an answered order also ``Outcome.to_json``."""
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
        outcome: only ``lost`` may still change by itself.
        snapshot: the snapshot that the end made; None for none.
        queries: where each query ended.
        reason: one sentence, where the end is not the one that was ordered, or a deployment drained itself.
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
        """Of ``snapshot``."""
        return None if self.snapshot is None else self.snapshot.snapshot_id

    def to_json(self) -> dict[str, object]:
        """The end, with kind, files and bytes of the snapshot where there is one."""
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
        batch_id: last committed batch, as the heartbeat or the end reported it; None for none.
        committed_at: when that was seen; None where it was not seen.
        state_rows: None before the first progress.
        skipped_batches: batches of the current attempt that moved offsets and read nothing (``BatchesSkipped``).
        rows_behind: rows that its sources have and it has not read; None where that is unknown.
        drain_phase: how far the last drain has come with it; None where no drain concerns it.
        lags, lags_at: the lag of each source in its own unit, and when the sources were asked; None for not yet.
        behind_age_seconds: how long ago that was; None where the query does not run: an old lag says nothing of now.
        is_active: it runs; False also where that is not known, of a driver that is silent or lost.
        caught_up, caught_up_why: None and "" where the query does not run, or is not known to.
        batches_since_snapshot: committed batches that are not in the newest snapshot.
        batch_seconds: from one commit to the next, over the last batches; None before there were two.
        error: why it failed in the current attempt, in one line; "" for a query that has not.
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
        """The fields, and the lag in words."""
        is_told = self.behind_age_seconds is not None
        return {
            **vars(self),
            "committed_at": _time(self.committed_at),
            "watermark_at": _time(self.watermark_at),
            "lags": [asdict(lag) for lag in self.lags],
            "lags_at": _time(self.lags_at),
            "behind": (describe_behind(self.lags) or None) if is_told else None,
            "seconds_to_zero": seconds_to_zero(self.lags) if is_told else None,
            "since_snapshot": describe_since_snapshot(self.batches_since_snapshot, self.lags) or None,
        }


@dataclass(frozen=True)
class StreamStatus:
    """Where a stream stands.

    Attributes:
        state: ``Observation.state``; in a list, ``unreadable`` for a stream whose control objects cannot be read.
        why: one lower-case sentence on that state.
        is_current: whether this deployment is the stream's current one.
        heartbeat_age_seconds: of the current attempt, by the store's clock; None for no heartbeat.
        snapshot_age_seconds: of the newest snapshot of this deployment, or of what it started from; None for none.
        last_event, last_event_number: None and 0 where there is none.
        error: of a failed, degraded or unreadable one, the cause first; "" otherwise.
        traceback: of a failed one, the script's own; of a degraded one, Spark's for the query.
        next_step: of a failed, degraded or silent one, what can be done about it; "" otherwise.
        intent: the controller that is about to deploy; "" for none.
        attempt_reason: why the attempt was asked for, by deploy, resume, drain or skip; "" for no reason given.
        end_reason: what the stop or drain that ended it gave as its reason; "" for none.
        restarts: the restart policy, and what watchers have done by it; "" where it is ``nothing``.
        owner, labels: whose the stream is, as people recorded it; "" and none in a list for ``unreadable``.
        retention: which snapshots stay when it is pruned; None where nothing is recorded.
        upgrade: the upgrade that holds the stream, its progress and its owner; "" for none.
        upgrade_hold: what it does: ``untouched``: nothing of the stream yet; ``waiting``: for a person's answer;
            ``moving``: no driver may run; ``abandoned``: nobody drives it any more; ``gone``: the same, and it holds
            nothing up; ``unreadable``; "" for none.
        moves: skipped batches and repositioned queries of this deployment: named gaps, and input that was read again.
        orders: orders to this deployment that have not ended.
        unreadable: by key, what is wrong with each event or order that cannot be read.
        repeats: batches of this deployment that ran again after a kill.
        changed_files: a sentence on each file that the running script read and that has other content now.
        remarks: per query, what a person should know of its last start, and of how its sources are read.
        driver: where it runs, by launcher, and why its cluster does not tell whether it does; "" for this machine.
        links: pages about the driver, by what they show; "" for one whose address ``Controller.opened_page`` makes.
        proofs: after a wait for healthy: by query, the batch that it committed, or why none was due.
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
    end_reason: str = ""
    upgrade: str = ""
    upgrade_hold: str = ""
    moves: tuple[Skipped | Repositioned, ...] = ()
    running_since_at: datetime | None = None
    next_step: str = ""
    orders: tuple[PendingOrder, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    repeats: tuple[Repeat, ...] = ()
    changed_files: tuple[str, ...] = ()
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    proofs: Mapping[str, str] = field(default_factory=dict)
    restarts: str = ""
    driver: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    retention: RetentionPolicy | None = None

    def to_json(self) -> dict[str, object]:
        """Everything, times as RFC 3339, the last event with its number."""
        last = None
        if self.last_event is not None:
            last = {"number": self.last_event_number, **to_json(self.last_event)}
        plain = {
            **vars(self),
            "start": start_json(self.start),
            "queries": {name: query.to_json() for name, query in self.queries.items()},
            "created_at": _time(self.created_at),
            "last_event": last,
            "moves": [move_json(event) for event in self.moves],
            "running_since_at": _time(self.running_since_at),
            "orders": [order.to_json() for order in self.orders],
            "unreadable": dict(self.unreadable),
            "links": dict(self.links),
            "labels": dict(self.labels),
            "retention": None if self.retention is None else asdict(self.retention),
            "may_be_doubled": [one.to_json() for one in self.repeats if one.may_be_doubled],
            "repeats": describe_repeats(self.stream_id, self.repeats),
            "remarks": {name: list(said) for name, said in self.remarks.items()},
            "changed_files": list(self.changed_files),
            "proofs": dict(self.proofs),
        }
        del plain["last_event_number"]
        return plain


def move_json(event: Skipped | Repositioned) -> dict[str, object]:
    """A named gap, or input that was read again, as JSON."""
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
        **vars(position),
        "end_offsets": list(position.end_offsets),
        "watermark_at": _time(position.watermark_at),
        "state_left": [asdict(left) for left in position.state_left],
        "open_windows_from_at": _time(position.open_windows_from_at),
        "open_windows_until_at": _time(position.open_windows_until_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)
