"""The record of a home: by it a home that is not there is told from one that lacks an object."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_streamstate.protocol.codec import Message, message


@message
@dataclass(frozen=True)
class HomeRecord(Message):
    """Created once, by the first deploy, before any other object of a home. Homes of earlier releases lack it until
    the next driver is launched from them.

    Attributes:
        home_id: a uuid; another one is another home, whatever its URI.
        created_at, created_by: when, and by whom.
    """

    home_id: str
    created_at: datetime
    created_by: str
