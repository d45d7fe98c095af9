"""The local launcher where no process is started. With processes: ``tests/contract/launch``."""

from __future__ import annotations

import fcntl
import json
import subprocess
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import ConflictError, InvalidRequestError, MalformedMessageError, UnavailableError
from airflow_streamstate.launch.folder import HANDLE, INTENT
from airflow_streamstate.launch.interface import LaunchHandle
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.processes import read_stat, this_machine
from support.launches import KEY, launch_request

LAUNCHER = LocalLauncher(SYSTEM_CLOCK, environ={"PATH": "/usr/bin:/bin"})


def test_another_launchers_handle_is_refused() -> None:
    """A handle is asked about only where it was made."""
    with pytest.raises(InvalidRequestError, match="another launcher's"):
        LAUNCHER.status(LaunchHandle("emr", KEY, {"folder": "/x"}))


def test_a_handle_without_a_folder_is_unknown_and_not_killed() -> None:
    """A damaged handle proves nothing about a driver."""
    handle = LaunchHandle("local", KEY, {})
    assert LAUNCHER.status(handle).state == "unknown"
    assert LAUNCHER.kill(handle, 0.0).state == "unknown"


def test_a_damaged_record_is_unknown_and_starts_nothing(tmp_path: Path) -> None:
    """Where the started driver cannot be read, nothing is started a second time (Law 7)."""
    request = launch_request(tmp_path, "exit 0")
    folder = Path(request.folder)
    folder.mkdir(parents=True)
    (folder / HANDLE).write_text("{")
    with pytest.raises(MalformedMessageError):
        LAUNCHER.launch(request)
    assert LAUNCHER.status(LaunchHandle("local", KEY, {"folder": request.folder})).state == "unknown"


def test_a_driver_of_another_container_is_not_ended_by_its_number(tmp_path: Path) -> None:
    """There the number is another process: here it may be anybody's (Law 4)."""
    folder, here = tmp_path / "launch", this_machine()
    folder.mkdir(mode=0o700)
    with subprocess.Popen(["sleep", "5"], start_new_session=True) as neighbour:
        stat = read_stat(neighbour.pid)
        assert stat is not None
        facts = {"launch_key": KEY, "pid": neighbour.pid, "start_ticks": stat.start_ticks, "locked": True}
        facts |= {"host": "elsewhere", "boot_id": here.boot_id, "pid_namespace": "pid:[1]"}
        (folder / INTENT).write_text(json.dumps({"launch_key": KEY}))
        (folder / HANDLE).write_text(json.dumps(facts))
        with (folder / HANDLE).open("r+") as driver:
            fcntl.flock(driver, fcntl.LOCK_EX)
            status = LAUNCHER.kill(LaunchHandle("local", KEY, {"folder": str(folder)}), 0.0)
        is_alive = neighbour.poll() is None
        neighbour.kill()
    assert (status.state, status.reason) == ("running", "it runs in another container: it can be ended only from there")
    assert is_alive


def test_an_intent_of_another_key_is_a_conflict(tmp_path: Path) -> None:
    """A folder that another launch has started in is not shared."""
    request = launch_request(tmp_path, "exit 0")
    Path(request.folder).mkdir(parents=True)
    (Path(request.folder) / INTENT).write_text('{"launch_key": "d-0009-a0009"}')
    with pytest.raises(ConflictError, match="belongs to another launch"):
        LAUNCHER.launch(request)
    assert LAUNCHER.find(request.place) is None


def test_a_leader_that_cannot_start_is_said(tmp_path: Path) -> None:
    """A log that cannot be written comes back as an error, and the same key can be tried again."""
    (tmp_path / "log").mkdir()
    request = launch_request(tmp_path, "exit 0", log_path=str(tmp_path / "log"))
    with pytest.raises(UnavailableError, match="could not be started") as caught:
        LAUNCHER.launch(request)
    assert "Is a directory" in str(caught.value.context["answer"])
    handle = LAUNCHER.find(request.place)
    assert handle is not None
    assert LAUNCHER.status(handle).state == "pending"


def test_the_place_of_a_log_that_cannot_be_is_named(tmp_path: Path) -> None:
    """A file where the log's folder should be is the user's to fix."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="cannot be used"):
        LAUNCHER.launch(launch_request(tmp_path, "exit 0", log_path=str(tmp_path / "file" / "log")))
