"""What an attempt finds to be done at its claim (1a.7, 1a.11)."""

from __future__ import annotations

from dataclasses import replace

from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Drained, Finished, Rejected, Stopped
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_command, make_plan, waiting_script
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun


def stopped(stream: SimulatedStream, plan: SimulatedPlan) -> None:
    stream.order_at(2.1, StopRequest)
    assert stream.run(waiting_script(plan)) == 0


def test_a_drain_that_was_begun_is_ended_although_its_deadline_has_passed(stream: SimulatedStream) -> None:
    """The deadline is for the start: what has started is finished."""
    plan = make_plan(40)
    command = replace(make_command(DrainNotification, stream.clock, "d-0001", within_seconds=12.0))
    stream.clock.after(10.0, lambda: stream.control.journal("d-0001").write_command(command, NEWEST_PROTOCOL))

    def kill_the_flush(run: SimulatedRun, phase: Phase) -> None:
        if run is not driver.startables[0].runs[0]:
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = kill_the_flush
        driver.await_all()

    driver = SimulatedDriver(stream)
    assert driver.run(script) is None
    stream.clock.advance(60.0)
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert stream.kinds()[-1] == "Drained"
    assert "Expired" not in stream.kinds()


def test_a_drain_whose_object_was_deleted_is_ended_by_what_the_event_kept(stream: SimulatedStream) -> None:
    """Accepted keeps the command, and the drain ends."""
    plan = make_plan(500, batch_seconds=5)
    stream.order_at(2.0, DrainNotification)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.clock.after(3.0, driver.kill)
        driver.await_all()

    assert stream.run(script) is None
    for key in stream.commands():
        stream.checkpoints.delete(key)
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    drained = stream.events_of(Drained)[0]
    assert (drained.attempt, drained.command_number) == (2, 1)


def test_an_attempt_that_was_to_drain_and_finds_no_notification_starts_nothing(
    stream: SimulatedStream, plan: SimulatedPlan
) -> None:
    """An attempt for a flush alone never reads input (Law 5)."""
    stopped(stream, plan)
    reads = list(plan.sources[0].reads)
    attempt = stream.next_attempt(attempt_mode="drain")
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert plan.sources[0].reads == reads
    (stopped_again,) = (event for event in stream.events_of(Stopped) if event.attempt == attempt)
    assert stopped_again.queries["counts"].batch_id is not None
    assert stream.events_of(Finished) == []


def test_an_attempt_of_a_drained_deployment_starts_nothing(stream: SimulatedStream) -> None:
    """A drained checkpoint is never resumed: its handles have ended, and Drained stays the last event (Law 11)."""
    plan = make_plan(40)
    stream.order_at(10.0, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    reads = list(plan.sources[0].reads)
    plan.sources[0].add(50_000)
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert plan.sources[0].reads == reads
    assert stream.kinds()[-3:] == ["Drained", "Claimed", "Started"]


def test_a_pending_drain_that_cannot_work_is_rejected_and_the_job_runs(stream: SimulatedStream) -> None:
    """Known only when the query comes: then the notification has its end, and the queries read their input."""
    plan = make_plan(cannot_flush="the memory sink cannot recover")
    stream.order(DrainNotification)
    stream.order_at(10.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert len(stream.events_of(Rejected)) == 1
    assert stream.kinds()[-1] == "Stopped"
    assert plan.sources[0].reads
    assert stream.commands() == []


def test_an_expired_notification_does_not_keep_the_job_from_running() -> None:
    """Past its deadline when it is read: the queries run as if it had not been there."""
    stream, plan = SimulatedStream(), make_plan()
    stream.deploy()
    stream.order(DrainNotification, within_seconds=1.0)
    stream.clock.advance(5.0)
    stream.order_at(10.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert "Expired" in stream.kinds()
    assert plan.sources[0].reads


def test_a_notification_of_another_deployment_does_not_close_the_latch() -> None:
    """Only the deployment that an order names obeys it."""
    stream, plan = SimulatedStream(), make_plan()
    stream.deploy()
    foreign = replace(make_command(DrainNotification, stream.clock, "d-0001"), deployment_id="d-0007")
    stream.control.journal("d-0001").write_command(foreign, NEWEST_PROTOCOL)
    stream.order_at(5.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert plan.sources[0].reads
