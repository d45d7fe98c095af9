"""Homes written by the release of 2026-11-25, which every later one reads, resumes and upgrades.

A home names its files by where they lie, so each is packed from one folder and unpacked to it again. Both were made by
a ``Soak`` on commit d427fb1, and are never made anew. ``upgraded`` has two deployments and a live snapshot; the second
was restored by a finished upgrade. In ``half-upgraded`` the controller and every driver were killed (SIGKILL)
when the upgrade ``up-1`` had come to its phase ``stopping``.
"""

from __future__ import annotations

import fcntl
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOMES = Path(__file__).resolve().parents[1] / "golden" / "homes"
ROOT = Path("/tmp/airflow-streamstate-kept-homes")


@contextmanager
def unpacked(name: str) -> Iterator[Path]:
    """The folder of a kept home, as it was when it was packed, and gone afterwards; two processes take turns."""
    ROOT.mkdir(exist_ok=True)
    base = ROOT / name
    with (ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(base, ignore_errors=True)
        try:
            with tarfile.open(HOMES / f"{name}.tar.xz") as archive:
                archive.extractall(base, filter="data")
            yield base
        finally:
            shutil.rmtree(base, ignore_errors=True)
