"""What is waited for, and the result of one look: the same for the shell, operators, sensors and the trigger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields
from typing import Any, Literal, get_args

from airflow_streamstate.controller.observe.outcomes import FULFILLED_BY, End
from airflow_streamstate.controller.observe.views import CommandView, Outcome, StreamStatus
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.frozen import dataclass
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
    "drained", "cancelled", "stopped", "snapshot", "healthy", "caught_up", "finished", "skipped", "rehearsed",
    "upgrade", "free", "complete", "unwell",
]  # fmt: skip
WANTED: tuple[Wanted, ...] = get_args(Wanted)
_KIND_OF: Mapping[Wanted, str] = {
    "drained": DrainNotification.kind,
    "cancelled": CancelRequest.kind,
    "stopped": StopRequest.kind,
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
IfStopped = Literal["fail", "wait"]
IF_STOPPED: tuple[IfStopped, ...] = get_args(IfStopped)
UNANSWERED = "unanswered"
"""The key of a ``DeadlineExceededError`` that says why the home gave no answer at the deadline."""


@dataclass(frozen=True)
class WaitCondition:
    """What is waited for. Plain JSON, so that a trigger can carry it through a database.

    Attributes:
        wanted: the deployment drained, its drain cancelled, the deployment stopped, healthy or caught up, the run come
            to its own end (``finished``), a snapshot complete, a batch skipped, a rehearsal over, an action due in an
            upgrade, the stream free of upgrades, its results complete up to a moment of event time, or the stream
            neither running nor finished.
        deployment_id: for ``rehearsed`` the rehearsal, for ``upgrade`` the upgrade, for ``free`` the upgrade that held
            the stream when the wait began.
        command_id: the order, whose own ends count too; None for an order of any client.
        snapshot_id: for ``snapshot``; None for any.
        request_id: for ``snapshot``: the request, answered by any deployment; None for no request.
        max_lag: for ``caught_up``: the lag that each source may have.
        complete_at: for ``complete``: the moment, RFC 3339.
        query_name: for ``complete``: the query whose results are meant; None for all queries.
        ended_for_seconds: for ``complete``: for how long a stream that has ended may stand still before it counts as
            ended for good.
        if_stopped: for ``finished``: what follows where somebody stopped, drained, killed or replaced the deployment:
            ``fail``, or ``wait`` for the end of what continues it.
    """

    wanted: Wanted
    stream_id: str
    deployment_id: str
    command_id: str | None = None
    snapshot_id: str | None = None
    request_id: str | None = None
    max_lag: int = 0
    complete_at: str | None = None
    query_name: str | None = None
    ended_for_seconds: float = 0.0
    if_stopped: IfStopped = "fail"

    @classmethod
    def of(cls, order: CommandView) -> WaitCondition:
        """The condition that an order is fulfilled."""
        return cls(
            _WANTED_BY[order.verb],
            order.stream_id,
            order.deployment_id,
            command_id=order.command_id,
            request_id=order.request_id or None,
        )

    @property
    def command_kind(self) -> str:
        """The kind of command that leads to it; "" for none."""
        return _KIND_OF.get(self.wanted, "")

    def is_fulfilled_by(self, end: End) -> bool:
        """Whether an end is what is waited for."""
        if self.wanted == "finished":
            return end.is_of_itself
        is_missing = self.wanted == "snapshot" and end.snapshot_id is None
        return not is_missing and end.outcome in FULFILLED_BY[self.command_kind]

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Any) -> WaitCondition:
        """The condition in this object; unknown fields are ignored (Law 7). Raises ValueError for another object."""
        if not isinstance(raw, Mapping) or raw.get("wanted") not in WANTED:
            raise ValueError("no known wait condition")
        missing = [each.name for each in fields(cls) if each.name not in raw]
        if missing:
            raise ValueError(f"a wait condition without {', '.join(missing)}")
        values: dict[str, Any] = {each.name: raw[each.name] for each in fields(cls)}
        if not all(isinstance(values[name], str) for name in ("stream_id", "deployment_id")):
            raise ValueError("a wait condition without stream or deployment")
        ids = [values[name] for name in ("command_id", "snapshot_id", "request_id", "complete_at", "query_name")]
        if not all(each is None or isinstance(each, str) for each in ids):
            raise ValueError("a wait condition with an id that is no text")
        if type(values["max_lag"]) is not int:
            raise ValueError("a wait condition with a max_lag that is no number")
        if type(values["ended_for_seconds"]) not in (int, float):
            raise ValueError("a wait condition with an ended_for_seconds that is no number")
        if values["if_stopped"] not in IF_STOPPED:
            raise ValueError("a wait condition with an if_stopped that is not known")
        return cls(**values)


@dataclass(frozen=True)
class WaitResult:
    """What a look saw.

    Attributes:
        outcome: ``pending``: it may still come; ``done``: it came; ``over``: it cannot come any more.
        result: for ``done``; plain JSON, the same in every process that looks.
        error: for ``over``: why.
        last_seen: where it stands, in a line for people.
        found: for ``done`` and ``over``: the status of the deployment, or the end of the order or the deployment.
        pause_seconds: how long to wait before the next look, by the settings of the deployment; None for no preference.
        due: the write that is due after this look; the look itself writes nothing.
    """

    outcome: Literal["pending", "done", "over"]
    result: dict[str, Any] | None = None
    error: StreamStateError | None = None
    last_seen: str = field(default="", compare=False)
    found: StreamStatus | Outcome | None = field(default=None, compare=False)
    pause_seconds: float | None = field(default=None, compare=False)
    due: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    @property
    def status(self) -> StreamStatus:
        """The status of the deployment, for ``healthy`` and ``caught_up``; raises TypeError for others."""
        if not isinstance(self.found, StreamStatus):
            raise TypeError("this look saw no status")
        return self.found

    @property
    def end(self) -> Outcome:
        """The end of the order or the deployment; raises TypeError where there is none."""
        if not isinstance(self.found, Outcome):
            raise TypeError("this look saw no end")
        return self.found

    def need_result(self) -> dict[str, Any]:
        """The result; raises the error of ``over``."""
        if self.error is not None:
            raise self.error
        return dict(self.result or {})


PENDING = WaitResult("pending")


def end_result(outcome: Outcome) -> dict[str, Any]:
    """``{deployment_id, snapshot_id, end_offsets, watermark_at, state_rows_left}`` of an ended deployment.

    Offsets by query, one text per source; the earliest watermark of all queries; the sum of their rows, None where one
    that has committed a batch was not counted.
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
        raise TypeError("the end of a skip has no event Skipped")
    return {
        "deployment_id": outcome.deployment_id,
        "query": skipped.query_name,
        "batch_id": skipped.batch_id,
        "moves": [asdict(move) for move in skipped.moves],
    }
