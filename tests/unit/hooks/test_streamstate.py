"""The hook."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    StreamNotFoundError,
    UnavailableError,
)
from airflow_streamstate.hooks.streamstate import StreamStateHook, without_airflows_own
from airflow_streamstate.launch.local import inherited
from airflow_streamstate.protocol.commands import DrainNotification
from airflow_streamstate.store.local import LocalStore
from support import scripted_driver
from support.airflow_streams import NamedHome
from support.fake_clock import FakeClock


def test_a_notification_is_written_read_and_cleaned_up(named: NamedHome) -> None:
    """Where it is, what it reports, and that it is gone when it was obeyed; its content stays readable."""
    attempt = named.stream().deploy().runs()
    hook = named.hook()
    place = hook.client.order("drain", "flights", reason="new key", expires_in_seconds=60, request_id="r-1")
    assert place.key == "flights/deployments/d-0001/commands/00000001.json"
    assert named.home.home.head(place.key) is not None
    assert hook.client.notifications.clean_up("flights") == []  # it has no answer yet
    assert attempt.obey("")
    assert named.home.home.head(place.key) is None
    content = hook.client.notifications.read("flights", place.command_id)
    assert isinstance(content, DrainNotification)
    assert (content.reason, content.deployment_id) == ("new key", "d-0001")


def test_a_notification_that_was_answered_and_left_lying_is_cleaned_up(named: NamedHome) -> None:
    """An agent may die between its last event and the clean-up."""
    attempt = named.stream().deploy().runs()
    hook = named.hook()
    place = hook.client.order("drain", "flights")
    attempt.drained(place.command_id, 1)
    assert hook.client.notifications.clean_up("flights") == [place.key]
    assert named.home.home.head(str(place.key)) is None


def test_the_same_request_is_the_same_notification(named: NamedHome) -> None:
    """Asking twice is asking once, also after it was obeyed and cleaned up (Law 2)."""
    attempt = named.stream().deploy().runs()
    first = named.hook().client.order("drain", "flights", request_id="r-1")
    assert named.hook().client.order("drain", "flights", request_id="r-1") == first
    attempt.obey("")
    again = named.hook().client.order("drain", "flights", request_id="r-1")
    assert (again.command_id, again.deployment_id, again.key) == (first.command_id, "d-0001", None)


def test_a_stream_that_nobody_knows_is_refused_by_name(named: NamedHome) -> None:
    """Drain, status and wait report it, and make nothing."""
    with pytest.raises(StreamNotFoundError):
        named.hook().client.order("drain", "nobody")
    with pytest.raises(StreamNotFoundError):
        named.hook().client.status("nobody")
    with pytest.raises(StreamNotFoundError):
        named.hook().client.deployment_current_at("nobody", None)
    assert named.hook().client.statuses() == []


@pytest.mark.parametrize("stream_id", ["../x", "", "a" * 64, "Flights"])
def test_a_hostile_id_is_refused_before_anything_is_touched(named: NamedHome, stream_id: str) -> None:
    """An id becomes a path."""
    with pytest.raises(InvalidRequestError):
        named.hook().client.order("drain", stream_id)


def test_the_deployment_of_a_moment(named: NamedHome) -> None:
    """A DAG run is about what was current when it started, however late it looks."""
    stream, now, hook = named.stream(), SYSTEM_CLOCK.now(), named.hook()
    stream.deploy(now - timedelta(hours=3))
    stream.deploy(now - timedelta(hours=1))
    assert hook.client.deployment_current_at("flights", now - timedelta(hours=4)) == "d-0001"
    assert hook.client.deployment_current_at("flights", now - timedelta(hours=2)) == "d-0001"
    assert hook.client.deployment_current_at("flights", now) == "d-0002"
    assert hook.client.deployment_current_at("flights", None) == "d-0002"


def test_a_deployment_that_was_never_current_is_nobodys(named: NamedHome) -> None:
    """Its deploy recorded it and died before the register moved; a run that started then is about the one before."""
    stream, now, hook = named.stream(), SYSTEM_CLOCK.now(), named.hook()
    stream.deploy(now - timedelta(hours=3))
    stream.spec_alone(now - timedelta(hours=2))
    assert hook.client.deployment_current_at("flights", now - timedelta(hours=1)) == "d-0001"
    assert stream.deploy(now).deployment_id == "d-0003"
    assert hook.client.deployment_current_at("flights", now - timedelta(hours=1)) == "d-0001"
    assert hook.client.deployment_current_at("flights", None) == "d-0003"


def test_waiting_ends_when_it_cannot_come_or_when_time_is_over(named: NamedHome) -> None:
    """Never longer than asked (Law 6)."""
    attempt = named.stream().deploy().runs()
    clock = FakeClock(SYSTEM_CLOCK.now())
    hook = StreamStateHook(clock=clock)
    watch = WaitCondition("drained", "flights", attempt.deployment_id)
    with pytest.raises(DeadlineExceededError):
        hook.client.wait(watch, timeout_seconds=10, poll_interval_seconds=3)
    assert sum(clock.slept_seconds) == 10
    attempt.stopped()
    with pytest.raises(ConflictError, match="stopped"):
        hook.client.wait(watch, timeout_seconds=10)


def test_a_look_that_goes_wrong_says_nothing_about_the_stream(
    named: NamedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed poll is never reported as a failed job."""
    attempt = named.stream().deploy().runs()
    attempt.drained()
    hook = StreamStateHook(clock=FakeClock(SYSTEM_CLOCK.now()))
    store, failures = hook.home.home, [UnavailableError("no answer")]
    assert isinstance(store, LocalStore)
    get = store.get_within

    def fails_once(key: str, most_bytes: int) -> object:
        if failures:
            raise failures.pop()
        return get(key, most_bytes)

    monkeypatch.setattr(store, "get_within", fails_once)  # the edge to the network
    watch = WaitCondition("drained", "flights", attempt.deployment_id)
    assert hook.client.wait(watch, timeout_seconds=10).need_result()["deployment_id"] == "d-0001"
    assert failures == []


