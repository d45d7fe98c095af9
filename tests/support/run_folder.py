"""The folder of a run: one run has it at a time, and no process of a run lives on in it.

Knows nothing of tests: the demo uses it, too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_streamstate.launch.processes import MARKER, ProcessStat, all_processes, environment_of
from support.launches import end_all

RUN = "STREAMSTATE_RUN_FOLDER"
"""In the environment of every process that a run starts."""
OWNER = "run.pid"


class FolderError(RuntimeError):
    """The folder cannot be this run's; the message states why, and what to do."""


@contextmanager
def run_folder(folder: Path) -> Iterator[list[int]]:
    """An empty folder for this run; whatever was started for it has ended afterwards.

    Args:
        folder: absolute; made, or emptied once the processes of a run that was killed have been ended. One with files
            and no trace of a run is refused.

    Gives the pids of those.

    Raises:
        FolderError: another run has it, it is not a run's, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / OWNER).exists():
            raise FolderError(
                f"{folder} has files, and not of a run, which would remove them; name another folder, or remove it"
            )
        owner = (folder / OWNER).open("a+")
    except OSError as error:
        raise FolderError(f"{folder} cannot be the folder of a run: {error.strerror}; name another one") from None
    with owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner.seek(0)
            pid = owner.read().strip()
            raise FolderError(
                f"pid {pid} runs in {folder}; end it (`kill -INT {pid}`, or Ctrl-C there), or name another folder"
            ) from None
        ended = _end(folder)
        _empty(folder)
        owner.truncate(0)
        owner.write(f"{os.getpid()}\n")
        owner.flush()
        before = dict(os.environ)
        # Airflow's components write their titles over their environments, unless the second one is set.
        os.environ.update({RUN: str(folder), "SPT_NOENV": "1"})
        try:
            yield ended
        finally:
            _end(folder)
            for name in (RUN, "SPT_NOENV"):
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)


def survivors(folder: Path) -> list[ProcessStat]:
    """Every living process, but for this one, that was started for this folder: by a run, or as a driver of its home.

    Each is known by its environment, whatever session it is in and whoever its parent is by now.
    """
    return [
        one for one in all_processes() if one.is_alive and one.pid != os.getpid() and _belongs(one.pid, str(folder))
    ]


def _belongs(pid: int, folder: str) -> bool:
    found = environment_of(pid)
    launched = os.fsencode(f"{MARKER}={folder}{os.sep}")
    return os.fsencode(f"{RUN}={folder}") in found or any(each.startswith(launched) for each in found)


def _end(folder: Path) -> list[int]:
    return end_all(lambda: survivors(folder))


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name == OWNER:
            continue  # another run may wait for its lock
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
