"""Records that are created once (homes, deployments, attempts, launches, adoptions), and the register of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import (
    Attempt,
    Count,
    DeploymentId,
    Facts,
    LaunchKey,
    Message,
    QueryName,
    RehearsalIdOrNone,
    RequestId,
    RunId,
    Seconds,
    SnapshotId,
    SnapshotIdOrNone,
    StreamId,
    Token,
    UpgradeId,
    Word,
    message,
)
from airflow_streamstate.protocol.forms import View
from airflow_streamstate.protocol.policies import Ownership, RestartPolicy, Restarts, RetentionPolicy
from airflow_streamstate.protocol.terms.declaration import term
from airflow_streamstate.protocol.terms.version import Artifact, StartMode, Version


@message
@dataclass(frozen=True)
class HomeRecord(Message):
    """Distinguishes a home that cannot be reached from one that lacks an object.

    The first deploy creates it before any other object of a home. Its ``protocol`` is that of the whole home.

    Attributes:
        home_id: a uuid; another one is another home, whatever its URI.
    """

    is_signed: ClassVar[bool] = True

    home_id: str
    created_at: datetime
    created_by: str


StateStoreName = Literal["rocksdb"]
"""State stores that state can be moved to."""
_STATE = "State"


@dataclass(frozen=True)
class StateRewrite:
    """How the state of the snapshot is rewritten before the first batch of a deployment; None for what stays.

    Attributes:
        is_inverse: the inverse functions of ``migration`` are run.
        undoes: of a rollback: the deployment whose rewrite is undone; None otherwise.
    """

    partitions: int | None = term(
        None,
        help="write the state again in this number of partitions of each stateful operator: Spark keeps the number that"
        " a checkpoint started with. `streamstate rescale --suggest` suggests one",
        heading=_STATE,
        least=1,
        most=10_000,
        verbs=("rescale",),
    )
    state_store: StateStoreName | None = term(
        None, help="write the state again into this state store", metavar="NAME", heading=_STATE, verbs=("rescale",)
    )
    checkpoint_format: int | None = term(
        None, help="write the state again in Spark's state checkpoint format 1 or 2", heading=_STATE, least=1, most=2
    )
    migration: Artifact | None = term(
        None,
        help="a Python file with functions from old to new state (airflow_streamstate.migration)",
        kind="path",
        metavar="FILE",
        heading=_STATE,
        in_files="it belongs to one change, and a file is applied again and again: give it to `upgrade --migration`",
    )
    auto_migrate: bool = term(
        False,
        help="migrate state without a function if that is safe: an aggregate added, which starts with no rows, or"
        " removed, others in another order, a wider type, a field added to a state variable",
        heading=_STATE,
        names={"files": "upgrade.auto_migrate"},
    )
    rewriter_spark: Word = term(
        "",
        help="the Spark 4.2 or newer that rewrites the state of a driver on an older Spark: an installation, or a"
        " virtual environment with pyspark, by its path where the driver runs. `streamstate home doctor"
        " --prepare-rewriter` makes one",
        metavar="PATH",
        heading=_STATE,
        verbs=("rescale",),
    )
    is_inverse: bool = False
    undoes: DeploymentId | None = None

    @property
    def is_of_nothing(self) -> bool:
        """Whether the state stays as it is."""
        return replace(self, rewriter_spark="", undoes=None) == StateRewrite()


@dataclass(frozen=True)
class StartPlan(View):
    """How a deployment starts.

    Attributes:
        mode: with the state, with the offsets only, or with nothing.
        snapshot_id: what it starts from; None for fresh.
        predecessor_id: the deployment before it; None for a stream's first.
        allow_state_loss: the user allowed to drop state that the drain could not flush (Law 16).
        allow_new_queries: queries that may start with nothing although the snapshot does not know them.
        accept_lost_input: queries that may continue although input after their offsets cannot be read any more.
        undoes: the deployment whose output after the snapshot is undone: this start goes back to an older snapshot.
            None for every other start.
        undo_command: the user's own, with its arguments, for sinks that only the user can undo; empty if not set.
        accept_duplicates: rows after the snapshot may come again, on sinks that take nothing back.
        offsets: of a seed: by query, the offset at which each source starts instead of the snapshot's, in its order.
        begins_at: of a seed: every query starts with the input of this moment, instead.
        accept_repeated_input: queries that may read input again that was read before.
        rewrite: of a restore: how its state is rewritten; None for as it is.
        rename_queries: by the name under which the stream keeps a query, the name that the script gives it now.
        move_sources: of a restore or seed: where the folders of file sources were, and where they are now.
        begins_anew: the user asked for ``fresh`` by that word: queries that ran without streamstate start again, too.
        accept_hazards: of a restore: the state may be continued by a hazardous plan (Law 17).
    """

    form: ClassVar[str] = "mode snapshot_id predecessor_id"

    mode: StartMode
    snapshot_id: SnapshotId | None = None
    predecessor_id: DeploymentId | None = None
    allow_state_loss: bool = False
    allow_new_queries: tuple[QueryName, ...] = ()
    accept_lost_input: tuple[QueryName, ...] = ()
    undoes: DeploymentId | None = None
    undo_command: tuple[Word, ...] = ()
    accept_duplicates: bool = False
    offsets: Mapping[QueryName, tuple[str, ...]] = field(default_factory=dict)
    begins_at: datetime | None = None
    accept_repeated_input: tuple[QueryName, ...] = ()
    rewrite: StateRewrite | None = None
    rename_queries: Mapping[QueryName, QueryName] = field(default_factory=dict)
    move_sources: Mapping[str, str] = field(default_factory=dict)
    begins_anew: bool = False
    accept_hazards: bool = False


@message
@dataclass(frozen=True)
class DeploymentSpec(Message):
    """A deployment: a version of a stream, how it starts, and who asked for it.

    Attributes:
        fencing_token: a higher one replaces it.
        version: what it runs.
        start: how it starts.
        checkpoints_uri: where its checkpoints are.
        request_id, requested_by, reason: of the request that it became.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    deployment_id: RunId
    fencing_token: Token
    version: Version
    start: StartPlan
    checkpoints_uri: Word
    request_id: str
    requested_by: str
    reason: str
    created_at: datetime

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """All files that it runs."""
        rewrite = self.start.rewrite
        migration = () if rewrite is None or rewrite.migration is None else (rewrite.migration,)
        return (*self.version.artifacts, *migration)

    @property
    def identity(self) -> tuple[str, datetime]:
        """Differs from that of the same id in another home, or in a deleted stream of the same name."""
        return self.request_id, self.created_at


