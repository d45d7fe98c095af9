"""The record of a reading of state."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import ReadingId, SnapshotId, StreamId


@message
@dataclass(frozen=True)
class StateReading(Message):
    """A reading of the state in snapshots; written before anything else of it, so that what is left can be removed.

    Attributes:
        deadline_at: by then its driver has ended itself, and what is left of it may be removed.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    reading_id: ReadingId
    snapshot_ids: tuple[SnapshotId, ...]
    created_at: datetime
    deadline_at: datetime
    requested_by: str
    write_id: str
