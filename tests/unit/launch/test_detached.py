"""The claim of a launch folder. How the program behaves as a whole, ``tests/contract/launch`` shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from airflow_streamstate.launch import detached
from airflow_streamstate.launch.processes import read_stat


def run(folder: Path, *command: str, log: str = "log") -> str:
    """What the program answers."""
    argv = [sys.executable, "-I", "-S", detached.__file__, str(folder), str(folder / log), '{"a": 1}', *command]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=50, stdin=subprocess.DEVNULL).stdout


def test_the_first_claims_and_the_second_loses(tmp_path: Path) -> None:
    """Of two programs for one folder, one becomes its command, the other ends and leaves nothing (Law 2)."""
    assert run(tmp_path, "/bin/true") == "claimed"
    handle = (tmp_path / "handle.json").read_bytes()
    assert json.loads(handle)["a"] == 1
    assert run(tmp_path, "/bin/touch", str(tmp_path / "second")) == "lost"
    assert (tmp_path / "handle.json").read_bytes() == handle
    assert {path.name for path in tmp_path.iterdir()} == {"handle.json", "log"}


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    """A command that is not there, or a log that cannot be written, comes back as an error."""
    assert "error: " in run(tmp_path, "/no/such/command")
    assert run(tmp_path, "/bin/true", log="no/folder/log").startswith("error: ")


def test_start_ticks_are_those_that_others_see() -> None:
    """What a process reports of its own start is what ``/proc`` shows to all."""
    stat = read_stat(os.getpid())
    assert stat is not None
    assert detached.own_start_ticks() == stat.start_ticks
