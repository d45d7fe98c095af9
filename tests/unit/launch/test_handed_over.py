"""The secrets that a driver on this machine was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.launch.local import handed_over_secrets


def handle(data: dict[str, object]) -> LaunchHandle:
    return LaunchHandle(launcher="local", launch_key="d-0001-a0001", data=data)


def test_they_are_read_from_the_folder_of_the_launch(tmp_path: Path) -> None:
    """Where its owner reads it."""
    (tmp_path / "driver.json").write_text(json.dumps({"launch_key": "d-0001-a0001", "secrets": ["hunter2"]}))
    assert handed_over_secrets(handle({"folder": str(tmp_path)})) == ("hunter2",)


def test_a_release_that_knew_no_references_handed_none_over(tmp_path: Path) -> None:
    """Its file is complete, and contains nothing of them."""
    (tmp_path / "driver.json").write_text(json.dumps({"launch_key": "d-0001-a0001", "arguments": []}))
    assert handed_over_secrets(handle({"folder": str(tmp_path)})) == ()


@pytest.mark.parametrize(
    "text", [None, "{", "[]", "{}", '{"launch_key": "x", "secrets": 1}', '{"launch_key": "x", "secrets": ["a", 3]}']
)
def test_what_cannot_be_told_is_not_taken_for_none(tmp_path: Path, text: str | None) -> None:
    """Another machine, a broken file: what a log must not show is unknown."""
    if text is not None:
        (tmp_path / "driver.json").write_text(text)
    assert handed_over_secrets(handle({"folder": str(tmp_path)})) is None
    assert handed_over_secrets(handle({})) is None
    assert handed_over_secrets(None) is None
