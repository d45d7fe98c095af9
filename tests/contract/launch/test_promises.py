"""What every launcher promises, over every launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.errors import ConflictError, InvalidRequestError
from airflow_streamstate.launch.interface import Launcher, LaunchHandle, LaunchStatus
from support.launches import (
    COUNT_START,
    KEY,
    launch_request,
    living_processes,
    starts,
    wait_for_end,
    wait_until,
)

TESTS = Path(__file__).resolve().parents[2]
RUNS_ON = COUNT_START + "sleep 300"


def controller(request_json: str, *more: str) -> subprocess.Popen[str]:
    """Another controller process that launches the same request."""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return subprocess.Popen(
        [sys.executable, str(TESTS / "support" / "launch_once.py"), request_json, *more],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,
    )


@pytest.mark.parametrize("code", [0, 3, 52])
def test_the_exit_status_is_kept(launcher: Launcher, tmp_path: Path, code: int) -> None:
    """Whoever asks later, and is not the driver's parent, still learns how it ended."""
    handle = launcher.launch(launch_request(tmp_path, f"exit {code}"))
    status = wait_for_end(launcher, handle)
    assert (status.state, status.exit_code) == ("exited", code)


def test_a_driver_runs_until_it_ends(launcher: Launcher, tmp_path: Path) -> None:
    """A driver that works is running, however often one asks."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    assert {launcher.status(handle).state for _ in range(5)} == {"running"}


def test_a_handle_survives_json(launcher: Launcher, tmp_path: Path) -> None:
    """A handle that was stored and read back asks about the same driver."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    again = LaunchHandle.from_json(json.loads(json.dumps(handle.to_json())))
    assert again == handle
    assert launcher.status(again).state == "running"
    status = launcher.kill(again, 0.0)
    assert LaunchStatus.from_json(json.loads(json.dumps(status.to_json()))) == status


def test_the_same_key_twice_is_the_same_driver(launcher: Launcher, tmp_path: Path) -> None:
    """A launch that is tried again finds what it began (Law 2)."""
    request = launch_request(tmp_path, RUNS_ON)
    first = launcher.launch(request)
    assert launcher.launch(request) == first
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    assert starts(tmp_path) == 1


def test_an_ended_driver_is_not_started_again(launcher: Launcher, tmp_path: Path) -> None:
    """A launch that is tried again after the end of its driver answers with that end (Law 2)."""
    request = launch_request(tmp_path, COUNT_START + "exit 3")
    wait_for_end(launcher, launcher.launch(request))
    again = launcher.launch(request)
    assert launcher.status(again).exit_code == 3
    assert starts(tmp_path) == 1


