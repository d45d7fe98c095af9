"""Looking at a deployment: with few reads, and in an order that misses no last word."""

from __future__ import annotations

import pytest

from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.observe.observe import Observer
from airflow_streamstate.errors import DeploymentNotFoundError, StreamNotFoundError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchStatus
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.events import Failed, Stopped
from support.faulty_store import FaultPlan, FaultyStore
from support.sim_stage import STREAM, Stage


def test_looking_again_reads_only_what_can_change(stage: Stage) -> None:
    """A second look reads no event twice: one look of one stream stays within a handful of requests."""
    stage.deploy()
    stage.stopped()
    plan = FaultPlan()
    store = FaultyStore(stage.store, plan)
    observer = Observer(Home.of(store, store, stage.folder, stage.clock), stage.launcher, stage.clock)
    observer.observe(STREAM)
    first = len(plan.calls)
    observer.observe(STREAM)
    assert len(plan.calls) - first == 4  # register, sign of life (there is none: is the home there?), list of events
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
    assert "launched by still" in seen.launch_status.reason


def test_what_is_not_there_is_named(stage: Stage) -> None:
    """Unknown streams and deployments are told apart."""
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
