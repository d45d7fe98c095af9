"""The environment that the local launcher gives a driver, and what of it other users can see."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.local import LocalLauncher
from support.launches import (
    COUNT_START,
    launch_request,
    living_processes,
    starts,
    wait_for_end,
    wait_until,
)

SECRET = "tr0ub4dor-and-3"


def test_nothing_secret_is_on_a_command_line_or_in_the_handle(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Arguments, configuration and the runner's own configuration can be read by their owner alone."""
    request = launch_request(
        tmp_path,
        COUNT_START + 'cat "$0"; sleep 300',
        arguments=("--password", SECRET),
        conf={"spark.hadoop.fs.s3a.secret.key": SECRET},
        driver_config={"token": SECRET},
    )
    handle = launcher.launch(request)
    wait_until(lambda: starts(tmp_path) > 0, "the driver's first line")
    for process in living_processes(request.folder):
        assert SECRET.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert SECRET not in str(handle.to_json())
    holding = {path.name for path in Path(request.folder).iterdir() if SECRET.encode() in path.read_bytes()}
    assert holding == {"driver.json", "spark.properties"}
    assert stat.S_IMODE(Path(request.folder).stat().st_mode) == 0o700
    for name in (*holding, "driver.log"):
        assert stat.S_IMODE((Path(request.folder) / name).stat().st_mode) == 0o600


def test_a_secret_is_hidden_before_a_reason_is_cut_out_of_the_log(launcher: LocalLauncher, tmp_path: Path) -> None:
    """Why it ended is found in its log: of a secret that a blank or a colon takes apart, no half is reported."""
    secret = "tr0ub4dor and:3"
    request = launch_request(
        tmp_path, f"echo 'java.io.FileNotFoundException: /x/{secret}'; exit 1", driver_config={"secrets": [secret]}
    )
    handle = launcher.launch(request)
    assert wait_for_end(launcher, handle).reason == "it ended with exit status 1: a file was not there (/x/***)"
    (Path(request.folder) / "driver.json").write_text("{")
    assert launcher.status(handle).reason == "it ended with exit status 1"


def test_the_driver_inherits_no_open_file(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A socket or a lock that the launcher has open is not kept open by the driver; its stdin is empty."""
    body = "readlink /proc/$$/fd/*\nread -r line || echo no input\n"
    reader, writer = os.pipe()
    try:
        os.set_inheritable(writer, True)
        handle = launcher.launch(launch_request(tmp_path, body))
        wait_for_end(launcher, handle)
    finally:
        os.close(reader)
        os.close(writer)
    log = launcher.logs(handle, 10_000)
    assert "pipe:" not in log
    assert "/dev/null" in log
    assert "no input" in log


def test_the_driver_hears_signals_that_its_launcher_ignores(launcher: LocalLauncher, tmp_path: Path) -> None:
    """What the launcher ignores (Python ignores SIGPIPE by itself) is not ignored in the driver."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        handle = launcher.launch(
            launch_request(tmp_path, "grep SigIgn /proc/self/status; grep SigBlk /proc/self/status")
        )
        wait_for_end(launcher, handle)
    finally:
        signal.signal(signal.SIGTERM, before)
    words = launcher.logs(handle, 10_000).split()
    assert [int(word, 16) for word in words[1::2]] == [0, 0]


def test_the_driver_has_its_environment_and_folder(launcher: LocalLauncher, tmp_path: Path) -> None:
    """The request's variables come before the launcher's own; the working folder is the one that was asked for."""
    where = tmp_path / "where"
    where.mkdir()
    outer = LocalLauncher(SYSTEM_CLOCK, environ={**os.environ, "COLOUR": "red", "SHAPE": "round"})
    request = launch_request(tmp_path, 'echo "$COLOUR $SHAPE $SPARK_LOCAL_IP $PYSPARK_PYTHON"; pwd')
    request = launch_request(
        tmp_path,
        'echo "$COLOUR $SHAPE $SPARK_LOCAL_IP $PYSPARK_PYTHON"; pwd',
        environment={**request.environment, "COLOUR": "blue", "PYSPARK_PYTHON": sys.executable},
        working_folder=str(where),
    )
    handle = outer.launch(request)
    wait_for_end(launcher, handle)
    assert launcher.logs(handle, 10_000).splitlines() == [f"blue round 127.0.0.1 {sys.executable}", str(where)]


def test_the_log_is_appended_to(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A log that is there already, of an earlier attempt, is kept."""
    log = tmp_path / "logs" / "driver.log"
    for key in ("d-0001-a0001", "d-0001-a0002"):
        handle = launcher.launch(launch_request(tmp_path, "echo once more", key=key, log_path=str(log)))
        wait_for_end(launcher, handle)
    assert log.read_text() == "once more\nonce more\n"


def test_a_driver_that_says_why_is_quoted(launcher: LocalLauncher, tmp_path: Path) -> None:
    """A missing Java comes out as one clear sentence, not only as an exit status."""
    handle = launcher.launch(launch_request(tmp_path, "echo 'JAVA_HOME is not set' >&2; exit 1"))
    assert wait_for_end(launcher, handle).reason == "it ended with exit status 1: no Java was found"
