"""What is waited for, and what one look at it saw: the same for the shell, operators, sensors and the trigger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from airflow_streamstate.controller.observe.outcomes import FULFILLED_BY, End
from airflow_streamstate.controller.observe.views import CommandView, Outcome, StreamStatus
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.protocol.codec import format_time
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.manifest import SnapshotManifest

Wanted = Literal[
    "drained",
    "cancelled",
    "stopped",
    "snapshot",
    "healthy",
    "caught_up",
    "finished",
    "skipped",
    "rehearsed",
    "upgrade",
    "free",
]
WANTED: tuple[Wanted, ...] = (
    "drained", "cancelled", "stopped", "snapshot", "healthy", "caught_up", "finished", "skipped", "rehearsed",
    "upgrade", "free",
)  # fmt: skip
_KIND_OF: Mapping[Wanted, str] = {
    "drained": DrainNotification.kind,
    "cancelled": CancelRequest.kind,
    "stopped": StopRequest.kind,
    "finished": StopRequest.kind,
    "snapshot": SnapshotRequest.kind,
    "skipped": SkipRequest.kind,
}
_WANTED_BY: Mapping[str, Wanted] = {
    "drain": "drained",
    "cancel": "cancelled",
    "stop": "stopped",
    "snapshot": "snapshot",
    "skip": "skipped",
}
UNANSWERED = "unanswered"
"""The fact of a ``DeadlineExceededError`` of which nothing was seen at the deadline: why the home gave no answer."""


@dataclass(frozen=True)
class WaitCondition:
    """What is waited for. Plain JSON, so that a trigger can carry it through a database.

    Attributes:
        wanted: the deployment drained, its drain cancelled, the deployment stopped, healthy, caught up or ended, a
            snapshot of it complete, a batch of it skipped, a rehearsal over, something to be done of an upgrade, or no
            upgrade that holds the stream.
        stream_id: the stream.
        deployment_id: whose end or snapshot it is; of ``rehearsed`` the rehearsal, of ``upgrade`` the upgrade, of
            ``free`` the upgrade that held the stream when the wait began.
        command_id: the order, to know its own ends too; None for an order of any client.
        snapshot_id: for ``snapshot``: that one; None for any.
        request_id: for ``snapshot``: what it was asked under, of whichever deployment it comes; None for no such.
        max_lag: for ``caught_up``: so much may be left of each source.
    """

    wanted: Wanted
    stream_id: str
    deployment_id: str
    command_id: str | None = None
    snapshot_id: str | None = None
    request_id: str | None = None
    max_lag: int = 0

    @classmethod
    def of(cls, order: CommandView) -> WaitCondition:
        """That an order is fulfilled."""
        return cls(
            _WANTED_BY[order.verb],
            order.stream_id,
            order.deployment_id,
            command_id=order.command_id,
            request_id=order.request_id or None,
        )

    @property
    def command_kind(self) -> str:
        """The kind of command that brings it about; "" where none does."""
        return _KIND_OF.get(self.wanted, "")

    def is_fulfilled_by(self, end: End) -> bool:
        """Whether an end is what is waited for."""
        if self.wanted == "snapshot" and end.snapshot_id is None:
            return False
        return end.outcome in FULFILLED_BY[self.command_kind]

    def to_json(self) -> dict[str, Any]:
        """The condition as a plain JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Any) -> WaitCondition:
        """The condition in this object; unknown fields are ignored (Law 7).

        Raises:
            ValueError: it is none.
        """
        if not isinstance(raw, Mapping) or raw.get("wanted") not in WANTED:
            raise ValueError("no known wait condition")
        values: dict[str, Any] = {each.name: raw.get(each.name) for each in fields(cls)}
        if not all(isinstance(values[name], str) for name in ("stream_id", "deployment_id")):
            raise ValueError("a wait condition without stream or deployment")
        ids = [values[name] for name in ("command_id", "snapshot_id", "request_id")]
        if not all(each is None or isinstance(each, str) for each in ids):
            raise ValueError("a wait condition whose ids are no texts")
        values["max_lag"] = values["max_lag"] or 0  # one of before there was any
        if type(values["max_lag"]) is not int:
            raise ValueError("a wait condition whose bound is no number")
        return cls(**values)


