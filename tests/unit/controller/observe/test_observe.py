"""Looking at a deployment: with few reads, and in an order that misses no last event."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_streamstate.control.registers import CLOCKS_DIFFER_SECONDS
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observer import Observer
from airflow_streamstate.errors import (
    DeploymentNotFoundError,
    InvalidRequestError,
    StreamNotFoundError,
    UnavailableError,
)
from airflow_streamstate.launch.interface import LaunchHandle, LaunchPlace, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed, Stopped
from airflow_streamstate.protocol.positions import Heartbeat
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage


def test_looking_again_reads_only_what_can_change(stage: Stage) -> None:
    """A second poll reads no event twice: one poll of one stream stays within a handful of requests."""
    stage.deploy()
    stage.stopped()
    plan = FaultPlan()
    store = FaultyStore(stage.store, plan)
    observer = Observer(Home.of(store, store, stage.folder, stage.clock), stage.launchers, stage.clock)
    observer.observe(STREAM)
    first = len(plan.calls)
    observer.observe(STREAM)
    assert len(plan.calls) - first == 4  # register, sign of life (it is missing: is the home there?), list of events
    assert not plan.writes


def test_a_driver_that_ends_while_it_is_looked_at_has_said_its_last_word(stage: Stage) -> None:
    """The launcher is asked before the events are read: an end is never seen without its reason. (1a.13)"""
    stage.deploy()
    stage.come_to_life()
    asked = stage.launcher.status

    def status(handle: LaunchHandle) -> LaunchStatus:
        stage.say(Failed, error="ValueError: no")
        stage.end()
        return asked(handle)

    stage.launcher.status = status
    assert isinstance(stage.seen().terminal, Failed)


def test_an_unreadable_event_hides_nothing(stage: Stage) -> None:
    """A damaged event is shown as such, and the others are read. (Law 7)"""
    stage.deploy()
    stage.store.put(layout.event_key(STREAM, "d-0001", 1), b"{")
    stage.say(Stopped, snapshot_id="s", queries={})
    events = stage.controller.events(STREAM)
    assert [(entry.number, entry.problem is None) for entry in events] == [(1, False), (2, True)]
    assert stage.controller.status(STREAM).state == "stopped"


def test_another_launchers_driver_is_unknown(stage: Stage) -> None:
    """A driver that another launcher started cannot be asked, which never means dead. (1a.8)"""
    stage.deploy()
    stage.launcher.name = "other"
    seen = stage.seen()
    assert seen.launch_status.state == "unknown"
    assert "another launcher" in seen.launch_status.reason


def test_what_is_not_there_is_named(stage: Stage) -> None:
    """Unknown streams and deployments are distinguished."""
    stage.home.begin("tests")
    with pytest.raises(StreamNotFoundError):
        stage.seen()
    stage.deploy()
    with pytest.raises(DeploymentNotFoundError):
        stage.seen("d-0002")


def test_an_earlier_deployment_is_seen_at_its_last_attempt(stage: Stage) -> None:
    """A deployment that is not current is looked at where it ended. (Law 4)"""
    stage.deploy()
    stage.stopped()
    stage.controller.resume(STREAM)
    stage.stopped(5, attempt=2)
    stage.deploy("print('v2')\n")
    assert stage.seen("d-0001").attempt == 2


def test_a_driver_that_cannot_be_looked_for_is_unknown(stage: Stage) -> None:
    """A controller without the package or the configuration of a launcher knows nothing of its drivers (1a.8)."""
    stage.deploy()
    stage.come_to_life()
    stage.store.delete("orders/deployments/d-0001/launches/d-0001-a0001.json")
    stage.launcher.lost = InvalidRequestError("no launcher of this name is installed")
    stage.end(state="unknown")
    seen = stage.seen()
    assert stage.control.launch("d-0001", "d-0001-a0001") is None
    assert seen.handle is not None
    assert seen.launch_status is not None
    assert (seen.launch_status.state, seen.state) == ("unknown", "running")


def test_a_driver_that_lost_its_claim_elsewhere_says_nothing_of_the_one_that_has_it(stage: Stage) -> None:
    """Two machines may have launched one attempt on two clusters; the record names one of the two (1a.8)."""
    stage.launcher.name = "elsewhere"
    stage.launcher.exit_code = 4
    stage.deploy()
    stage.end(state="exited")
    assert stage.seen().state == "failed", "without a claim it was the only one"
    stage.come_to_life()
    seen = stage.seen()
    assert seen.launch_status is not None
    assert (seen.state, seen.launch_status.reported_end) == ("running", True)
    stage.clock.advance(seen.spec.version.settings.lost_after_seconds + CLOCKS_DIFFER_SECONDS + 1)
    assert stage.seen().state == "failed"


def test_a_reported_end_counts_by_the_clock_of_the_process_that_asks(stage: Stage) -> None:
    """A driver whose clock is late writes old times, and lives: silent is only one that this process sees unchanged."""
    stage.deploy()
    stage.come_to_life()
    stage.end(state="unknown")
    stage.launcher.reported.add("d-0001-a0001")
    observer = Observer(stage.home, stage.launchers, stage.clock)
    limit_seconds = stage.spec().version.settings.lost_after_seconds
    behind = timedelta(seconds=limit_seconds + 30)
    stage.clock.advance(10 * limit_seconds)
    for _ in range(10):
        stage.clock.advance(limit_seconds / 2)
        beat = Heartbeat(STREAM, "d-0001", 1, stage.clock.now() - behind, {})
        stage.control.put_heartbeat(beat)
        assert observer.observe(STREAM).state != "failed"
    stage.clock.advance(limit_seconds + 1)
    assert observer.observe(STREAM).state == "failed"


def test_a_launch_that_cannot_be_found_now_is_shown_as_unknown(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the register and the record of a launch a cluster may be silent, or just be given the driver: ``status``
    and ``list`` report it, and what acts still gets the error (1a.8)."""
    stage.deploy()
    stage.store.delete(layout.launch_record_key(STREAM, "d-0001", "d-0001-a0001"))

    def find(place: LaunchPlace) -> None:
        raise UnavailableError("this driver is being submitted just now", folder=place.folder)

    monkeypatch.setattr(stage.launcher, "find", find)
    (shown,) = stage.controller.statuses()
    assert (shown.state, shown.attempt) == ("launching", 1)
    observer = Observer(stage.home, stage.launchers, stage.clock)
    seen = observer.observe(STREAM, to_be_shown=True)
    assert seen.launch_status == LaunchStatus(
        "unknown", None, "this driver is being submitted just now", stage.clock.now()
    )
    with pytest.raises(UnavailableError, match="being submitted"):
        observer.observe(STREAM)
