"""Requests, handles and statuses as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import get_args

import pytest

from airflow_streamstate.errors import MalformedMessageError
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest, LaunchState, LaunchStatus

REQUEST = LaunchRequest(
    launch_key="d-0001-a0001",
    application="/jobs/count.py",
    arguments=("a", "c d"),
    master="local[2]",
    conf={"spark.x": "y"},
    environment={"A": "B"},
    py_files=("/jobs/more.zip",),
    files=("/jobs/f.json",),
    packages=("g:a:1",),
    jars=("/jobs/j.jar",),
    driver_config={"home_uri": "/home", "deep": {"er": [1, None]}},
    folder="/home/l",
    log_path="/home/l/driver.log",
    spark_submit=("spark-submit", "--queue", "q"),
    working_folder="/jobs",
)
HANDLE = LaunchHandle("local", "d-0001-a0001", {"pid": 7, "folder": "/home/l"})
STATUS = LaunchStatus("exited", 3, "it ended with exit status 3", datetime(2026, 3, 1, 10, 5, 0, 250_000, timezone.utc))


@pytest.mark.parametrize(
    "value", [REQUEST, replace(REQUEST, spark_submit=None, working_folder=None), HANDLE, STATUS], ids=repr
)
def test_what_is_written_is_read_back(value: LaunchRequest | LaunchHandle | LaunchStatus) -> None:
    """The JSON of a value makes an equal value."""
    assert type(value).from_json(json.loads(json.dumps(value.to_json()))) == value


def test_unknown_fields_are_ignored() -> None:
    """What a newer release adds does not stop an older reader (Law 7)."""
    assert LaunchHandle.from_json({**HANDLE.to_json(), "colour": "red"}) == HANDLE


@pytest.mark.parametrize(
    ("cls", "raw", "field"),
    [
        (LaunchHandle, {"launcher": "local", "launch_key": "k"}, "data"),
        (LaunchHandle, {**HANDLE.to_json(), "launch_key": 7}, "launch_key"),
        (LaunchStatus, {**STATUS.to_json(), "state": "dead"}, "state"),
        (LaunchStatus, {**STATUS.to_json(), "exit_code": True}, "exit_code"),
        (LaunchStatus, {**STATUS.to_json(), "observed_at": "yesterday"}, "observed_at"),
        (LaunchRequest, {**REQUEST.to_json(), "arguments": "a b"}, "arguments"),
        (LaunchRequest, {**REQUEST.to_json(), "conf": {"spark.x": 1}}, "conf.spark.x"),
        (LaunchRequest, {**REQUEST.to_json(), "conf": ["spark.x"]}, "conf"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_the_field(
    cls: type[LaunchHandle | LaunchStatus | LaunchRequest], raw: dict[str, object], field: str
) -> None:
    """A missing or wrong field is named, and nothing is guessed (Law 7)."""
    with pytest.raises(MalformedMessageError, match=f"field {field} "):
        cls.from_json(raw)


def test_only_proof_counts_as_an_end() -> None:
    """Exited and gone are proof that a driver has ended; pending, running and unknown are not (1a.8)."""
    ended = {state for state in get_args(LaunchState) if replace(STATUS, state=state).has_ended}
    assert ended == {"exited", "gone"}
