"""The local launcher after crashes: of the launcher at any point, of a driver process, of the machine."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_streamstate.launch.folder import HANDLE, LaunchFolder
from airflow_streamstate.launch.interface import LaunchHandle, LaunchRequest
from airflow_streamstate.launch.local import LocalLauncher
from airflow_streamstate.launch.processes import read_stat
from support.launches import (
    COUNT_START,
    KEY,
    end_processes,
    launch_request,
    living_processes,
    nothing_left_behind,
    starts,
    wait_for_end,
    wait_until,
)

TESTS = Path(__file__).resolve().parents[2]
RUNS_ON = COUNT_START + "sleep 300"


def changed(handle: LaunchHandle, **changes: object) -> LaunchHandle:
    """The handle with other data, in its folder too."""
    data = {**handle.data, **changes}
    path = Path(str(data["folder"])) / HANDLE
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(data))
    return LaunchHandle(handle.launcher, handle.launch_key, data)


def leader_of(handle: LaunchHandle) -> int:
    pid = handle.data["pid"]
    assert isinstance(pid, int)
    return pid


def crash_everywhere(base: Path, actor: str) -> list[str]:
    """Kill the launcher, or the leading process, at each of its acts in turn; what each act was."""
    base.mkdir()
    printed = subprocess.run(
        [sys.executable, str(TESTS / "support" / "launch_crash.py"), str(base), actor],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        check=True,
    )
    lines = [line.partition(" ") for line in printed.stderr.splitlines()]
    return [event for number, _, event in lines if number.isdigit()]


@pytest.mark.timeout(900)
def test_a_launcher_that_dies_anywhere_leaves_something_that_can_be_resolved(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Killed at each of its acts in turn, a launch that is tried again makes exactly one driver (Laws 1 and 2)."""
    events = crash_everywhere(tmp_path / "all", "launcher")
    assert {"os.mkdir", "open", "os.link", "os.rename", "subprocess.Popen"} <= set(events)
    for turn in range(1, len(events) + 2):
        base = tmp_path / "all" / str(turn)
        with nothing_left_behind(base):
            request = LaunchRequest.from_json(json.loads((base / "request.json").read_text()))
            found = launcher.find(request.place)
            assert found is None or launcher.status(found).state in ("pending", "running")
            handle = launcher.launch(request)
            wait_until(lambda base=base: starts(base) > 0, "the driver's first line")
            assert launcher.status(handle).state == "running"
            assert starts(base) == 1
            assert launcher.find(request.place) == handle


