"""Adoptions: a query that ran without us becomes a stream; what was begun, so that whoever comes later goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from airflow_streamstate.protocol.codec import Message, message

AdoptionStatus = Literal["open", "taken", "given_up"]


@message
@dataclass(frozen=True)
class Adoption(Message):
    """The one adoption of a stream; written before anything is put into a log that is not ours (Law 1).

    Attributes:
        adoption_id: a uuid; barriers that it puts name it as their command.
        checkpoints: where the adopted checkpoints lie, by query.
        is_stopped: it was said that nothing runs on them.
        status: ``open``: barriers of it may lie in those logs, and nothing else was changed. ``taken``: the snapshot
            is complete, and the stream goes on from it. ``given_up``: it is over, and its barriers are taken back.
        take: grows whenever it begins again with no barrier in the logs; part of the snapshot's id.
        snapshot_id: what was taken; "" while nothing is, and once it is given up without a stream that came of it.
        held_by: a uuid of whoever works on it.
        held_until: by then it may be gone on with by another.
    """

    stream_id: str
    adoption_id: str
    checkpoints: Mapping[str, str]
    is_stopped: bool
    status: AdoptionStatus
    take: int
    held_by: str
    held_until: datetime
    begun_at: datetime
    requested_by: str
    write_id: str
    snapshot_id: str = ""
