"""The record of an adoption: a query that ran without this package becomes a stream."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Literal

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import Message, message
from airflow_streamstate.protocol.fields import Count, QueryName, SnapshotIdOrNone, StreamId

AdoptionStatus = Literal["open", "taken", "given_up"]

ADOPT_SECONDS = 300.0
"""How long a running query has to meet its barrier."""


@message
@dataclass(frozen=True)
class Adoption(Message):
    """The one adoption of a stream; written before any barrier goes into a log of the foreign query (Law 1).

    Attributes:
        adoption_id: a uuid; the adoption's barriers name it as their command.
        checkpoints: the adopted checkpoints' URIs, by query.
        is_stopped: the user said that nothing runs on them.
        status: ``open``: its barriers may be in those logs, nothing else was changed. ``taken``: the snapshot is
            complete, the stream goes on from it. ``given_up``: over, its barriers are removed.
        take: grows when it begins again with no barrier in the logs; part of the snapshot's id.
        snapshot_id: the snapshot taken; "" before that, and after giving up without a stream.
        held_by: a uuid of the controller at work.
        held_until: from then on another controller may go on with it.
    """

    is_signed: ClassVar[bool] = True

    stream_id: StreamId
    adoption_id: str
    checkpoints: Mapping[QueryName, str]
    is_stopped: bool
    status: AdoptionStatus
    take: Count
    held_by: str
    held_until: datetime
    begun_at: datetime
    requested_by: str
    write_id: str
    snapshot_id: SnapshotIdOrNone = ""
