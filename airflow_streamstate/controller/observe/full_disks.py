"""Full disks, as this machine sees them.

A driver whose home is full cannot report it: neither a heartbeat nor an event finds room, and often its log neither.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from airflow_streamstate.controller.home import Home
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.local import LocalStore

LEAST_BYTES = 1_048_576
"""With less than this, a batch's files and a heartbeat may not find room."""


def full_disks(home: Home) -> list[str]:
    """The folders of a home whose disk is full, each disk once; only disks of this machine. Quotas are not seen."""
    stores = [home.home]
    with suppress(InvalidRequestError):  # no driver could write checkpoints there
        stores.append(home.checkpoints)
    folders = [store.root for store in stores if isinstance(store, LocalStore)]
    found: dict[int, str] = {}
    for folder in (*folders, home.launch_path("x").parent):
        with suppress(OSError):
            if _is_full(folder):
                found.setdefault(folder.stat().st_dev, str(folder))
    return list(found.values())


def _is_full(folder: Path) -> bool:
    disk = os.statvfs(folder)
    is_root = os.geteuid() == 0  # root may use the reserved blocks too
    free_blocks, free_files = (disk.f_bfree, disk.f_ffree) if is_root else (disk.f_bavail, disk.f_favail)
    has_no_room = disk.f_blocks > 0 and free_blocks * disk.f_frsize < LEAST_BYTES  # 0 blocks: not counted (FUSE)
    return has_no_room or (disk.f_files > 0 and free_files == 0)
