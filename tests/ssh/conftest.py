"""A real ``sshd``, and launches over it of which nothing is left afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.launch import ssh_connection
from support import sshd
from support.launches import nothing_left_behind
from support.sshd import Sshd, running_sshd


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """No test here is about an answer that is late, and beside JVMs of other workers a login may take seconds."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ssh_connection, "STEP_SECONDS", 60.0)
        monkeypatch.setattr(ssh_connection, "SILENCE_SECONDS", 60.0)
        yield


@pytest.fixture(scope="session")
def started_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if why := sshd.missing():
        pytest.skip(why)
    base = tmp_path_factory.mktemp("sshd")
    home = base / "home"
    home.mkdir()
    with running_sshd(base / "server", home) as server:
        yield server


@pytest.fixture
def server(started_server: Sshd, tmp_path: Path) -> Iterator[Sshd]:
    """A host that answers, and no driver left on it afterwards."""
    with nothing_left_behind(tmp_path / "there"):
        yield started_server
