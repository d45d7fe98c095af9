"""What tasks count in Airflow's own metrics."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, Stats, TaskDeferred

from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.hooks.configuration import count, gauge
from airflow_streamstate.hooks.refusals import told_to_airflow


class Task:
    """A task of an operator."""

    stream_id = "flights"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """What Airflow's backend of metrics gets."""
    found: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(Stats, "incr", lambda name, tags: found.append((name, tags)))
    return found


@pytest.mark.parametrize(
    ("error", "raised", "name"),
    [
        (None, None, "success"),
        (UnavailableError("it does not answer"), AirflowException, "failure"),
        (KeyError("x"), KeyError, "failure"),
        (AirflowSkipException("not now"), AirflowSkipException, ""),
        (TaskDeferred(trigger=None, method_name="execute_complete"), TaskDeferred, ""),
    ],
)
def test_the_end_of_a_task_is_counted_once(
    sent: list[tuple[str, dict[str, str]]], error: BaseException | None, raised: Any, name: str
) -> None:
    """A task that is deferred or skipped has not ended so."""

    def act() -> None:
        with told_to_airflow(Task()):
            if error is not None:
                raise error

    if raised is None:
        act()
    else:
        with pytest.raises(raised):
            act()
    tags = {"operator": "Task", "stream_id": "flights"}
    if name == "failure":
        tags["error"] = type(error).__name__
    assert sent == ([(f"streamstate.task.{name}", tags)] if name else [])


def test_a_backend_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric is worth no task."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no statsd")

    monkeypatch.setattr(Stats, "incr", fail)
    monkeypatch.setattr(Stats, "gauge", fail)
    count("streamstate.x", a="1")
    gauge("streamstate.y", 1.0, a="1")


def test_airflows_own_functions_take_what_is_sent() -> None:
    """The real ones, with no backend configured."""
    count("streamstate.task.success", operator="Task", stream_id="flights")
    gauge("streamstate.query.lag", 3.0, stream_id="flights", query="counts", unit="rows")
