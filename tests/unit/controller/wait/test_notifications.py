"""Commands as objects: read back after their end, deleted when no driver will obey them."""

from __future__ import annotations

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.controller.wait.waiting import retire_commands
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Ignored, Rejected
from support.sim_stage import STREAM, Stage


def test_a_notification_is_read_back_before_and_after_its_end(stage: Stage) -> None:
    """The event that takes a command up keeps its content. (1a.13)"""
    stage.deploy()
    stage.come_to_life()
    order = stage.controller.order("drain", STREAM, reason="new version")
    written = stage.controller.notifications.read(STREAM, order.command_id)
    assert written.reason == "new version"
    stage.accept(stage.drain_of())
    stage.say(Drained, command_id=order.command_id, command_number=1, snapshot_id="s", queries={})
    assert stage.controller.notifications.clean_up(STREAM) == [order.key]
    assert stage.controller.notifications.read(STREAM, order.command_id) == written
    assert stage.controller.notifications.read(STREAM, "unknown") is None


def test_what_waits_for_the_next_attempt_stays(stage: Stage) -> None:
    """A drain of a dead deployment that is current is not cleaned away. (1a.7)"""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(1)
    stage.controller.order("drain", STREAM)
    stage.end(state="gone")
    assert stage.controller.notifications.clean_up(STREAM) == []
    stage.deploy("print('v2')\n", start="fresh")
    assert stage.control.journal("d-0001").commands() == []


def test_a_drain_that_a_deploy_overtakes_is_told_its_end_before_it_is_deleted(stage: Stage) -> None:
    """No order ends without an event, but one that was started or ended with its attempt. (1a.13, Laws 1 and 2)"""
    stage.deploy()
    stage.stopped()
    held = stage.controller.order("drain", STREAM, request_id="held")
    stage.end(attempt=2, state="gone")
    stage.store.put(layout.command_key(STREAM, "d-0001", 7), b"{")
    stage.deploy("print('v2')\n", start="restore")
    (told,) = stage.seen("d-0001").of_kind(Ignored, any_attempt=True)
    assert (told.command_id, told.command_number, told.attempt) == (held.command_id, 1, 1)
    assert "another deployment took the place" in told.reason
    outcome = stage.controller.look(WaitCondition.of(held)).end
    assert (outcome.outcome, outcome.reason) == ("ignored", told.reason)
    retire_commands(stage.control, "d-0001")
    assert len(list(stage.seen("d-0001").of_kind(Ignored, any_attempt=True))) == 1


def test_a_damaged_object_goes_when_it_was_rejected(stage: Stage) -> None:
    """An object that the agent could not read is deleted once it has rejected it. (Law 7)"""
    stage.deploy()
    stage.come_to_life()
    key = layout.command_key(STREAM, "d-0001", 1)
    stage.store.put(key, b"{")
    assert stage.controller.notifications.clean_up(STREAM) == []
    stage.say(Rejected, command_id="", command_number=1, key=key, reason="not JSON")
    assert stage.controller.notifications.clean_up(STREAM) == [key]
