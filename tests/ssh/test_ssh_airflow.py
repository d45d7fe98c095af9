"""Airflow's own connection type for SSH, over a real ``sshd``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.connection import ssh_client
from airflow_streamstate.launch.interface import LaunchRequest
from airflow_streamstate.launch.ssh import SshLauncher
from support.launches import COUNT_START, wait_for_end
from support.ssh_stage import ssh_request
from support.sshd import Sshd


@pytest.fixture
def request_by(server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LaunchRequest]:
    """A request by a connection with these extras."""

    def make(**extra: object) -> LaunchRequest:
        options = server.options
        connection = {
            "conn_type": "ssh",
            "host": options["host"],
            "port": options["port"],
            "login": options["user"],
            "extra": {"key_file": options["key_file"], **extra},
        }
        monkeypatch.setenv("AIRFLOW_CONN_EDGE", json.dumps(connection))
        request = ssh_request(server, tmp_path, COUNT_START + "exit 6")
        kept = {name: request.options[name] for name in ("python", "work_dir")}
        return replace(request, conn_id="edge", options=kept)

    return make


def test_a_driver_is_launched_by_an_airflow_connection(server: Sshd, request_by: Callable[..., LaunchRequest]) -> None:
    """With the host's key in the connection, as Airflow has it."""
    key = (server.base / "host_key.pub").read_text().rsplit(" ", 1)[0]
    launcher = SshLauncher(SYSTEM_CLOCK, ssh_client)
    handle = launcher.launch(request_by(host_key=key))
    assert wait_for_end(launcher, handle).exit_code == 6
    assert (handle.data["conn_id"], handle.data["port"]) == ("edge", server.port)


def test_a_connection_takes_no_host_key_on_trust(
    tmp_path: Path, request_by: Callable[..., LaunchRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the provider does by default; and a connection that is not there is one sentence."""
    monkeypatch.setenv("HOME", str(tmp_path))
    launcher = SshLauncher(SYSTEM_CLOCK, ssh_client)
    request = request_by()
    with pytest.raises(InvalidRequestError, match=r"is not known here.*host_key"):
        launcher.check(request)
    with pytest.raises(InvalidRequestError, match="the connection cannot be used"):
        launcher.check(replace(request, conn_id="nosuch"))
