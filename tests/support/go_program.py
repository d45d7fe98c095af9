"""A server written in Go, built once at a pinned version and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

BUILD_SECONDS = 540


def cache_folder() -> Path:
    """Where built and downloaded servers are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-streamstate"


def find_or_build(name: str, version: str, module: str) -> Path | None:
    """The server's program, built if it is not there yet; None on a machine without Go.

    Args:
        module: what Go installs, with that version.

    Raises:
        RuntimeError: Go is there, and the build did not succeed: a run must not quietly test less.
    """
    folder = cache_folder() / f"{name}-{version}"
    program = folder / name
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once build once
        if not program.is_file():
            _build(go, folder, program, module)
    return program


def _build(go: str, folder: Path, program: Path, module: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        done = subprocess.run(
            [go, "install", module],
            env={**os.environ, "GOBIN": made},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program.name} could not be built: {done.stderr[-2000:]}")
        (Path(made) / program.name).replace(program)
