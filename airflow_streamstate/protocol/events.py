"""Events: facts from a deployment, written by its claimed attempt only, numbered, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, ClassVar, Literal, get_args

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    Count,
    DeploymentId,
    DeploymentIdOrNone,
    FieldError,
    Message,
    QueryName,
    QueryNameOrNone,
    SnapshotId,
    StreamId,
    Token,
    Word,
    message,
    messages_of,
    read_fields,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.positions import QueryEnd, QueryPosition, SourceIdentity, SourceMove, WatermarkSpec
from airflow_streamstate.protocol.redaction import cause_of

# What happened to a stream as a whole, for humans and DAGs; no message: nothing of it is stored in the home.

StreamEventKind = Literal[
    "healthy", "degraded", "query_died", "stalled", "lagging", "failed", "restarted", "gave_up", "drained", "stopped",
    "finished", "snapshot_ready", "upgraded", "rolled_back", "audit_failed",
]  # fmt: skip
STREAM_EVENT_KINDS: tuple[StreamEventKind, ...] = get_args(StreamEventKind)


@dataclass(frozen=True)
class StreamEvent(View):
    """One thing that happened to a stream.

    Attributes:
        event_id: unique in the home, and the same in every process that reads the event.
        at: when; of an end without a last event, the last sign of life; of ``healthy`` and ``gave_up``, when a reader
            saw it.
        text: human-readable, one line, secrets hidden.
        facts: plain JSON, for programs.
    """

    event_id: str
    kind: StreamEventKind
    stream_id: str
    deployment_id: str
    at: datetime
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamCursor(View):
    """Up to where the events of one stream were read.

    Attributes:
        deployment_id, number: the last entry of a deployment's journal.
        attempt: the last attempt that claimed that deployment.
        has_ended: that attempt has reported how it ended.
        told: ids of events that no journal has, of that attempt.
        upgrades: the last upgrades that were reported, newest last.
        upgraded_at: when the newest of them was requested.
        alerts: those that are raised and were reported, by rule and subject.
    """

    deployment_id: str
    number: int
    attempt: int
    has_ended: bool
    told: tuple[str, ...] = ()
    upgrades: tuple[str, ...] = ()
    upgraded_at: datetime | None = None
    alerts: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, raw: Any) -> StreamCursor:
        """The cursor in this object; raises ValueError for another object."""
        try:
            return read_fields(cls, raw)
        except FieldError as problem:
            raise ValueError(f"no cursor of stream events: {problem}") from None


# The base of all events, and what else of the package reads an event: each declares it itself.
#
# What waits for an end, the page's timeline, the events of a stream and the table of the docs follow from it. A new
# event is a class in this module, and the code that reports it.

StreamFact = tuple[StreamEventKind, str, Mapping[str, Any]]
"""Of one event of a stream: its kind, its text for humans, and its facts for programs."""


@dataclass(frozen=True)
class Event(Message):
    """A fact from a deployment: ``attempt`` reported it, ``write_id`` is unique per write (Law 8).

    Attributes:
        is_terminal: of its class: it is the last one of an attempt.
        mark: of its class: the word for its mark on the page's timeline; "" for no mark.
    """

    is_terminal: ClassVar[bool] = False
    mark: ClassVar[str] = ""

    stream_id: StreamId
    deployment_id: DeploymentId
    attempt: Attempt
    at: datetime
    write_id: str

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        """What it means for its stream as a whole, for humans and DAGs; nothing by default.

        Args:
            order: who ordered it, and why: ``by ada: the broker is moved``; "" where no command did.
        """
        yield from ()


# Facts about rows: batches that a sink skipped, output that was undone, input that was passed over or read again.

UndoneBy = Literal["undo", "command", "doubled"]
RepeatMeans = Literal["skipped", "doubled", "unknown"]
"""What a sink makes of a batch that it was given before.