def _nothing() -> None:
    """Nothing is due."""


@dataclass(frozen=True)
class WaitResult:
    """What a look saw.

    Attributes:
        outcome: ``pending``: it may still come; ``done``: it came; ``over``: it cannot come any more.
        result: of ``done``; plain JSON, the same in every process that looks.
        error: of ``over``: why.
        last_seen: where it stands, in a line for people.
        found: of ``done`` and ``over``: how the deployment stands, or how the order or the deployment ended.
        pause_seconds: how long until the next look is worth it, by the settings of the deployment; None for no matter.
        due: the write that is due by what was seen; a look does not do it.
    """

    outcome: Literal["pending", "done", "over"]
    result: dict[str, Any] | None = None
    error: StreamStateError | None = None
    last_seen: str = field(default="", compare=False)
    found: StreamStatus | Outcome | None = field(default=None, compare=False)
    pause_seconds: float | None = field(default=None, compare=False)
    due: Callable[[], None] = field(default=_nothing, compare=False, repr=False)

    @property
    def status(self) -> StreamStatus:
        """How the deployment stands; of ``healthy`` and ``caught_up``."""
        if not isinstance(self.found, StreamStatus):
            raise TypeError("this look saw no status")
        return self.found

    @property
    def end(self) -> Outcome:
        """How the order or the deployment ended."""
        if not isinstance(self.found, Outcome):
            raise TypeError("this look saw no end")
        return self.found

    def need_result(self) -> dict[str, Any]:
        """The result; raises the error where there is none."""
        if self.error is not None:
            raise self.error
        return dict(self.result or {})


PENDING = WaitResult("pending")


def end_result(outcome: Outcome) -> dict[str, Any]:
    """``{deployment_id, snapshot_id, end_offsets, watermark_at, state_rows_left}`` of an ended deployment.

    Offsets per query, one text per source; the earliest watermark of a query that has one; rows over all queries, None
    where those of a query that has committed a batch were not counted.
    """
    positions = outcome.queries
    watermarks = [position.watermark_at for position in positions.values() if position.watermark_at is not None]
    rows = [position.state_rows_left for position in positions.values() if position.batch_id is not None]
    counted = [count for count in rows if count is not None]
    return {
        "deployment_id": outcome.deployment_id,
        "snapshot_id": outcome.snapshot_id,
        "end_offsets": {name: list(position.end_offsets) for name, position in sorted(positions.items())},
        "watermark_at": format_time(min(watermarks)) if watermarks else None,
        "state_rows_left": sum(counted) if rows and counted == rows else None,
    }


def snapshot_result(manifest: SnapshotManifest) -> dict[str, Any]:
    """``{deployment_id, snapshot_id, kind, files, bytes, queries{NAME:{batch_id}}}`` of a complete snapshot."""
    return {
        "deployment_id": manifest.deployment_id,
        "snapshot_id": manifest.snapshot_id,
        "kind": manifest.snapshot_kind,
        "files": manifest.files_count,
        "bytes": manifest.size_bytes,
        "queries": {name: {"batch_id": query.position.batch_id} for name, query in sorted(manifest.queries.items())},
    }


def skip_result(outcome: Outcome) -> dict[str, Any]:
    """``{deployment_id, query, batch_id, moves}`` of a skipped batch."""
    skipped = outcome.event
    if not isinstance(skipped, Skipped):
        raise TypeError("what says that a batch was skipped is no Skipped")
    return {
        "deployment_id": outcome.deployment_id,
        "query": skipped.query_name,
        "batch_id": skipped.batch_id,
        "moves": [asdict(move) for move in skipped.moves],
    }
