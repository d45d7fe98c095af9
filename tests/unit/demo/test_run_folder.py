"""The folder of a run of the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_streamstate.launch.processes import MARKER
from support.run_folder import FolderError, run_folder, survivors

# A run that starts an Airflow and a driver, as far as their processes go, and is then killed.
KILLED = f"""
import os, signal, subprocess, sys
from pathlib import Path
from support.run_folder import run_folder

def start(**more):
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    own = {{"stdout": subprocess.DEVNULL, "start_new_session": True}}  # the test reads the end of this run's output
    return subprocess.Popen(sleeper, env={{**os.environ, **more}}, **own).pid

folder = Path(sys.argv[1])
with run_folder(folder):
    (folder / "left").mkdir()
    (folder / "left" / "file").write_text("of the run before")
    of_run = start()
    del os.environ["STREAMSTATE_RUN_FOLDER"]
    print(of_run, start({MARKER}=f"{{folder}}/launches/d-0001-a0001"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_run(folder: Path) -> list[int]:
    """The pids that a run leaves behind."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    return [int(word) for word in done.stdout.split()]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "out"
    with run_folder(tmp_path / "out"):
        pass


def test_what_a_killed_run_has_left_is_ended_before_the_next_begins(folder: Path) -> None:
    """An old driver and a new one would write to one checkpoint."""
    left = killed_run(folder)
    assert sorted(one.pid for one in survivors(folder)) == sorted(left)
    with run_folder(folder) as ended:
        assert ended == sorted(left)
        assert survivors(folder) == []
        assert [path.name for path in folder.iterdir()] == ["run.pid"]


def test_the_processes_of_another_folder_live_on(folder: Path) -> None:
    """Also where one name starts like the other."""
    other = folder.with_name("out-2")
    with ExitStack() as both:
        left = killed_run(other)
        with run_folder(folder) as ended:
            assert ended == []
        assert sorted(one.pid for one in survivors(other)) == sorted(left)
        both.enter_context(run_folder(other))


def test_nothing_that_was_started_for_a_run_outlives_it(folder: Path) -> None:
    """Whatever session it is in."""
    with run_folder(folder):
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    assert started.wait(10) == -signal.SIGKILL
    assert "STREAMSTATE_RUN_FOLDER" not in os.environ


def test_a_folder_that_another_run_has_is_refused_by_its_pid(folder: Path) -> None:
    """And nothing of that run is touched."""
    with run_folder(folder):
        (folder / "kept").touch()
        with pytest.raises(FolderError, match=rf"pid {os.getpid()} runs in .*kill -INT {os.getpid()}"):
            run_folder(folder).__enter__()
        assert (folder / "kept").exists()


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    """By a sentence."""
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="name another one"):
        run_folder(tmp_path / "file").__enter__()


def test_a_folder_with_files_of_somebody_is_left_as_it_is(tmp_path: Path) -> None:
    """A run would remove them."""
    (tmp_path / "thesis.md").write_text("two years")
    with pytest.raises(FolderError, match="has files, and not of a run"):
        run_folder(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.md"]
