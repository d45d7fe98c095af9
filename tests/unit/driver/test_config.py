"""What a driver receives at its launch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.driver.config import DriverConfig, read_driver_config
from airflow_streamstate.errors import MalformedMessageError

CONFIG = DriverConfig(
    home_uri="s3://bucket/home",
    checkpoints_uri="/data/checkpoints",
    stream_id="flights",
    deployment_id="d-0001",
    attempt=2,
    launch_key="d-0001-a0002",
    application="/data/job.py",
    arguments=("--day", "c d"),
    s3_endpoint_url="http://127.0.0.1:5000",
    s3_region="eu-west-1",
)


def test_a_configuration_survives_the_trip_through_its_file(tmp_path: Path) -> None:
    """What the launcher writes is what the driver reads."""
    path = tmp_path / "driver.json"
    path.write_text(json.dumps(CONFIG.to_json()))
    assert read_driver_config(path) == replace(CONFIG, launch_folder=str(tmp_path))
    assert read_driver_config(path).store_options.s3.endpoint_url == "http://127.0.0.1:5000"


def test_unknown_fields_are_ignored() -> None:
    """A newer launcher may pass more than this driver understands (Law 7)."""
    assert DriverConfig.from_json({**CONFIG.to_json(), "colour": "red"}) == CONFIG


@pytest.mark.parametrize(
    ("field", "value"),
    [("attempt", "2"), ("attempt", True), ("home_uri", ""), ("arguments", "x"), ("s3_region", 4), ("stream_id", None)],
)
def test_a_field_of_another_type_is_refused_by_name(field: str, value: object) -> None:
    """A driver that would guess could write under another deployment's keys (Law 4)."""
    with pytest.raises(MalformedMessageError) as caught:
        DriverConfig.from_json({**CONFIG.to_json(), field: value})
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "attempt"),
        ({"deployment_id": "r-0b8e3c525f0e-0001"}, "scratch"),
        ({"deployment_id": "r-0b8e3c525f0e-0001", "reading": {"verb": "state"}}, "reading"),
    ],
)
def test_a_driver_knows_what_it_is(changes: dict[str, Any], kind: str) -> None:
    """By its id, and by an order to read."""
    assert replace(CONFIG, **changes).kind == kind


@pytest.mark.parametrize("body", ["", "[]", "{", None])
def test_a_damaged_or_missing_file_is_refused(tmp_path: Path, body: str | None) -> None:
    """It starts nothing."""
    path = tmp_path / "driver.json"
    if body is not None:
        path.write_text(body)
    with pytest.raises(MalformedMessageError):
        read_driver_config(path)
