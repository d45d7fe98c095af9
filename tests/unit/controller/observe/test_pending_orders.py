"""Orders that have not had their end: seen from the moment in which they are recorded."""

from __future__ import annotations

from airflow_streamstate.controller.observe.pending_orders import PendingOrder
from airflow_streamstate.protocol.events import DrainFailed, Expired, Failed
from support.sim_stage import STREAM, Stage


def orders(stage: Stage) -> tuple[PendingOrder, ...]:
    """As `status` shows them."""
    return stage.controller.status(STREAM).orders


def told(stage: Stage, deployment_id: str | None = None) -> list[tuple[str, str, str]]:
    found = stage.controller.status(STREAM, deployment_id).orders
    return [(order.verb, order.phase, order.why) for order in found]


def test_a_drain_is_seen_while_it_is_tried_and_while_it_waits_for_the_next_attempt(stage: Stage) -> None:
    """From the order to its end, also behind a stop that overtook it. (1a.11)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    assert orders(stage) == ()
    view = stage.controller.order("drain", STREAM, reason="new key", expires_in_seconds=600)
    (order,) = orders(stage)
    assert (order.verb, order.command_id, order.number, order.phase) == ("drain", view.command_id, 1, "ordered")
    assert (order.requested_by, order.reason, order.requested_at) == ("tests", "new key", stage.clock.now())
    assert order.why == "it is not started: its flush is tried first, on a fork of the state"
    stage.controller.order("stop", STREAM)
    assert told(stage)[1:] == [("stop", "ordered", "the driver has not taken it up yet")]
    stage.say(Failed, error="boom")
    held = "it holds for the next attempt of this deployment"
    assert told(stage)[0] == ("drain", "ordered", held)
    assert told(stage)[1][2] == "the driver that it is meant for has ended: no driver obeys it"
    stage.end()
    notes = stage.controller.resume(STREAM).notes
    assert len(notes) == 1
    assert "a drain that tests ordered at" in notes[0]
    why = {"query_name": "", "error": "", "withdrawn": True}
    stage.say(DrainFailed, attempt=2, command_id=view.command_id, command_number=1, **why)
    assert [order.verb for order in orders(stage)] == ["stop"]
    assert told(stage)[0][2] == "it is meant for attempt 1: no driver obeys it"


def test_a_drain_that_is_taken_back_says_so(stage: Stage) -> None:
    """Both orders wait for a driver."""
    stage.deploy()
    stage.come_to_life()
    stage.controller.order("drain", STREAM)
    stage.controller.order("cancel", STREAM)
    assert [(verb, why.startswith("it is withdrawn, and ")) for verb, _, why in told(stage)] == [
        ("drain", True),
        ("cancel", False),
    ]


def test_what_is_obeyed_says_so_also_where_its_object_is_gone(stage: Stage) -> None:
    """Its event keeps it; after an end without a last event a drain holds, and a stop has ended."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    stage.controller.order("drain", STREAM)
    command = stage.drain_of()
    stage.accept(command)
    journal = stage.control.journal("d-0001")
    journal.delete_command(journal.commands()[0])
    assert told(stage) == [("drain", "accepted", "it is being obeyed")]
    stage.end(state="gone")
    assert told(stage) == [("drain", "accepted", "it holds for the next attempt of this deployment")]
    stage.deploy("print('v2')\n", start="restore")
    assert told(stage, "d-0001") == []


def test_a_stop_that_was_begun_is_over_with_its_attempt(stage: Stage) -> None:
    """A later resume is the newer request."""
    stage.deploy()
    stage.come_to_life()
    stage.controller.order("stop", STREAM)
    (slot,) = stage.control.journal("d-0001").commands()
    stage.accept(slot.command)
    assert told(stage) == [("stop", "accepted", "it is being obeyed")]
    stage.say(Failed, error="boom")
    assert told(stage) == []


def test_an_order_that_has_expired_is_not_begun_any_more(stage: Stage) -> None:
    """Until the agent reports that it has expired, which is its end. (1a.13)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    view = stage.controller.order("snapshot", STREAM, expires_in_seconds=5)
    stage.clock.advance(10)
    assert told(stage) == [("snapshot", "ordered", "it has expired: it is not started any more")]
    stage.say(Expired, command_id=view.command_id, command_number=1, command={"kind": "SnapshotRequest"})
    assert told(stage) == []


def test_the_fields_of_an_order(stage: Stage) -> None:
    """What `status --json` has of each (docs/reference/verbs.md)."""
    stage.deploy()
    stage.come_to_life()
    stage.controller.order("stop", STREAM)
    (order,) = orders(stage)
    plain = order.to_json()
    assert set(plain) == {
        "verb", "command_id", "number", "requested_at", "requested_by", "reason", "expires_at", "phase", "why",
    }  # fmt: skip
    assert (plain["expires_at"], str(plain["requested_at"])[-1]) == (None, "Z")
