"""Facts from a deployment. Written by its claimed attempt only, numbered, never changed.

An event that ends a command carries its ``command_id`` and ``command_number``; an agent obeys a command once, by its
``command_id``, so that a slot of a cleaned-up command may be used again without harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.causes import cause_of
from airflow_streamstate.protocol.codec import message
from airflow_streamstate.protocol.data_events import (
    BatchesSkipped,
    BatchRepeated,
    Repositioned,
    Skipped,
    Undoing,
    Undone,
)
from airflow_streamstate.protocol.downtimes import QueryEnd
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.ids import SnapshotKind
from airflow_streamstate.protocol.positions import QueryPosition, SourceIdentity, WatermarkSpec

QueryStart = Literal["continued", "restored", "seeded", "fresh"]
DrainFailure = Literal["flush", "deadline", "flush_deadline", "cancelled"]
Occasion = Literal["drain", "stop"]
AfterDrain = Literal["", "runs_on", "stop", "kill"]
AfterQueryFailure = Literal["degrade", "fail"]


@message
@dataclass(frozen=True)
class Claimed(Event):
    """This driver is this attempt.

    Attributes:
        earlier_attempt, earlier_beat_at: whose heartbeat of this deployment lay there, and of when: this attempt's own
            takes its place. None where there was none, or it could not be read.
        reason: why the attempt was asked for; "" where nothing was said.
    """

    host: str
    pid: int
    fencing_token: int
    earlier_attempt: int | None = None
    earlier_beat_at: datetime | None = None
    reason: str = ""


@message
@dataclass(frozen=True)
class Started(Event):
    """The Spark session is there."""

    spark_version: str
    application_id: str


@message
@dataclass(frozen=True)
class QueryStarted(Event):
    """A query was started under us.

    Attributes:
        how: continued on its own checkpoint, or built from a snapshot with or without state, or with nothing.
        batch_id: last committed batch it starts from; None for none.
        planned_batch_id: a batch it runs first; None for none.
        repairs: what was mended in its log before (1a.7), in words.
        sources: what each source is, in Spark's words, in the order of the offsets; empty while unknown.
        watermarks: its ``withWatermark``s.
        identities: what each source is, by its connector; empty where unknown.
        remarks: what a person should know of how it starts, and of how its sources are read.
        built_at: when its checkpoint was there, built or found.
        prepared_at: when source, sink and plan were seen to, right before Spark was asked to start it.
    """

    query_name: str
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
    snapshot_id: str | None = None
    identities: tuple[SourceIdentity, ...] = ()
    remarks: tuple[str, ...] = ()
    built_at: datetime | None = None
    prepared_at: datetime | None = None


@message
@dataclass(frozen=True)
class Accepted(Event):
    """A command is obeyed from here on. ``command`` is its whole content, which outlives the object itself."""

    command_id: str
    command_number: int
    command: Mapping[str, object]


@message
@dataclass(frozen=True)
class Ignored(Event):
    """A command was meant for another deployment or attempt; or it was a request for a snapshot that was out of date,
    or had become one already."""

    command_id: str
    command_number: int
    command: Mapping[str, object]
    reason: str


@message
@dataclass(frozen=True)
class Rejected(Event):
    """A command cannot be obeyed: malformed, of an unknown kind, or known not to work. The job runs on.

    Attributes:
        command_id: "" where it could not be read.
        key: where the command lay.
        object_version: the digest of what lay there, so that one object is rejected once.
    """

    command_id: str
    command_number: int
    key: str
    reason: str
    object_version: str = ""


@message
@dataclass(frozen=True)
class Expired(Event):
    """A command had expired when it was read (``deadline_at`` of a command is when it expires)."""

    command_id: str
    command_number: int
    command: Mapping[str, object]


@message
@dataclass(frozen=True)
class Draining(Event):
    """All queries stand at their barrier, the state is kept aside, the flush begins. Said again of queries that are
    flushed after those which feed them.

    Attributes:
        command_id: the notification.
        snapshot_id: the ``pre-drain`` snapshot; None where no query ever committed a batch.
        flush_batch_ids: per query that is flushed now, the batch that flushes.
    """

    command_id: str
    snapshot_id: str | None
    flush_batch_ids: Mapping[str, int]


@message
@dataclass(frozen=True)
class SnapshotReady(Event):
    """A snapshot is complete: its manifest is written.

    Attributes:
        queries: the position: per query the batch, and per source the offsets at its end.
        command_id, command_number: of the command that asked; "" and 0 of one that the agent took by itself.
        request_id: what it was asked under; "" for nothing.
    """

    snapshot_id: str
    snapshot_kind: SnapshotKind
    queries: Mapping[str, QueryPosition]
    command_id: str = ""
    command_number: int = 0
    request_id: str = ""


@message
@dataclass(frozen=True)
class Drained(Event):
    """Terminal: the flush of every query is committed, and the snapshot ``drained`` is complete. ``ends``: when each
    query that ran came to its end."""

    command_id: str
    command_number: int
    snapshot_id: str
    queries: Mapping[str, QueryPosition]
    also_answers: tuple[str, ...] = ()
    ends: Mapping[str, QueryEnd] = field(default_factory=dict)


@message
@dataclass(frozen=True)
class DrainFailed(Event):
    """A drain came to no good end; ``Stopped`` or ``Failed`` follows and says where the deployment stands, but where it
    runs on.

    Attributes:
        query_name: the query that it came to nothing with; "" for none, or all.
        withdrawn: nothing of the flush is left in its log.
        choices: what can be done now.
        cause: the flush failed, a deadline of the drain passed, or somebody took it back.
        then: what follows by itself; ``runs_on``: the queries go on as if no drain had been asked for; "": the event
            that follows says.
        also_answers: the requests to take it back.
    """

    command_id: str
    command_number: int
    query_name: str
    error: str
    withdrawn: bool
    choices: tuple[str, ...] = ()
    cause: DrainFailure = "flush"
    then: AfterDrain = ""
    also_answers: tuple[str, ...] = ()

    @property
    def is_late(self) -> bool:
        """Whether a deadline of the drain passed."""
        return self.cause in ("deadline", "flush_deadline")


@message
@dataclass(frozen=True)
class Stopped(Event):
    """Terminal for the attempt: every query ended at a committed batch, state kept, snapshot complete. ``ends``: when
    each query that ran came to its end."""

    snapshot_id: str
    queries: Mapping[str, QueryPosition]
    command_id: str = ""
    command_number: int = 0
    ends: Mapping[str, QueryEnd] = field(default_factory=dict)


@message
@dataclass(frozen=True)
class Finished(Event):
    """Terminal for the attempt: the script ended by itself with status 0. None: no query was ever started. ``ends``:
    when each query that ran came to its end."""

    snapshot_id: str | None
    queries: Mapping[str, QueryPosition]
    ends: Mapping[str, QueryEnd] = field(default_factory=dict)


@message
@dataclass(frozen=True)
class Failed(Event):
    """Terminal for the attempt: the script or a query failed.

    Attributes:
        error: type and first line.
        traceback: the script's own, its last 8,000 characters.
        query_name: "" where no query did it.
        explanation: the same in one sentence with the next step, where a connector of a source knows it; else "".
        cause: the last line of the script's own traceback, or what Spark says was the cause; "" of older agents.
        is_refusal: the runtime refused what the script asks for, so that the same version always fails again.
    """

    error: str
    traceback: str = ""
    query_name: str = ""
    explanation: str = ""
    cause: str = ""
    is_refusal: bool = False

    @property
    def sentence(self) -> str:
        """What a person reads first: the explanation, then the cause in one line."""
        cause = self.cause or cause_of(self.error, self.traceback)
        return f"{self.explanation}. {cause}" if self.explanation else cause


@message
@dataclass(frozen=True)
class QueryFailed(Event):
    """A query failed while the latch was open; its checkpoint stays as it is, and the next start of it goes on there.

    Attributes:
        query_name, query_id, query_run_id: the query, and the run of it that failed.
        batch_id: its last committed batch; None for none.
        planned_batch_id: the batch that is planned and not committed: the next start runs it first; None for none.
        error: the cause in one line: the last line of the script's own traceback, else Spark's words.
        traceback: what Spark reported, its last 8,000 characters.
        explanation: the same in one sentence with the next step, where a connector of a source knows it; else "".
        then: ``fail``: the driver ends the deployment; ``degrade``: it does not, and the script decides whether it goes
            on.
    """

    query_name: str
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
        """What a person reads first: the explanation, then the cause."""
        return f"{self.explanation}. {self.error}" if self.explanation else self.error


@message
@dataclass(frozen=True)
class Fenced(Event):
    """Terminal for the attempt: a newer attempt or deployment is current; nothing more is written."""

    current_deployment_id: str
    current_attempt: int


@message
@dataclass(frozen=True)
class FunctionCalled(Event):
    """A function of the script was called at its end.

    Attributes:
        name: of the function.
        occasion: ``drain`` or ``stop``.
        snapshot_id: of the end that it was called for.
        error: why it failed; "" where it did not, and is not called again for this end.
    """

    name: str
    occasion: Occasion
    snapshot_id: str
    error: str = ""


@message
@dataclass(frozen=True)
class SnapshotMirrored(Event):
    """A snapshot is whole at a mirror, too.

    Attributes:
        mirror_uri: which.
        files, size_bytes: what was copied there; what was there before is not in it.
    """

    snapshot_id: str
    mirror_uri: str
    files: int
    size_bytes: int


@message
@dataclass(frozen=True)
class Noted(Event):
    """Something a person would want to know, and that changes no state."""

    text: str
    facts: Mapping[str, object] = field(default_factory=dict)


ALL_EVENTS: tuple[type[Event], ...] = (
    Claimed, Started, QueryStarted, QueryFailed, Accepted, Ignored, Rejected, Expired, Draining, SnapshotReady,
    Drained, DrainFailed, Stopped, Finished, Failed, Fenced, BatchesSkipped, Undoing,
    Undone, FunctionCalled, Skipped, Repositioned, BatchRepeated, SnapshotMirrored, Noted,
)  # fmt: skip
TERMINAL_EVENTS: tuple[type[Event], ...] = (Drained, Stopped, Finished, Failed, Fenced)
