"""What follows from an observation alone."""

from __future__ import annotations

from airflow_streamstate.controller.observe.observation import pending_drain
from airflow_streamstate.protocol.events import Drained, DrainFailed, Stopped
from support.sim_stage import STREAM, Stage


def drain_that_holds(stage: Stage) -> object:
    """The drain that holds now."""
    return pending_drain(stage.seen(), stage.control.journal("d-0001").commands())


def test_a_drain_holds_until_it_has_its_end(stage: Stage) -> None:
    """An ordered drain holds for the deployment until an event answers it. (1a.7)"""
    stage.deploy()
    stage.come_to_life()
    assert drain_that_holds(stage) is None
    order = stage.controller.drain(STREAM)
    assert drain_that_holds(stage) == stage.drain_of()
    stage.say(Drained, command_id="other", command_number=1, snapshot_id="s", queries={}, also_answers=())
    assert drain_that_holds(stage) is not None
    stage.say(DrainFailed, command_id=order.command_id, command_number=1, query_name="q", error="", withdrawn=True)
    assert drain_that_holds(stage) is None


def test_a_drain_past_its_deadline_holds_only_if_it_was_begun(stage: Stage) -> None:
    """What was begun is ended, also after the deadline, and also where its object was deleted. (1a.13)"""
    stage.deploy()
    stage.come_to_life()
    stage.controller.drain(STREAM, expires_in_seconds=5)
    command = stage.drain_of()
    stage.clock.advance(10)
    assert drain_that_holds(stage) is None
    stage.accept(command)
    assert drain_that_holds(stage) == command
    journal = stage.control.journal("d-0001")
    journal.delete_command(journal.commands()[0])
    assert drain_that_holds(stage) == command


def test_the_words_of_an_attempt_are_its_own(stage: Stage) -> None:
    """What an earlier attempt said does not end the current one. (Law 4)"""
    stage.deploy()
    stage.stopped()
    stage.controller.resume(STREAM)
    seen = stage.seen()
    assert seen.terminal is None
    assert isinstance(next(seen.of_kind(Stopped, any_attempt=True)), Stopped)
    assert not seen.has_started


def test_the_last_sign_of_life_is_the_newest_of_all(stage: Stage) -> None:
    """Events, claim and heartbeat of the attempt are signs of life; without any, the register's move. (1a.8)"""
    stage.deploy()
    assert stage.seen().silent_since_at == stage.control.need_register().value.updated_at
    stage.clock.advance(10)
    stage.come_to_life()
    assert stage.seen().silent_since_at == stage.clock.now()
    stage.clock.advance(10)
    stage.beat()
    assert stage.seen().silent_since_at == stage.clock.now()


def test_unlaunched_is_what_may_still_be_launched(stage: Stage) -> None:
    """An attempt without launch or claim may be launched; a launch that is pending, too. (Law 2)"""
    stage.deploy()
    assert not stage.seen().is_unlaunched
    stage.end(state="pending")
    assert stage.seen().is_unlaunched
    stage.controller.kill(STREAM)
    assert not stage.seen().is_unlaunched
