"""What all sensors share, in all three modes."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.bases.sensor import AirflowRescheduleException

from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import (
    DataError,
    DeadlineExceededError,
    InvalidRequestError,
    ReadOnlyError,
    StreamStateError,
    UnavailableError,
)
from airflow_streamstate.sensors.streamstate import DrainCompleteSensor
from airflow_streamstate.store.local import LocalStore
from airflow_streamstate.triggers.streamstate import EventContent
from support.airflow_fixtures import MakeContext
from support.airflow_names import TaskDeferralError
from support.airflow_streams import NamedHome
from support.airflow_upgrades import event_of
from support.scripted_driver import END_OFFSET, WATERMARK_TEXT

RESULT = {
    "deployment_id": "d-0001",
    "snapshot_id": "d-0001-drained-000001",
    "end_offsets": {"delays": [END_OFFSET]},
    "watermark_at": WATERMARK_TEXT,
    "state_rows_left": 0,
}
MODES = {
    "poke": {"mode": "poke", "deferrable": False},
    "reschedule": {"mode": "reschedule", "deferrable": False},
    "deferrable": {"deferrable": True},
}


def sensor(**more: Any) -> DrainCompleteSensor:
    values = {"stream_id": "flights", "poke_interval": 0.01, "timeout": 20.0, **more}
    return DrainCompleteSensor(task_id="drained", **values)


@pytest.mark.parametrize("mode", MODES)
def test_what_came_before_the_sensor_is_seen_at_once(named: NamedHome, context: MakeContext, mode: str) -> None:
    """The same result in every mode, and no triggerer needed."""
    named.stream().deploy().runs().drained()
    assert sensor(**MODES[mode]).execute(context()) == RESULT


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("soft_fail", "exception"), [(False, AirflowFailException), (True, AirflowSkipException)])
def test_what_cannot_come_fails_or_skips_at_once(
    named: NamedHome, context: MakeContext, mode: str, soft_fail: bool, exception: type[Exception]
) -> None:
    """Not after a timeout, and not with retries."""
    named.stream().deploy().runs().stopped()
    with pytest.raises(exception, match="stopped"):
        sensor(soft_fail=soft_fail, **MODES[mode]).execute(context())


@pytest.mark.parametrize("soft_fail", [False, True])
def test_a_job_that_failed_is_no_reason_to_look_again(named: NamedHome, context: MakeContext, soft_fail: bool) -> None:
    """An operator retries a failed job; a wait for its drain has ended."""
    named.stream().deploy().runs().failed("ValueError: boom")
    with pytest.raises(AirflowSkipException if soft_fail else AirflowFailException, match="boom"):
        sensor(soft_fail=soft_fail).execute(context())


def test_reschedule_gives_the_worker_back_in_between(named: NamedHome, context: MakeContext) -> None:
    """Nothing is kept between two pokes."""
    attempt = named.stream().deploy().runs()
    task = context()
    with pytest.raises(AirflowRescheduleException):
        sensor(**MODES["reschedule"]).execute(task)
    attempt.drained()
    assert sensor(**MODES["reschedule"]).execute(task) == RESULT


def test_deferral_carries_everything_and_comes_back_with_the_same_result(
    named: NamedHome, context: MakeContext
) -> None:
    """The whole way: execute, trigger, event, execute_complete in a new object."""
    attempt = named.stream().deploy().runs()
    with pytest.raises(TaskDeferred) as deferred:
        sensor(deferrable=True).execute(context())
    assert (deferred.value.method_name, deferred.value.kwargs) == ("execute_complete", None)
    attempt.drained()

    assert sensor(deferrable=True).execute_complete(context(), event_of(deferred.value)) == RESULT


def test_out_of_time_is_airflows_own_timeout_in_the_triggerer_too(named: NamedHome, context: MakeContext) -> None:
    """Alerts on sensor timeouts work as for every other sensor."""
    named.stream().deploy().runs()
    with pytest.raises(AirflowSensorTimeout):
        sensor(timeout=0.0).execute(context())
    event = EventContent(
        "deadline", WaitCondition("drained", "flights", "d-0001"), error=DeadlineExceededError("no time")
    )
    with pytest.raises(AirflowSensorTimeout, match="no time"):
        sensor(deferrable=True).execute_complete(context(), event.to_json())


def test_the_deployment_is_the_one_that_was_current_when_the_run_began(named: NamedHome, context: MakeContext) -> None:
    """A deployment that came later does not hide the drain that is waited for."""
    stream = named.stream()
    stream.deploy().runs().drained()
    task = context()
    stream.deploy(task["dag_run"].start_date + timedelta(seconds=1)).runs()
    assert sensor().execute(task) == RESULT


def test_a_look_that_goes_wrong_is_not_the_end(
    named: NamedHome, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed poll is never reported as a failed job."""
    named.stream().deploy().runs().drained()
    failures = [UnavailableError("no answer")]
    get = LocalStore.get_within

    def fails_once(store: LocalStore, key: str, most_bytes: int) -> object:
        if failures:
            raise failures.pop()
        return get(store, key, most_bytes)

    monkeypatch.setattr(LocalStore, "get_within", fails_once)  # the edge to the disk
    assert sensor().execute(context()) == RESULT


