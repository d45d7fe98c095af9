"""The settings of agent and controllers."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.settings import AgentSettings, default_settings

NAMES = [field.name for field in fields(AgentSettings)]


def test_defaults_are_those_of_the_table() -> None:
    """0.2 s between looks for commands on disk, 2 s on S3; the rest is the same."""
    assert default_settings("/srv/streams") == AgentSettings(0.2, 10.0, 60.0, 30.0)
    assert default_settings("s3://bucket/home") == AgentSettings(2.0, 10.0, 60.0, 30.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 0.001, 86_401, math.nan, math.inf])
def test_a_setting_out_of_its_range_is_refused_by_name(name: str, value: float) -> None:
    """The error names the setting, the value and the range."""
    with pytest.raises(InvalidRequestError) as caught:
        AgentSettings(**{name: value})
    assert caught.value.context["setting"] == name
    assert "between 0.01 and 86400" in caught.value.next_step


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.01, 86_400])
def test_the_ends_of_the_range_are_good(name: str, value: float) -> None:
    """Both ends belong to it."""
    assert getattr(AgentSettings(**{name: value}), name) == value
