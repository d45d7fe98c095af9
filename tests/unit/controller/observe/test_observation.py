"""What follows from an observation alone."""

from __future__ import annotations

from airflow_streamstate.protocol.events import Stopped
from support.sim_stage import STREAM, Stage


def test_the_words_of_an_attempt_are_its_own(stage: Stage) -> None:
    """What an earlier attempt reported does not end the current one. (Law 4)"""
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
