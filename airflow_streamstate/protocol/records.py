"""Records that are created once: a home, a deployment, its attempts and launches, and what a request became."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal, get_args

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import (
    Attempt,
    DeploymentId,
    Facts,
    LaunchKey,
    QueryName,
    RehearsalIdOrNone,
    RequestId,
    RunId,
    Seconds,
    SnapshotId,
    StreamId,
    Token,
    Word,
)
from airflow_streamstate.protocol.terms.declaration import term
from airflow_streamstate.protocol.terms.start import StartMode
from airflow_streamstate.protocol.terms.version import Artifact, Version
from airflow_streamstate.protocol.views import View


@message
@dataclass(frozen=True)
class HomeRecord(Message):
    """Tells a home that cannot be reached from one that lacks an object.

    The first deploy creates it before any other object of a home. Its ``protocol`` is that of the whole home.

    Attributes:
        home_id: a uuid; another one is another home, whatever its URI.
    """

    is_signed: ClassVar[bool] = True

    home_id: str
    created_at: datetime
    created_by: str


StateStoreName = Literal["rocksdb"]
STATE_STORES: tuple[StateStoreName, ...] = get_args(StateStoreName)
"""State stores that state can be moved to."""
_STATE = "State"


@dataclass(frozen=True)
class StateRewrite:
    """How the state of the snapshot is written anew before the first batch of a deployment; None for what stays.

    Attributes:
        is_inverse: the inverse functions of ``migration`` are run.
        undoes: of a way back: the deployment whose rewrite is taken back; None for a way on.
    """

    partitions: int | None = term(
        None,
        help="write the state again in this number of partitions of each stateful operator: Spark keeps the number that"
        " a checkpoint began with. `streamstate rescale --suggest` suggests one",
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
        help="migrate state without a function where that is safe: an aggregate added, which begins with no rows, or"
        " removed, others in another order, a wider type, a field added to a state variable",
        heading=_STATE,
        names={"files": "upgrade.auto_migrate"},
    )
    is_inverse: bool = False
    undoes: DeploymentId | None = None


@dataclass(frozen=True)
class StartPlan(View):
    """How a deployment starts.

    Attributes:
        mode: with the state, with the offsets only, or with nothing.
        snapshot_id: what it starts from; None for fresh.
        predecessor_id: the deployment before it; None for a stream's first.
        allow_state_loss: the user allowed to drop state that the drain could not flush (Law 16).
        allow_new_queries: queries that may start with nothing although the snapshot does not know them.
        accept_lost_input: queries that may go on although input after their offsets cannot be read any more.
        undoes: the deployment whose output after the snapshot is undone: this start goes back to an older snapshot.
            None for every other start.
        undo_command: the user's own, with its arguments, for sinks that only the user can undo; empty for none.
        accept_duplicates: rows after the snapshot may come again, on sinks that take nothing back.
        offsets: of a seed: by query, the offset at which each source begins instead of the snapshot's, in its order.
        begins_at: of a seed: every query begins with the input of this moment, instead.
        accept_repeated_input: queries that may read input again that was read before.
        rewrite: of a restore: how its state is written anew; None for as it is.
        rename_queries: by the name under which the stream keeps a query, the name that the script gives it now.
        move_sources: of a restore or seed: where the folders of file sources were, and where they are now.
        begins_anew: the user asked for ``fresh`` by that word: queries that ran without streamstate begin again, too.
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
        """Tells it from one of the same id in another home, or in a stream of the same name that was deleted."""
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
        command_id: the command it became, of a snapshot the first one; None for none.
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
        rehearsal_id: the rehearsal whose driver waited to become this attempt, and where its folder and log lie; "" for
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
