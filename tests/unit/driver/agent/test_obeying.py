"""Commands: each is judged once, then obeyed or answered (1a.13)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL, to_json
from airflow_streamstate.protocol.commands import Command, DrainNotification, SnapshotRequest, StopRequest
from airflow_streamstate.protocol.events import Accepted, Drained, Expired, Ignored, Rejected, SnapshotReady, Stopped
from airflow_streamstate.protocol.settings import AgentSettings
from support.simulated_driver import STREAM, SimulatedDriver, SimulatedStream, make_command, make_plan, waiting_script
from support.simulated_query import SimulatedPlan


def run_until_stopped(stream: SimulatedStream, at_seconds: float = 5.0) -> None:
    stream.order_at(at_seconds, StopRequest)
    assert stream.run(waiting_script(make_plan(500))) == 0


def write(stream: SimulatedStream, command: Command) -> None:
    stream.control.journal("d-0001").write_command(command, NEWEST_PROTOCOL)


@pytest.mark.parametrize("kind", [DrainNotification, StopRequest, SnapshotRequest])
def test_a_command_for_another_deployment_is_ignored(stream: SimulatedStream, kind: type[Command]) -> None:
    """Only the deployment that an order names obeys it; it is reported, and cleaned up."""
    command = replace(make_command(kind, stream.clock, "d-0001"), deployment_id="d-0009")
    write(stream, command)
    run_until_stopped(stream)
    (ignored,) = stream.events_of(Ignored)
    assert ignored.command_id == command.command_id
    assert "d-0009" in ignored.reason
    assert ignored.command == to_json(command)
    assert stream.commands() == []


@pytest.mark.parametrize("kind", [StopRequest, SnapshotRequest])
def test_a_command_for_an_earlier_attempt_is_ignored(stream: SimulatedStream, kind: type[Command]) -> None:
    """A resume is newer: a stop of the attempt before does not end this one."""
    stream.point_register("d-0001", 2)
    stream.order(kind, attempt=1)
    stream.order_at(3.0, StopRequest, attempt=2)
    assert stream.run(waiting_script(make_plan(500)), attempt=2) == 0
    assert "attempt 1" in stream.events_of(Ignored)[0].reason
    assert stream.events_of(Stopped)[0].attempt == 2


def test_an_attempt_that_a_watcher_started_obeys_a_stop_of_the_one_before(stream: SimulatedStream) -> None:
    """The stop was ordered while the watcher acted; a request for a snapshot is asked again by its client. (Law 1)"""
    stream.point_register("d-0001", 3, is_restart=True)
    older, snapshot = stream.order(StopRequest, attempt=1), stream.order(SnapshotRequest, attempt=2)
    stop = stream.order(StopRequest, attempt=2)
    assert stream.run(waiting_script(make_plan(500)), attempt=3) == 0
    assert [event.command_id for event in stream.events_of(Stopped)] == [stop.command_id]
    assert {event.command_id for event in stream.events_of(Ignored)} == {older.command_id, snapshot.command_id}


def test_a_command_for_a_later_attempt_is_left_alone(stream: SimulatedStream) -> None:
    """A zombie does not answer what is meant for its successor (Law 4)."""
    later = stream.order(StopRequest, attempt=2)
    run_until_stopped(stream)
    assert [event.command_id for event in stream.events_of(Ignored)] == []
    assert len(stream.commands()) == 1
    assert later.command_id not in {event.command_id for event in stream.events_of(Accepted)}


@pytest.mark.parametrize("kind", [DrainNotification, StopRequest, SnapshotRequest])
def test_a_command_read_after_its_deadline_expires(stream: SimulatedStream, kind: type[Command]) -> None:
    """Not started by then, it is not started at all; the job runs on."""
    command = stream.order(kind, within_seconds=1.0)
    stream.clock.advance(2.0)
    run_until_stopped(stream)
    assert stream.events_of(Expired)[0].command_id == command.command_id
    assert stream.kinds()[-1] == "Stopped"
    assert stream.commands() == []


MS = 0.001


@pytest.mark.parametrize(
    ("age_seconds", "is_good"),
    [(60, True), (60 + MS, False), (-5, True), (-5 - MS, False)],
)
def test_a_request_for_a_snapshot_is_obeyed_up_to_its_time_to_live(age_seconds: float, is_good: bool) -> None:
    """A millisecond beyond its age, or dated ahead beyond the skew, it is ignored."""
    stream = SimulatedStream()
    stream.deploy(settings=AgentSettings(clock_skew_seconds=5))

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(500))
        driver.clock.sleep(3)
        at = stream.clock.now() - timedelta(seconds=age_seconds)
        stream.order(SnapshotRequest, requested_at=at, ttl_seconds=60.0, request_id="r-1")
        driver.agent.poll_commands_once()

    assert stream.run(script) == 0
    assert (len(stream.events_of(SnapshotReady)), len(stream.events_of(Ignored))) == (is_good, not is_good)
    assert stream.commands() == []


BAD_OBJECTS = {
    "empty": b"",
    "cut short": b'{"kind": "DrainNotification", "proto',
    "no JSON": b"\x00\xff\x00",
    "a list": b"[]",
    "an unknown kind": json.dumps({"kind": "Reboot", "protocol": NEWEST_PROTOCOL}).encode(),
    "an event": json.dumps({"kind": "Claimed", "protocol": NEWEST_PROTOCOL}).encode(),
    "a field missing": json.dumps({"kind": "DrainNotification", "protocol": NEWEST_PROTOCOL}).encode(),
    "a newer version": json.dumps({"kind": "DrainNotification", "protocol": 99}).encode(),
}


@pytest.mark.parametrize("name", BAD_OBJECTS)
def test_an_object_that_is_no_command_is_rejected_once_and_stops_nobody(stream: SimulatedStream, name: str) -> None:
    """Damaged, unknown or newer: reported once with its key, never obeyed, never fatal to the agent (Law 7)."""
    key = layout.command_key(STREAM, "d-0001", 1)
    stream.checkpoints.put(key, BAD_OBJECTS[name])
    run_until_stopped(stream)
    (rejected,) = stream.events_of(Rejected)
    assert (rejected.key, rejected.command_id, rejected.command_number) == (key, "", 1)
    assert rejected.reason
    assert stream.kinds()[-1] == "Stopped"
    assert stream.commands() == [key]


def test_other_bytes_under_the_same_key_are_rejected_again(stream: SimulatedStream) -> None:
    """One object is rejected once; another one in its place is another object."""
    key = layout.command_key(STREAM, "d-0001", 1)
    stream.checkpoints.put(key, b"{")
    stream.clock.after(2.0, lambda: stream.checkpoints.put(key, b"["))
    run_until_stopped(stream)
    assert len(stream.events_of(Rejected)) == 2


def test_a_stray_object_without_a_number_stops_nobody(stream: SimulatedStream) -> None:
    """An object that is no command is left alone (Law 7)."""
    stream.checkpoints.put(f"{layout.commands_prefix(STREAM, 'd-0001')}README.txt", b"hello")
    run_until_stopped(stream)
    assert stream.kinds()[-1] == "Stopped"


def test_the_content_of_an_accepted_command_outlives_it(stream: SimulatedStream) -> None:
    """The object is cleaned up; its event keeps requester, time and reason."""
    run_until_stopped(stream)
    accepted = stream.events_of(Accepted)[0]
    assert accepted.command["kind"] == "StopRequest"
    assert accepted.command["requested_by"] == "tests"
    assert stream.commands() == []


def test_a_command_that_had_its_end_is_not_obeyed_again(stream: SimulatedStream) -> None:
    """Killed between event and clean-up: the next attempt knows the command by its id, and cleans up (Law 2)."""
    plan = make_plan(500)
    stream.order_at(2.0, DrainNotification)
    assert stream.run(waiting_script(plan)) == 0
    done = stream.events_of(Drained)[0]
    content = dict(stream.events_of(Accepted)[0].command)
    key = layout.command_key(STREAM, "d-0001", 5)
    stream.checkpoints.put(key, json.dumps(content).encode())
    stream.next_attempt()
    assert stream.run(lambda driver: driver.clock.sleep(1.0), attempt=2) == 0
    assert stream.events_of(Drained) == [done]
    assert stream.commands() == []


def test_orders_that_come_after_the_end_are_ignored_with_the_reason(stream: SimulatedStream) -> None:
    """A stop after a stop, or a snapshot after it, is ignored since it came too late."""
    stream.order_at(2.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan())
        driver.await_all()
        stream.order(StopRequest)
        stream.order(SnapshotRequest)
        driver.clock.sleep(1.0)

    assert stream.run(script) == 0
    assert [event.reason for event in stream.events_of(Ignored)] == [
        "the deployment had stopped before it could be obeyed"
    ] * 2
    assert stream.commands() == []


def test_a_drain_that_comes_after_a_stop_waits_for_the_next_attempt(
    plan: SimulatedPlan, stream: SimulatedStream
) -> None:
    """A notification holds for the deployment, whichever attempt of it reads it (1a.11)."""
    stream.order_at(2.0, StopRequest)

    def script(driver: SimulatedDriver) -> None:
        driver.start(plan)
        driver.await_all()
        stream.order(DrainNotification)
        driver.clock.sleep(1.0)

    assert stream.run(script) == 0
    assert len(stream.commands()) == 1
    attempt = stream.next_attempt()
    assert stream.run(waiting_script(plan), attempt=attempt) == 0
    assert stream.kinds()[-1] == "Drained"
    assert stream.commands() == []
