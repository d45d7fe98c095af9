"""The SSH launcher without a host to ask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, MalformedMessageError, UnavailableError
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.launch.ssh import SshLauncher
from support.launches import launch_request
from support.loopback import free_port

KEY = "d-0001-a0001"


@pytest.fixture
def launcher() -> SshLauncher:
    return SshLauncher(SYSTEM_CLOCK)


def handle_of(**data: object) -> LaunchHandle:
    return LaunchHandle("ssh", KEY, {"options": {"host": "127.0.0.1"}, "conn_id": "", "scope": "h/s", **data})


def test_a_host_that_takes_no_connection_is_unknown(launcher: SshLauncher, tmp_path: Path) -> None:
    """With the reason; finding and launching report that they can be tried again."""
    options = {"host": "127.0.0.1", "port": free_port()}
    status = launcher.status(handle_of(options=options))
    assert status.state == "unknown"
    assert "connection refused" in status.reason
    assert launcher.kill(handle_of(options=options), 0.0).state == "unknown"
    assert launcher.status(handle_of(options={**options, "of_a_later_release": 1})).state == "unknown"
    request = launch_request(tmp_path, "", launcher="ssh", options=options)
    for act in (launcher.check, launcher.launch, lambda request: launcher.find(request.place)):
        with pytest.raises(UnavailableError, match="the host cannot be reached"):
            act(request)


def test_handles_that_are_not_its_own_are_refused(launcher: SshLauncher) -> None:
    """Another launcher's, and one that is damaged."""
    with pytest.raises(InvalidRequestError, match="another launcher's"):
        launcher.status(LaunchHandle("local", KEY, {}))
    for damaged in (handle_of(scope=None), handle_of(options="edge"), handle_of(conn_id=1)):
        with pytest.raises(MalformedMessageError, match="names no driver"):
            launcher.status(damaged)


def test_files_that_are_not_there_are_refused_before_a_host_is_asked(launcher: SshLauncher, tmp_path: Path) -> None:
    """Script, jars and files; a folder cannot be sent. Code may come later where it is only checked."""
    options = {"host": "127.0.0.1", "port": free_port()}
    (tmp_path / "folder").mkdir()
    for changes, words in (
        ({"application": str(tmp_path / "no.py")}, "the script is not there"),
        ({"py_files": (str(tmp_path / "no.zip"),)}, "a file that the driver needs is not there.*file:PATH"),
        ({"jars": (str(tmp_path / "no.jar"),)}, "a file that the driver needs is not there"),
        ({"jars": (str(tmp_path / "folder"),)}, "a folder cannot be sent"),
        ({"conf": {"spark.files": str(tmp_path / "no.csv")}}, "a file that the driver needs is not there"),
    ):
        request = launch_request(tmp_path, "", launcher="ssh", options=options, **changes)
        with pytest.raises(InvalidRequestError, match=words):
            launcher.launch(request)
    later = launch_request(tmp_path, "", launcher="ssh", options=options, py_files=(str(tmp_path / "no.zip"),))
    with pytest.raises(UnavailableError):
        launcher.check(later)


def test_the_part_that_runs_on_the_host_needs_nothing_but_python() -> None:
    """No client of any launcher is installed there, and no pyspark is imported to answer."""
    program = (
        "import sys\n"
        "for name in ('paramiko', 'boto3', 'kubernetes', 'click', 'rich', 'airflow', 'pyspark'):\n"
        "    sys.modules[name] = None\n"
        "import airflow_streamstate.launch.ssh_remote\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