``skipped``: it recognises the batch, or keeps nothing of an earlier run: no row twice. ``doubled``: it writes the rows
again. ``unknown``: only the script's own function knows, or no connector knows the sink.
"""


@message
@dataclass(frozen=True)
class BatchesSkipped(Event):
    """Batches moved their offsets and read no row, as when a sink skips a batch that it already has.

    A warning, no proof: input without rows (empty files, aborted transactions) looks the same. The query runs on.

    Attributes:
        batch_ids: the newest, at most ten.
        count: in this attempt so far; the agent reports again each time it has doubled, and at the end.
    """

    query_name: QueryName
    batch_ids: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class SinkUndo(Event):
    """What a query's sink holds after the batch to go back to.

    Attributes:
        sink: where it is, human-readable.
        means: ``undo`` by its connector, ``command`` of the user, or ``doubled``: it stays, and its rows come again.
        to_batch_id: the last batch that stays; -1 if no batch stays.
        first_batch_id, last_batch_id: what is removed; None for nothing, or unknown.
        target: what the sink goes back to, in its own words; "" for unknown.
        removed: names of what is removed (files, versions, snapshots), at most a hundred.
        removed_count: how many there are.
        rows_again: for ``doubled``: at most this many input rows come twice, by the sources' offsets after the snapshot
            and the last batch's log; None where unknown.
    """

    query_name: QueryName
    sink: str
    means: UndoneBy
    to_batch_id: int
    first_batch_id: int | None
    last_batch_id: int | None
    target: str = ""
    removed: tuple[str, ...] = ()
    removed_count: int = 0
    rows_again: int | None = None


@message
@dataclass(frozen=True)
class Undoing(SinkUndo):
    """This start goes back to an older snapshot: the driver is about to remove from the sink what it has after that
    (Law 1)."""


@message
@dataclass(frozen=True)
class Undone(SinkUndo):
    """The sink no longer has what ``Undoing`` named; the query continues after that batch."""


@message
@dataclass(frozen=True)
class Skipped(Event):
    """A planned batch was committed without reading its rows, as ordered: its input is a named gap.

    Attributes:
        command_id, command_number: the ``SkipRequest``.
        moves: per source, the offsets between which its input is passed over.
        requested_by, reason: of the request.
    """

    mark: ClassVar[str] = "batch skipped"

    command_id: str
    command_number: int
    query_name: QueryName
    batch_id: int
    moves: tuple[SourceMove, ...]
    requested_by: str = ""
    reason: str = ""


@message
@dataclass(frozen=True)
class Repositioned(Event):
    """A query starts at other offsets than where it ended, as ordered: what is passed over, and what is read again.

    Attributes:
        batch_id: the last batch before.
        moves: per source, where it ended and where it starts, in the order of the snapshot.
        reason: how the offsets are known.
    """

    mark: ClassVar[str] = "offsets set"

    query_name: QueryName
    batch_id: int
    moves: tuple[SourceMove, ...]
    reason: str = ""


@message
@dataclass(frozen=True)
class BatchRepeated(Event):
    """The driver is about to run a batch again that an earlier run planned, perhaps wrote, and did not commit.

    Attributes:
        sink: human-readable.
        means: what that sink makes of it.
        moves: per source, the offsets between which the batch reads; empty where unknown.
        is_flush: it is the flush of a drain, which reads no input.
    """

    query_name: QueryName
    batch_id: int
    sink: str
    means: RepeatMeans
    moves: tuple[SourceMove, ...] = ()
    is_flush: bool = False


QueryStart = Literal["continued", "restored", "seeded", "fresh"]
DrainFailure = Literal["flush", "deadline", "flush_deadline", "cancelled", "not_started"]
Occasion = Literal["drain", "stop"]
AfterDrain = Literal["", "runs_on", "stop", "kill"]
AfterQueryFailure = Literal["degrade", "fail"]
ENDS_BY_ITSELF = frozenset({"once", "available_now"})
"""The triggers that end each run of a query by themselves, as in ``QueryStarted.trigger``."""


@message
@dataclass(frozen=True)
class Claimed(Event):
    """This driver is this attempt. It reports when the driver was last seen whose heartbeat its own replaces.

    Attributes:
        earlier_attempt, earlier_beat_at: of the deployment's heartbeat that this attempt's own replaces; None without
            one, or if it could not be read.
        reason: why the attempt was requested; "" if not given.
    """

    host: str
    pid: int
    fencing_token: Token
    earlier_attempt: Attempt | None = None
    earlier_beat_at: datetime | None = None
    reason: str = ""

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        if self.attempt > 1:
            yield "restarted", self.reason or f"attempt {self.attempt} was started", {"host": self.host}


@message
@dataclass(frozen=True)
class Started(Event):
    """The Spark session exists."""

    spark_version: str
    application_id: str


@message
@dataclass(frozen=True)
class QueryStarted(Event):
    """A query was started, with what its driver repaired before, and when its checkpoint was there (``built_at``) and
    all else was checked (``prepared_at``).

    Attributes:
        how: continued on its own checkpoint, or built from a snapshot with state, from its offsets, or from nothing.
        batch_id: last committed batch it starts from; None without one.
        planned_batch_id: a batch it runs first; None without one.
        repairs: what the driver fixed in its log before (1a.7), as text.
        sources: what each source is, in Spark's words, in the order of the offsets; empty while unknown.
        watermarks: its ``withWatermark`` calls.
        identities: what each source is, by its connector; empty where unknown.
        remarks: for humans: about its start, and how its sources are read.
        built_at: when its checkpoint was built or found.
        prepared_at: when source, sink and plan were checked, right before Spark was asked to start it.
    """

    query_name: QueryName
    query_id: str
    query_run_id: str
    how: QueryStart
    batch_id: int | None
    planned_batch_id: int | None
    repairs: tuple[str, ...]
    sink: str
    trigger: str
    output_mode: str
    sources: tuple[str, ...] = ()
    watermarks: tuple[WatermarkSpec, ...] = ()
    snapshot_id: SnapshotId | None = None
    identities: tuple[SourceIdentity, ...] = ()
    remarks: tuple[str, ...] = ()
    built_at: datetime | None = None
    prepared_at: datetime | None = None

    @property
    def ends_by_itself(self) -> bool:
        """Whether its trigger ends each run, when what there was is read."""
        return self.trigger in ENDS_BY_ITSELF


@message
@dataclass(frozen=True)
class Accepted(Event):
    """The driver obeys a command from here on. ``command`` is its whole content, which outlives the object itself."""

    command_id: str
    command_number: int
    command: Mapping[str, object]


@message
@dataclass(frozen=True)
class Ignored(Event):
    """A command for another deployment or attempt, or a snapshot request that is out of date or already answered. A
    controller reports it of a drain that was ordered and not started, or of its cancelling, where its deploy replaced
    the deployment."""

    command_id: str
    command_number: int
    command: Mapping[str, object]
    reason: str


@message
@dataclass(frozen=True)
class Rejected(Event):
    """The driver cannot obey a command: malformed, of an unknown kind, or known not to work. The job runs on.

    Attributes:
        command_id: "" where it could not be read.
        key: of the command.
        object_version: the digest of that object, so that one object is rejected once.
    """

    command_id: str
    command_number: int
    key: str
    reason: str
    object_version: str = ""


@message
@dataclass(frozen=True)
class Expired(Event):
    """A command was read after it had expired (its ``deadline_at``)."""

    command_id: str
    command_number: int
    command: Mapping[str, object]


@message
@dataclass(frozen=True)
class Draining(Event):
    """All queries are at their barrier, the state is kept aside, the flush starts. Repeated for queries that are
    flushed after those that feed them.

    Attributes:
        command_id: the notification.
        snapshot_id: the ``pre-drain`` snapshot; None where no query ever committed a batch.
        flush_batch_ids: per query that is flushed now, the batch that flushes.
    """

    mark: ClassVar[str] = "drain"

    command_id: str
    snapshot_id: SnapshotId | None
    flush_batch_ids: Mapping[QueryName, int]


@message
@dataclass(frozen=True)
class SnapshotReady(Event):
    """A snapshot is complete at this position: its manifest is written.

    Attributes:
        queries: per query the batch, and per source the offsets at its end.
        command_id, command_number: of the command that asked; "" and 0 for one that the agent took by itself.
        request_id: of the request; "" if not set.
    """

    mark: ClassVar[str] = "snapshot"

    snapshot_id: SnapshotId
    snapshot_kind: SnapshotKind
    queries: Mapping[QueryName, QueryPosition]
    command_id: str = ""
    command_number: int = 0
    request_id: str = ""

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        facts = {"snapshot_id": self.snapshot_id, "snapshot_kind": self.snapshot_kind}
        yield "snapshot_ready", f"snapshot {self.snapshot_id} is complete", facts


@message
@dataclass(frozen=True)
class Drained(Event):
    """Terminal: the flush of every query is committed, the snapshot ``drained`` is complete.

    Attributes:
        ends: when each query ended.
        reason: why the deployment drained itself; "" where a command of somebody else's asked for it.
    """

    is_terminal: ClassVar[bool] = True
    mark: ClassVar[str] = "drained"

    command_id: str
    command_number: int
    snapshot_id: SnapshotId
    queries: Mapping[QueryName, QueryPosition]
    also_answers: tuple[str, ...] = ()
    ends: Mapping[QueryName, QueryEnd] = field(default_factory=dict)
    reason: str = ""

    def stream_facts(self, order: str) -> Iterator[StreamFact]:
        text = self.reason or f"every query is flushed{f'; drained {order}' if order else ''}"
        yield "drained", text, {"snapshot_id": self.snapshot_id}


@message
@dataclass(frozen=True)
class DrainFailed(Event):
    """A drain did not complete. ``Stopped`` or ``Failed`` follows, unless the deployment runs on.

    Attributes:
        query_name: the query that failed; "" if no query did, or all did.
        withdrawn: nothing of the flush is left in its log.
        choices: what the user can do now.
        cause: the flush failed, a deadline of the drain passed, a request cancelled it, or the script did not start a
            query that it was to flush.
        then: what follows: ``runs_on``: the queries continue as before the drain; "": see the next event.
        also_answers: the requests to cancel it.
    """

    mark: ClassVar[str] = "drain failed"

    command_id: str
    command_number: int
    query_name: QueryNameOrNone
    error: str
    withdrawn: bool
    choices: tuple[str, ...] = ()
    cause: DrainFailure = "flush"
    then: AfterDrain = ""
    also_answers: tuple[str, ...] = ()

    @property
    def is_late(self) -> bool:
        return self.cause in ("deadline", "flush_deadline")


@message
@dataclass(frozen=True)
class Stopped(Event):
    """Terminal for the attempt: every query ended at a committed batch, its state is kept, the snapshot is complete.
    ``ends``: when each query was at its barrier, and when it had ended."""

    is_terminal: ClassVar[bool] = True
    mark: ClassVar[str] = "stopped"

    snapshot_id: SnapshotId
    queries: Mapping[QueryName, QueryPosition]
    command_id: str = ""
    command_number: int = 0
    ends: Mapping[QueryName, QueryEnd] = field(default_factory=dict)

    def stream_facts(self, order: str) -> Iterator[StreamFact]:
        text = f"every query ended at a committed batch{f'; stopped {order}' if order else ''}"
        yield "stopped", text, {"snapshot_id": self.snapshot_id}


@message
@dataclass(frozen=True)
class Finished(Event):
    """Terminal for the attempt: the script ended by itself with status 0; ``snapshot_id`` is None if it started no
    query.

    Attributes:
        unfinished: the queries that had not come to an end by themselves, each with what it did instead: "ran when the
            script ended". Empty where each had read all there was.
    """

    is_terminal: ClassVar[bool] = True

    snapshot_id: SnapshotId | None
    queries: Mapping[QueryName, QueryPosition]
    ends: Mapping[QueryName, QueryEnd] = field(default_factory=dict)
    unfinished: Mapping[QueryName, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Why this is no end of the stream; "" where it is one."""
        said = "; ".join(f"query {name} {what}" for name, what in sorted(self.unfinished.items()))
        return f"the script ended with status 0, which nobody had asked for: {said}" if said else ""

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        facts = {"snapshot_id": self.snapshot_id}
        if self.unfinished:
            yield "failed", self.sentence, facts
        else:
            yield "finished", "the script has ended by itself", facts


