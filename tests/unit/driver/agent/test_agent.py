"""The agent: what never ends the job, and what does."""

from __future__ import annotations

import errno
import io
import sys
import threading
from functools import partial
from random import Random

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.driver.agent.agent import Agent, AttemptLife
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from airflow_streamstate.protocol.events import Fenced
from airflow_streamstate.protocol.settings import AgentSettings
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script
from support.simulated_query import SimulatedPlan
from support.simulated_sources import expected_counts
from support.threaded_clock import ThreadedClock


@pytest.mark.parametrize(("deployment_id", "attempt"), [("d-0002", 1), ("d-0001", 2)])
def test_a_driver_that_was_replaced_stops_without_writing(
    stream: SimulatedStream, deployment_id: str, attempt: int
) -> None:
    """Noticed at the next sign of life: one event, no barrier, no heartbeat, no snapshot, status 4 (Law 4)."""
    plan = make_plan(500)
    stream.clock.after(5.0, lambda: stream.point_register(deployment_id, attempt))
    written: list[str] = []
    store = FaultyStore(stream.checkpoints)
    driver = SimulatedDriver(stream, checkpoints=store, control=StreamControl(store, STREAM, stream.clock))
    stream.clock.after(5.0, lambda: written.append(str(len(store.plan.writes))))
    assert driver.run(waiting_script(plan)) == 4
    assert stream.kinds()[-1] == "Fenced"
    later = [call.key for call in store.plan.writes[int(written[0]) :]]
    assert [key for key in later if "/events/" not in key] == []
    assert len(later) == 1
    assert driver.queries[0].run is not None
    assert driver.queries[0].run.has_ended()
    assert stream.events_of(Fenced)[0].current_attempt == attempt


def test_a_defect_of_ours_does_not_end_the_job(stream: SimulatedStream) -> None:
    """A step that raises is logged with its traceback, and tried again a little later (Law 7)."""
    plan = make_plan(50)
    stream.order_at(10.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        query = driver.start(plan)
        query.startable.cannot_flush_reason = None  # type: ignore[method-assign,assignment]
        run = query.run
        assert run is not None
        good = run.last_progress
        run.last_progress = None  # type: ignore[method-assign,assignment]
        driver.clock.sleep(8.0)
        run.last_progress = good  # type: ignore[method-assign]
        driver.await_all()

    assert stream.run(script) == 0
    assert any("unexpected, the job continues" in line for line in stream.said)
    assert stream.kinds()[-1] == "Stopped"


def test_a_damaged_register_does_not_end_the_job(stream: SimulatedStream) -> None:
    """An object in the store that is not what it must be is reported, not obeyed (Law 7)."""
    plan = make_plan(50)
    good = stream.checkpoints.get(layout.register_key(STREAM))
    assert good is not None
    stream.clock.after(5.0, lambda: stream.checkpoints.put(layout.register_key(STREAM), b"{"))
    stream.clock.after(45.0, lambda: stream.checkpoints.put(layout.register_key(STREAM), good.body))
    stream.order_at(60.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    assert stream.kinds()[-1] == "Stopped"


def test_both_loops_run_as_daemon_threads() -> None:
    """In a real driver the same steps run by themselves, and end with it."""
    stream = SimulatedStream()
    spec = stream.deploy(settings=AgentSettings(command_poll_seconds=0.01, heartbeat_seconds=0.01))
    attempt_life = AttemptLife(
        stream.control, stream.checkpoints, spec, 1, SYSTEM_CLOCK, lambda key: key, stream.said.append
    )
    attempt_life.claim("d-0001-a0001", "host", 7)
    agent = Agent(attempt_life, stream.clock.sleep)
    agent.start()
    names = {thread.name for thread in threading.enumerate() if thread.daemon}
    assert {"streamstate-commands", "streamstate-heartbeat"} <= names
    deadline = SYSTEM_CLOCK.monotonic_seconds() + 20
    while stream.control.heartbeat("d-0001") is None and SYSTEM_CLOCK.monotonic_seconds() < deadline:
        SYSTEM_CLOCK.sleep(0.01)
    agent.stop()
    assert stream.control.heartbeat("d-0001") is not None


class FullLog(io.StringIO):
    """What the log of a driver is on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_was_full_for_home_and_log_costs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be written, and nowhere could that be reported: with room again the heart beats."""
    monkeypatch.setattr(sys, "stderr", FullLog())
    stream, faults = SimulatedStream(), FaultPlan()
    spec = stream.deploy(settings=AgentSettings(command_poll_seconds=0.01, heartbeat_seconds=0.01))
    control = StreamControl(FaultyStore(stream.checkpoints, faults), STREAM, SYSTEM_CLOCK)
    attempt_life = AttemptLife(control, stream.checkpoints, spec, 1, SYSTEM_CLOCK, lambda key: key)
    attempt_life.claim("d-0001-a0001", "host", 7)
    faults.at.update(dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE))
    agent = Agent(attempt_life, stream.clock.sleep)
    for _ in range(3):
        agent.poll_commands_once()
        agent.beat_once()
    assert stream.control.heartbeat("d-0001") is None
    faults.at.clear()
    agent.beat_once()
    assert stream.control.heartbeat("d-0001") is not None


QUICK = AgentSettings(command_poll_seconds=0.01, heartbeat_seconds=0.05, exit_grace_seconds=5)


def run_in_threads(stream: SimulatedStream, attempt: int, plans: dict[str, SimulatedPlan], seed: int) -> None:
    """A driver with threads for its agent, queries and starts; its script polls isActive, and waits."""
    driver = SimulatedDriver(stream, "d-0001", attempt)
    driver.attempt_life.claim(f"d-0001-a{attempt}", "host", 7)
    driver.agent.start()

    def start(name: str, plan: SimulatedPlan) -> None:
        stream.clock.sleep(Random(f"{seed} {name}").random() * 0.05)
        driver.start(plan, name)

    threads = [threading.Thread(target=start, args=named) for named in plans.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    while any(query.is_active() for query in driver.queries):
        stream.clock.sleep(0.005)
    driver.await_all()
    assert driver.attempt_life.script_ended(None) == 0
    driver.vanish()


@pytest.mark.parametrize("seed", range(4))
def test_orders_at_any_moment_lose_nothing_where_everything_happens_at_once(seed: int) -> None:
    """With real threads: stops and a drain into starts and batches, and rows in are rows out (1a.11)."""
    clock = ThreadedClock()
    stream = SimulatedStream(clock=clock)
    stream.deploy(settings=QUICK)
    plans = {name: make_plan(60, batch_seconds=0.02) for name in ("a", "b")}
    chance = Random(seed)
    for attempt, kind in enumerate((StopRequest, StopRequest, DrainNotification), start=1):
        if attempt > 1:
            stream.point_register("d-0001", attempt)
        clock.after(chance.random() * 0.2, partial(stream.order, kind, attempt=attempt))
        run_in_threads(stream, attempt, plans, seed)
    clock.end()
    assert [kind for kind in stream.kinds() if kind in ("Stopped", "Drained")] == ["Stopped", "Stopped", "Drained"]
    for plan in plans.values():
        read = max((end for _, end in plan.sources[0].reads), default=0)
        assert plan.sink.counts() == expected_counts(plan.sources[0].rows[:read], 1_000)
