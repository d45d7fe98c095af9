"""Orders to a deployment. Only the deployment that an order names obeys it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.codec import Message, message

DrainMode = Literal["default", "event_time"]


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
    """

    mode: DrainMode = "default"
    rehearse: bool = True
    discard_state: bool = False


DEFAULT_TERMS = DrainTerms()


@message
@dataclass(frozen=True)
class DrainNotification(Command):
    """Take no new input, flush what is buffered, then end (Samza's word for it, SAMZA-2741).

    It holds for the deployment, whichever attempt of it reads it first.

    Attributes:
        mode, rehearse, discard_state: its ``DrainTerms``. One that was written before there were rehearsals asks for
            none.
    """

    mode: DrainMode = "default"
    rehearse: bool = False
    discard_state: bool = False


@message
@dataclass(frozen=True)
class StopRequest(Command):
    """End after the batch in flight, state kept. It holds for one attempt: a later resume is the newer wish."""

    attempt: int


@message
@dataclass(frozen=True)
class SnapshotRequest(Command):
    """Keep a committed batch of every query, while the deployment runs on. It holds for one attempt."""

    attempt: int


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


ALL_COMMANDS: tuple[type[Command], ...] = (DrainNotification, StopRequest, SnapshotRequest, SkipRequest)
