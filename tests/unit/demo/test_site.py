"""What ``airflow-up`` leaves for other shells, and how it ends before its first stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.home import Home, HomeConfig
from demo import site
from demo.life import end_drivers


def test_a_shell_that_sources_the_file_reaches_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in a value; only its owner can read it."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    path = tmp_path / site.SHELL_FILE
    site._write_for_shells(path, {"STREAMSTATE_HOME": "s3://streams/home", "AWS_SECRET_ACCESS_KEY": "it's $HOME"})
    assert path.stat().st_mode & 0o777 == 0o600
    said = subprocess.run(
        ["/bin/sh", "-c", f'. {path}; echo "$STREAMSTATE_HOME|$AWS_SECRET_ACCESS_KEY|$SPARK_LOCAL_IP|$PATH"'],
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert said.strip().split("|") == [
        "s3://streams/home",
        "it's $HOME",
        "127.0.0.1",
        f"{Path(sys.executable).parent}:/usr/bin:/bin",
    ]


def test_a_run_that_is_ended_before_its_first_deploy_has_no_driver_to_end(tmp_path: Path) -> None:
    """There is no home yet, which is no error."""
    end_drivers(Controller.local(Home(HomeConfig(str(tmp_path / "home"))), clock=SYSTEM_CLOCK, requested_by="test"))
