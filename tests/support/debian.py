"""Programs of Debian's packages, unpacked into the user's cache; nothing is installed."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from support.go_program import cache_folder

SECONDS = 300


def find_or_unpack(path: str, *packages: str) -> Path | None:
    """A program of these packages, downloaded at the first use; None if there is no Debian to have them from.

    Args:
        path: of the program in the packages; its last part names the folder in the cache.
    """
    folder = cache_folder() / Path(path).name
    program = folder / "root" / path
    if program.is_file():
        return program
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once unpack once
        return program if program.is_file() or _unpack(folder, packages) else None


def _unpack(folder: Path, packages: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        work = Path(made)
        download = ["apt-get", "download", *packages]
        if _run(download, work) != 0:
            _run(["apt-get", "update"], work)  # a fresh machine has no lists
            if _run(download, work) != 0:
                return False
        for package in work.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(work / "root")], check=True, timeout=SECONDS)
        (work / "root").replace(folder / "root")
    return True


def _run(command: list[str], folder: Path) -> int:
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=SECONDS).returncode