def test_what_runs_already_is_recognised_by_its_bytes(named: NamedHome, tmp_path: Path) -> None:
    """The same script under another path is the same; another argument is not."""
    script = scripted_driver.script(tmp_path, "runs")
    hook = named.hook()
    assert not hook.is_running("flights", application=script)
    hook.client.deploy(deploy_request("flights", script, arguments=("a",), master="local[2]"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    same = scripted_driver.script(elsewhere, "runs")
    assert hook.is_running("flights", application=same, arguments=["a"], master="local[2]")
    assert not hook.is_running("flights", application=same, arguments=["b"], master="local[2]")
    assert not hook.is_running("flights", application=same, arguments=["a"], master="local[2]", conf={"spark.x": "1"})
    hook.client.kill("flights", grace_seconds=1)
    assert not hook.is_running("flights", application=same, arguments=["a"], master="local[2]")


def test_the_test_button_writes_and_leaves_nothing(named: NamedHome) -> None:
    """A home that can only be read is found here, not at the first deploy."""
    works, words = named.hook().test_connection()
    assert works, words
    assert "conditional writes hold" in words
    assert [info.key for info in named.home.home.list_objects("")] == ["home.json"]


def test_the_test_button_says_what_is_wrong(named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one sentence, and without a traceback."""
    monkeypatch.setenv("AIRFLOW_CONN_STREAMSTATE_DEFAULT", '{"conn_type": "streamstate", "extra": {}}')
    works, words = named.hook().test_connection()
    assert not works
    assert "names no home" in words


def test_a_connection_that_is_not_there_is_refused_by_name(named: NamedHome) -> None:
    """The id is in the error."""
    with pytest.raises(InvalidRequestError, match="conn_id=nowhere"):
        _ = StreamStateHook("nowhere").home


def test_a_driver_does_not_inherit_airflows_own_environment() -> None:
    """Connections and settings of Airflow hold secrets, and a streaming job is none of its business."""
    environ = {
        "PATH": "/bin",
        "AIRFLOW_HOME": "/srv/airflow",
        "AIRFLOW_CONN_X": "secret",
        "AIRFLOW_VAR_Y": "secret",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "secret",
    }
    assert without_airflows_own(environ) == {"PATH": "/bin", "AIRFLOW_HOME": "/srv/airflow"}
    assert inherited(environ) == {"PATH": "/bin"}


@pytest.mark.parametrize(("level", "kept"), [(logging.NOTSET, logging.WARNING), (logging.DEBUG, logging.DEBUG)])
def test_the_logs_of_tasks_have_no_lines_of_botocore_unless_somebody_wants_them(
    named: NamedHome, level: int, kept: int
) -> None:
    """It reports at each wake-up where it has found its credentials."""
    botocore = logging.getLogger("botocore")
    before = botocore.level
    try:
        botocore.setLevel(level)
        named.hook().new_client()
        assert botocore.level == kept
    finally:
        botocore.setLevel(before)