@message
@dataclass(frozen=True)
class Failed(Event):
    """Terminal for the attempt: the script or a query failed.

    Attributes:
        error: type and first line.
        traceback: the script's own, its last 8,000 characters.
        query_name: "" where no query caused it.
        explanation: the same in one sentence with the next step, where a source's connector knows it; else "".
        cause: the last line of the script's own traceback, or what Spark reports as the cause; "" where the error is
            all.
        is_refusal: the driver refused what the script asks for, so that the same version always fails again.
        refuses_start: it refused a start that would lose, double or mix rows.
        next_step: what to do about that, a whole sentence; "" where the error states it.
    """

    is_terminal: ClassVar[bool] = True

    error: str
    traceback: str = ""
    query_name: QueryNameOrNone = ""
    explanation: str = ""
    cause: str = ""
    is_refusal: bool = False
    refuses_start: bool = False
    next_step: str = ""

    @property
    def sentence(self) -> str:
        """What a person reads first: the explanation, then the cause in one line."""
        cause = self.cause or cause_of(self.error, self.traceback)
        return f"{self.explanation}. {cause}" if self.explanation else cause

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        yield "failed", self.sentence, {"query_name": self.query_name}


@message
@dataclass(frozen=True)
class QueryFailed(Event):
    """A query failed while the latch was open; its checkpoint stays as it is, and its next start continues there.

    Attributes:
        query_name, query_id, query_run_id: the query, and the run of it that failed.
        batch_id: its last committed batch; None without one.
        planned_batch_id: the planned batch that is not committed, which the next start runs first; None without one.
        error: the cause in one line: the last line of the script's own traceback, else Spark's words.
        traceback: what Spark reported, its last 8,000 characters.
        explanation: as in ``Failed``.
        then: ``fail``: the driver ends the deployment; ``degrade``: the script decides whether it continues.
    """

    mark: ClassVar[str] = "query failed"

    query_name: QueryName
    query_id: str
    query_run_id: str
    batch_id: int | None
    planned_batch_id: int | None
    error: str
    traceback: str = ""
    explanation: str = ""
    then: AfterQueryFailure = "degrade"

    @property
    def sentence(self) -> str:
        return f"{self.explanation}. {self.error}" if self.explanation else self.error

    def stream_facts(self, _order: str) -> Iterator[StreamFact]:
        facts = {"query_name": self.query_name, "batch_id": self.planned_batch_id}
        yield "query_died", f"query {self.query_name} has failed: {self.sentence}", facts
        if self.then == "degrade":
            yield "degraded", f"the stream continues without query {self.query_name}", facts