@pytest.mark.timeout(900)
def test_a_leading_process_that_dies_anywhere_leaves_something_that_can_be_resolved(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Killed before its claim it leaves a launch that can be tried again, after it one that is gone (Law 1)."""
    events = crash_everywhere(tmp_path / "all", "leader")
    assert [event for event in events if event != "subprocess.Popen"] == [
        "open",
        "open",
        "os.link",
        "os.remove",
        "os.exec",
    ]
    states = []
    for turn in range(1, 6):
        base = tmp_path / "all" / str(turn)
        with nothing_left_behind(base):
            request = LaunchRequest.from_json(json.loads((base / "request.json").read_text()))
            found = launcher.find(request.place)
            assert found is not None
            before = launcher.status(found).state
            handle = launcher.launch(request)
            states.append((before, launcher.status(handle).state))
            wait_until(lambda base=base, before=before: before == "gone" or starts(base) > 0, "the driver's first line")
            assert starts(base) == (1 if before == "pending" else 0)
    end_processes(str(tmp_path / "all" / "6" / "launches" / KEY))
    assert states == [("pending", "running")] * 3 + [("gone", "gone")] * 2


def test_a_launch_that_was_only_recorded_is_pending(launcher: LocalLauncher, tmp_path: Path) -> None:
    """An intent alone is reported as such: it is not a driver, and not the absence of one for good (Law 1)."""
    request = launch_request(tmp_path, RUNS_ON)
    LaunchFolder(Path(request.folder)).prepare({"launch_key": KEY, "folder": request.folder})
    found = launcher.find(request.place)
    assert found is not None
    assert launcher.status(found).state == "pending"
    launcher.launch(request)
    assert launcher.status(found).state == "running"


def test_a_pending_launch_that_was_killed_never_starts(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Once closed, the key starts nothing, even if its first caller wakes up only now (1a.8)."""
    request = launch_request(tmp_path, RUNS_ON)
    LaunchFolder(Path(request.folder)).prepare({"launch_key": KEY, "folder": request.folder})
    found = launcher.find(request.place)
    assert found is not None
    assert launcher.kill(found, 0.0).state == "gone"
    again = launcher.launch(request)
    assert launcher.status(again).state == "gone"
    assert launcher.kill(again, 0.0).state == "gone"
    assert starts(tmp_path) == 0


def test_a_claim_whose_process_died_is_gone(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A leader that died between its claim and the driver's first line leaves nothing, and nothing is started again."""
    request = launch_request(tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    os.kill(leader_of(handle), signal.SIGKILL)
    end_processes(request.folder)
    assert wait_for_end(launcher, handle).state == "gone"
    assert launcher.launch(request) == handle
    assert launcher.status(handle).state == "gone"


def test_a_driver_without_its_leader_still_runs(launcher: LocalLauncher, tmp_path: Path) -> None:
    """SIGKILL for the leading shell alone does not make the rest of its session dead, and kill still ends it."""
    request = launch_request(tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    os.kill(leader_of(handle), signal.SIGKILL)
    wait_until(lambda: read_stat(leader_of(handle)) is None, "the end of the leader")
    assert launcher.status(handle).state == "running"
    assert launcher.kill(handle, 0.0).state == "gone"
    assert living_processes(request.folder) == []


def test_an_exit_status_means_that_nothing_is_left(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A process that outlives the command is ended before the driver counts as ended (1a.8)."""
    request = launch_request(tmp_path, "sleep 300 &\nexit 6")
    handle = launcher.launch(request)
    status = wait_for_end(launcher, handle)
    assert status.exit_code == 6
    wait_until(lambda: living_processes(request.folder) == [], "the end of the leader itself")


def test_a_zombie_is_not_alive(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A driver that has ended, and whose parent has not asked how, is not running."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    launcher.kill(handle, 0.0)
    with subprocess.Popen(["/bin/true"], start_new_session=True) as process:
        wait_until(lambda: (stat := read_stat(process.pid)) is not None and not stat.is_alive, "a zombie")
        stat = read_stat(process.pid)
        assert stat is not None
        Path(str(handle.data["folder"]), "exit_status").unlink(missing_ok=True)
        zombie = changed(handle, pid=process.pid, start_ticks=stat.start_ticks, locked=False)
        assert launcher.status(zombie).state == "gone"


def test_no_zombie_is_left_to_the_launcher(launcher: LocalLauncher, tmp_path: Path) -> None:
    """The launcher is never the driver's parent: a long-lived controller gathers no zombies."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    stat = read_stat(leader_of(handle))
    assert stat is not None
    assert stat.parent_pid != os.getpid()


def test_a_pid_that_is_used_again_is_neither_asked_nor_killed(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Another process that got the driver's pid is not taken for it, and survives the kill."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    launcher.kill(handle, 0.0)
    Path(str(handle.data["folder"]), "exit_status").unlink(missing_ok=True)
    with subprocess.Popen(["/bin/sleep", "300"], start_new_session=True) as innocent:
        recycled = changed(handle, pid=innocent.pid, locked=False)
        assert launcher.status(recycled).state == "gone"
        assert launcher.kill(recycled, 0.0).state == "gone"
        assert innocent.poll() is None
        innocent.kill()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"boot_id": "another-boot"}, "gone"),
        ({"boot_id": "another-boot", "host": "elsewhere"}, "unknown"),
        ({"pid_namespace": "pid:[1]", "locked": False}, "unknown"),
        ({"pid_namespace": "pid:[1]", "locked": True}, "gone"),
        ({"pid": "seven"}, "unknown"),
    ],
    ids=["other-boot", "other-host", "other-container-no-lock", "other-container-lock-free", "malformed"],
)
def test_what_cannot_be_asked_is_unknown_and_never_dead(
    launcher: LocalLauncher, tmp_path: Path, changes: Mapping[str, object], expected: str
) -> None:
    """Gone needs proof; from where none can be had, the answer is unknown, and nothing is killed (1a.8)."""
    request = launch_request(tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    elsewhere = changed(handle, **changes)
    assert launcher.status(elsewhere).state == expected
    assert launcher.kill(elsewhere, 0.0).state == expected if changes.get("pid") is None else True
    assert living_processes(request.folder) != []


def test_the_lock_tells_of_a_driver_in_another_container(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A driver whose pids mean nothing here is running while its lock is held, and is not killed from here."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    folder = LaunchFolder(Path(str(handle.data["folder"])))
    assert folder.is_held() is True
    launcher.kill(handle, 0.0)
    wait_until(lambda: folder.is_held() is False, "the lock to be free")
    Path(folder.path, "exit_status").unlink(missing_ok=True)
    elsewhere = changed(handle, pid_namespace="pid:[1]")
    with (folder.path / HANDLE).open("r+") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert launcher.status(elsewhere).state == "running"
        assert launcher.kill(elsewhere, 0.0).state == "running"
    assert launcher.status(elsewhere).state == "gone"


def test_a_folder_that_is_not_here_is_unknown(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A pending launch whose folder this machine does not have cannot be asked."""
    data = {"folder": str(tmp_path / "elsewhere"), "launch_key": KEY, "log_path": str(tmp_path / "no.log")}
    handle = LaunchHandle("local", KEY, data)
    assert launcher.status(handle).state == "unknown"
    assert launcher.kill(handle, 0.0).state == "unknown"
    assert launcher.logs(handle, 100) == ""
