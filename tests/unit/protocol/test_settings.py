"""The settings of agent and controllers."""

from __future__ import annotations

import math

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.protocol.settings import AgentSettings, default_settings
from airflow_streamstate.protocol.terms.declaration import terms_of

SECONDS = (0.01, 86_400)
RANGES = {
    **dict.fromkeys((one.name for one in terms_of(AgentSettings) if one.is_number), SECONDS),
    "clock_skew_seconds": (0, 86_400),
    "snapshot_every_seconds": (1, 31 * 86_400),
    "fetch_batch_bytes": (1 << 10, 1 << 30),
}


def test_defaults_are_those_of_the_table() -> None:
    """0.2 s between polls for commands on disk, 2 s on S3; the rest is the same."""
    rest = (10.0, 60.0, 30.0, 300.0, 15.0, 30.0, None, 4 * 1024 * 1024, 5.0, False, "")
    assert default_settings("/srv/streams") == AgentSettings(0.2, *rest)
    assert default_settings("s3://bucket/home") == AgentSettings(2.0, *rest)


@pytest.mark.parametrize("name", RANGES)
def test_a_setting_out_of_its_range_is_refused_by_name(name: str) -> None:
    """The error names the setting, the value and the range."""
    least, most = RANGES[name]
    for value in (least - 0.001, -1, most + 1, math.nan, math.inf):
        with pytest.raises(InvalidRequestError) as caught:
            AgentSettings(**{name: value})
        assert caught.value.message == f"{name} cannot have this value"
        assert str(caught.value.context[name]) == str(value)
        assert f"from {least:,} to {most:,}." in caught.value.next_step


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_the_range_are_good(name: str) -> None:
    """Both ends belong to it."""
    for value in RANGES[name]:
        assert getattr(AgentSettings(**{name: value}), name) == value


def test_what_is_off_by_default_is_nothing_else() -> None:
    """A setting is a number, but for the one that can be off."""
    with pytest.raises(InvalidRequestError, match="snapshot_ttl_seconds=None"):
        AgentSettings(snapshot_ttl_seconds=None)  # type: ignore[arg-type]
    assert AgentSettings().snapshot_every_seconds is None


@pytest.mark.parametrize("group", ["a" * 250, "a\nb", " a"])
def test_what_is_no_name_of_a_group_is_refused(group: str) -> None:
    """Before a driver starts."""
    with pytest.raises(InvalidRequestError, match="no name of a consumer group"):
        AgentSettings(commit_offsets_to_group=group)
    assert AgentSettings(commit_offsets_to_group="a" * 249).commit_offsets_to_group
