"""The base of all events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.protocol.codec import Message


@dataclass(frozen=True)
class Event(Message):
    """A fact from a deployment: ``attempt`` reported it, ``write_id`` is unique per write (Law 8)."""

    stream_id: str
    deployment_id: str
    attempt: int
    at: datetime
    write_id: str
