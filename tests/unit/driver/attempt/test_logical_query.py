"""A query as the script sees it (1a.11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_streamstate.checkpoint.barrier import put_fence
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.errors import FencedError
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Noted
from airflow_streamstate.protocol.register import Intent
from support.simulated_driver import SimulatedDriver, SimulatedStream, assert_nothing_lost, make_plan, waiting_script
from support.simulated_query import SimulatedRun


def test_a_wait_with_a_timeout_comes_back_in_time() -> None:
    """awaitTermination(t) says False while the query runs, as without us."""
    stream = SimulatedStream()
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(500))
        assert not query.await_termination(2.0)
        assert 2.0 <= stream.clock.monotonic_seconds() <= 2.1
        assert query.is_active()
        assert query.failure() is None

    assert stream.run(script) == 0


def test_the_scripts_own_stop_behaves_as_without_us() -> None:
    """query.stop() ends the query at once, without a failure; the script goes on."""
    stream = SimulatedStream()
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(500))
        driver.clock.sleep(2.0)
        query.stop()
        assert not query.is_active()
        assert query.failure() is None
        assert query.await_termination(0.0)

    assert stream.run(script) == 0
    assert stream.kinds()[-1] == "Finished"


def test_the_scripts_own_stop_during_an_ending_waits_for_it() -> None:
    """A stop() under a barrier cuts no batch: it comes back when the ending is complete (1a.11)."""
    stream, plan = SimulatedStream(), make_plan(500, batch_seconds=10)
    stream.deploy()
    stream.order_at(3.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        while driver.supervisor.attempt.latch.is_open:
            driver.clock.sleep(0.1)
        query.stop()
        assert driver.supervisor.attempt.latch.is_released

    assert stream.run(script) == 0
    assert stream.kinds()[-1] == "Stopped"
    assert len(plan.sink.batches) == 1


def test_an_own_failure_is_told_with_its_run() -> None:
    """What failed by itself is over at once, and the handle knows whose exception to raise."""
    stream = SimulatedStream()
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(make_plan(fails_at={1}))
        assert query.await_termination()
        assert query.failure_to_raise() == "batch 1 failed: division by zero"
        assert query.failed_run is query.run
        assert isinstance(query.run, SimulatedRun)

    assert stream.run(script) == 0


def test_a_query_that_met_a_fence_is_replaced_and_not_failed() -> None:
    """A successor's fence in the log says more than Spark's words: the attempt ends with status 4 (Law 13)."""
    stream, plan = SimulatedStream(), make_plan(500)
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        driver.clock.after(2.0, lambda: take_over(driver, query.checkpoint))
        with pytest.raises(FencedError):
            query.await_termination()
        driver.clock.sleep(10.0)

    def take_over(driver: SimulatedDriver, checkpoint: Checkpoint) -> None:
        intent = Intent("r-2", "d-0002", stream.clock.now(), "somebody")
        stream.control.update_register(lambda now: replace(now, intent=intent), by="test")
        put_fence(checkpoint, driver.supervisor.attempt.mark("fence", "r-2"))

    assert stream.run(script) == 4
    assert stream.kinds()[-1] == "Fenced"


def test_a_fence_that_nobody_stands_behind_is_told_and_a_resume_goes_on() -> None:
    """A deployer that was paused put it when the deployment had been resumed: no batch is lost by it (1a.7, 1a.8)."""
    stream, plan = SimulatedStream(), make_plan(80)
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        mark = driver.supervisor.attempt.mark("fence", "r-2")
        driver.clock.after(2.0, lambda: put_fence(query.checkpoint, mark))
        driver.await_all()

    assert stream.run(script) == 1
    assert stream.kinds()[-1] == "Failed"
    assert any("nobody replaces this attempt" in note.text for note in stream.events_of(Noted))
    attempt = stream.next_attempt()
    stream.order_at(60.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert_nothing_lost(plan)


def test_a_handle_without_a_run_knows_the_id_of_its_checkpoint() -> None:
    """q.id works also where nothing was started: it is the checkpoint's."""
    stream, plan = SimulatedStream(), make_plan(20)
    stream.deploy()
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
