"""Facts from a deployment. Written by its claimed attempt only, numbered, never changed.

An event that ends a command carries its ``command_id`` and ``command_number``; an agent obeys a command once, by its
``command_id``, so that the number of a removed command may be used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol import data_events  # noqa: F401 - registers its events
from airflow_streamstate.protocol.causes import cause_of
from airflow_streamstate.protocol.codec import message, messages_of
from airflow_streamstate.protocol.downtimes import QueryEnd
from airflow_streamstate.protocol.event import Event, StreamFact
from airflow_streamstate.protocol.fields import (
    Attempt,
    Count,
    DeploymentIdOrNone,
    QueryName,
    QueryNameOrNone,
    SnapshotId,
    Token,
    Word,
)
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity, WatermarkSpec

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
    """This driver is this attempt. It says when the driver was last seen whose heartbeat its own replaces.

    Attributes:
        earlier_attempt, earlier_beat_at: of the deployment's heartbeat that this attempt's own replaces; None for none,
            or one that could not be read.
        reason: why the attempt was requested; "" for none given.
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
        batch_id: last committed batch it starts from; None for none.
        planned_batch_id: a batch it runs first; None for none.
        repairs: what the driver mended in its log before (1a.7), in words.
        sources: what each source is, in Spark's words, in the order of the offsets; empty while unknown.
        watermarks: its ``withWatermark`` calls.
        identities: what each source is, by its connector; empty where unknown.
        remarks: for people: about its start, and how its sources are read.
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
    controller reports it of a drain that was ordered and not begun, or of its cancelling, where its deploy replaced the
    deployment."""

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
        request_id: of the request; "" for none.
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
        query_name: the query that failed; "" for none, or all.
        withdrawn: nothing of the flush is left in its log.
        choices: what the user can do now.
        cause: the flush failed, a deadline of the drain passed, a request cancelled it, or the script did not start a
            query that it was to flush.
        then: what follows: ``runs_on``: the queries go on as before the drain; "": the next event says.
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
        cause: the last line of the script's own traceback, or what Spark says was the cause; "" where the error is all.
        is_refusal: the driver refused what the script asks for, so that the same version always fails again.
        refuses_start: it refused a start that would lose, double or mix rows.
        next_step: what to do about that, a whole sentence; "" where the error says it.
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
        batch_id: its last committed batch; None for none.
        planned_batch_id: the planned batch that is not committed, which the next start runs first; None for none.
        error: the cause in one line: the last line of the script's own traceback, else Spark's words.
        traceback: what Spark reported, its last 8,000 characters.
        explanation: as in ``Failed``.
        then: ``fail``: the driver ends the deployment; ``degrade``: the script decides whether it goes on.
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
            yield "degraded", f"the stream goes on without query {self.query_name}", facts


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
