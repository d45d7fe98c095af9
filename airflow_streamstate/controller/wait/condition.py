"""What is waited for, and the result of one look: the same for the shell, operators, sensors and the trigger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal, get_args

from airflow_streamstate.controller.observe.orders import ORDER_FOR, ORDERS, fulfils
from airflow_streamstate.controller.observe.views import CommandView, Outcome, StreamStatus
from airflow_streamstate.errors import StreamStateError
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.codec import FieldError, read_fields
from airflow_streamstate.protocol.data_events import Skipped
from airflow_streamstate.protocol.manifest import SnapshotManifest
from airflow_streamstate.protocol.views import View, selected

Wanted = Literal[
    "drained", "cancelled", "stopped", "snapshot", "healthy", "caught_up", "finished", "skipped", "rehearsed",
    "upgrade", "free", "complete", "unwell",
]  # fmt: skip
WANTED: tuple[Wanted, ...] = get_args(Wanted)
IfStopped = Literal["fail", "wait"]
IF_STOPPED: tuple[IfStopped, ...] = get_args(IfStopped)
UNANSWERED = "unanswered"
"""The key of a ``DeadlineExceededError`` that says why the home gave no answer at the deadline."""


@dataclass(frozen=True)
class WaitCondition(View):
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
            ORDERS[order.verb].wanted,
            order.stream_id,
            order.deployment_id,
            command_id=order.command_id,
            request_id=order.request_id or None,
        )

    @property
    def command_kind(self) -> str:
        """The kind of command that leads to it; "" for none."""
        return ORDER_FOR[self.wanted].kind if self.wanted in ORDER_FOR else ""

    def is_fulfilled_by(self, end: Outcome) -> bool:
        """Whether an end is what is waited for."""
        if self.wanted == "finished":
            return end.is_of_itself
        is_missing = self.wanted == "snapshot" and end.snapshot_id is None
        return not is_missing and fulfils(end.outcome, self.command_kind)

    @classmethod
    def from_json(cls, raw: Any) -> WaitCondition:
        """The condition in this object; unknown fields are ignored (Law 7). Raises ValueError for another object."""
        try:
            return read_fields(cls, raw)
        except FieldError as problem:
            raise ValueError(f"no known wait condition: {problem}") from None


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
    """The result of an ended deployment."""
    return selected(outcome, "deployment_id snapshot_id end_offsets watermark_at state_rows_left")


def snapshot_result(manifest: SnapshotManifest) -> dict[str, Any]:
    """The result of a complete snapshot."""
    return selected(manifest, "deployment_id snapshot_id kind=snapshot_kind files=files_count bytes=size_bytes") | {
        "queries": {name: {"batch_id": query.position.batch_id} for name, query in sorted(manifest.queries.items())}
    }


def skip_result(outcome: Outcome) -> dict[str, Any]:
    """The result of a skipped batch."""
    skipped = outcome.event
    if not isinstance(skipped, Skipped):
        raise TypeError("the end of a skip has no event Skipped")
    return selected(skipped, "deployment_id query=query_name batch_id moves")