def test_many_threads_start_one_driver(launcher: Launcher, tmp_path: Path) -> None:
    """Launchers that race for one key get one driver and one handle (Law 2)."""
    request = launch_request(tmp_path, RUNS_ON)
    handles: list[LaunchHandle] = []
    barrier = threading.Barrier(12)

    def run() -> None:
        barrier.wait(30)
        handles.append(launcher.launch(request))

    threads = [threading.Thread(target=run) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert len(handles) == 12
    assert all(handle == handles[0] for handle in handles)
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    assert starts(tmp_path) == 1


def test_many_processes_start_one_driver(launcher: Launcher, tmp_path: Path) -> None:
    """Controllers on one machine that race for one key get one driver (Law 2)."""
    request = json.dumps(launch_request(tmp_path, RUNS_ON).to_json())
    controllers = [controller(request) for _ in range(6)]
    answers = [process.communicate(timeout=50)[0] for process in controllers]
    assert [process.returncode for process in controllers] == [0] * 6
    assert len(set(answers)) == 1
    handle = LaunchHandle.from_json(json.loads(answers[0]))
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    assert starts(tmp_path) == 1
    assert launcher.kill(handle, 0.0).has_ended


def test_a_driver_outlives_its_launcher(launcher: Launcher, tmp_path: Path) -> None:
    """SIGKILL for the launcher and its whole process group does not reach the driver, and its end is still told."""
    request = launch_request(tmp_path, COUNT_START + 'while [ ! -e "$BASE/go" ]; do sleep 0.1; done\nexit 5')
    process = controller(json.dumps(request.to_json()), "linger")
    assert process.stdout is not None
    handle = LaunchHandle.from_json(json.loads(process.stdout.readline()))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert launcher.status(handle).state == "running"
    (tmp_path / "go").touch()
    assert wait_for_end(launcher, handle).exit_code == 5


def test_kill_ends_a_driver_softly_first(launcher: Launcher, tmp_path: Path) -> None:
    """A driver that ends on SIGTERM has its time to do so, and its exit status is kept."""
    body = COUNT_START + "trap 'echo bye > \"$BASE/bye\"; exit 7' TERM\nwhile :; do sleep 0.1; done"
    handle = launcher.launch(launch_request(tmp_path, body))
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    status = launcher.kill(handle, 30.0)
    assert (status.state, status.exit_code) == ("exited", 7)
    assert (tmp_path / "bye").exists()


def test_kill_ends_a_driver_that_will_not(launcher: Launcher, tmp_path: Path) -> None:
    """A driver that ignores SIGTERM is ended all the same."""
    body = "trap '' TERM\n" + COUNT_START + "while :; do sleep 0.1; done"
    request = launch_request(tmp_path, body)
    handle = launcher.launch(request)
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    status = launcher.kill(handle, 0.3)
    assert status.has_ended
    assert status.exit_code in (137, None)
    assert living_processes(request.folder) == []


def test_kill_ends_the_whole_session(launcher: Launcher, tmp_path: Path) -> None:
    """Grandchildren in process groups of their own that ignore SIGTERM, as Spark's python workers may, end too."""
    stubborn = (
        "import os, signal, time\n"
        "os.setpgid(0, 0)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setpgid(0, 0)\n"
        "open(os.environ['STARTS'], 'a').write('worker\\n')\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "stubborn.py").write_text(stubborn)
    body = f'{sys.executable} "$BASE/stubborn.py" &\n' + COUNT_START + "sleep 300"
    request = launch_request(tmp_path, body)
    handle = launcher.launch(request)
    wait_until(lambda: starts(tmp_path) == 3, "both stubborn workers and the driver")
    assert len(living_processes(request.folder)) >= 4
    assert launcher.kill(handle, 0.3).has_ended
    assert living_processes(request.folder) == []


def test_kill_is_idempotent(launcher: Launcher, tmp_path: Path) -> None:
    """Killing twice, or killing what has ended, changes nothing and is success (Law 2)."""
    handle = launcher.launch(launch_request(tmp_path, RUNS_ON))
    first = launcher.kill(handle, 0.0)
    second = launcher.kill(handle, 0.0)
    assert first.has_ended
    assert (first.state, first.exit_code) == (second.state, second.exit_code)
    ended = launcher.launch(launch_request(tmp_path, "exit 4", key="d-0001-a0002"))
    wait_for_end(launcher, ended)
    assert launcher.kill(ended, 0.0).exit_code == 4


def test_nothing_is_found_where_nothing_began(launcher: Launcher, tmp_path: Path) -> None:
    """Where no launch was ever begun, none is found, and none is made up."""
    assert launcher.find(str(tmp_path / "launches" / KEY), KEY) is None


def test_a_started_driver_is_found_by_its_key(launcher: Launcher, tmp_path: Path) -> None:
    """A caller that died before it recorded the handle finds the driver again (Law 1)."""
    request = launch_request(tmp_path, RUNS_ON)
    handle = launcher.launch(request)
    assert launcher.find(request.folder, KEY) == handle
    assert launcher.find(request.folder, "d-0001-a0009") is None


def test_a_folder_holds_one_launch(launcher: Launcher, tmp_path: Path) -> None:
    """Another key in the same folder is a conflict, not another driver's handle."""
    request = launch_request(tmp_path, RUNS_ON)
    launcher.launch(request)
    other = launch_request(tmp_path, RUNS_ON, key="d-0001-a0002", folder=request.folder)
    with pytest.raises(ConflictError, match="belongs to another launch"):
        launcher.launch(other)


def test_logs_are_the_last_of_what_was_written(launcher: Launcher, tmp_path: Path) -> None:
    """Stdout and stderr of the driver are one log; asked for few bytes, the last ones come."""
    handle = launcher.launch(launch_request(tmp_path, "echo first; echo größer; echo wrong >&2; exit 1"))
    wait_for_end(launcher, handle)
    assert launcher.logs(handle, 10_000) == "first\ngrößer\nwrong\n"
    assert launcher.logs(handle, 6) == "wrong\n"
    assert launcher.logs(handle, 0) == ""


def test_what_cannot_run_is_refused_before_anything_is_begun(launcher: Launcher, tmp_path: Path) -> None:
    """A request that cannot run leaves no trace: it can be corrected and sent again with the same key."""
    request = launch_request(tmp_path, RUNS_ON, application=str(tmp_path / "gone.py"))
    with pytest.raises(InvalidRequestError, match="the script is not there"):
        launcher.launch(request)
    assert launcher.find(request.folder, KEY) is None
    assert not Path(request.folder).exists()


def test_a_check_refuses_what_a_launch_would_refuse_and_begins_nothing(launcher: Launcher, tmp_path: Path) -> None:
    """What can be known before is told before; code that is still to be put in its place does not count as missing."""
    later = str(tmp_path / "later" / "lib.py")
    request = launch_request(
        tmp_path, RUNS_ON, application=str(tmp_path / "later" / "job.py"), py_files=(later,), files=(later,)
    )
    launcher.check(request)
    for changes, words in (
        ({"master": "nonsense"}, "not a master"),
        ({"conf": {"typo": "1"}}, "does not begin with"),
        ({"jars": (str(tmp_path / "nosuch.jar"),)}, "is not there"),
        ({"spark_submit": (str(tmp_path / "nosuch"),)}, "is not there"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            launcher.check(replace(request, **changes))
    assert launcher.find(request.folder, KEY) is None
    assert not Path(request.folder).exists()
