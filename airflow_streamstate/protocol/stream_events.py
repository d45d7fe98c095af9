"""What happened to a stream as a whole, for people and DAGs; no message: nothing of it is stored in the home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, Literal, get_args

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import FieldError, read_fields
from airflow_streamstate.protocol.views import View

StreamEventKind = Literal[
    "healthy", "degraded", "query_died", "stalled", "lagging", "failed", "restarted", "gave_up", "drained", "stopped",
    "finished", "snapshot_ready", "upgraded", "rolled_back", "audit_failed",
]  # fmt: skip
STREAM_EVENT_KINDS: tuple[StreamEventKind, ...] = get_args(StreamEventKind)


@dataclass(frozen=True)
class StreamEvent(View):
    """One thing that happened to a stream.

    Attributes:
        event_id: unique in the home, and the same in every process that reads the event.
        at: when; of an end without a last word, the last sign of life; of ``healthy`` and ``gave_up``, when a reader
            saw it.
        text: for people, one line, secrets hidden.
        facts: plain JSON, for programs.
    """

    event_id: str
    kind: StreamEventKind
    stream_id: str
    deployment_id: str
    at: datetime
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamCursor(View):
    """Up to where the events of one stream were read.

    Attributes:
        deployment_id, number: the last entry of a deployment's journal.
        attempt: the last attempt that claimed that deployment.
        has_ended: that attempt has said how it ended.
        told: ids of events that no journal has, of that attempt.
        upgrades: the last upgrades that were told, newest last.
        upgraded_at: when the newest of them was requested.
        alerts: those that stand and were told, by rule and subject.
    """

    deployment_id: str
    number: int
    attempt: int
    has_ended: bool
    told: tuple[str, ...] = ()
    upgrades: tuple[str, ...] = ()
    upgraded_at: datetime | None = None
    alerts: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, raw: Any) -> StreamCursor:
        """The cursor in this object; raises ValueError for another object."""
        try:
            return read_fields(cls, raw)
        except FieldError as problem:
            raise ValueError(f"no cursor of stream events: {problem}") from None
