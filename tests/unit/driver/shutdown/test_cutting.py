"""Batches that are cut."""

from __future__ import annotations

from collections.abc import Callable

from airflow_streamstate.driver.shutdown.cutting import cut_runs
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan


def never(work: Callable[[], None], *, gives_way: bool = True) -> None:
    """As where ``stop()`` does not come back."""
    del work, gives_way


def test_a_batch_is_cut_and_run_again_by_the_next_start() -> None:
    """The log still plans it (1a.6)."""
    stream, plan = SimulatedStream(), make_plan(batch_seconds=5.0)
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        driver.clock.sleep(7.0)
        assert cut_runs(driver.supervisor.attempt, [query]) == []
        assert query.has_stopped_running()
        assert query.checkpoint.position().planned_id == 1

    assert stream.run(script) == 0


def test_nobody_waits_for_ever_for_a_batch_that_cannot_be_cut() -> None:
    """User code that ignores its interruption: the query is named after ``exit_grace_seconds`` (Law 6)."""
    stream, plan = SimulatedStream(), make_plan(batch_seconds=600.0)
    stream.deploy()

    def script(driver: SimulatedDriver) -> None:
        startable = driver.startable_of(plan)
        query = driver.start_with(startable)
        driver.clock.sleep(1.0)
        driver.supervisor.attempt.in_background = never
        began = driver.clock.monotonic_seconds()
        assert cut_runs(driver.supervisor.attempt, [query]) == ["counts"]
        assert driver.clock.monotonic_seconds() - began >= driver.supervisor.attempt.spec.settings.exit_grace_seconds
        startable.runs[0].stop()

    assert stream.run(script) == 0
