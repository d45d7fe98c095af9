"""What happens to a deployment when Airflow ends its task."""

from __future__ import annotations

import pytest

from airflow_streamstate.hooks.task_upgrades import end_as_asked
from airflow_streamstate.protocol.commands import DrainNotification, StopRequest
from support.airflow_streams import NamedHome


@pytest.mark.parametrize(("action", "expected"), [("leave", None), ("stop", StopRequest), ("drain", DrainNotification)])
def test_what_was_asked_for_is_ordered(named: NamedHome, action: str, expected: type | None) -> None:
    """Leave means that nothing is written at all."""
    stream = named.stream()
    attempt = stream.deploy().runs()
    end_as_asked(named.hook().client, action, "flights", attempt.deployment_id)
    commands = [slot.command for slot in stream.control.journal(attempt.deployment_id).commands()]
    assert [type(command) for command in commands] == ([] if expected is None else [expected])


def test_a_newer_deployment_is_not_killed_for_an_older_task(named: NamedHome) -> None:
    """The task that is ended may be about something that was replaced long ago (Law 4)."""
    stream = named.stream()
    old = stream.deploy().runs()
    stream.deploy()
    end_as_asked(named.hook().client, "kill", "flights", old.deployment_id)
    assert named.hook().client.status("flights").state == "launching"
