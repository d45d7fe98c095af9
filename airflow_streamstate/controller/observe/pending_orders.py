"""The orders to a deployment: what each kind is, and what those that have not ended wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Literal

from airflow_streamstate.control.command_status import cancelled_drains, is_late
from airflow_streamstate.control.journal import CommandSlot
from airflow_streamstate.controller.observe.observation import ALIVE, Observation, State
from airflow_streamstate.frozen import dataclass
from airflow_streamstate.protocol.commands import (
    CancelRequest,
    Command,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)
from airflow_streamstate.protocol.forms import View

# The orders that a deployment can get: the one table of them, from the verb to the ends that fulfil it.

OrderVerb = Literal["stop", "drain", "cancel", "snapshot"]
"""The orders to a driver."""
Verb = Literal[OrderVerb, "skip"]
"""All orders: a skip is for the next attempt."""
Ordered = Literal["stopped", "drained", "cancelled", "snapshot", "skipped"]
OutcomeKind = Literal[
    "drained", "stopped", "finished", "failed", "fenced", "expired", "rejected", "ignored", "drain_failed",
    "cancelled", "snapshot_ready", "lost", "killed", "skipped",
]  # fmt: skip


@dataclass(frozen=True)
class OrderKind:
    """One kind of order.

    Attributes:
        kind: of its command on the wire.
        wanted: the condition that waits for it.
        fulfilled_by: the ends that fulfil it.
    """

    verb: Verb
    kind: str
    wanted: Ordered
    fulfilled_by: frozenset[OutcomeKind]


ORDERS: Mapping[Verb, OrderKind] = {
    one.verb: one
    for one in (
        OrderKind("stop", StopRequest.kind, "stopped", frozenset({"stopped", "finished", "drained"})),
        OrderKind("drain", DrainNotification.kind, "drained", frozenset({"drained"})),
        OrderKind("cancel", CancelRequest.kind, "cancelled", frozenset({"cancelled"})),
        # A snapshot at the end of the deployment is as good, and newer.
        OrderKind(
            "snapshot",
            SnapshotRequest.kind,
            "snapshot",
            frozenset({"snapshot_ready", "stopped", "finished", "drained"}),
        ),
        OrderKind("skip", SkipRequest.kind, "skipped", frozenset({"skipped"})),
    )
}
ORDER_OF: Mapping[str, OrderKind] = {one.kind: one for one in ORDERS.values()}
"""The orders by the kinds of their commands."""
ORDER_FOR: Mapping[str, OrderKind] = {one.wanted: one for one in ORDERS.values()}
"""The orders by the conditions that wait for them."""
ANY_GOOD_END: frozenset[OutcomeKind] = frozenset({"drained", "stopped", "finished", "snapshot_ready", "skipped"})
"""The ends that fulfil an order whose kind is unknown."""


def fulfils(outcome: OutcomeKind, kind: str) -> bool:
    """Whether this end fulfils an order of this kind; of an unknown one (""), any good end."""
    return outcome in (ORDER_OF[kind].fulfilled_by if kind in ORDER_OF else ANY_GOOD_END)


SILENT = "the driver is silent: it obeys when it wakes"
OrderPhase = Literal["ordered", "accepted"]


@dataclass(frozen=True)
class PendingOrder(View):
    """An order without its end.

    Attributes:
        number: of its object; 0 where it has none.
        phase: ``ordered``: recorded; ``accepted``: a driver has started to obey it.
        why: what it waits for, in one lower-case sentence.
    """

    verb: str
    command_id: str
    number: int
    requested_at: datetime
    requested_by: str
    reason: str
    expires_at: datetime | None
    phase: OrderPhase
    why: str


def pending_orders(seen: Observation, slots: Iterable[CommandSlot], state: State) -> tuple[PendingOrder, ...]:
    """The orders to this deployment that have not ended, by number; ``slots``: its recorded commands."""
    statuses = seen.commands_with(slots)
    taken_back = {
        drain.command_id
        for drain, _ in cancelled_drains(
            statuses, stream_id=seen.stream_id, deployment_id=seen.deployment_id, now=seen.observed_at
        )
    }
    found = []
    for command_id, status in statuses.items():
        command, is_begun = status.command, status.is_begun
        if command is None or status.is_ended or (is_begun and _ends_with(command, seen)):
            continue
        why = _why(command, seen, state, is_begun=is_begun)
        order = PendingOrder(
            verb=ORDER_OF[command.kind].verb,
            command_id=command_id,
            number=status.number,
            requested_at=command.requested_at,
            requested_by=command.requested_by,
            reason=command.reason,
            expires_at=command.deadline_at,
            phase="accepted" if is_begun else "ordered",
            why=f"it is withdrawn, and {why}" if command_id in taken_back else why,
        )
        found.append(order)
    return tuple(sorted(found, key=lambda order: order.number))


def _ends_with(command: Command, seen: Observation) -> bool:
    """Whether an order that was started has ended because its attempt, or its deployment, has."""
    if not seen.is_current or seen.drained is not None:
        return True
    if not isinstance(command, StopRequest | SnapshotRequest):
        return False
    return command.attempt < _oldest_obeyed(command, seen) or seen.terminal is not None


def _why(command: Command, seen: Observation, state: State, *, is_begun: bool) -> str:
    owner = (command.stream_id, command.deployment_id)
    if owner != (seen.stream_id, seen.deployment_id):
        return f"it is meant for deployment {command.deployment_id} of stream {command.stream_id}: no driver obeys it"
    if not seen.is_current or state == "drained":
        return "no driver will obey it: this deployment has ended"
    if is_begun and state in ALIVE:
        return "it is being obeyed"
    if not is_begun and is_late(command, seen.observed_at):
        return "it has expired: it is not started any more"
    if isinstance(command, StopRequest | SnapshotRequest):
        return _why_of_an_attempt(command, seen, state)
    if state == "silent":
        return SILENT
    if state not in ALIVE:
        return "it holds for the next attempt of this deployment"
    if isinstance(command, DrainNotification) and command.rehearse and seen.has_started:
        return "it is not started: its flush is tried first, on a fork of the state"
    return "the driver has not taken it up yet"


def _why_of_an_attempt(command: StopRequest | SnapshotRequest, seen: Observation, state: State) -> str:
    if command.attempt < _oldest_obeyed(command, seen):
        return f"it is meant for attempt {command.attempt}: no driver obeys it"
    if state == "silent":
        return SILENT
    if state not in ALIVE:
        return "the driver that it is meant for has ended: no driver obeys it"
    return "the driver has not taken it up yet"


def _oldest_obeyed(command: StopRequest | SnapshotRequest, seen: Observation) -> int:
    """The oldest attempt for which such an order was meant that the current one obeys."""
    return seen.register.oldest_stopped_attempt if isinstance(command, StopRequest) else seen.attempt
