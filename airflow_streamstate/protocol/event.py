"""What every fact from a deployment has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.protocol.codec import Message


@dataclass(frozen=True)
class Event(Message):
    """Base of all events.

    Attributes:
        attempt: the attempt that says it.
        at: when.
        write_id: unique per write (Law 8).
    """

    stream_id: str
    deployment_id: str
    attempt: int
    at: datetime
    write_id: str
