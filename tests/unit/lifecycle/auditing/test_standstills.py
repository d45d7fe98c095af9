"""The periods in which nothing ran."""

from __future__ import annotations

from datetime import timedelta

from airflow_streamstate.lifecycle.auditing.custody import custody_of
from airflow_streamstate.lifecycle.auditing.standstills import standstills
from airflow_streamstate.protocol.events import Ignored
from support.sim_stage import STREAM, Stage


def test_a_kill_is_a_standstill_of_at_most_so_long(stage: Stage) -> None:
    """Nobody knows when a driver without a last word ended: not before its last sign of life."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.clock.sleep(86_400)
    stage.beat()
    stage.end(state="gone")
    stage.clock.sleep(5)
    stage.controller.resume(STREAM)
    stage.come_to_life(attempt=2, queries=("counts",))
    said = [entry.event for entry in stage.control.journal("d-0001").events() if entry.event is not None]
    beat = stage.control.heartbeat("d-0001")
    assert beat is not None
    (still,) = standstills(said, {"d-0001": beat})
    assert custody_of(stage.home, STREAM).standstills == (still,)
    assert still.at_most
    assert still.until_at is not None
    assert still.until_at - still.from_at < timedelta(seconds=60)


def test_an_order_that_was_overtaken_is_no_sign_of_life(stage: Stage) -> None:
    """A deploy tells its end in the name of the driver that never began it, long after that was killed."""
    stage.deploy()
    stage.come_to_life(queries=("counts",))
    stage.run_batches(3)
    stage.controller.drain(STREAM)
    stage.beat()
    last_at = stage.clock.now()
    stage.end(state="gone")
    stage.clock.sleep(3_600)
    stage.deploy("print('v2')\n", start="restore")
    assert any(isinstance(entry.event, Ignored) for entry in stage.control.journal("d-0001").events())
    assert any(isinstance(entry.event, Ignored) for entry in stage.control.journal("d-0001").events())
    stage.come_to_life("d-0002", queries=("counts",))
    (still,) = custody_of(stage.home, STREAM).standstills
    assert (still.from_at, still.at_most) == (last_at, True)
