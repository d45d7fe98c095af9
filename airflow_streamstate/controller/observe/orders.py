"""The orders that a deployment can get: the one table of them, from the verb to the ends that fulfil it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_streamstate.protocol.commands import (
    CancelRequest,
    DrainNotification,
    SkipRequest,
    SnapshotRequest,
    StopRequest,
)

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
