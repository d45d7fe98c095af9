"""Commands to a deployment. Only the deployment that a command names obeys it."""

from __future__ import annotations

from datetime import datetime

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Attempt, DeploymentId, Message, QueryName, Seconds, StreamId, message
from airflow_streamstate.protocol.terms.order import DrainMode, OnDrainDeadline


@dataclass(frozen=True)
class Command(Message):
    """Base of all commands.

    Attributes:
        command_id: a uuid, chosen before the first try (Law 2).
        deadline_at: when it expires: later, it is not started; None for never.
    """

    command_id: str
    stream_id: StreamId
    deployment_id: DeploymentId
    requested_at: datetime
    deadline_at: datetime | None
    requested_by: str
    reason: str


BY_THE_DRIVER = "the driver itself"
"""The ``requested_by`` of a drain that a deployment has ordered itself, since its sources are read to their end, and of
a stop that its driver has ordered, since its machine asks it to end."""


@message
@dataclass(frozen=True)
class DrainNotification(Command):
    """Take no new input, flush what is buffered, then end (the word is Samza's, SAMZA-2741).

    It holds for the deployment, whichever attempt reads it first.

    Attributes:
        mode, rehearse, allow_state_loss, on_flush_deadline, leave_queries: as in ``DrainTerms``.
        batches_by_at: deadline for the batches in flight; None: no limit.
        on_deadline: ``on_batches_deadline`` of the terms.
        flush_within_seconds: ``flush_deadline_seconds`` of the terms.
    """

    rehearse: bool
    mode: DrainMode = "default"
    allow_state_loss: bool = False
    batches_by_at: datetime | None = None
    on_deadline: OnDrainDeadline = "fail"
    flush_within_seconds: Seconds | None = None
    on_flush_deadline: OnDrainDeadline = "fail"
    leave_queries: tuple[QueryName, ...] = ()


@message
@dataclass(frozen=True)
class CancelRequest(Command):
    """Withdraw each earlier drain of the deployment that has not started to flush, whichever attempt reads it first."""


@message
@dataclass(frozen=True)
class StopRequest(Command):
    """End after the batch in flight, state kept. It holds for one attempt: a later resume is the newer order."""

    attempt: Attempt


@message
@dataclass(frozen=True)
class SnapshotRequest(Command):
    """Keep a committed batch of every query while the deployment runs on. It holds for one attempt.

    Attributes:
        request_id: over all attempts and deployments, one id is one snapshot.
        ttl_seconds: the agent ignores a request that is older than this by its ``requested_at``, or dated in the future
            beyond the allowed skew.
        consistent: as in ``SnapshotTerms``.
    """

    attempt: Attempt
    request_id: str
    ttl_seconds: Seconds
    consistent: bool = False


@message
@dataclass(frozen=True)
class SkipRequest(Command):
    """Commit a planned batch that always fails, without reading its rows: they become a named gap.

    For a deployment that has ended; the attempt that starts the query next obeys it.

    Attributes:
        query_name, batch_id: the batch.
        accepts_written: the sink may hold some of its output, and that stays.
    """

    query_name: QueryName
    batch_id: int
    accepts_written: bool = False


ALL_COMMANDS: tuple[type[Command], ...] = (
    DrainNotification,
    CancelRequest,
    StopRequest,
    SnapshotRequest,
    SkipRequest,
)