@message
@dataclass(frozen=True)
class Fenced(Event):
    """Terminal for the attempt: a newer attempt or deployment is current; this one writes nothing more."""

    is_terminal: ClassVar[bool] = True

    current_deployment_id: DeploymentIdOrNone
    current_attempt: Attempt


@message
@dataclass(frozen=True)
class FunctionCalled(Event):
    """The driver called a function of the script at its end.

    Attributes:
        name: of the function.
        snapshot_id: of that end.
        error: why it failed; "" for success, after which it is not called again for this end.
    """

    name: str
    occasion: Occasion
    snapshot_id: SnapshotId
    error: str = ""


@message
@dataclass(frozen=True)
class SnapshotMirrored(Event):
    """A snapshot is complete at a mirror, too.

    Attributes:
        files, size_bytes: what was copied now, without what the mirror had before.
    """

    snapshot_id: SnapshotId
    mirror_uri: Word
    files: int
    size_bytes: Count


@message
@dataclass(frozen=True)
class Noted(Event):
    """A remark that changes no state. With ``overtaken_command_id`` in its facts: a drain was ordered and not
    started before this end, since a stop came during its trial; it stays in effect for the next attempt."""

    text: str
    facts: Mapping[str, object] = field(default_factory=dict)


ALL_EVENTS: tuple[type[Event], ...] = messages_of(Event)
TERMINAL_EVENTS: tuple[type[Event], ...] = tuple(event for event in ALL_EVENTS if event.is_terminal)
