"""A query as the script sees it (1a.11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.barrier import put_fence
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.errors import FencedError
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.records import Intent
from support.simulated_driver import SimulatedDriver, SimulatedStream, assert_nothing_lost, make_plan, waiting_script


def test_wait_and_stop_behave_as_in_plain_spark(stream: SimulatedStream) -> None:
    """awaitTermination(t) is False while the query runs; stop() ends it at once, without a failure."""

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(500))
        assert not query.await_termination(2.0)
        assert 2.0 <= stream.clock.monotonic_seconds() <= 2.1
        assert query.is_active()
        assert query.failure() is None
        query.stop()
        assert not query.is_active()
        assert query.failure() is None
        assert query.await_termination(0.0)

    assert stream.run(script) == 0
    assert stream.kinds()[-1] == "Finished"


def test_the_scripts_own_stop_during_an_ending_waits_for_it(stream: SimulatedStream) -> None:
    """A stop() under a barrier cuts no batch: it returns when the shutdown is complete (1a.11)."""
    plan = make_plan(500, batch_seconds=10)
    stream.order_at(3.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        while driver.attempt_life.attempt.latch.is_open:
            driver.clock.sleep(0.1)
        query.stop()
        assert driver.attempt_life.attempt.latch.is_released

    assert stream.run(script) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert len(plan.sink.batches) == 1


def test_a_query_that_met_a_fence_is_replaced_and_not_failed(stream: SimulatedStream) -> None:
    """The fence in the log decides, not Spark's error text: the attempt ends with status 4 (Law 13)."""
    plan = make_plan(500)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        driver.clock.after(2.0, lambda: take_over(driver, query.checkpoint))
        with pytest.raises(FencedError):
            query.await_termination()
        driver.clock.sleep(10.0)

    def take_over(driver: SimulatedDriver, checkpoint: Checkpoint) -> None:
        intent = Intent("r-2", "d-0002", stream.clock.now(), "tests")
        stream.control.update_register(lambda now: replace(now, intent=intent), by="test")
        put_fence(checkpoint, driver.attempt_life.attempt.mark("fence", "r-2"))

    assert stream.run(script) == 4
    assert stream.kinds()[-1] == "Fenced"


def test_a_fence_without_a_successor_is_noted_and_removed_by_a_resume(stream: SimulatedStream) -> None:
    """A paused controller put it after the deployment had been resumed: no batch is lost (1a.7, 1a.8)."""
    plan = make_plan(80)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        mark = driver.attempt_life.attempt.mark("fence", "r-2")
        driver.clock.after(2.0, lambda: put_fence(query.checkpoint, mark))
        driver.await_all()

    assert stream.run(script) == 1
    assert stream.kinds()[-1] == "Failed"
    assert any("no deployment replaces this attempt" in note.text for note in stream.events_of(Noted))
    attempt = stream.next_attempt()
    stream.order_at(60.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert_nothing_lost(plan)


def test_a_handle_without_a_run_knows_the_id_of_its_checkpoint(stream: SimulatedStream) -> None:
    """q.id is the checkpoint's id where nothing was started."""
    plan = make_plan(20)
    stream.order_at(3.0, StopRequest)
    ids: list[str | None] = []

    def script(driver: SimulatedDriver) -> None:
        first = driver.start(plan)
        ids.append(first.query_id)
        first.await_termination()
        ids.append(driver.start(plan).query_id)
        ids.append(driver.start(plan, "new").query_id)

    assert stream.run(script) == 0
    assert ids[0] is not None
    assert ids == [ids[0], ids[0], None]
