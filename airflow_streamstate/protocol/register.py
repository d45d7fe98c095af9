"""The register of a stream: which deployment is current. Changed by compare-and-swap only."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import Attempt, DeploymentId, StreamId, Token, UpgradeId
from airflow_streamstate.protocol.ownership import Ownership
from airflow_streamstate.protocol.restarts import RestartPolicy, Restarts
from airflow_streamstate.protocol.retention import RetentionPolicy

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
        reason: for people.
        is_deleting: everything of it is being removed; there is no way back.
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
        upgrade_id: the upgrade under way: only its steps move the stream, until it is over.
        attempt_reason: why that attempt was requested; "" for no reason given, and for a deployment's first attempt,
            whose reason is in its spec, unless a resume launched it.
        attempt_accepts_hazards: that attempt may continue the state by a hazardous plan (Law 17).
        restart_policy: what watchers do when a driver of the stream fails; kept over all its deployments.
        restarts: what watchers have recorded of the failures since a person started the stream; None for nothing.
        ownership: whose the stream is, for people; kept over all its deployments.
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
