"""Commands as objects: read back after their end, cleaned up when nobody will obey."""

from __future__ import annotations

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Drained, Rejected
from support.sim_stage import STREAM, Stage


def test_a_notification_is_read_back_before_and_after_its_end(stage: Stage) -> None:
    """The event that takes a command up keeps its content. (1a.13)"""
    stage.deploy()
    stage.come_to_life()
    order = stage.controller.drain(STREAM, reason="new version")
    written = stage.controller.notifications.read(STREAM, order.command_id)
    assert written is not None
    assert written.reason == "new version"
    stage.accept(stage.drain_of())
    stage.say(Drained, command_id=order.command_id, command_number=1, snapshot_id="s", queries={})
    assert stage.controller.notifications.clean_up(STREAM) == [order.key]
    assert stage.controller.notifications.read(STREAM, order.command_id) == written
    assert stage.controller.notifications.read(STREAM, "unknown") is None


def test_what_waits_for_the_next_attempt_stays(stage: Stage) -> None:
    """A drain of a dead deployment that is current is not cleaned away. (1a.7)"""
    stage.deploy()
    stage.come_to_life()
    stage.controller.drain(STREAM)
    stage.end(state="gone")
    assert stage.controller.notifications.clean_up(STREAM) == []
    stage.deploy("print('v2')\n", start="fresh")
    assert stage.control.journal("d-0001").commands() == []


def test_a_damaged_object_goes_when_it_was_rejected(stage: Stage) -> None:
    """What nobody can read is cleaned up once the agent has said so. (Law 7)"""
    stage.deploy()
    stage.come_to_life()
    key = layout.command_key(STREAM, "d-0001", 1)
    stage.store.put(key, b"{")
    assert stage.controller.notifications.clean_up(STREAM) == []
    stage.say(Rejected, command_id="", command_number=1, key=key, reason="not JSON")
    assert stage.controller.notifications.clean_up(STREAM) == [key]
