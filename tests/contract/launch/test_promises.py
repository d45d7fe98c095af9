"""Promises of every launcher that the conformance suite does not hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.interface import Launcher, LaunchHandle
from support.launches import (
    COUNT_START,
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
    """SIGKILL of the launcher's process group does not reach the driver, whose end is still reported (Law 1)."""
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
    assert launcher.find(request.place) is None
    assert not Path(request.folder).exists()


def test_a_check_refuses_what_a_launch_would_refuse_and_begins_nothing(launcher: Launcher, tmp_path: Path) -> None:
    """What can be known before is reported before; code that is put in its place later does not count as missing."""
    later = str(tmp_path / "later" / "lib.py")
    request = launch_request(
        tmp_path, RUNS_ON, application=str(tmp_path / "later" / "job.py"), py_files=(later,), files=(later,)
    )
    request = replace(request, jars=(f"{request.folder}/code/jars/udfs.jar",))
    launcher.check(request)
    for changes, words in (
        ({"master": "nonsense"}, "not a master"),
        ({"conf": {"typo": "1"}}, "does not start with"),
        ({"jars": (str(tmp_path / "nosuch.jar"),)}, "is not there"),
        ({"spark_submit": (str(tmp_path / "nosuch"),)}, "does not exist"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            launcher.check(replace(request, **changes))
    assert launcher.find(request.place) is None
    assert not Path(request.folder).exists()
