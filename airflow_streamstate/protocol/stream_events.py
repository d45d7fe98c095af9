"""What happened to a stream as a whole, for people and DAGs; no message: nothing of it is stored in the home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from datetime import datetime
from typing import Any, Literal, get_args

from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import format_time, parse_time

StreamEventKind = Literal[
    "healthy", "degraded", "query_died", "stalled", "lagging", "failed", "restarted", "gave_up", "drained", "stopped",
    "finished", "snapshot_ready", "upgraded", "rolled_back", "audit_failed",
]  # fmt: skip
STREAM_EVENT_KINDS: tuple[StreamEventKind, ...] = get_args(StreamEventKind)


@dataclass(frozen=True)
class StreamEvent:
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

    def to_json(self) -> dict[str, Any]:
        """The fields, the time as RFC 3339."""
        return {**asdict(self), "at": format_time(self.at), "facts": dict(self.facts)}


@dataclass(frozen=True)
class StreamCursor:
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

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        at = None if self.upgraded_at is None else format_time(self.upgraded_at)
        return {
            **asdict(self),
            "told": list(self.told),
            "upgrades": list(self.upgrades),
            "upgraded_at": at,
            "alerts": list(self.alerts),
        }

    @classmethod
    def from_json(cls, raw: Any) -> StreamCursor:
        """The cursor in this object; raises ValueError for another object."""
        if not isinstance(raw, Mapping):
            raise ValueError("no cursor of stream events")  # noqa: TRY004 - it came through a database
        try:
            at = raw["upgraded_at"]
            return cls(
                str(raw["deployment_id"]),
                int(raw["number"]),
                int(raw["attempt"]),
                bool(raw["has_ended"]),
                tuple(map(str, raw["told"])),
                tuple(map(str, raw["upgrades"])),
                None if at is None else parse_time(at),
                tuple(map(str, raw["alerts"])),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"no cursor of stream events: {problem!r}") from None
