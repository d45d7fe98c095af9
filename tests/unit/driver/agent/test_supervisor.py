"""The whole of the deciding half: lives of a stream, killed and disturbed at every call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_streamstate.checkpoint.barrier import put_fence
from airflow_streamstate.checkpoint.entries import BarrierMark
from airflow_streamstate.checkpoint.log import Checkpoint
from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.event import Event
from airflow_streamstate.protocol.events import Drained, Started, Stopped
from airflow_streamstate.protocol.records import StartPlan
from support.faulty_store import KILL_POINTS, Fault, FaultPlan, FaultyStore
from support.simulated_driver import (
    STREAM,
    SimulatedDriver,
    SimulatedStream,
    assert_nothing_lost,
    make_plan,
    waiting_script,
)
from support.simulated_query import Phase, SimulatedPlan, SimulatedRun

SAMPLES, STRIDE = 3, 151
"""Every call is struck by the sweep in tests/sim; here a sample, so that a defect shows at once."""
MAX_ATTEMPTS = 8


def drive(
    stream: SimulatedStream,
    plan: SimulatedPlan,
    faults: FaultPlan,
    deployment_id: str,
    until: type[Event],
    before_each: Callable[[int], None],
) -> None:
    """Attempt after attempt, as a person would resume them, until this event is there."""
    first = stream.control.need_register().value.attempt
    for number in range(first, first + MAX_ATTEMPTS):
        if number > first:
            stream.point_register(deployment_id, number)
        store = FaultyStore(stream.checkpoints, faults if not faults.dead else FaultPlan())
        control = StreamControl(store, STREAM, stream.clock)
        before_each(number)
        SimulatedDriver(stream, deployment_id, number, checkpoints=store, control=control).run(waiting_script(plan))
        if any(event.attempt >= first for event in stream.events_of(until, deployment_id)):
            return
    raise AssertionError(f"no {until.kind} after {MAX_ATTEMPTS} attempts")


def live_a_whole_life(faults: FaultPlan) -> None:
    """Deployed, snapshotted, stopped, resumed, drained, seeded by a successor, drained again."""
    stream, plan = SimulatedStream(), make_plan()
    stream.deploy()

    def snapshot_and_stop(attempt: int) -> None:
        stream.order_at(1.2, SnapshotRequest, attempt=attempt)
        stream.order_at(2.6, StopRequest, attempt=attempt)

    drive(stream, plan, faults, "d-0001", Stopped, snapshot_and_stop)
    stream.next_attempt()
    ordered: list[int] = []

    def drain(attempt: int) -> None:
        if not ordered:
            ordered.append(attempt)
            stream.order_at(2.2, DrainNotification)

    drive(stream, plan, faults, "d-0001", Drained, drain)
    drained = stream.events_of(Drained)[0]
    assert drained.queries["counts"].state_rows_left == 0
    stream.deploy(2, StartPlan("seed", drained.snapshot_id, "d-0001"))
    plan.sources[0].add(*range(20_000, 24_000, 250))
    stream.order_at(40.0, DrainNotification, "d-0002")
    drive(stream, plan, faults, "d-0002", Drained, ordered.append)
    assert_nothing_lost(plan)
    ids = [batch_id for batch_id, _ in plan.sink.batches]
    assert ids == list(range(len(ids)))
    for deployment_id in ("d-0001", "d-0002"):
        accepted = [event for event in stream.events(deployment_id) if event.kind == "Accepted"]
        assert len(accepted) == len({event.command_id for event in accepted})  # type: ignore[attr-defined]


@pytest.mark.parametrize("begin", range(SAMPLES))
def test_a_driver_may_die_at_any_call_or_lose_any_reply(begin: int) -> None:
    """The next attempt continues; no row is lost or doubled (Laws 1, 2, 8, 9, 12)."""
    faultless = FaultPlan()
    live_a_whole_life(faultless)
    chosen = range(1 + begin * (STRIDE // SAMPLES), len(faultless.calls) + 1, STRIDE)
    for number in chosen:
        for fault in KILL_POINTS:
            live_a_whole_life(FaultPlan({number: fault}))


@pytest.mark.parametrize("number", range(5, 200, 39))
def test_a_store_that_fails_for_a_while_changes_nothing(number: int) -> None:
    """Twenty calls in a row without an answer, anywhere: the life goes on as if nothing had been."""
    live_a_whole_life(FaultPlan(dict.fromkeys(range(number, number + 20), Fault.UNAVAILABLE)))


PHASES: tuple[Phase, ...] = ("initialise", "construct", "look", "rename", "run", "state", "sink", "commit")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("batch", [0, 2])
def test_a_driver_may_die_at_any_step_of_a_batch(stream: SimulatedStream, phase: Phase, batch: int) -> None:
    """Between plan, run, state, sink and commit: the planned batch is run again over the same bounds (1a.6)."""
    plan = make_plan()
    driver = SimulatedDriver(stream)

    def die(run: SimulatedRun, now: Phase) -> None:
        if now == phase and len(run.committed) == (0 if phase == "initialise" else batch):
            driver.kill()

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.startables[0].before_phase = die
        driver.await_all()

    assert driver.run(script) is None
    attempt = stream.next_attempt()
    stream.order_at(30.0, DrainNotification)
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert_nothing_lost(plan)


def test_the_session_is_told_once(stream: SimulatedStream) -> None:
    """A script that makes several sessions has one Started."""

    def script(driver: SimulatedDriver) -> None:
        driver.supervisor.session_started("4.2.0", "local-2")

    assert stream.run(script) == 0
    assert [event.application_id for event in stream.events_of(Started)] == ["local-1"]


@pytest.mark.parametrize("order", [None, StopRequest, DrainNotification])
def test_a_driver_that_was_paused_anywhere_and_replaced_harms_nothing(order: type[Command] | None) -> None:
    """It wakes up when its successor is current: no batch, no snapshot and no terminal event of it follow (Law 4)."""
    faultless = FaultPlan()
    live_and_be_replaced(faultless, order)
    for number in range(3, len(faultless.calls) + 1, 3):
        faults = FaultPlan()
        stream, plan, woke_at = live_and_be_replaced(faults, order, replaced_at=number)
        if not woke_at or (faults.calls[number - 1].method == "create" and "/events/" in faults.calls[number - 1].key):
            continue  # paused between the look at the register and that very event, which lies under its own keys
        later = stream.kinds()[woke_at[0] :]
        assert set(later) & {"Stopped", "Drained", "Finished", "Failed"} == set(), (number, later)
        if woke_at[1] == 0 and "QueryStarted" in stream.kinds()[: woke_at[0]]:
            continue  # a fence that meets a query while it starts up is not seen (1a.2): the next sign of life ends it
        assert plan.sources[0].reads[woke_at[1] + 1 :] == []  # but for the batch in flight


def live_and_be_replaced(
    faults: FaultPlan, order: type[Command] | None, replaced_at: int | None = None
) -> tuple[SimulatedStream, SimulatedPlan, list[int]]:
    """One driver that is replaced just before its call of that number; what was there when it woke up."""
    stream, plan = SimulatedStream(), make_plan(30)
    stream.deploy()
    woke_at: list[int] = []

    def replace() -> None:
        checkpoint = Checkpoint(stream.checkpoints, layout.checkpoint_folder(STREAM, "d-0001", "counts"))
        if checkpoint.exists():
            put_fence(checkpoint, BarrierMark("fence", STREAM, "d-0001", 1, "", "w-1"))  # as every takeover does
        stream.point_register("d-0002", 1, fencing_token=2)
        woke_at.extend((len(stream.kinds()), len(plan.sources[0].reads)))

    if replaced_at is not None:
        faults.meanwhile = {replaced_at: replace}
    store = FaultyStore(stream.checkpoints, faults)
    if order is not None:
        stream.order_at(2.0, order)
    else:
        plan.trigger = "available_now"
    SimulatedDriver(stream, checkpoints=store, control=StreamControl(store, STREAM, stream.clock)).run(
        waiting_script(plan)
    )
    return stream, plan, woke_at