SETTINGS: dict[str, dict[str, Any]] = {
    "fail": {},
    "soft_fail": {"soft_fail": True},
    "never_fail": {"never_fail": True},
}
"""How a user can ask that a sensor skips."""


def mistaken(what: str, named: NamedHome, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of a sensor with this mistake, over a stream that runs."""
    named.stream().deploy().runs()
    if what == "stream":
        return {"stream_id": "fligths"}
    if what == "deployment":
        return {"deployment_id": "d-0099"}
    if what == "connection":
        return {"streamstate_conn_id": "streamstate_defualt"}
    home = {"empty home": str(named.base / "elsewhere"), "no store": "nfs://host/home"}[what]
    connection = {"conn_type": "streamstate", "extra": {"home_uri": home}}
    monkeypatch.setenv("AIRFLOW_CONN_STREAMSTATE_DEFAULT", json.dumps(connection))
    return {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("what", ["stream", "deployment", "connection", "empty home", "no store"])
def test_a_mistake_fails_at_once_under_every_setting(
    named: NamedHome, context: MakeContext, monkeypatch: pytest.MonkeyPatch, what: str, setting: str, mode: str
) -> None:
    """A DAG run is never green because the name of a stream, a connection or a home is wrong."""
    arguments = mistaken(what, named, monkeypatch)
    with pytest.raises(AirflowFailException, match=r"InvalidRequestError|NotFoundError"):
        sensor(**{**SETTINGS[setting], **MODES[mode], **arguments}).execute(context())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "error", [InvalidRequestError("no such connection"), DataError("a record is damaged"), ReadOnlyError("read-only")]
)
def test_a_mistake_that_the_triggerer_met_fails_under_every_setting(
    named: NamedHome, context: MakeContext, error: StreamStateError, setting: str
) -> None:
    """The connection may be removed, or a record damaged, while the task is deferred."""
    event = EventContent("over", WaitCondition("drained", "flights", "d-0001"), error=error)
    with pytest.raises(AirflowFailException, match=error.message):
        sensor(deferrable=True, **SETTINGS[setting]).resume_execution(
            "execute_complete", {"event": event.to_json()}, context()
        )


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("event", [{"outcome": "done"}, "nonsense"])
def test_an_event_that_cannot_be_read_fails_under_every_setting(
    named: NamedHome, context: MakeContext, event: Any, setting: str
) -> None:
    """A triggerer of a different release proves nothing about the stream."""
    with pytest.raises(AirflowFailException, match="no event"):
        sensor(deferrable=True, **SETTINGS[setting]).resume_execution("execute_complete", {"event": event}, context())


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_trigger_that_fails_is_never_a_skip(named: NamedHome, context: MakeContext, setting: str) -> None:
    """Airflow's own word of a trigger that could not run: nothing is known of the stream."""
    with pytest.raises(TaskDeferralError):
        sensor(deferrable=True, **SETTINGS[setting]).resume_execution(
            "__fail__", {"error": "Trigger failure", "traceback": []}, context()
        )


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_a_home_that_never_answered_is_no_reason_to_skip(
    named: NamedHome, context: MakeContext, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """At the timeout with ``soft_fail``: what is not known to be missing is not skipped."""
    named.stream().deploy().runs()

    def unanswered(store: LocalStore, key: str, most_bytes: int) -> object:
        raise UnavailableError("no answer", key=key)

    monkeypatch.setattr(LocalStore, "get_within", unanswered)  # the edge to the disk
    watched = sensor(soft_fail=True, timeout=0.0, deployment_id="d-0001", **MODES[mode])
    if mode == "poke":
        with pytest.raises(AirflowSensorTimeout, match="did not answer"):
            watched.execute(context())
        return
    with pytest.raises(TaskDeferred) as deferred:
        watched.execute(context())

    with pytest.raises(AirflowSensorTimeout, match="did not answer"):
        watched.resume_execution("execute_complete", {"event": event_of(deferred.value)}, context())


@pytest.mark.parametrize("mode", ["poke", "deferrable"])
def test_a_timeout_with_soft_fail_skips_while_it_is_not_there_yet(
    named: NamedHome, context: MakeContext, mode: str
) -> None:
    """As for every other sensor of Airflow."""
    named.stream().deploy().runs()
    watched = sensor(soft_fail=True, timeout=0.0, **MODES[mode])
    if mode == "poke":
        with pytest.raises(AirflowSkipException):
            watched.execute(context())
        return
    event = EventContent(
        "deadline", WaitCondition("drained", "flights", "d-0001"), error=DeadlineExceededError("no time")
    )
    with pytest.raises(AirflowSkipException):
        watched.resume_execution("execute_complete", {"event": event.to_json()}, context())
