"""The base of all events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.protocol.codec import Message
from airflow_streamstate.protocol.fields import Attempt, DeploymentId, StreamId


@dataclass(frozen=True)
class Event(Message):
    """A fact from a deployment: ``attempt`` reported it, ``write_id`` is unique per write (Law 8)."""

    stream_id: StreamId
    deployment_id: DeploymentId
    attempt: Attempt
    at: datetime
    write_id: str
