"""What the verbs answer: frozen views, each with one JSON form (docs/reference/verbs.md). No secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.controller.observe.handovers import Repeat, describe_repeats
from airflow_streamstate.controller.observe.health import describe_behind, describe_since_snapshot, seconds_to_zero
from airflow_streamstate.controller.observe.observation import DrainPhase, State
from airflow_streamstate.controller.observe.pending_orders import OutcomeKind, PendingOrder, Verb, fulfils
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import to_json
from airflow_streamstate.protocol.events import Drained, Event, Repositioned, Skipped
from airflow_streamstate.protocol.forms import View, selected
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.policies import RetentionPolicy
from airflow_streamstate.protocol.positions import QueryPosition, SourceLag
from airflow_streamstate.protocol.records import StartPlan


@dataclass(frozen=True)
class DeploymentView(View):
    """A deployment after the verb that acted on it; ``notes``: human-readable sentences on how it starts."""

    stream_id: str
    deployment_id: str
    attempt: int
    state: State
    start: StartPlan
    notes: tuple[str, ...] = ()


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
class CommandView(View):
    """An order as it is recorded.

    Attributes:
        number, key: of its object; None where it was answered without being written.
        state: of the deployment, when the order was recorded.
        outcome: what answers it, if that is known already.
        request_id: of a snapshot; "" for other orders.
    """

    form: ClassVar[str] = "stream_id deployment_id command_id state request_id? **outcome"

    stream_id: str
    deployment_id: str
    command_id: str
    number: int | None
    key: str | None
    state: State
    verb: Verb
    outcome: Outcome | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Outcome(View):
    """The end of an order, or of a deployment.

    Attributes:
        outcome: only ``lost`` may still change by itself.
        event, number: what reports it; None and 0 where the state alone does.
        snapshot_id: the snapshot that the end made; None: there is no snapshot.
        queries: where each query ended.
        reason: one sentence, where the end is not the one that was ordered, or a deployment drained itself.
        traceback: the script's own, of a failure.
        command_kind: the kind of the order; "" where unknown, and for the end of a deployment.
        command_id: the order; "" for the end of a deployment.
        snapshot: the facts of the snapshot, once its manifest was read.
    """

    form: ClassVar[str] = (
        "stream_id deployment_id command_id state outcome snapshot_id queries reason"
        " kind?=snapshot.kind files?=snapshot.files bytes?=snapshot.size_bytes"
    )

    stream_id: str
    deployment_id: str
    outcome: OutcomeKind
    state: State
    event: Event | None = None
    number: int = 0
    snapshot_id: str | None = None
    queries: Mapping[str, QueryPosition] = field(default_factory=dict)
    reason: str = ""
    traceback: str = ""
    command_kind: str = ""
    command_id: str = ""
    snapshot: SnapshotFacts | None = None

    @property
    def end_offsets(self) -> dict[str, tuple[str, ...]]:
        """The offsets of each query, one text for each source."""
        return {name: position.end_offsets for name, position in sorted(self.queries.items())}

    @property
    def watermark_at(self) -> datetime | None:
        """The earliest watermark of all queries; None: no query has one."""
        known = (position.watermark_at for position in self.queries.values())
        return min((one for one in known if one is not None), default=None)

    @property
    def state_rows_left(self) -> int | None:
        """The rows of state of all queries; None where one that has committed a batch was not counted."""
        rows = [one.state_rows_left for one in self.queries.values() if one.batch_id is not None]
        counted = [count for count in rows if count is not None]
        return sum(counted) if rows and counted == rows else None

    @property
    def is_of_itself(self) -> bool:
        """Whether the stream had read all there was, and ended by itself."""
        return self.outcome == "finished" or (isinstance(self.event, Drained) and bool(self.event.reason))

    @property
    def is_what_was_ordered(self) -> bool:
        """Whether the order was fulfilled, perhaps by another end."""
        return fulfils(self.outcome, self.command_kind)


@dataclass(frozen=True)
class QueryStatus(View):
    """How far a running query is, or where a checkpoint was left.

    Attributes:
        batch_id: last committed batch, as the heartbeat or the end reported it, or None.
        committed_at: when that was seen; None where it was not seen.
        state_rows: None before the first progress.
        skipped_batches: batches of the current attempt that moved offsets and read nothing (``BatchesSkipped``).
        rows_behind: rows that its sources have and it has not read; None if that is unknown.
        drain_phase: how far the last drain has progressed in it; None where no drain concerns it.
        lags, lags_at: the lag of each source in its own unit, and when the sources were asked; None for not yet.
        behind_age_seconds: how long ago that was; None where the query does not run: an old lag no longer counts.
        is_active: it runs; False also if that is not known, of a driver that is silent or lost.
        caught_up, caught_up_why: None and "" where the query does not run, or is not known to.
        batches_since_snapshot: committed batches that are not in the newest snapshot.
        batch_seconds: from one commit to the next, over the last batches; None before there were two.
        error: why it failed in the current attempt, in one line; "" for a query that has not.
    """

    form: ClassVar[str] = "* behind seconds_to_zero since_snapshot"

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

    @property
    def behind(self) -> str | None:
        """How far it is behind its sources, and for how long, as text; None if that is unknown."""
        return None if self.behind_age_seconds is None else describe_behind(self.lags) or None

    @property
    def seconds_to_zero(self) -> float | None:
        """Seconds until nothing is behind; None if that is unknown."""
        return None if self.behind_age_seconds is None else seconds_to_zero(self.lags)

    @property
    def since_snapshot(self) -> str | None:
        """What a return to the newest snapshot reads again, as text; None if that is unknown."""
        return describe_since_snapshot(self.batches_since_snapshot, self.lags) or None


@dataclass(frozen=True)
class StreamStatus(View):
    """The current state of a stream.

    Attributes:
        state: ``Observation.state``; in a list, ``unreadable`` for a stream whose control objects cannot be read.
        why: one lower-case sentence on that state.
        is_current: whether this deployment is the stream's current one.
        heartbeat_age_seconds: of the current attempt, by the store's clock; None for no heartbeat.
        snapshot_age_seconds: of the newest snapshot of this deployment, or of what it started from, or None.
        last_event, last_event_number: None and 0 before the first one.
        error: of a failed, degraded or unreadable one, the cause first; "" otherwise.
        traceback: of a failed one, the script's own; of a degraded one, Spark's for the query.
        next_step: of a failed, degraded or silent one, what can be done about it; "" otherwise.
        intent: the controller that is about to deploy, or "".
        attempt_reason: why the attempt was asked for, by deploy, resume, drain or skip; "" for no reason given.
        end_reason: what the stop or drain that ended it gave as its reason, or "".
        restarts: the restart policy, and what watchers have done by it; "" where it is ``nothing``.
        owner, labels: whose the stream is, as people recorded it; "" and none in a list for ``unreadable``.
        retention: which snapshots stay when it is pruned; None where nothing is recorded.
        upgrade: the upgrade that holds the stream, its progress and its owner, or "".
        upgrade_hold: what it does: ``untouched``: nothing of the stream yet; ``waiting``: for a person's answer;
            ``moving``: no driver may run; ``abandoned``: nobody drives it any more; ``gone``: the same, and it holds
            nothing up; ``unreadable``, or "".
        moves: skipped batches and repositioned queries of this deployment: named gaps, and input that was read again.
        orders: orders to this deployment that have not ended.
        unreadable: by key, what is wrong with each event or order that cannot be read.
        repeats: batches of this deployment that ran again after a kill.
        changed_files: a sentence on each file that the running script read and that has other content now.
        remarks: per query, what a person should know of its last start, and of how its sources are read.
        driver: where it runs, by launcher, and why its cluster does not report whether it runs; "" for this machine.
        links: pages about the driver, by what they show; "" for one whose address ``Controller.opened_page`` makes.
        proofs: after a wait for healthy: by query, the batch that it committed, or why none was due.
    """

    form: ClassVar[str] = (
        "* -last_event_number last_event=numbered_event moves=named_moves repeats=repeats_text may_be_doubled"
    )

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

    @property
    def numbered_event(self) -> dict[str, object] | None:
        """The last event as JSON, with its number."""
        if self.last_event is None:
            return None
        return {"number": self.last_event_number, **to_json(self.last_event)}

    @property
    def named_moves(self) -> list[dict[str, object]]:
        """Each named gap, and input that was read again, as JSON."""
        return [
            selected(event, "query=query_name batch_id")
            | {"skipped": isinstance(event, Skipped)}
            | selected(event, "at reason moves")
            for event in self.moves
        ]

    @property
    def repeats_text(self) -> str:
        """One sentence on the batches that ran again, or ""."""
        return describe_repeats(self.stream_id, self.repeats)

    @property
    def may_be_doubled(self) -> list[Repeat]:
        """The batches that ran again, and whose rows may be in the sink twice."""
        return [one for one in self.repeats if one.may_be_doubled]