@message
@dataclass(frozen=True)
class FoundModule(Message):
    """A module of the script's folder that its driver found when the script loaded it; pinned from then on (Law 15)."""

    most_bytes: ClassVar[int] = 16 << 10
    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    deployment_id: RunId
    module: Artifact
    found_at: datetime
    write_id: str


@message
@dataclass(frozen=True)
class SnapshotPlace(Message):
    """Whose snapshots a place holds: noted in the home, then written there before anything else, and read to recognise
    the place. A controller signs the note."""

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    home_uri: Word
    created_at: datetime
    write_id: str


@message
@dataclass(frozen=True)
class Claim(Message):
    """The one driver that is an attempt; a second one that tries stops.

    Attributes:
        oldest_protocol, newest_protocol: the protocol versions that this agent speaks.
    """

    stream_id: StreamId
    deployment_id: RunId
    attempt: Attempt
    launch_key: LaunchKey
    host: str
    pid: int
    oldest_protocol: int
    newest_protocol: int
    agent_version: str
    write_id: str
    claimed_at: datetime


@dataclass(frozen=True)
class SnapshotWish:
    """The first request for a snapshot, so that any caller that waits for it can repeat it in the same words.

    Attributes:
        requested_at, ttl_seconds, consistent: as ``SnapshotTerms``.
        deadline_at, requested_by, reason: as in ``Command``.
    """

    requested_at: datetime | None
    ttl_seconds: Seconds | None
    deadline_at: datetime | None
    requested_by: str
    reason: str
    consistent: bool = False


@message
@dataclass(frozen=True)
class RequestRecord(Message):
    """What a request became: written before the first act, so that a retry finds it (Law 2).

    Attributes:
        verb: deploy, resume, …
        request_digest: sha256 over what was asked; the same request id with another digest is a conflict.
        deployment_id: the deployment it is about; of a snapshot the first one that was asked.
        command_id: the command it became, of a snapshot the first one; None if not set.
        snapshot: the request for a snapshot; None for any other verb.
    """

    is_signed: ClassVar[bool] = True

    request_id: RequestId
    stream_id: StreamId
    verb: str
    request_digest: str
    deployment_id: DeploymentId
    write_id: str
    created_at: datetime
    command_id: str | None = None
    snapshot: SnapshotWish | None = None


