"""Snapshots that the agent takes by itself."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_streamstate.control.stream import StreamControl
from airflow_streamstate.protocol.commands import DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Draining, Noted, SnapshotReady, Stopped
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.snapshot.verify import verify
from support.faulty_store import Fault, FaultPlan, FaultyStore
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_plan, waiting_script

EVERY = AgentSettings(snapshot_every_seconds=10)


@pytest.fixture
def stream() -> SimulatedStream:
    """A stream whose deployment takes a snapshot every ten seconds."""
    stream = SimulatedStream()
    stream.deploy(settings=EVERY)
    return stream


def lived(
    seconds: float, rows: int = 5_000, settings: AgentSettings = EVERY, stream: SimulatedStream | None = None
) -> SimulatedStream:
    """A stream that ran for the given time, and was stopped."""
    if stream is None:
        stream = SimulatedStream()
        stream.deploy(settings=settings)
    stream.order_at(seconds, StopRequest)
    assert stream.run(waiting_script(make_plan(rows))) == 0
    return stream


def seconds_of(stream: SimulatedStream, deployment_id: str = "d-0001", attempt: int = 1) -> list[float]:
    """When its snapshots were ready, since the first event of the attempt."""
    began = next(event.at for event in stream.events(deployment_id) if event.attempt == attempt)
    return [
        (event.at - began).total_seconds()
        for event in stream.events_of(SnapshotReady, deployment_id)
        if event.attempt == attempt
    ]


def test_they_are_taken_every_so_often_at_committed_batches() -> None:
    """Without a command; each has its own id, is complete, and sealed."""
    stream = lived(45)
    ready = stream.events_of(SnapshotReady)
    assert [event.snapshot_id for event in ready] == [f"d-0001-live-a0001-{number:06d}" for number in (1, 2, 3, 4)]
    assert {(event.command_id, event.command_number, event.request_id) for event in ready} == {("", 0, "")}
    for event in ready:
        assert verify(stream.control, stream.checkpoints, event.snapshot_id) == []
        assert stream.control.seal(event.snapshot_id) is not None
        manifest = stream.control.need_manifest(event.snapshot_id)
        assert (manifest.snapshot_kind, manifest.taken_by, manifest.command_id) == ("live", "agent", "")
    assert all(10 <= later - earlier < 11 for earlier, later in pairwise([0.0, *seconds_of(stream)]))
    batches = [event.queries["counts"].batch_id for event in ready]
    assert batches == sorted(set(batches))


@pytest.mark.parametrize(("rows", "settings", "count"), [(5_000, AgentSettings(), 0), (20, EVERY, 1), (0, EVERY, 0)])
def test_none_is_taken_by_default_or_without_a_new_batch(rows: int, settings: AgentSettings, count: int) -> None:
    """Not a second one of a position, nor one before the first batch; and no event reports it."""
    stream = lived(100, rows, settings)
    assert len(stream.events_of(SnapshotReady)) == count
    assert stream.events_of(Noted) == []


def test_a_snapshot_that_somebody_asked_for_counts(stream: SimulatedStream) -> None:
    """The next one is due an interval after the newest of either kind."""
    stream.order_at(15.0, SnapshotRequest)
    lived(32, stream=stream)
    own, asked, then = stream.events_of(SnapshotReady)
    assert [bool(event.command_id) for event in (own, asked, then)] == [False, True, False]
    assert 10 <= (then.at - asked.at).total_seconds() < 11


def test_the_next_attempt_and_the_next_deployment_go_on_by_what_was_kept_before(stream: SimulatedStream) -> None:
    """What the snapshot at the end, or at the start, holds is not kept a second time; the ids are of the attempt."""
    plan = make_plan(20)

    def live(seconds: float, deployment_id: str = "d-0001", attempt: int = 1) -> int:
        before = len(stream.events_of(SnapshotReady, deployment_id))
        stream.order_at(seconds, StopRequest, deployment_id, attempt=attempt)
        assert stream.run(waiting_script(plan), deployment_id, attempt) == 0
        return len(stream.events_of(SnapshotReady, deployment_id)) - before

    assert live(25) == 1
    assert live(25, attempt=stream.next_attempt()) == 0
    stream.deploy(2, StartPlan("restore", stream.events_of(Stopped)[-1].snapshot_id, "d-0001"), settings=EVERY)
    assert live(25, "d-0002") == 0
    plan.sources[0].add(*range(60_000, 70_000, 250))
    assert live(25, "d-0002", stream.next_attempt("d-0002")) == 1
    assert stream.events_of(SnapshotReady, "d-0002")[-1].snapshot_id == "d-0002-live-a0002-000001"


@pytest.mark.parametrize("kind", [StopRequest, DrainNotification])
def test_it_is_quiet_while_an_ending_is_under_way(stream: SimulatedStream, kind: Any) -> None:
    """A batch that does not end keeps the stop waiting, far beyond the next snapshot (1a.11)."""
    stream.order_at(9.0, kind)
    assert stream.run(waiting_script(make_plan(500, batch_seconds=8.5))) == 0
    assert stream.events_of(SnapshotReady) == []
    assert (kind is DrainNotification) == bool(stream.events_of(Draining))


def test_it_is_quiet_while_a_drain_is_tried(stream: SimulatedStream) -> None:
    """That is how its ending starts; both would read the same disk."""
    driver = SimulatedDriver(stream)
    attempt = driver.attempt_life.attempt
    trials: list[Any] = []
    attempt.in_background = lambda work, **_: trials.append(work)  # the trial takes its time
    stream.order_at(9.0, DrainNotification, rehearse=True)
    stream.clock.after(30.0, lambda: trials.pop(0)())
    assert driver.run(waiting_script(make_plan(5_000))) == 0
    assert stream.events_of(SnapshotReady) == []


def run_with_faults(*times: tuple[float, Fault | None], seconds: float = 60.0) -> SimulatedStream:
    """The disk of the checkpoints goes wrong at these times."""
    stream = SimulatedStream()
    stream.deploy(settings=EVERY)
    faults = FaultPlan()
    for at, fault in times:
        stream.clock.after(at, lambda fault=fault: setattr(faults, "every_write", fault))
    stream.order_at(seconds, StopRequest)
    driver = SimulatedDriver(
        stream,
        checkpoints=FaultyStore(stream.checkpoints, faults),
        control=StreamControl(stream.checkpoints, STREAM, stream.clock),
    )
    assert driver.run(waiting_script(make_plan(5_000))) == 0
    return stream


def test_a_full_disk_delays_one() -> None:
    """It is tried again under the same id, and the job runs on (Laws 2 and 3)."""
    stream = run_with_faults((5.0, Fault.NO_SPACE), (35.0, None))
    assert stream.events_of(SnapshotReady)[0].snapshot_id == "d-0001-live-a0001-000001"
    assert 35 < seconds_of(stream)[0] < 46
    assert stream.events_of(Noted) == []


def test_what_does_not_work_is_told_once_and_tried_again(stream: SimulatedStream) -> None:
    """A damaged log: an event the first time, lines in the log after it, and a snapshot when it is fixed (Law 7)."""
    key = "flights/deployments/d-0001/checkpoints/counts/metadata"

    def damage() -> None:
        stored = stream.checkpoints.get(key)
        assert stored is not None
        stream.checkpoints.put(key, b"{")
        stream.clock.after(30.0, lambda: stream.checkpoints.put(key, stored.body))

    stream.clock.after(5.0, damage)
    lived(60, stream=stream)
    assert len([note for note in stream.events_of(Noted) if "periodic" in note.text]) == 1
    assert len([line for line in stream.said if "was not taken" in line]) >= 2
    assert 35 < seconds_of(stream)[0] < 51


def test_a_clock_that_is_put_back_delays_none(stream: SimulatedStream) -> None:
    """The age of the newest one is then not known, and it is taken."""

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(5_000))
        driver.clock.sleep(15)
        stream.clock._start -= timedelta(hours=1)
        driver.clock.sleep(10)

    assert stream.run(script) == 0
    assert len(stream.events_of(SnapshotReady)) == 2


def test_a_replaced_driver_takes_none() -> None:
    """It sees the register before each, and leaves (Law 4)."""
    stream = SimulatedStream()
    settings = AgentSettings(snapshot_every_seconds=10, heartbeat_seconds=100)
    stream.deploy(settings=settings)
    stream.clock.after(9.0, lambda: stream.point_register("d-0002", 1, fencing_token=2))
    assert stream.run(waiting_script(make_plan(5_000))) == 4
    assert stream.events_of(SnapshotReady) == []
