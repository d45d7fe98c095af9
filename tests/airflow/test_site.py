"""``airflow-up`` as a stranger uses it: a DAG triggered as it is, a run that is killed, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.airflow_home import DAGS_FOLDER, REPOSITORY
from support.airflow_site import AirflowSite, eventually
from support.run_folder import run_folder, survivors

pytestmark = [pytest.mark.named, pytest.mark.spark, pytest.mark.components, pytest.mark.timeout(1800)]

PROGRAM = "import os, runpy, sys; sys.path.append(os.getcwd()); runpy.run_module('demo', run_name='__main__')"


class Up:
    """A run below a folder, in its own process group."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, "--site", "--out", str(folder)],
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "TERM": "dumb",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = 600) -> str:
        """The first group of what it prints."""

        def look() -> str | None:
            found = re.search(pattern, self.said)
            assert found or self.process.poll() is None, self.said
            return None if found is None else found[1]

        return str(eventually(look, f"{pattern} in {self._log}", seconds))

    def interrupt(self) -> int:
        """As a terminal and tox do: the process group is signalled, and then the process once more."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out"
    for one in survivors(tmp_path / "out"):  # a run that a failed test has left holds its folder
        os.kill(one.pid, signal.SIGKILL)
    with run_folder(tmp_path / "out"):
        pass


def test_a_stranger_triggers_an_upgrade_kills_everything_and_begins_anew(folder: Path, tmp_path: Path) -> None:
    """The defaults of the DAG fit; no driver of a run that was killed meets those of the next; Ctrl-C ends all."""
    up = Up(folder, tmp_path / "first.log")
    try:
        site = AirflowSite(folder / "airflow", DAGS_FOLDER, {})
        site.url = up.wait_for(r"Airflow: (http://\S+)")
        up.wait_for(r"stream flights: driver pid (\d+) \(d-0001, attempt 1\)")
        site.unpause("upgrade_in_one_task")
        site.need_success("upgrade_in_one_task", site.trigger("upgrade_in_one_task", {}), 600)
        up.wait_for(r"stream flights: driver pid (\d+) \(d-0002, attempt 1\)")
        told = subprocess.run(
            ["/bin/sh", "-c", f". {folder}/env.sh; streamstate status flights"],
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        assert "count_by_origin_v2.py" in told
    finally:
        up.process.kill()
        up.process.wait()
    left = {one.pid for one in survivors(folder)}
    assert left

    again = Up(folder, tmp_path / "second.log")
    try:
        ended = again.wait_for(r"had left in .*: pids ([\d, ]+)")
        assert {int(pid) for pid in ended.split(",")} >= left
        again.wait_for(r"(stream flights-mean|flights d-0001: running)")
    finally:
        status = again.interrupt()
    assert status == 0
    assert survivors(folder) == []
    assert "Traceback" not in again.said