@message
@dataclass(frozen=True)
class LaunchRecord(Message):
    """The durable handle of one launch, by which any controller can ask about the driver, and end it.

    Attributes:
        rehearsal_id: the rehearsal whose driver waited to become this attempt, and where its folder and log are; "" for
            a driver that was launched for the attempt itself.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    deployment_id: RunId
    attempt: Attempt
    launch_key: LaunchKey
    launcher: Word
    data: Facts
    log_path: Word
    launched_at: datetime
    write_id: str
    facts: Mapping[str, str] = field(default_factory=dict)
    rehearsal_id: RehearsalIdOrNone = ""


# The register of a stream: which deployment is current. Changed by compare-and-swap only.

AttemptMode = Literal["run", "drain"]


@dataclass(frozen=True)
class Intent:
    """A controller is about to move the register to a new deployment (1a.8: recorded before anything is fenced).

    Attributes:
        request_id: of the request; the same request continues where it was.
        deployment_id: the deployment that will be current.
    """

    request_id: str
    deployment_id: DeploymentId
    requested_at: datetime
    requested_by: str


@dataclass(frozen=True)
class Retirement:
    """A stream that must not run any more.

    Attributes:
        reason: human-readable.
        is_deleting: everything of it is being removed; it cannot be undone.
    """

    retired_at: datetime
    retired_by: str
    reason: str = ""
    is_deleting: bool = False


@message
@dataclass(frozen=True)
class StreamRegister(Message):
    """What is current in a stream.

    Attributes:
        fencing_token: grows with every deployment; 0 before the first.
        deployment_id: the current deployment; None before the first.
        attempt: its current attempt; 0 before the first.
        attempt_mode: that attempt runs the stream, or only flushes it (drain of a dead deployment).
        intent: a deploy under way; None otherwise.
        write_id: unique per write, so that a writer recognises its own (Law 8).
        upgrade_id: the upgrade under way: only its steps move the stream, until it has ended.
        attempt_reason: why that attempt was requested; "" for no reason given, and for a deployment's first attempt,
            whose reason is in its spec, unless a resume launched it.
        attempt_accepts_hazards: that attempt may continue the state by a hazardous plan (Law 17).
        restart_policy: what watchers do when a driver of the stream fails; kept over all its deployments.
        restarts: what watchers have recorded of the failures since a person started the stream; None for nothing.
        ownership: whose the stream is, for humans; kept over all its deployments.
        retention: which snapshots stay when it is pruned, by watchers too; kept over all its deployments. None for no
            policy: then only a caller prunes it.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    fencing_token: Token
    deployment_id: DeploymentId | None
    attempt: Attempt
    attempt_mode: AttemptMode
    intent: Intent | None
    write_id: str
    updated_at: datetime
    updated_by: str
    upgrade_id: UpgradeId | None = None
    retirement: Retirement | None = None
    attempt_reason: str = ""
    attempt_accepts_hazards: bool = False
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    restarts: Restarts | None = None
    ownership: Ownership = field(default_factory=Ownership)
    retention: RetentionPolicy | None = None

    @property
    def oldest_stopped_attempt(self) -> int:
        """The current attempt obeys the stops of this attempt and of later ones.

        Where a watcher started it, that is the attempt before: its stop may have been ordered in the same moment.
        """
        record = self.restarts
        if record is None or not record.is_started:
            return self.attempt
        is_current = (record.deployment_id, record.attempt) == (self.deployment_id, self.attempt)
        return self.attempt - 1 if is_current else self.attempt


# The record of an adoption: a query that ran without this package becomes a stream.

AdoptionStatus = Literal["open", "taken", "given_up"]

ADOPT_SECONDS = 300.0
"""How long a running query has to meet its barrier."""


@message
@dataclass(frozen=True)
class Adoption(Message):
    """The one adoption of a stream; written before any barrier goes into a log of the foreign query (Law 1).

    Attributes:
        adoption_id: a uuid; the adoption's barriers name it as their command.
        checkpoints: the adopted checkpoints' URIs, by query.
        is_stopped: the user stated that nothing runs on them.
        status: ``open``: its barriers may be in those logs, nothing else was changed. ``taken``: the snapshot is
            complete, the stream continues from it. ``given_up``: ended, its barriers are removed.
        take: grows when it starts again with no barrier in the logs; part of the snapshot's id.
        snapshot_id: the snapshot taken; "" before that, and after an abandoned adoption without a stream.
        held_by: a uuid of the controller at work.
        held_until: from then on another controller may continue with it.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    adoption_id: str
    checkpoints: Mapping[QueryName, str]
    is_stopped: bool
    status: AdoptionStatus
    take: Count
    held_by: str
    held_until: datetime
    begun_at: datetime
    requested_by: str
    write_id: str
    snapshot_id: SnapshotIdOrNone = ""
