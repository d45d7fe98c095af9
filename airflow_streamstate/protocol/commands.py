"""Orders to a deployment. Only the deployment that an order names obeys it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.codec import Message, message

DrainMode = Literal["default", "event_time"]
OnDrainDeadline = Literal["fail", "stop", "kill"]
"""What is done where a deadline of a drain passes: the drain is taken back and the job runs on; it becomes a stop, its
state kept; or what runs is cut, for the next start to run it again."""


@dataclass(frozen=True)
class Command(Message):
    """Base of all commands.

    Attributes:
        command_id: a uuid, chosen before the first try (Law 2).
        deadline_at: not begun by then, it is not begun at all; None for no deadline.
    """

    command_id: str
    stream_id: str
    deployment_id: str
    requested_at: datetime
    deadline_at: datetime | None
    requested_by: str
    reason: str


@dataclass(frozen=True)
class DrainTerms:
    """How a drain is to be done.

    Attributes:
        mode: ``default`` flushes all that the query has, ``event_time`` moves the watermark only.
        rehearse: the flush is tried first, on a fork of the state and into no sink; a drain that would leave state, or
            whose flush would fail, is rejected before anything is stopped.
        discard_state: state that the flush leaves is to be dropped by whatever follows (Law 16), so that it is no
            reason to reject the drain.
        batches_within_seconds: the batches in flight are to be committed so long after the order; None: however long
            they take.
        on_deadline: what is done where they are not.
        flush_within_seconds: the flush is to be committed so long after it has begun; None: however long it takes.
        on_flush_deadline: what is done where it is not.
    """

    mode: DrainMode = "default"
    rehearse: bool = True
    discard_state: bool = False
    batches_within_seconds: float | None = None
    on_deadline: OnDrainDeadline = "fail"
    flush_within_seconds: float | None = None
    on_flush_deadline: OnDrainDeadline = "fail"


DEFAULT_TERMS = DrainTerms()


@message
@dataclass(frozen=True)
class DrainNotification(Command):
    """Take no new input, flush what is buffered, then end (Samza's word for it, SAMZA-2741).

    It holds for the deployment, whichever attempt of it reads it first.

    Attributes:
        mode, rehearse, discard_state, on_deadline, flush_within_seconds, on_flush_deadline: as in ``DrainTerms``. One
            that was written before there were rehearsals asks for none.
        batches_by_at: by when the batches in flight are to be committed; None: whenever.
    """

    mode: DrainMode = "default"
    rehearse: bool = False
    discard_state: bool = False
    batches_by_at: datetime | None = None
    on_deadline: OnDrainDeadline = "fail"
    flush_within_seconds: float | None = None
    on_flush_deadline: OnDrainDeadline = "fail"


@message
@dataclass(frozen=True)
class CancelRequest(Command):
    """Take back every drain of the deployment that was ordered before this, and has not begun to flush.

    It holds for the deployment, whichever attempt of it reads it first.
    """


@message
@dataclass(frozen=True)
class StopRequest(Command):
    """End after the batch in flight, state kept. It holds for one attempt: a later resume is the newer wish."""

    attempt: int


@dataclass(frozen=True)
class SnapshotTerms:
    """How a snapshot is asked for.

    Attributes:
        requested_at: the time of asking; None: now, and anew each time that it is asked for again.
        ttl_seconds: read when it is older than this, it is not obeyed; None: as the settings of the deployment say.
        consistent: all queries stand at their barriers when it is taken, and go on by themselves afterwards.
    """

    requested_at: datetime | None = None
    ttl_seconds: float | None = None
    consistent: bool = False


DEFAULT_SNAPSHOT_TERMS = SnapshotTerms()


@message
@dataclass(frozen=True)
class SnapshotRequest(Command):
    """Keep a committed batch of every query, while the deployment runs on. It holds for one attempt.

    Attributes:
        request_id: what it is asked under, over all attempts and deployments: one id is one snapshot. "" where nobody
            named it, as before there were such ids; then its ``command_id`` stands for it.
        ttl_seconds: older than this by its ``requested_at``, or dated in the future beyond the allowed skew, it is
            ignored. None: its date means nothing, as before there were such times.
        consistent: as in ``SnapshotTerms``.
    """

    attempt: int
    request_id: str = ""
    ttl_seconds: float | None = None
    consistent: bool = False


@message
@dataclass(frozen=True)
class SkipRequest(Command):
    """Commit a batch that is planned and always fails, without reading its rows: they are a gap, with a name.

    For a deployment that has ended; it holds for whichever attempt of it starts the query next.

    Attributes:
        query_name: whose batch.
        batch_id: the batch.
        accepts_written: the sink may hold some of its output, and that stays.
    """

    query_name: str
    batch_id: int
    accepts_written: bool = False


ALL_COMMANDS: tuple[type[Command], ...] = (
    DrainNotification,
    CancelRequest,
    StopRequest,
    SnapshotRequest,
    SkipRequest,
)
